"""What the commands share: arguments, help, the summary of a run, broken pipes."""
