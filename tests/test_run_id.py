"""The run id: equal for the same work, different for everything that can change a result."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from ablate.config import revision as module
from ablate.config.check import leaves
from ablate.config.composition import Composition, compose
from ablate.config.keys import OURS, locate, plain
from ablate.config.revision import revision, revisions
from ablate.config.run_id import content, run_id
from ablate.config.tree import config_dir

COMPOSITIONS = [
    [],
    ["model=vit", "pos_enc=relative"],
    ["experiment=recall", "model.attention=location", "optimizer=sgd", "schedule=noam"],
    ["model=timm", "logger=tensorboard", "data=cifar10"],
    ["data=shakespeare"],
]


def other(value: Any) -> Any:
    """A value of the same type that is not `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if value is None:
        return 7
    return [*value, 0.5] if OmegaConf.is_list(value) else f"{value}x"


def changed(cfg: DictConfig, path: str) -> DictConfig:
    changed = cfg.copy()
    OmegaConf.update(changed, path, other(OmegaConf.select(cfg, path)))
    return changed


# Where things lie, what is shown, how fast data is read, what is computed again.
UNIMPORTANT = """checkpoint_every evaluate data.path data.root data.sha256 data.workers output_dir
    model.activation_checkpointing trainer.log_every_n_steps"""


def test_every_key_that_can_change_the_result_changes_the_id() -> None:
    seen, unimportant = set(), UNIMPORTANT.split()
    for overrides in COMPOSITIONS:
        cfg = compose(*overrides)
        before = run_id(cfg, "x")
        for path in {path for path, _ in leaves(cfg)} - seen:
            same = path.startswith(("logger.", "study.")) or path in unimportant
            assert (run_id(changed(cfg, path), "x") == before) == same, path
            seen.add(path)
    assert {"seed", "model.heads", "data.workers", "logger.project", "output_dir"} <= seen


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("optimizer.lr=1e-3", "optimizer.lr=0.001"),
        ("optimizer.weight_decay=0", "optimizer.weight_decay=0.0"),
        ("model.attention=dot seed=1", "seed=1 model.attention=dot"),
        ("model.dim=64", "++model.dim=64"),
    ],
)
def test_the_same_work_written_differently_has_the_same_id(one: str, two: str) -> None:
    ids = {run_id(compose(*typed.split()), "x") for typed in (one, two)}
    values = plain(compose(*one.split()))
    assert ids == {run_id(dict(reversed(values.items())), "x")}  # the order of its keys


def test_the_data_counts_by_its_content(tmp_path: Path) -> None:
    text = "To be, or not to be, that is the question. " * 100
    for name, written in {"a": text, "b": text, "c": text.upper()}.items():
        (tmp_path / name).write_text(written)
    paths = [tmp_path / name for name in ("a", "b", "c", "missing", "gone")]
    ids = [Composition(compose("data=text", f"data.path={path}")).id for path in paths]
    assert [ids.index(one) for one in ids] == [0, 0, 2, 3, 3]


# Revisions


def test_revisions_are_those_of_the_classes() -> None:
    """Which are read from their source, without torch."""
    found = set()
    for path in config_dir().glob("*/*.yaml"):
        node = yaml.safe_load(path.read_text()) or {}
        target = (node.get(path.parent.name) or node).get("_target_", "")
        if target.startswith(OURS):
            made = locate(target)
            bases = getattr(made, "__mro__", [made])
            raised = sum(vars(base).get("revision", 1) - 1 for base in bases)
            assert revision(target) == 1 + raised, path
            found.add(target)
    assert "ablate.schedule.cosine.cosine" in found
    assert revision("ablate.model.normalizer.hard.Hard") == 2
    assert revision("torch.optim.AdamW") == 1


OWN = """
class Base: revision = 2
class Mine(Base): revision = 3
class Inherits(Mine): pass
def function(): pass
function.revision = 4
plain = print
"""


def test_a_class_counts_those_of_its_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a revision that is raised anywhere is seen."""
    (tmp_path / "own_revised.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    expected = {"Base": 2, "Mine": 4, "Inherits": 4, "function": 4, "plain": 1}
    assert {name: revision(f"own_revised.{name}") for name in expected} == expected


def test_a_raised_revision_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, dropping = compose(), compose("model.dropout=0.1")
    before = run_id(cfg, "x"), run_id(dropping, "x")
    assert revisions(content(cfg)) == {}
    assert revisions(content(dropping)) == {"model.dropout": 2}
    monkeypatch.setitem(module.KEYS, "model.norm_eps", 2)
    assert run_id(cfg, "x") != before[0]
    monkeypatch.delitem(module.KEYS, "model.norm_eps")
    assert (run_id(cfg, "x"), run_id(dropping, "x")) == before
    score = "ablate.model.attention.scaled_dot.ScaledDot"
    monkeypatch.setattr(module, "revision", lambda target: 1 + (target == score))
    assert revisions(content(cfg)) == {"model.attention": 2}
    assert run_id(cfg, "x") != before[0]
