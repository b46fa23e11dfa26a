"""Launch a study's runs locally, by Slurm or by Ray; stopped runs are resumed."""
