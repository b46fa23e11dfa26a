"""What a finished model writes: python -m ablate.generate RUN_DIR --prompt "...".

Masked tokens: --prompt "wh[MASK]t". Translations: --source "...", or --input FILE --output FILE.
Captions: --image FILE. Speech: --text "..." --audio FILE.wav. Forecasts: --steps N.
Masks: --image FILE --point X,Y. Images: --prompt "3 1" --image OUT.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError
from ablate.terminal.say import put

if TYPE_CHECKING:
    from ablate.training.load import Run

COLDEST = 1e-6  # logits divided by less overflow


def arguments() -> dict[str, Any]:
    """The parsed command line: run_dir, and the options that were given."""
    parser = Arguments(prog="python -m ablate.generate", description=__doc__)
    add_run_dir(parser)
    language = parser.add_argument_group("language models")
    language.add_argument(
        "--prompt",
        help="text to go on from, default: 'The ', or the start of the validation"
        " text where the tokenizer lacks that; of a masked language model, text with [MASK];"
        " of a diffusion model, the caption of an image; of a reward model, text to score",
    )
    language.add_argument("--tokens", type=int, help="how many tokens to add; default: 500")
    language.add_argument("--temperature", type=float, help="0: always the likeliest; default: 0.8")
    language.add_argument("--top-k", type=int, help="choose among the k likeliest tokens only")
    language.add_argument(
        "--top-p", type=float, help="choose among the likeliest that sum to p only"
    )
    language.add_argument("--seed", type=int, help="of sampling; default: 0")
    pairs = parser.add_argument_group("sequence-to-sequence models")
    pairs.add_argument(
        "--source",
        action="append",
        help="what to write the target of; prints it and its score; several: --source A --source B",
    )
    pairs.add_argument("--beam", type=int, help="1: greedy; default: as the run was measured")
    pairs.add_argument(
        "--length-penalty", type=float, help="the larger, the longer; default: as the run's"
    )
    pairs.add_argument("--n-best", type=int, help="how many targets to print; default: 1")
    pairs.add_argument("--show", action="store_true", help="draw the attention maps")
    pairs.add_argument("--input", type=Path, help="a file with a source in each line")
    pairs.add_argument(
        "--output", type=Path, help="file for their targets; an empty line stays empty"
    )
    captions = parser.add_argument_group("captioners, beside --beam, --n-best and the like")
    captions.add_argument(
        "--image",
        action="append",
        help="image to write the caption of, white on black; several: --image A --image B;"
        " of a diffusion model, the PNG that is written",
    )
    captions.add_argument("--index", type=int, help="or an image of the validation split, from 0")
    speech = parser.add_argument_group("text to speech, beside --beam, --length-penalty, --show")
    speech.add_argument("--text", help="what to say")
    speech.add_argument("--audio", type=Path, help="file for its sound, NAME.wav")
    masks = parser.add_argument_group(
        "segmentation models, with --image; --index is prompted where the error is largest"
    )
    masks.add_argument(
        "--point",
        action="append",
        help="a click on the object: X,Y in pixels; several: --point A --point B",
    )
    masks.add_argument("--background", action="append", help="a click on what is not the object")
    masks.add_argument("--box", help="a box around the object: X0,Y0,X1,Y1 in pixels")
    series = parser.add_argument_group("forecasters")
    series.add_argument(
        "--steps",
        type=int,
        help="values to forecast, default: data.horizon; of a diffusion model, steps of sampling",
    )
    diffusion = parser.add_argument_group("diffusion models, which write --image for --prompt")
    diffusion.add_argument(
        "--guidance", type=float, help="weight of the caption; default: as the run was measured"
    )
    diffusion.add_argument("--inpaint", help="an image of which a part is drawn anew, or --index")
    diffusion.add_argument(
        "--mask", help="that part: left, right, or an image in which it is white"
    )
    parsed = vars(parser.parse_args())
    return {
        name: value for name, value in parsed.items() if value is not None and value is not False
    }


def check_values(arguments: dict[str, Any]) -> None:
    """UserError for a value that no model could take."""
    for name in ("tokens", "top_k", "beam", "n_best", "steps"):
        if arguments.get(name, 1) < 1:
            raise UserError(f"{option(name)} {arguments[name]} must be at least 1")
    for name in ("temperature", "length_penalty", "guidance"):
        if not arguments.get(name, 0) >= 0:
            raise UserError(f"{option(name)} {arguments[name]} must not be negative")
    if 0 < arguments.get("temperature", 0) < COLDEST:
        raise UserError(
            f"--temperature {arguments['temperature']} must be 0, or at least {COLDEST}"
        )
    if not -(2**63) <= arguments.get("seed", 0) < 2**64:
        raise UserError(f"--seed {arguments['seed']} has more than 64 bits")
    if not 0 < arguments.get("top_p", 1) <= 1:
        raise UserError(f"--top-p {arguments['top_p']} must be above 0 and at most 1")
    if arguments.get("prompt") == "":
        raise UserError("--prompt is empty: give at least one character")
    if not arguments.get("text", "x").strip():
        raise UserError("--text is empty: give at least one word")
    if not all(source.strip() for source in arguments.get("source", [])):
        raise UserError("--source is empty: give at least one character")


def require_options(run: Run, arguments: dict[str, Any]) -> None:
    """UserError for an option of another kind of model."""
    strange = [option(name) for name in arguments if name not in run.task.options]
    if strange:
        raise UserError(
            f"{', '.join(strange)}: {run.path} is a {run.task.family} model, and its options are "
            f"{', '.join(map(option, run.task.options)) or 'none'}"
        )


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main() -> None:
    options = arguments()
    check_values(options)
    from ablate.training.load import load

    run = load(options.pop("run_dir"), allow=options.pop("allow"))
    if not run.task.generates:
        raise UserError(
            f"{run.path} generates nothing: it is neither a language model on text, nor a"
            f" sequence-to-sequence model, nor a captioner, nor a segmentation, nor a forecaster,"
            f" nor a diffusion model"
        )
    require_options(run, options)
    for text in run.task.generate(options, run.path):
        put(text)


if __name__ == "__main__":
    command(main)
