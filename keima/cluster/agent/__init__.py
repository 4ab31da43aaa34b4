"""What runs on a worker's machine before anything is installed there: Python's standard library alone."""
