"""The run id: equal for the same work, different for everything that can change a result."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

import ablate
from ablate.config import history
from ablate.config import revision as module
from ablate.config.check import leaves
from ablate.config.composition import Composition, compose
from ablate.config.keys import OURS, locate, plain
from ablate.config.overrides import equal
from ablate.config.revision import revision, revisions
from ablate.config.run_id import content, folder_name, run_id
from ablate.config.saved import read_config
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.run_files import PLAN, write_json
from ablate.study.plan.planfile import content_of, refuse_other

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
UNIMPORTANT = """checkpoint_every checkpoint_keep evaluate data.path data.root data.sha256
    data.workers output_dir model.activation_checkpointing trainer.log_every_n_steps"""


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


def test_values_are_the_same_as_the_id_takes_them() -> None:
    assert equal([1, 0.5], [1.0, 0.5])
    assert not equal(1, True)
    assert not equal([0], [False])


def test_the_name_of_a_folder_leads_nowhere_else() -> None:
    assert folder_name("../a b=c/é" + 90 * "x", "id") == ".._a_b=c__" + 70 * "x" + "-id"


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
    assert revision("ablate.model.normalizer.hard.Hard") == 3
    assert revision("torch.optim.AdamW") == 1


def test_a_class_counts_those_of_its_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a revision that is raised anywhere is seen."""
    monkeypatch.setattr(module, "declared", lambda target, attribute: [3, 2])
    assert revision("ablate.some.Part") == 4


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


# Ids and old files across versions: a key that is added or renamed, a part that moves


# Ids that commit 97072c0 of 2026-11-23 gave, of data with the fingerprint "x". Those with dropout
# have others since their numbers are others (ablate.config.revision).
FIRST = {
    "model=captioner": "a8d4e306049b",
    "model=gpt": "ca8da480add0",
    "model=rnn_seq2seq": "f6975b08438c",
    "model=transformer": "6b32860ede37",
    "model=vit": "a8e210a4a5e7",
    "model=vit pos_enc=relative_2d": "ed72de45eb7d",
    "schedule=noam": "085b24f4bc67",
}


@pytest.mark.parametrize("command", FIRST)
def test_a_run_of_the_first_version_has_its_id(command, monkeypatch):
    cfg = ablate.compose(*command.split())
    drops = cfg.model.get("dropout", 0) > 0
    assert (run_id(cfg, "x") == FIRST[command]) != drops
    monkeypatch.setattr(module, "KEYS", {})
    assert run_id(cfg, "x") == FIRST[command]


def grown(cfg: DictConfig, key: str, value: Any) -> DictConfig:
    """The composition of a version with one more key."""
    cfg = cfg.copy()
    OmegaConf.update(cfg, key, value, force_add=True)
    return cfg


def test_a_key_that_is_added_with_its_neutral_value_changes_no_id(monkeypatch, tmp_path):
    before = ablate.compose()
    write_json(tmp_path / PLAN, {"baseline": {"asked": content_of(before)}})
    monkeypatch.setitem(history.ADDED, "model.qk_norm", False)
    for key, neutral, other in (("model.kv_heads", None, 2), ("model.qk_norm", False, True)):
        same, changed = (grown(before, key, value) for value in (neutral, other))
        assert run_id(same, "x") == run_id(before, "x") != run_id(changed, "x")
        refuse_other(tmp_path, content_of(same), {})
        with pytest.raises(UserError, match=f"{key}=None there and {other} here"):
            refuse_other(tmp_path, content_of(changed), {})


def test_a_part_that_moved_is_found_and_keeps_the_ids_of_its_runs(tmp_path):
    cfg = ablate.compose("schedule=noam")
    old = grown(cfg, "schedule._target_", "ablate.schedule.noam")
    assert run_id(old, "x") == run_id(cfg, "x")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(old, resolve=True))
    assert read_config(tmp_path / "config.yaml").schedule == cfg.schedule


def renamed(old: DictConfig) -> None:
    for today, first in history.RENAMED.items():
        node, _, leaf = today.rpartition(".")
        OmegaConf.update(old, first, OmegaConf.select(old, node).pop(leaf))


def with_keys_that_are_gone(old: DictConfig) -> None:
    old.study.update({"pack": 4, "batched": "auto", "packed": {1: "outputs/other"}})


def ungrouped(old: DictConfig) -> None:
    for group in history.GROUPED:
        _, slot = group.split(".")
        if "_target_" in (old.model.get(slot) or {}):
            old.model[slot] = old.choices.pop(group)


def scaled_by_positions(old: DictConfig) -> None:
    old.pos_enc.scale = old.model.pop("embedding_scale") == "sqrt"
    old.model.pop("init_depth_scale")


@pytest.mark.parametrize(
    ("command", "aged", "first"),
    [
        ("model=gpt", renamed, None),  # a key that no id counts
        ("model=gpt", with_keys_that_are_gone, None),
        ("model=gpt model.ffn=swiglu model.norm_type=rms", ungrouped, None),
        ("model=rnn_seq2seq model.cell=lstm", ungrouped, None),
        # What commit 6085061 of 2026-11-24 called pos_enc.scale, with its ids.
        ("model=gpt pos_enc=sinusoidal", scaled_by_positions, "9126b67ece42"),
        ("model=transformer", scaled_by_positions, "6b32860ede37"),
    ],
)
def test_an_old_file_is_todays_composition_and_has_its_id(command, aged, first, monkeypatch):
    cfg = ablate.compose(*command.split())
    old = cfg.copy()
    OmegaConf.set_struct(old, False)
    aged(old)
    assert history.upgrade(old.copy()) == cfg
    assert run_id(old, "x") == run_id(cfg, "x") or aged is renamed
    monkeypatch.setattr(module, "KEYS", {})  # ids as they were before runs with dropout had others
    assert run_id(old, "x") == first or first is None


def test_a_run_that_other_processes_began_keeps_its_id():
    four = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=4"]
    begun, now = Composition(ablate.compose(*four)), Composition(ablate.compose())
    assert now.id != begun.id
    assert now.begun_by(begun.values) == ["trainer.devices=4", "trainer.strategy=ddp"]
    assert now.id == begun.id
    assert now.recorded == begun.cfg
    other = Composition(ablate.compose("optimizer.lr=1"))
    other.begun_by(begun.values)
    assert other.id != begun.id
