"""Other engines as players: GNU Go by GTP, Stockfish by UCI."""
