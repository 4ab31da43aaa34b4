"""Self-play: many games side by side."""
