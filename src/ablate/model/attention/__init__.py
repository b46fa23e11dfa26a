"""Score functions: how well a key matches a query. One class per file, on the base `Score`."""

from ablate.kernel.interface.score import Lowered, Score, Summed, require_equal_widths

__all__ = ["Lowered", "Score", "Summed", "require_equal_widths"]
