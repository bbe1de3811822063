"""Reading Slurm: commands run with bounds, answers of every generation as plain values, and where each job writes its logs."""
