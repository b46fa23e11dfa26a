"""A part whose numbers changed makes another run of the same config."""

from pathlib import Path

import pytest
import yaml

from ablate.config import revision as module
from ablate.config.composition import compose
from ablate.config.keys import OURS, locate
from ablate.config.revision import revision, revisions
from ablate.config.run_id import content, run_id
from ablate.config.tree import config_dir


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
class Base:
    revision = 2

class Mine(Base):
    revision = 3

class Inherits(Mine):
    pass

def function():
    pass

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
