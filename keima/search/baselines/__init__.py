"""Searches that need no network: UCT with random playouts, and alpha-beta on the score of the board."""
