"""Random numbers that depend only on seed, name, step and place, and dropout by them."""
