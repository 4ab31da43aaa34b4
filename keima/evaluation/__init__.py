"""Measure how strong a network is."""
