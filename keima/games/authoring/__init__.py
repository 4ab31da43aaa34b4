"""Games of authors: plain Python functions as a game, the contract, and checks with clear errors."""
