"""OpenSpiel's games, queried through its Python package: dozens of games, but slower than compiled rules."""
