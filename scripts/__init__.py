"""Small programs for runs: start them as ``python scripts/<name>.py``; ``--help`` explains each."""
