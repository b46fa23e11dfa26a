"""What model and kernel agree on: the bases of the parts of attention, and a graph's edges."""
