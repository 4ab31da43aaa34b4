"""Training with several processes: ranks, their launcher, and how they divide a batch."""
