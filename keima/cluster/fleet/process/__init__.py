"""The fleet in a process of its own: its program, the Coach's client, and their messages."""
