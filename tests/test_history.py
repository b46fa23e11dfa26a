"""Ids and old files across versions: a key that is added or renamed, a part that moves."""

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import ablate
from ablate.config import history, revision
from ablate.config.run_id import run_id
from ablate.config.saved import read_config
from ablate.errors import UserError
from ablate.run_files import PLAN, write_json
from ablate.study.plan.planfile import content_of, refuse_other

# Ids that commit 97072c0 of 2026-11-23 gave, of data with the fingerprint "x". Those with dropout
# have others since their numbers are others (ablate.config.revision).
FIRST = {
    "model=bert": "5a0ad3e55e92",
    "model=captioner": "a8d4e306049b",
    "model=gpt": "ca8da480add0",
    "model=rnn_seq2seq": "f6975b08438c",
    "model=transformer": "6b32860ede37",
    "model=vit": "a8e210a4a5e7",
    "model=gpt pos_enc=rotary": "24cbb8a21714",
    "model=gpt model.attention=additive": "c2d34a2667a3",
    "model=vit pos_enc=relative_2d": "ed72de45eb7d",
    "optimizer=sgd": "f2f15f0b2f73",
    "schedule=noam": "085b24f4bc67",
}
# What commit 6085061 of 2026-11-24 called pos_enc.scale, with its ids: today's command, then its.
SCALED = {
    "model=gpt pos_enc=sinusoidal": ("false", "9126b67ece42"),
    "model=gpt pos_enc=sinusoidal model.embedding_scale=sqrt": ("true", "c86d4ad6749b"),
    "model=transformer model.embedding_scale=1": ("false", "62f01e2f331a"),
    "model=transformer": ("true", "6b32860ede37"),
}


@pytest.fixture
def no_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids as they were before runs with dropout had others."""
    monkeypatch.setattr(revision, "KEYS", {})


@pytest.mark.parametrize("command", FIRST)
def test_a_run_of_the_first_version_has_its_id(command, monkeypatch):
    cfg = ablate.compose(*command.split())
    drops = cfg.model.get("dropout", 0) > 0
    assert (run_id(cfg, "x") == FIRST[command]) != drops
    monkeypatch.setattr(revision, "KEYS", {})
    assert run_id(cfg, "x") == FIRST[command]


def loose(cfg: DictConfig) -> DictConfig:
    """A copy that takes other keys."""
    cfg = cfg.copy()
    OmegaConf.set_struct(cfg, False)
    return cfg


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


def is_read_as(old: DictConfig, cfg: DictConfig) -> bool:
    """An old file is today's composition, and has its id."""
    return bool(run_id(old, "x") == run_id(cfg, "x") and history.upgrade(old) == cfg)


@pytest.mark.parametrize("name", ["constant", "noam"])
def test_a_part_that_moved_is_found_and_keeps_the_ids_of_its_runs(tmp_path, name):
    cfg = ablate.compose(f"schedule={name}")
    old = grown(cfg, "schedule._target_", f"ablate.schedule.{name}")
    assert run_id(old, "x") == run_id(cfg, "x")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(old, resolve=True))
    assert read_config(tmp_path / "config.yaml").schedule == cfg.schedule


def test_an_old_file_is_read_by_todays_names() -> None:
    for today, first in history.RENAMED.items():
        cfg = ablate.compose()
        node, _, leaf = today.rpartition(".")
        value = OmegaConf.select(old := loose(cfg), node).pop(leaf)
        OmegaConf.update(old, first, value)
        assert history.upgrade(old) == cfg


def test_keys_that_are_gone_are_left_out_and_never_counted() -> None:
    cfg = ablate.compose()
    (old := loose(cfg)).study.update({"pack": 4, "batched": "auto", "packed": {1: "outputs/other"}})
    assert is_read_as(old, cfg)


@pytest.mark.parametrize(
    "command",
    [
        "model=gpt model.ffn=swiglu model.norm_type=rms",
        "model=rnn_seq2seq model.cell=lstm model.decoder=bahdanau",
        "model=transformer",
    ],
)
def test_a_group_that_was_a_key_is_read_and_counts_as_before(command: str) -> None:
    cfg = ablate.compose(*command.split())
    old = loose(cfg)
    for group in history.GROUPED:
        _, slot = group.split(".")
        if "_target_" in (old.model.get(slot) or {}):
            old.model[slot] = old.choices.pop(group)
    assert is_read_as(old, cfg)


@pytest.mark.usefixtures("no_revisions")
@pytest.mark.parametrize("command", SCALED)
def test_the_scale_of_embeddings_was_a_key_of_sinusoidal_positions(command: str) -> None:
    before, first = SCALED[command]
    cfg = ablate.compose(*command.split())
    old = loose(cfg)
    for key in ("embedding_scale", "init_depth_scale"):
        old.model.pop(key, None)
    old.pos_enc.scale = before == "true"
    assert run_id(old, "x") == first
    assert is_read_as(old, cfg)


@pytest.mark.usefixtures("no_revisions")
def test_positions_that_never_scaled_have_their_first_id_without_a_scale() -> None:
    rotary = ["model=transformer", "pos_enc=rotary"]
    first = "85e1885ae16d"  # of commit 6085061
    assert run_id(ablate.compose(*rotary, "model.embedding_scale=1.0"), "x") == first
    assert run_id(ablate.compose(*rotary), "x") != first
