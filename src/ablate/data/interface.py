"""The values that data, task and model exchange before training."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of the data that a model is built for: arguments of its constructor. None: the data
    has no such size.

    vocab_size: tokens. length: positions of an example. source_vocab, target_vocab, source_length,
    target_length: those of pairs. joint: source and target have the same tokens. segments: spans of
    text in an example. next_sentence: whether the second span may not follow the first. image_size:
    rows and columns of pixels. channels: of a pixel, or columns of a series. Data of another kind
    define a subclass (`Data.sizes_class`).
    """

    vocab_size: int | None = None
    length: int | None = None
    classes: int | None = None
    source_vocab: int | None = None
    target_vocab: int | None = None
    source_length: int | None = None
    target_length: int | None = None
    joint: bool | None = None
    segments: int | None = None
    next_sentence: bool | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None

    def arguments(self) -> dict[str, Any]:
        """The sizes that the data has, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TaskSettings:
    """Base of a task's settings that change the examples of the data (`Data.task_settings`)."""
