"""noise.json: the noise of a study by metric, for the plans of later studies of the same recipe.

    study.noise=outputs/scores          # its noise.json; a list of folders or files, or a pattern

The noise is the standard deviation of a run within its seed (`noise`). Files are pooled: their
variances are averaged, weighted by degrees of freedom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.keys import flatten
from ablate.config.run_id import NO_DATA
from ablate.errors import UserError, few, suggest
from ablate.machine.version import __version__
from ablate.run_files import CorruptFile, read_json
from ablate.run_files.shape import schema_error

if TYPE_CHECKING:
    from ablate.study.analysis.noise import Noise, Part  # scipy is slow to import

NOISE = "noise.json"
# The recipe of the baseline: the options of these groups, these values, and its size and length.
GROUPS = ("data", "model", "task", "optimizer", "schedule")
VALUES = (
    "model.dim", "model.depth", "model.heads", "data.seq_len", "data.batch_size", "optimizer.lr",
    "trainer.val_examples",
)  # fmt: skip
SIZES = ("parameters", "training_flops")
TOLERANCE = 0.1  # relative difference of sizes: baselines may differ in a component
SHAPE = {
    "version": str,
    "study": str,
    "recipe": dict,
    "data": {str: str},
    "arms": int,
    "seeds": int,
    "metrics": {str: {"sd": float, "df": int}},
}
NAMED = 4  # differences that a message names


def recipe(
    config: Mapping[str, Any], parameters: int | None, flops_per_step: int | None, steps: int | None
) -> dict[str, Any]:
    """config: the baseline's before tuning, as plan.json has it."""
    values, options = flatten(config), config.get("choices", {})
    found = {group: options.get(group) for group in GROUPS} | {k: values.get(k) for k in VALUES}
    flops = flops_per_step * steps if flops_per_step and steps else None
    found |= {"parameters": parameters, "steps": steps, "training_flops": flops}
    return {key: value for key, value in found.items() if value is not None}


def content(plan: Mapping[str, Any], noises: Mapping[str, Noise]) -> dict[str, Any] | None:
    """Return the content of noise.json; None if no metric has a residual. plan: of the study;
    noises: by metric."""
    metrics = {
        metric: {"sd": part.variance**0.5, "df": part.df}
        for metric, noise in noises.items()
        if (part := noise.usual).variance
    }
    if not metrics:
        return None
    baseline, of = next(arm for arm in plan["arms"] if arm["is_baseline"]), plan["baseline"]
    size = (baseline.get(key) for key in ("parameters", "flops_per_step", "steps"))
    values = next(iter(noises.values())).values
    return {
        "version": __version__,
        "study": plan["study"],
        "recipe": recipe(of.get("asked", {}), *size),
        "data": of.get("data", {}),
        "arms": len(values),
        "seeds": len({seed for own in values.values() for seed in own}),
        "metrics": metrics,
    }


def read(
    given: str | Sequence[str] | None,
    *,
    recipe: Mapping[str, Any],
    data: Mapping[str, str],
    metric: str,
    folder: Path,
) -> list[dict[str, Any]]:
    """Return the content of the files that study.noise names. recipe, data: of this study, whose
    own file is left out of a pattern. UserError for a file that is missing or damaged, or is of
    another recipe or without the metric."""
    own = (folder / NOISE).resolve()
    found: dict[Path, Path] = {}
    for text in [given] if isinstance(given, str) else given or ():
        places = map(Path, [text] if Path(text).exists() else sorted(glob(text)))
        paths = [place / NOISE if place.is_dir() else place for place in places]
        if [own] == [path.resolve() for path in paths]:
            raise UserError(f"study.noise: {text} is of this study itself; leave it out")
        if not paths:
            there = map(str, folder.parent.glob(f"*/{NOISE}"))
            raise UserError(f"study.noise: file not found: {text}{suggest(text, there)}")
        found |= {path.resolve(): path for path in paths if path.resolve() != own}
    return [{"file": str(path)} | _read(path, recipe, data, metric) for path in found.values()]


def _read(
    path: Path, recipe: Mapping[str, Any], data: Mapping[str, str], metric: str
) -> dict[str, Any]:
    try:
        file: dict[str, Any] | None = read_json(path)
    except CorruptFile as error:
        raise UserError(f"study.noise: {error}") from error
    if file is None:
        raise UserError(f"study.noise: file not found: {path}; the study's report writes it")
    if wrong := noise_file_error(file):
        raise UserError(f"study.noise: {path} is not the noise of a study: {wrong}")
    if differ := [*_differences(file, recipe, data)]:
        raise UserError(
            f"study.noise: {path} is of another recipe: {few(differ, ', ', NAMED)}; leave it out"
        )
    if metric not in file["metrics"]:
        there = ", ".join(file["metrics"])
        raise UserError(f"study.noise: {path} has no noise of {metric} (there: {there})")
    return {key: file[key] for key in SHAPE}


def noise_file_error(file: Any) -> str | None:
    """Describe how the content of a file is not that of noise.json; None if it is."""
    if wrong := schema_error(file, SHAPE):
        return wrong
    parts = file["metrics"].items()
    bad = [name for name, part in parts if min(part["sd"], part["sd"] ** 2, part["df"]) <= 0]
    return f"metrics.{bad[0]}: sd and df must be above 0" if bad else None


def _differences(
    file: Mapping[str, Any], recipe: Mapping[str, Any], data: Mapping[str, str]
) -> Iterator[str]:
    there = file["recipe"]
    for key in {**recipe, **there}:
        sizes = [size for size in (there.get(key), recipe.get(key)) if isinstance(size, int)]
        alike = key in SIZES and len(sizes) == 2 and max(sizes) <= (1 + TOLERANCE) * min(sizes)
        if there.get(key) != recipe.get(key) and not alike:
            yield f"{key}={there.get(key)} there and {recipe.get(key)} here"
    for seed, fingerprint in data.items():
        before = file["data"].get(seed, fingerprint)
        if before != fingerprint and NO_DATA not in (before, fingerprint):
            yield f"fingerprint of the data {before} there and {fingerprint} here"
            return


def files(plan: Mapping[str, Any]) -> list[Any]:
    """The content of the files whose noise a plan assumes."""
    return (plan.get("noise") or {}).get("files") or []


def pooled(files: Iterable[Mapping[str, Any]], metric: str) -> Part | None:
    """The noise of a metric in these files; None without any."""
    from ablate.study.analysis.noise import Part, together

    metrics = (file["metrics"] for file in files)
    parts = [Part(of[metric]["sd"] ** 2, of[metric]["df"]) for of in metrics if metric in of]
    return reduce(together, parts) if parts else None
