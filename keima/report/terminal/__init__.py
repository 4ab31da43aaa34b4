"""A run in the terminal: live, as plain lines, and as tables."""
