"""Worker processes and learner ranks on this machine."""
