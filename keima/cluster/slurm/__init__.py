"""Workers in jobs of a Slurm cluster: submission, the queue, and what the states of jobs mean for a worker."""
