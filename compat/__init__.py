"""Every version test of the project stands here, and nowhere else."""
