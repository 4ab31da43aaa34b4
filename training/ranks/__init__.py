"""Training with several processes: ranks, their launcher, and what they share out."""
