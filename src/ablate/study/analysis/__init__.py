"""Statistics of a finished study: paired comparisons, main effects, interactions."""
