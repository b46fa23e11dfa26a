"""The interface of models and kernels: the bases of attention's components, and a graph's edges."""
