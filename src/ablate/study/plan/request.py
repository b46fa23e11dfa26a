"""The request for a study: the node `study` of a sweep's file, or values after commas."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from math import log
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import check_study, seeds_of
from ablate.config.keys import plain
from ablate.config.overrides import key_of, merged, parse_all, parse_one, require_few, value_text
from ablate.errors import UserError
from ablate.machine.redact import without_credentials
from ablate.study.plan.design import Factor, Row

UNRESOLVED = ("baseline", "blocks", "factors", "params")
UNNAMED = "runs"  # study.name of conf/config.yaml
DEBUG = "debug"  # study.name of conf/debug/; a study of debugging runs has its folder inside
# Overrides that do not change the question of a study.
NOT_WORK = ("study.", "output_dir", "run_dir", "logger", "checkpoint_every", "checkpoint_keep")
# But for these, with which the arms are other runs.
OTHER_RUNS = ("study.match", "study.tune")
# Typed in addition to a sweep's question: the same data may lie elsewhere.
BESIDE = (*NOT_WORK, "sweep", "hydra", "debug", "evaluate", "data.path", "data.root", "trainer=")


FEWEST = 3  # seeds of the first look of study.seeds_up_to: those of a verdict
GROWTH = 1.4  # of the number of seeds from look to look, about


@dataclass(frozen=True)
class StudyRequest:
    """A parsed request. fixed: overrides of every arm; grid: the factors were typed as values after
    commas."""

    sweep: str | None
    fixed: tuple[str, ...]
    factors: tuple[Factor, ...]
    seeds: tuple[int, ...] | None  # None: the seed that the composition has
    design: str
    node: Mapping[str, Any]  # the rest of `study`, such as metric and match
    grid: bool = False
    exclude: tuple[Row, ...] = ()
    name: str = ""
    looks: tuple[int, ...] = ()  # numbers of seeds of study.seeds_up_to; empty for a fixed number
    description: str = ""  # the comment at the top of the sweep's file


def parse_request(
    config: DictConfig, arguments: Sequence[str], loader: ConfigLoader
) -> StudyRequest:
    """Parse the composition of the whole command and the typed overrides. Raises UserError."""
    check_study(config)
    node = _content(config.study)
    sweep = config.hydra.runtime.choices.get("sweep")
    params = _content(config.hydra.sweeper)["params"] or {}
    if not isinstance(params, dict):
        raise UserError(f"hydra.sweeper.params={params}: must be {{KEY: VALUES, ...}}")
    texts = [*(f"{key}={value}" for key, value in params.items()), *arguments]
    overrides = parse_all(texts, loader)
    typed = [override for override in overrides if not override.key_or_group.startswith("study.")]
    _refuse_swept_study(overrides)
    ask = _by_factors if node["factors"] else _by_commas
    description = _description(config.hydra.runtime.config_sources, sweep)
    request = replace(_with_looks(ask(node, typed, sweep)), description=description)
    named = any(override.key_or_group == "study.name" for override in overrides)
    own = node["name"] not in (UNNAMED, DEBUG)  # from the sweep's file, which runs also read
    own_keys = (override.input_line or "" for override in overrides if override not in typed)
    lines = [*merged(override.input_line or "" for override in typed), *own_keys]
    others = [text for text in lines if key_of(text).startswith(OTHER_RUNS)]
    changes = [text for text in lines if text in others or not text.startswith(BESIDE)]
    if own and not named and not changes:
        return replace(request, name=node["name"])
    name = node["name"] if own or named else sweep or _name(request, others)
    if changes and sweep and request.factors and not request.grid and not named:
        name = f"{name}-{_hash(changes)}"  # a trial with fewer steps is another study
    if node["name"] == DEBUG and not named:
        name = f"{DEBUG}/{name}"
    return replace(request, name=name, fixed=(*request.fixed, f"study.name={value_text(name)}"))


def _with_looks(request: StudyRequest) -> StudyRequest:
    """The request with the looks of study.seeds_up_to, and all their seeds. Raises UserError."""
    node, last = request.node, request.node["seeds_up_to"]
    if last is None:
        return request
    key = f"study.seeds_up_to={last}"
    if not isinstance(node["seeds"], int):
        raise UserError(f"{key}: study.seeds must be a number, the seeds of the first look")
    if node["seeds"] < FEWEST:
        first = f"study.seeds={node['seeds']}"
        raise UserError(f"{key}: {first} must be at least {FEWEST}, the fewest for a verdict")
    if node["seeds"] >= last:
        raise UserError(f"{key}: must be above study.seeds={node['seeds']}, the first look")
    if node["arms"]:
        raise UserError(f"{key} with study.arms: arms are decided together; leave one out")
    return replace(request, seeds=seeds_of(last), looks=looks(node["seeds"], last))


def looks(first: int, last: int) -> tuple[int, ...]:
    """Numbers of seeds from the first to the last, each about GROWTH times the one before."""
    steps = max(1, round(log(last / first) / log(GROWTH)))
    return tuple({round(first * (last / first) ** (n / steps)): 0 for n in range(steps + 1)})


def _content(node: DictConfig) -> dict[str, Any]:
    """Return the resolved values; keys that become overrides keep interpolations, ${..}."""
    raw: dict[str, Any] = OmegaConf.to_container(node, resolve=False)  # type: ignore[assignment]
    return raw | {key: plain(node[key]) for key in raw if key not in UNRESOLVED}


def _description(sources: Iterable[Mapping[str, str]], sweep: str | None) -> str:
    """Return the comment at the top of a sweep's file, without its command."""
    folders = [Path(source["path"]) for source in sources if source["schema"] == "file"]
    files = [path for folder in folders if (path := folder / "sweep" / f"{sweep}.yaml").is_file()]
    if not files:
        return ""
    lines = files[0].read_text(encoding="utf-8").splitlines()
    comment = [text.lstrip("# ") for text in takewhile(lambda text: text.startswith("#"), lines)]
    return "\n".join(t for t in comment if t and not t.startswith(("@package", "python -m ")))


def _by_factors(
    node: Mapping[str, Any], typed: Sequence[Override], sweep: str | None
) -> StudyRequest:
    factors = tuple(read_factor(str(name), options) for name, options in node["factors"].items())
    for override in typed:
        if override.key_or_group == "seed":
            seeds = ",".join(map(str, _typed_seeds(override)))
            raise UserError(
                f"'{override.input_line}': the seeds of a study are study.seeds; write"
                f" study.seeds=[{seeds}]"
            )
        if override.is_sweep_override():
            raise UserError(
                f"'{override.input_line}' names several values in a study with study.factors; make"
                f" it one of them, '++study.factors.{override.key_or_group}=[..]', or set one"
                " value"
            )
        owner = [factor.name for factor in factors if override.key_or_group in factor.keys]
        if owner:
            raise UserError(
                f"'{override.input_line}': the study changes it (study.factors: {owner[0]})"
            )
    baseline = [parse_one(text, "study.baseline").input_line or "" for text in node["baseline"]]
    options = {factor.name: factor.options for factor in factors}
    exclude = [
        {
            str(name): _label(o) if _label(o) in options.get(str(name), ()) else value_text(o)
            for name, o in entry.items()
        }
        for entry in node["exclude"]
    ]
    return StudyRequest(
        sweep=sweep,
        fixed=merged(baseline, (override.input_line or "" for override in typed)),
        factors=factors,
        exclude=tuple(exclude),
        seeds=seeds_of(node["seeds"]),
        design=node["design"] or "one_factor",
        node=node,
    )


def _by_commas(
    node: Mapping[str, Any], typed: Sequence[Override], sweep: str | None
) -> StudyRequest:
    """Request every combination, as Hydra's own sweeper does; `seed` is not a factor."""
    for setting in ("baseline", "exclude"):
        if node[setting]:
            raise UserError(
                f"study.{setting} needs study.factors, which is empty: list the factors,"
                " as in model.attention: [additive, dot]"
            )
    if (design := node["design"]) not in ("factorial", None):
        raise UserError(
            f"study.design={design}: values after commas are a factorial design; for another write"
            " each key as '++study.factors.model.attention=[additive,dot]'"
        )
    fixed: list[str] = []
    factors: dict[str, Factor] = {}
    seeds = seeds_of(node["seeds"]) if node["seeds"] != 1 else None
    for override in typed:
        key = override.get_key_element()
        if override.key_or_group == "seed":
            if node["seeds"] != 1:
                raise UserError(
                    f"'{override.input_line}' and study.seeds={node['seeds']}: set one of them"
                )
            seeds = _typed_seeds(override)
        elif not override.is_sweep_override():
            fixed.append(override.input_line or "")
        else:
            options = {text: (f"{key}={text}",) for text in _values(override)}
            _refuse_credentials(options, override.key_or_group)
            if len(options) == 1:
                fixed += options.popitem()[1]
            else:
                factors[override.key_or_group] = Factor(override.key_or_group, options)
    if not factors and (seeds is None or len(seeds) == 1):
        what = f"sweep={sweep} is empty" if sweep else "nothing varies"
        raise UserError(
            f"{what}: set study.factors, or several values of a key, as"
            " in -m model.attention=additive,dot"
        )
    varied = tuple(factors.values())
    return StudyRequest(sweep, merged(fixed), varied, seeds, "factorial", node, grid=True)


def _values(override: Override) -> list[str]:
    """Return each value of `key=a,b`, `key=choice(a,b)`, `key=range(1,4)`, `key=glob(*)`."""
    if not override.is_discrete_sweep():
        raise UserError(
            f"'{override.input_line}': has no separate values to run; list them, or use a sweeper"
            " that searches, such as hydra/sweeper=optuna"
        )
    require_few(override)
    values = [str(text) for text in override.sweep_string_iterator()]
    if not values:
        raise UserError(f"'{override.input_line}' matches no option")
    if (twice := Counter(values).most_common(1)[0])[1] > 1:
        raise UserError(f"'{override.input_line}' names {twice[0]} twice")
    return values


def _typed_seeds(override: Override) -> tuple[int, ...]:
    texts = _values(override) if override.is_sweep_override() else [str(override.value())]
    if wrong := [text for text in texts if not text.isdecimal()]:
        raise UserError(f"seed={wrong[0]}: must be an integer of at least 0")
    return seeds_of([int(text) for text in texts], f"'{override.input_line}'")


def _refuse_swept_study(overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.key_or_group.startswith("study.") and override.is_sweep_override():
            values = (override.input_line or "").partition("=")[2]
            raise UserError(
                f"'{override.input_line}' would be several studies; run each, or write"
                f" {override.key_or_group}=[{values}] for a list"
            )


def _name(request: StudyRequest, others: Sequence[str]) -> str:
    """Name a study so that the same command, or one with more values, finds its folder again.
    others: the typed overrides of OTHER_RUNS."""
    varied = "+".join(factor.name for factor in request.factors) or "seed"
    fixed = (text for text in request.fixed if not key_of(text).startswith(NOT_WORK))
    return f"{varied[:80]}-{_hash([*fixed, *others])}"


def _hash(texts: Iterable[str]) -> str:
    return sha256(" ".join(sorted(texts)).encode()).hexdigest()[:6]


NO_FACTOR = (*NOT_WORK[1:], "study", "hydra", "sweep")


def read_factor(name: str, node: Any, within: str = "study.factors") -> Factor:
    """Parse one factor: a key with its options, or a name with the overrides of each option. Raises
    UserError."""
    where = f"{within}: {name}"
    if name == "seed":
        raise UserError(f"{where}: the seeds of a study are study.seeds")
    if name.split(".")[0].split("/")[0] in NO_FACTOR and not isinstance(node, dict):
        raise UserError(f"{where}: changes no result, so it cannot be a factor")
    options = _named(where, node) if isinstance(node, dict) else _listed(name, node, where)
    _refuse_credentials(options, where)
    if not options:
        raise UserError(f"{where} has no options; list them, as in [additive, dot]")
    return Factor(name, options)


def _refuse_credentials(options: Iterable[str], where: str) -> None:
    """Arms, and folders of their runs, are named after options."""
    for option in options:
        if without_credentials(option) != option:
            raise UserError(
                f"{where}: {option} would name an arm, and its user, password or query would be"
                " written down; name the options in a sweep file, as {NAME: [KEY=URL]}"
            )


def _listed(name: str, options: Any, where: str) -> dict[str, tuple[str, ...]]:
    texts = [value_text(value) for value in (options if isinstance(options, list) else [options])]
    if twice := [text for number, text in enumerate(texts) if text in texts[:number]]:
        raise UserError(f"{where}: has the option {twice[0]} twice")
    parse_one(f"{name}=0", where)
    return {text: (f"{name}={text}",) for text in texts}


def _named(where: str, node: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    """Parse `option: [overrides]`, or `option: override`."""
    options: dict[str, tuple[str, ...]] = {}
    for key, texts in node.items():
        option = _label(key)
        listed = [texts] if isinstance(texts, str) else texts
        if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
            raise UserError(f"{where}: {option} must be a list of overrides, [KEY=VALUE, ...]")
        lines = [parse_one(text, f"{where}: {option}").input_line or "" for text in listed]
        keys = [key_of(line) for line in lines]
        if twice := [key for number, key in enumerate(keys) if key in keys[:number]]:
            raise UserError(f"{where}: {option} sets {twice[0]} twice")
        if hidden := [key for key in keys if key == "seed" or key.split(".")[0] in NO_FACTOR]:
            raise UserError(f"{where}: {option} sets {hidden[0]}, which no factor may")
        options[option] = tuple(lines)
    return options


def _label(option: Any) -> str:
    """Return the name of an option in a file: `off`, a boolean in YAML, is false."""
    return option if isinstance(option, str) else value_text(option)
