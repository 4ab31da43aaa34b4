"""The rules by which the guide's programs play: ``GameRules(height, width)`` is 2048."""

from keima.games.twenty48.rules import GameRules

__all__ = ["GameRules"]
