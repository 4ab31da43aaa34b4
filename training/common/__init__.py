"""What every room of training uses: files, logs, random streams, signals, run locks, and the reports of a run."""
