"""Launching a study's runs: locally, by Slurm or by Ray; resumed wherever they stopped."""
