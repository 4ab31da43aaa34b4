"""2048: rules and an expectimax player."""
