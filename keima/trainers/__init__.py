"""Whole runs on this machine, as a call: a Coach wired to local processes."""
