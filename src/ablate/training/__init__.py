"""Building, training, measuring and loading a single run."""
