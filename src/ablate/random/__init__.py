"""Random numbers by seed, step and place alone, and dropout by them."""
