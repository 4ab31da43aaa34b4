"""Self-play: many games side by side: single groups, several groups by turns, and how many play at a time."""
