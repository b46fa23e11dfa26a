"""Targets of a sequence-to-sequence model for a source, or for every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor
from tqdm import tqdm

from ablate.config.rules import Real
from ablate.data import Batch
from ablate.data.pairs import UNKNOWN
from ablate.data.parallel import lines
from ablate.errors import UserError
from ablate.figures.maps import Map
from ablate.figures.pairs import pair_drawer
from ablate.machine.terminal.say import say
from ablate.run_files import write_text
from ablate.task.attention import alignments, attention_figures
from ablate.task.causal_lm import by_example
from ablate.task.presenter import COUNT, Draw, Keywords, Presenter, checked, filled, write_sample

Arguments = Mapping[str, Any]  # the options of ablate.generate

BATCH = 64  # lines of a file at once
SHOWN = 6  # validation examples in the sample

# Options of several presenters.
SEARCH: Mapping[str, Keywords] = {
    "beam": {"type": COUNT, "help": "beam size; 1: greedy (default: the run's task.beam)"},
    "length_penalty": {
        "type": checked(float, Real(0)),
        "help": "length-penalty exponent; larger values favor longer outputs (default: the run's)",
    },
    "show": {"action": "store_true", "help": "plot the attention maps"},
}
N_BEST: Keywords = {"type": COUNT, "help": "number of outputs to print (default: 1)"}


class PairPresenter(Presenter):
    """Outputs for sources."""

    family: ClassVar[str] = "sequence-to-sequence"
    options: ClassVar[Mapping[str, Keywords]] = {
        "source": {
            "type": lambda text: filled(text.strip()),
            "action": "append",
            "help": "source text to translate; prints the target and its score (repeatable)",
        },
        **SEARCH,
        "n_best": N_BEST,
        "input": {"type": Path, "help": "file with one source per line"},
        "output": {
            "type": Path,
            "help": "file for the targets, one per line; empty lines stay empty",
        },
    }
    example_options: ClassVar[str] = '--source "..."'
    search_keys: ClassVar[tuple[str, ...]] = ("beam", "length_penalty", "max_length")
    drawn_examples = 4

    def notes(self) -> dict[str, Any]:
        return {"signatures": self.task.written.signatures()}

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """The mean loss of the targets of each example, and the share of them that is right."""
        return by_example(self.model(*self.task.inputs(batch)), batch["targets"])

    def artifacts(self, folder: Path) -> list[Path]:
        return [write_sample(folder, self.sample())]

    def sample(self) -> str:
        """Validation examples: the source, the reference and the output."""
        examples = self.data.texts["val"][:SHOWN]
        outputs = self.task.translate([pair.source for pair in examples])
        return "\n\n".join(
            f"source     {pair.source}\nreference  {pair.target}\noutput     {output}"
            for pair, output in zip(examples, outputs, strict=True)
        )

    def answered(self, source: str) -> dict[str, Any]:
        (best, *_), *_ = self.task.search(self.task.read([source]))
        return self.task.example(source, best.tokens)

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        single = alignments(self.task, examples, maps)
        return pair_drawer(self.data, examples, single, caption)

    def generate(self, arguments: Arguments, folder: Path) -> Iterable[str]:
        """Yield the lines to print for --source, or for --input with --output."""
        if ("source" in arguments) == ("input" in arguments):
            raise UserError("either --source TEXT, or --input FILE and --output FILE are required")
        if ("input" in arguments) != ("output" in arguments):
            raise UserError("--input FILE and --output FILE belong together")
        alone = [name for name in ("show", "n_best") if name in arguments and "input" in arguments]
        if alone:
            raise UserError(f"--{alone[0].replace('_', '-')} goes with --source, not with --input")
        self.set_search(arguments)
        if "input" in arguments:
            yield self._write_file(arguments["input"], arguments["output"])
        else:
            yield from self._write_sources(arguments, folder)

    def set_search(self, arguments: Arguments) -> None:
        """Set beam size and length penalty from the arguments."""
        task = self.task
        task.beam = arguments.get("beam", task.beam)
        if task.beam == 1 and "length_penalty" in arguments:
            raise UserError(
                "--length-penalty has no effect without a beam: set --beam to 2 or more"
            )
        task.length_penalty = arguments.get("length_penalty", task.length_penalty)
        if (most := arguments.get("n_best", 1)) > task.beam:
            raise UserError(f"--n-best {most} is more than --beam {task.beam} finds")

    def _write_sources(self, arguments: Arguments, folder: Path) -> Iterator[str]:
        sources = arguments["source"]
        read = self.task.read(sources)
        if unknown := int((read == UNKNOWN).sum()):
            note = f"{unknown} token(s) of --source never occurred in training"
            say(note, file=sys.stderr)
        yield from self.write_best(arguments, folder, sources, read)

    def write_best(
        self, arguments: Arguments, folder: Path, sources: Sequence[Any], read: Tensor
    ) -> Iterator[str]:
        """Yield a line per hypothesis of each source, with its score after a tab, and paths of
        figures; those of several sources are in a folder each: 1, 2, ...

        read: the sources as tensors. folder: of the run.
        """
        results = self.task.search(read, n_best=arguments.get("n_best", 1))
        drawn, decode = folder / "figures" / "generated", self.data.target_tokenizer.decode
        for number, (source, hypotheses) in enumerate(zip(sources, results, strict=True), 1):
            for hypothesis in hypotheses:
                yield f"{decode(hypothesis.tokens)}\t{hypothesis.score:.4f}"
            if "show" in arguments:
                example = self.task.example(source, hypotheses[0].tokens)
                directory = drawn if len(sources) == 1 else drawn / str(number)
                if not (paths := self.draw(example, directory)):
                    raise UserError(f"--show: {folder} has no attention to the source to plot")
                yield from map(str, paths)

    def draw(self, example: dict[str, Any], folder: Path) -> Sequence[Path]:
        """Draw the attention to the source for the best target; return the paths."""
        caption = "target: generated by the model"
        return attention_figures(
            self.task, folder, examples=[example], kinds=["cross"], caption=caption
        )

    def _write_file(self, source: Path, target: Path) -> str:
        """Write the target of every line to the same line; the file appears once complete. Return
        a message for the user."""
        read = [line.strip() for line in lines(str(source), "--input")]
        if not target.parent.is_dir():
            raise UserError(f"--output {target}: {target.parent} does not exist")
        if target.is_dir():
            raise UserError(f"--output {target} is a folder")
        if target.exists() and not target.is_file():  # a device or pipe: it would be replaced
            raise UserError(f"--output {target} is not a regular file")
        if target.suffix == ".gz":
            raise UserError(f"--output {target}: output is plain text; choose a name without .gz")
        written = [""] * len(read)
        # Lines of similar length share a batch; the longest come first, to run out of memory early.
        order = sorted((n for n, line in enumerate(read) if line), key=lambda n: -len(read[n]))
        with tqdm(total=len(order), unit="line", disable=None) as bar:
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                texts = self.task.translate([read[n] for n in batch])
                for n, text in zip(batch, texts, strict=True):
                    written[n] = text
                bar.update(len(batch))
        write_text(target.resolve(), "".join(f"{line}\n" for line in written))
        return f"{len(read)} lines ({len(read) - len(order)} of them empty): {target}"
