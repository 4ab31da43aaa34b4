"""A whole run: the coach, its backends, and how a run begins and goes on."""
