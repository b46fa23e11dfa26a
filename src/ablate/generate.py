"""Generate output with a finished run: python -m ablate.generate RUN_DIR --prompt "...".

Masked tokens: --prompt "wh[MASK]t". Translations: --source "...", or --input FILE --output FILE.
Captions: --image FILE. Speech: --text "..." --audio FILE.wav. Forecasts: --steps N.
Masks: --image FILE --point X,Y. Images: --prompt "3 1" --image OUT.png."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.errors import UserError
from ablate.machine.terminal.say import put

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
        help="prompt to continue (default: 'The ', or the start of the validation text if the"
        " tokenizer lacks it); masked language models: text with [MASK]; diffusion models: the"
        " caption of an image; reward models: text to score",
    )
    language.add_argument("--tokens", type=int, help="number of tokens to generate (default: 500)")
    language.add_argument(
        "--temperature", type=float, help="sampling temperature; 0: greedy (default: 0.8)"
    )
    language.add_argument("--top-k", type=int, help="sample from the k most likely tokens")
    language.add_argument(
        "--top-p",
        type=float,
        help="sample from the most likely tokens whose probabilities sum to p",
    )
    language.add_argument("--seed", type=int, help="random seed for sampling (default: 0)")
    pairs = parser.add_argument_group("sequence-to-sequence models")
    pairs.add_argument(
        "--source",
        action="append",
        help="source text to translate; prints the target and its score (repeatable)",
    )
    pairs.add_argument(
        "--beam", type=int, help="beam size; 1: greedy (default: the run's task.beam)"
    )
    pairs.add_argument(
        "--length-penalty",
        type=float,
        help="length-penalty exponent; larger values favor longer outputs (default: the run's)",
    )
    pairs.add_argument("--n-best", type=int, help="number of targets to print (default: 1)")
    pairs.add_argument("--show", action="store_true", help="plot the attention maps")
    pairs.add_argument("--input", type=Path, help="file with one source per line")
    pairs.add_argument(
        "--output", type=Path, help="file for the targets, one per line; empty lines stay empty"
    )
    captions = parser.add_argument_group(
        "captioners, in addition to --beam, --length-penalty, --n-best and --show"
    )
    captions.add_argument(
        "--image",
        action="append",
        help="image to caption, white on black (repeatable); diffusion models: the PNG to write",
    )
    captions.add_argument(
        "--index", type=int, help="index of a validation image, from 0, instead of --image"
    )
    speech = parser.add_argument_group(
        "text to speech, in addition to --beam, --length-penalty and --show"
    )
    speech.add_argument("--text", help="text to synthesize")
    speech.add_argument("--audio", type=Path, help="WAV file to write")
    masks = parser.add_argument_group(
        "segmentation models, with --image (--index is prompted automatically, at the largest"
        " error)"
    )
    masks.add_argument(
        "--point",
        action="append",
        help="point on the object: X,Y in pixels (repeatable)",
    )
    masks.add_argument(
        "--background", action="append", help="point outside the object: X,Y in pixels (repeatable)"
    )
    masks.add_argument("--box", help="box around the object: X0,Y0,X1,Y1 in pixels")
    series = parser.add_argument_group("forecasters")
    series.add_argument(
        "--steps",
        type=int,
        help="number of values to forecast (default: data.horizon); diffusion models: sampling"
        " steps",
    )
    diffusion = parser.add_argument_group("diffusion models, with --prompt and --image")
    diffusion.add_argument(
        "--guidance", type=float, help="guidance scale of the caption (default: the run's)"
    )
    diffusion.add_argument("--inpaint", help="image to inpaint (or --index)")
    diffusion.add_argument(
        "--mask", help="region to repaint: left, right, or an image whose white pixels mark it"
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
        raise UserError("--prompt is empty: pass at least one character")
    if not arguments.get("text", "x").strip():
        raise UserError("--text is empty: pass at least one word")
    if not all(source.strip() for source in arguments.get("source", [])):
        raise UserError("--source is empty: pass at least one character")


def require_options(run: Run, arguments: dict[str, Any]) -> None:
    """UserError for an option of another kind of model."""
    presenter = run.task.presenter
    strange = [option(name) for name in arguments if name not in presenter.options]
    if strange:
        raise UserError(
            f"{', '.join(strange)}: {run.path} is a {presenter.family} model, and its options are "
            f"{', '.join(map(option, presenter.options)) or 'none'}"
        )


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def main() -> None:
    options = arguments()
    check_values(options)
    from ablate.training.load import load

    run = load(options.pop("run_dir"), allow=options.pop("allow"))
    presenter = run.task.presenter(run.task)
    if not presenter.generates:
        raise UserError(
            f"{run.path}: this model does not support generation (supported: language models on"
            " text, sequence-to-sequence models, captioners, segmentation models, forecasters,"
            " diffusion models)"
        )
    require_options(run, options)
    for text in presenter.generate(options, run.path):
        put(text)


if __name__ == "__main__":
    command(main)
