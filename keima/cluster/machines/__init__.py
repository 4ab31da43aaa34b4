"""Preparing machines: checks, the code and packages that they get, and the list of workers."""
