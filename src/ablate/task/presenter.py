"""Output of a finished run besides its measures: samples, generation, figures, predictions."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ablate.config.rules import Int, Rule
from ablate.data import Batch, Data
from ablate.errors import UserError
from ablate.figures.maps import Map
from ablate.run_files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Draw = Callable[[Map, Sequence[int]], "Figure"]


def checked(read: Callable[[str], Any], rule: Rule) -> Callable[[str], Any]:
    """The type of an option of `ablate.generate` whose values follow a rule."""

    def value_of(text: str) -> Any:
        value = read(text)
        if not rule.allows(value):
            raise ArgumentTypeError(f"{text} must be {rule}")
        return value

    value_of.__name__ = read.__name__  # in an error of argparse
    return value_of


def filled(text: str) -> str:
    """The type of an option that takes a text."""
    if not text:
        raise ArgumentTypeError("is empty: pass at least one character")
    return text


Keywords = Mapping[str, Any]  # of ArgumentParser.add_argument

COUNT = checked(int, Int(1))
# Options of several kinds of models.
SEED: Keywords = {
    "type": checked(int, Int(-(2**63), 2**64 - 1)),
    "help": "random seed (default: 0)",
}
INDEX: Keywords = {"type": int, "help": "index of a validation example, from 0"}


class Presenter:
    """The output of commands for a task, whose `model` is in evaluation mode."""

    # The kind of model, in messages of ablate.generate; the options of `generate`, by their names
    # with the keywords of ArgumentParser.add_argument; and some of them, as an example, with
    # {prompt} for that of `notes`.
    family: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Keywords]] = {}
    example_options: ClassVar[str] = ""
    # Keys of the task that act on generation, which ablate.evaluate may change.
    search_keys: ClassVar[tuple[str, ...]] = ()
    # Validation examples that may be drawn side by side.
    drawn_examples: ClassVar[int] = 1
    # The unit of the loss.
    loss_unit: ClassVar[str] = "nats"

    def __init__(self, task: Any) -> None:
        self.task, self.model, self.data = task, task.model, task.data

    def notes(self) -> dict[str, Any]:
        """Notes on the measures for result.json."""
        return {}

    def artifacts(self, folder: Path) -> list[Path]:
        """Write samples of the trained model, on the CPU, into the folder of its run; return the
        paths. Text to read is sample.txt (`write_sample`), and PNGs in figures/ go to the logger.
        """
        return []

    @property
    def generates(self) -> bool:
        """Whether `generate` supports this model and data."""
        return type(self).generate is not Presenter.generate

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        """The output of `python -m ablate.generate` for the options (of `options`) that were set.

        folder: of the run, for output files.
        """
        raise NotImplementedError

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """Columns of a table with a row for each example of a batch, each b: `loss`, and others.
        Raises UserError if examples have no loss."""
        raise UserError(
            f"{type(self.task).__name__} has no per-example loss, so no predictions are kept;"
            " language models, classifiers and sequence-to-sequence models have"
        )

    def answered(self, source: str) -> dict[str, Any]:
        """A source and the model's output for it, as a batch of size 1."""
        raise NotImplementedError

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        """Draws the attention map of a layer, for the heads with these numbers.

        examples: batches of size 1. maps: of the first. caption: the source of their targets.
        """
        draw: Draw = self.model.drawer(self.data, examples[0], maps)
        return draw


def val_example(data: Data, index: int) -> dict[str, Any]:
    """A validation example as a batch of size 1."""
    count = data.length("val")
    if not 0 <= index < count:
        raise UserError(f"--index {index}: the validation split has examples 0 to {count - 1}")
    return data.example(index)


def write_sample(folder: Path, text: str) -> Path:
    """Write the sample of a run, which its summary shows."""
    path = folder / "sample.txt"
    write_text(path, text)
    return path
