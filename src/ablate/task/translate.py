"""Generate targets of a sequence-to-sequence model for a source, or for every line of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ablate.data.pairs import UNKNOWN
from ablate.data.parallel import lines
from ablate.errors import UserError
from ablate.run_files import write_text
from ablate.task.attention import attention_figures
from ablate.task.decoding import Decoding
from ablate.terminal.say import say

Arguments = Mapping[str, Any]  # the options of ablate.generate

BATCH = 64  # lines of a file at once


def write_targets(task: Decoding, arguments: Arguments, folder: Path) -> Iterator[str]:
    """Yield the lines to print for --source, or for --input with --output."""
    if ("source" in arguments) == ("input" in arguments):
        raise UserError("give --source TEXT, or --input FILE and --output FILE")
    if ("input" in arguments) != ("output" in arguments):
        raise UserError("--input FILE and --output FILE belong together")
    if alone := [name for name in ("show", "n_best") if name in arguments and "input" in arguments]:
        raise UserError(f"--{alone[0].replace('_', '-')} goes with --source, not with --input")
    set_search(task, arguments)
    if "input" in arguments:
        yield write_file(task, arguments["input"], arguments["output"])
    else:
        yield from write_sources(task, arguments, folder)


def set_search(task: Decoding, arguments: Arguments) -> None:
    """Set beam size and length penalty from the arguments."""
    task.beam = arguments.get("beam", task.beam)
    if task.beam == 1 and "length_penalty" in arguments:
        raise UserError("--length-penalty ranks what a beam finds: give --beam 2 or more, too")
    task.length_penalty = arguments.get("length_penalty", task.length_penalty)
    if (most := arguments.get("n_best", 1)) > task.beam:
        raise UserError(f"--n-best {most} is more than --beam {task.beam} finds")


def write_sources(task: Decoding, arguments: Arguments, folder: Path) -> Iterator[str]:
    """Yield a line per hypothesis of each source, with its score after a tab, and paths of figures.

    The figures of several sources are written to one folder per source: 1, 2, ...
    """
    sources = [source.strip() for source in arguments["source"]]
    read = task.read(sources)
    if unknown := int((read == UNKNOWN).sum()):
        note = f"{unknown} token(s) of --source never occurred in training"
        say(note, file=sys.stderr)
    yield from write_best(task, arguments, folder, sources, read)


def write_best(
    task: Decoding, arguments: Arguments, folder: Path, sources: Sequence[Any], read: Tensor
) -> Iterator[str]:
    """Yield the lines of `write_sources` for sources that are tensors. folder: of the run."""
    results = task.search(read, n_best=arguments.get("n_best", 1))
    drawn = folder / "figures" / "generated"
    for number, (source, hypotheses) in enumerate(zip(sources, results, strict=True), 1):
        for hypothesis in hypotheses:
            yield f"{task.data.target_tokenizer.decode(hypothesis.tokens)}\t{hypothesis.score:.4f}"
        if "show" in arguments:
            example = task.example(source, hypotheses[0].tokens)
            directory = drawn if len(sources) == 1 else drawn / str(number)
            if not (paths := draw(task, example, directory)):
                raise UserError(f"--show: {folder} has no attention to the source to draw")
            yield from map(str, paths)


def draw(task: Decoding, example: dict[str, Any], folder: Path) -> Sequence[Path]:
    """Draw the attention to the source for the best target; return the paths."""
    caption = "the target is what the model wrote"
    return attention_figures(task, folder, examples=[example], kinds=["cross"], caption=caption)


def write_file(task: Decoding, source: Path, target: Path) -> str:
    """Write the target of every line to the same line; the file appears once complete. Return what
    was done."""
    read = [line.strip() for line in lines(str(source), "--input")]
    if not target.parent.is_dir():
        raise UserError(f"--output {target}: there is no folder {target.parent}")
    if target.is_dir():
        raise UserError(f"--output {target} is a folder")
    if target.exists() and not target.is_file():  # a device or pipe: it would be replaced
        raise UserError(f"--output {target} is no ordinary file, which it must be")
    if target.suffix == ".gz":
        raise UserError(f"--output {target}: is written as plain text; give a name without .gz")
    written = [""] * len(read)
    # Lines of similar length share a batch; the longest come first, to run out of memory early.
    order = sorted((n for n, line in enumerate(read) if line), key=lambda n: -len(read[n]))
    with tqdm(total=len(order), unit="line", disable=None) as bar:
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for n, text in zip(batch, task.translate([read[n] for n in batch]), strict=True):
                written[n] = text
            bar.update(len(batch))
    write_text(target.resolve(), "".join(f"{line}\n" for line in written))
    return f"{len(read)} lines ({len(read) - len(order)} of them empty): {target}"


def write_captions(task: Decoding, arguments: Arguments, folder: Path) -> Iterator[str]:
    """Yield a line per hypothesis for --image or --index, with its score after a tab."""
    if ("image" in arguments) == ("index" in arguments):
        raise UserError("give --image FILE, or --index N of the validation split")
    set_search(task, arguments)
    if "image" in arguments:
        read = task.read(arguments["image"])
    else:
        read = task.numbered(arguments["index"])["images"]
    yield from write_best(task, arguments, folder, list(read), read)
