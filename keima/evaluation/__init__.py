"""Measure how strong a network is: matches, Elo ratings, scores of one-player games, and errors on solved positions."""
