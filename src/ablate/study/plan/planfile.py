"""plan.json: the description of a study, written before its launch and read by all later steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ablate.config.keys import flatten
from ablate.config.public import public
from ablate.config.run_id import NO_DATA, content
from ablate.errors import UserError, few
from ablate.machine.terminal.say import command_line
from ablate.run_files import PLAN, CorruptFile, read_json, write_json
from ablate.run_files.records import read_plan
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.claims import recorded
from ablate.study.plan.request import StudyRequest
from ablate.training.preflight import check_output

NAMED = 4  # differing keys that a message names


def refuse_other(folder: Path, question: Mapping[str, Any], data: Mapping[str, str]) -> None:
    """Raise UserError for a folder whose plan has another baseline, or other data under the same
    name: its runs answer another question. question: `content_of` the requested baseline; data:
    seed -> fingerprint."""
    try:
        plan = read_plan(folder)
    except CorruptFile as error:
        raise UserError(f"{error}; choose another study.name=, or remove it") from error
    except OSError as error:
        raise UserError(
            f"{folder / PLAN} cannot be read ({error}); choose another study.name=, or remove it"
        ) from error
    if plan is None:
        return
    baseline = plan.get("baseline", {})
    data_before = baseline.get("data", {})
    before, now = _counted(baseline.get("asked", {})), _counted(question)
    differ = [key for key in {**before, **now} if before.get(key, ...) != now.get(key, ...)]
    if differ:
        lines = [f"{key}={before.get(key)} there and {now.get(key)} here" for key in differ]
        raise UserError(
            f"{folder} belongs to a study with another baseline ({few(lines, ', ', NAMED)}); choose"
            " another study.name=, or, if the baseline is an arm of that study, run"
            f" {command_line('ablate.report', folder)} --baseline ARM"
        )
    for seed, fingerprint in data.items():
        # Without data no run begins.
        if fingerprint not in (NO_DATA, data_before.get(seed, fingerprint)):
            raise UserError(
                f"{folder} belongs to a study of other data: it has changed since (fingerprint"
                f" {data_before[seed]} there and {fingerprint} here); choose another study.name="
            )


def refuse_other_blocks(folder: Path, blocks: Blocks) -> None:
    """Raise UserError for a folder whose plan has none of these blocks, or others before them: it
    would be replaced, and runs are numbered by the places of their blocks."""
    if not (folder / PLAN).exists():
        return
    before = (read_plan(folder) or {}).get("blocks", {})
    factor, known = before.get("factor", ""), [*before.get("of", {})]
    if factor != blocks.factor or known != [*blocks.names][: len(known)]:
        whose = f"with the blocks {factor}={','.join(known)}" if factor else "without blocks"
        raise UserError(f"{folder} belongs to a study {whose}; choose another study.name=")


# Fields that commands which run a study at the same time must share, besides its runs.
COMMON = (
    "study", "design", "factors", "seeds", "looks", "metric", "also", "margin", "noise", "match",
    "tune", "custom_code",
)  # fmt: skip


def refuse_unequal(folder: Path, plan: Mapping[str, Any]) -> None:
    """Raise UserError unless the plan is that of the command which runs the study now."""
    before, now = _common(read_plan(folder) or {"cells": ()}), _common(plan)
    if differ := [key for key in now if before[key] != now[key]]:
        raise UserError(
            f"{folder}: another command runs this study now, with other {', '.join(differ)}; choose"
            " another study.name=, or wait until it has ended"
        )


def _common(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Tuning changes the runs that count, and may leave arms out; its own stay."""
    kind = "tune" if plan.get("tune") else "run"
    runs = sorted((c["arm"], c["seed"], c["run_id"]) for c in plan["cells"] if c["kind"] == kind)
    claims = [entry["claim"] for entry in plan.get("claims", ()) if not entry["dropped"]]
    return {key: plan.get(key) for key in COMMON} | {"claims": claims, "runs": runs}


def write(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan. Raises UserError if it cannot be written."""
    check_output(folder)
    try:
        write_json(folder / PLAN, dict(plan))
    except OSError as error:
        raise UserError(
            f"output_dir: cannot write to {folder} ({error.strerror}); nothing was started"
        ) from error


def write_together(
    folder: Path, request: StudyRequest, blocks: Blocks, parts: Sequence[Path]
) -> None:
    """Write the plan over all blocks, whose own plans are in `parts`, with the arms that all have:
    one that could not be tuned is left out of its block. Raises UserError."""
    plans = [read_json(part / PLAN) for part in parts]
    names = set.intersection(*({arm["name"] for arm in plan["arms"]} for plan in plans))
    arms = ([arm for arm in plan["arms"] if arm["name"] in names] for plan in plans)
    cells = [
        cell | {"block": block, "folder": f"{part.name}/{cell['folder']}"}
        for block, part, plan in zip(blocks.names, parts, plans, strict=True)
        for cell in plan["cells"]
        if cell["kind"] == "run" and cell["arm"] in names
    ]
    plan = plans[0] | {
        "study": request.name,
        "seeds": [*dict.fromkeys(seed for plan in plans for seed in plan["seeds"])],
        "claims": claims(folder, request),
        "tune": {},
        "arms": [_together(of_blocks) for of_blocks in zip(*arms, strict=True)],
        "cells": cells,
        "illegal": [entry for plan in plans for entry in plan["illegal"]],
        "blocks": {
            "factor": blocks.factor,
            "of": {
                name: {"folder": part.name} for name, part in zip(blocks.names, parts, strict=True)
            },
        },
    }
    write_json(folder / PLAN, plan)


def _together(arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """An arm over all blocks: its cost and the matched values are kept if all blocks agree. Its
    tuning is in each block."""
    first = {key: value for key, value in arms[0].items() if key != "tuning"}
    same = {key: value for key, value in first.items() if all(arm[key] == value for arm in arms)}
    empty = dict.fromkeys(("parameters", "flops_per_step", "steps")) | {
        "differs": {}, "set": {}, "tuned": {}, "tuning": [], "warnings": [], "same_as": None,
        "no_effect": False,
    }  # fmt: skip
    return {**empty, **same}


def claims(folder: Path, request: StudyRequest) -> list[dict[str, Any]]:
    """The claims, with the records of them in the existing plan."""
    before = read_plan(folder) or {"cells": []}
    claims = before.get("claims", ())
    return recorded(request.node["claims"], claims, begun=_begun(folder, before))


def chosen(folder: Path, field: str, key: str, values: Sequence[Any]) -> dict[str, Any] | None:
    """A field of the plan with the values that verdicts use, and whether they were chosen after the
    first run; None without values."""
    before = read_plan(folder) or {"cells": []}
    now: dict[str, Any] | None = {key: [*values], "after": False} if values else None
    known = before.get(field)
    if (known or {}).get(key) == (now or {}).get(key):
        return known
    return now and now | {"after": _begun(folder, before)}


def _begun(folder: Path, plan: Mapping[str, Any]) -> bool:
    return any((folder / cell["folder"]).exists() for cell in plan["cells"])


def content_of(cfg: DictConfig) -> dict[str, Any]:
    """Return the content of the baseline's config, without the seed."""
    config: dict[str, Any] = public(lambda: content(cfg))
    return {key: value for key, value in config.items() if key != "seed"} | {
        "choices": OmegaConf.to_container(cfg.choices)
    }


def _counted(question: Mapping[str, Any]) -> dict[str, Any]:
    return flatten({k: v for k, v in question.items() if k != "choices"})
