"""Workers on other machines: over SSH, in Slurm jobs, in a Ray cluster; and as processes of this one."""
