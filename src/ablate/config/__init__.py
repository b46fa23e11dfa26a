"""A composition: what was chosen, made into one checked configuration, without torch."""
