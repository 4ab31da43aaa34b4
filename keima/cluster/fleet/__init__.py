"""The machines of a cluster at work: connections, mirrors, states, and shares of games."""
