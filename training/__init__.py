"""Learning: search, self-play, game records, the replay window, networks, the learner and its coach."""
