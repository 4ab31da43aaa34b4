"""What Python programs get from ``import keima``: networks, single games, and the games of a run."""
