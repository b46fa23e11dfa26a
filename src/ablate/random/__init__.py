"""Random numbers by seed, name, step and place alone, and dropout by them."""
