"""What a finished model writes: python -m ablate.generate RUN_DIR --prompt "...".

Masked tokens: --prompt "wh[MASK]t". Translations: --source "...", or --input FILE --output FILE.
Captions: --image FILE. Forecasts: --steps N."""

from pathlib import Path
from typing import Any

import torch

from ablate.cli.command import Arguments, add_run_dir, command
from ablate.cli.say import put
from ablate.cli.translate import write_captions, write_targets
from ablate.data.text import TextData
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.task.captioning import Captioning
from ablate.task.causal_lm import CausalLM
from ablate.task.forecasting import Forecasting
from ablate.task.masked_lm import MaskedLM
from ablate.task.seq2seq import SequenceToSequence
from ablate.training.load import Run, load

# Which options each kind of model takes.
LANGUAGE = ("prompt", "tokens", "temperature", "top_k", "top_p", "seed")
MASKED = ("prompt",)
CAPTIONS = ("image", "index", "beam", "length_penalty", "n_best", "show")
PAIRS = ("source", "beam", "length_penalty", "n_best", "show", "input", "output")
FORECASTS = ("steps",)
COLDEST = 1e-6  # logits divided by less overflow


def arguments() -> dict[str, Any]:
    """The parsed command line: run_dir, and the options that were given."""
    parser = Arguments(prog="python -m ablate.generate", description=__doc__)
    add_run_dir(parser)
    language = parser.add_argument_group("language models")
    language.add_argument(
        "--prompt",
        help="text to go on from, default: 'The '; of a masked language model, text with [MASK]",
    )
    language.add_argument("--tokens", type=int, help="how many tokens to add; default: 500")
    language.add_argument("--temperature", type=float, help="0: always the likeliest; default: 0.8")
    language.add_argument("--top-k", type=int, help="choose among the k likeliest tokens only")
    language.add_argument(
        "--top-p", type=float, help="choose among the likeliest that sum to p only"
    )
    language.add_argument("--seed", type=int, help="of the draws; default: 0")
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
    pairs.add_argument("--show", action="store_true", help="draw where the model looks")
    pairs.add_argument("--input", type=Path, help="a file with a source in each line")
    pairs.add_argument(
        "--output", type=Path, help="file for their targets; an empty line stays empty"
    )
    captions = parser.add_argument_group("captioners, beside --beam, --n-best and the like")
    captions.add_argument(
        "--image",
        action="append",
        help="image to write the caption of, white on black; several: --image A --image B",
    )
    captions.add_argument("--index", type=int, help="or an image of the validation split, from 0")
    series = parser.add_argument_group("forecasters")
    series.add_argument("--steps", type=int, help="values to forecast; default: data.horizon")
    given = vars(parser.parse_args())
    return {
        name: value for name, value in given.items() if value is not None and value is not False
    }


def check_values(given: dict[str, Any]) -> None:
    """UserError for a value that no model could take."""
    for name in ("tokens", "top_k", "beam", "n_best", "steps"):
        if given.get(name, 1) < 1:
            raise UserError(f"{option(name)} {given[name]} must be at least 1")
    for name in ("temperature", "length_penalty"):
        if not given.get(name, 0) >= 0:
            raise UserError(f"{option(name)} {given[name]} must not be negative")
    if 0 < given.get("temperature", 0) < COLDEST:
        raise UserError(f"--temperature {given['temperature']} must be 0, or at least {COLDEST}")
    if not -(2**63) <= given.get("seed", 0) < 2**64:
        raise UserError(f"--seed {given['seed']} has more than 64 bits")
    if not 0 < given.get("top_p", 1) <= 1:
        raise UserError(f"--top-p {given['top_p']} must be above 0 and at most 1")
    if given.get("prompt") == "":
        raise UserError("--prompt is empty: give at least one character")
    if not all(source.strip() for source in given.get("source", [])):
        raise UserError("--source is empty: give at least one character")


def only(run: Run, given: dict[str, Any], allowed: tuple[str, ...], kind: str) -> None:
    """UserError for an option of another kind of model."""
    strange = [option(name) for name in given if name not in allowed]
    if strange:
        raise UserError(
            f"{', '.join(strange)}: {run.path} is a {kind} model, and its options are "
            f"{', '.join(map(option, allowed))}"
        )


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def continuation(
    task: CausalLM,
    *,
    prompt: str = "The ",
    tokens: int = 500,
    temperature: float = 0.8,
    seed: int = 0,
    **limits: Any,
) -> str:
    """The prompt and its continuation by the model; limits: top_k, top_p."""
    rng = torch.Generator().manual_seed(seed)
    return task.continuation(prompt, tokens=tokens, temperature=temperature, rng=rng, **limits)


def main() -> None:
    given = arguments()
    check_values(given)
    run = load(given.pop("run_dir"), allow=given.pop("allow"))
    task = run.task
    if isinstance(task, Captioning):
        only(run, given, CAPTIONS, "captioning")
        write_captions(run, task, given)
    elif isinstance(task, SequenceToSequence):
        only(run, given, PAIRS, "sequence-to-sequence")
        write_targets(run, task, given)
    elif isinstance(task, Forecasting):
        only(run, given, FORECASTS, "forecasting")
        put(task.forecast(given.get("steps", task.data.horizon)))
    elif isinstance(task, MaskedLM):
        only(run, given, MASKED, "masked language")
        put(task.fill(given["prompt"]) if given else task.sample())
    elif isinstance(run.model, LanguageModel) and isinstance(run.data, TextData):
        assert isinstance(task, CausalLM)
        only(run, given, LANGUAGE, "language")
        put(continuation(task, **given))
    else:
        raise UserError(
            f"{run.path} writes nothing: it is neither a language model on text, nor a"
            f" sequence-to-sequence model, nor a captioner, nor a forecaster"
        )


if __name__ == "__main__":
    command(main)
