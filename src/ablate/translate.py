"""What a sequence-to-sequence model writes for a source, or for every line of a file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ablate.data.pairs import UNKNOWN
from ablate.errors import UserError
from ablate.figures import attention_figures
from ablate.load import Run
from ablate.record import write_text
from ablate.task.seq2seq import SequenceToSequence

BATCH = 64  # lines of a file at once


def write_targets(run: Run, task: SequenceToSequence, given: dict[str, Any]) -> None:
    """What --source or --input asks for."""
    if ("source" in given) == ("input" in given):
        raise UserError("give --source TEXT, or --input FILE and --output FILE")
    if ("input" in given) != ("output" in given):
        raise UserError("--input FILE and --output FILE belong together")
    if alone := [name for name in ("show", "n_best") if name in given and "input" in given]:
        raise UserError(f"--{alone[0].replace('_', '-')} goes with --source, not with --input")
    set_search(task, given)
    if "input" in given:
        write_file(task, given["input"], given["output"])
    else:
        for line in write_source(run, task, given):
            print(line)


def set_search(task: SequenceToSequence, given: dict[str, Any]) -> None:
    """Search as was asked for."""
    task.beam = given.get("beam", task.beam)
    if task.beam == 1 and "length_penalty" in given:
        raise UserError("--length-penalty ranks what a beam finds: give --beam 2 or more, too")
    task.length_penalty = given.get("length_penalty", task.length_penalty)
    if (most := given.get("n_best", 1)) > task.beam:
        raise UserError(f"--n-best {most} is more than --beam {task.beam} finds")


def write_source(run: Run, task: SequenceToSequence, given: dict[str, Any]) -> Iterator[str]:
    """A line for each hypothesis, its score after a tab; where the drawings lie."""
    source = task.read([given["source"].strip()])
    if unknown := int((source == UNKNOWN).sum()):
        note = f"{unknown} token(s) of --source never occurred in training"
        print(f"ablate: {note}", file=sys.stderr)
    (found,) = task.search(source, n_best=given.get("n_best", 1))
    for one in found:
        yield f"{task.data.target_tokenizer.decode(one.tokens)}\t{one.score:.4f}"
    if "show" in given:
        paths = attention_figures(
            task,
            run.path / "figures" / "generated",
            examples=[task.example(given["source"].strip(), found[0].tokens)],
            kinds=["cross"],
            caption="the target is what the model wrote",
        )
        if not paths:
            raise UserError(f"--show: {run.path} has no attention to the source to draw")
        yield from map(str, paths)


def write_file(task: SequenceToSequence, source: Path, target: Path) -> None:
    """The target of every line, in the same line; the file appears when it is whole."""
    lines = read_lines(source)
    if not target.parent.is_dir():
        raise UserError(f"--output {target}: there is no folder {target.parent}")
    if target.is_dir():
        raise UserError(f"--output {target} is a folder")
    written = [""] * len(lines)
    # Lines of similar length share a batch; the longest come first, so that memory fails at once.
    order = sorted((n for n, line in enumerate(lines) if line), key=lambda n: -len(lines[n]))
    with tqdm(total=len(order), unit="line", disable=None) as bar:
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            for n, text in zip(batch, task.translate([lines[n] for n in batch]), strict=True):
                written[n] = text
            bar.update(len(batch))
    write_text(target, "".join(f"{line}\n" for line in written))
    print(f"{len(lines)} lines ({len(lines) - len(order)} of them empty): {target}")


def read_lines(path: Path) -> list[str]:
    """Without spaces at their ends; UserError for a file that is no text."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"--input {path}: is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise UserError(f"--input {path}: cannot be read ({error.strerror})") from error
    # Only line feeds end a line: other tools count the same lines.
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []
