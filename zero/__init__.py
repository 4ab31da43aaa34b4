"""The names by which the guide to 2048 imports the game, which is ``keima.games.twenty48``."""
