"""Games by users: plain Python functions as a game, the contract, and checks with clear errors."""
