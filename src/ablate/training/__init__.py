"""One run: its parts built, trained, measured and loaded again."""
