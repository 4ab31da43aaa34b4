"""Ratings on an external scale: ladders of engines, games against them, and what the games say."""
