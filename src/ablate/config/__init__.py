"""Compose the chosen options into one checked configuration."""
