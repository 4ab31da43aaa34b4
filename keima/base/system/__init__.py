"""Processes, threads, signals, priorities, disks and logs of this machine."""
