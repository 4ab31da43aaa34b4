"""Shared by all rooms of training: files, logs, random streams, signals, run locks, and the reports of a run."""
