"""Shared code of the commands: arguments, help, the summary of a run."""
