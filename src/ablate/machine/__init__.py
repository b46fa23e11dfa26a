"""The machine that a run uses: its processes, memory, signals and terminal."""
