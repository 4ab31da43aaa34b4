"""Checks of workers that anybody may run: what they say is searched again, and liars leave the run."""
