"""The run id: equal for the same work, different for everything that can change a result."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import ablate
from ablate.config import run_id as module
from ablate.config.composition import Composition, compose
from ablate.config.keys import to_dict
from ablate.config.overrides import equal
from ablate.config.run_id import content, folder_name, revision, revisions, run_id
from ablate.config.schema import ruled

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
    value = OmegaConf.select(cfg, path)
    OmegaConf.update(changed, path, "torch.nn.GELU" if "_target_" in path else other(value))
    return changed


# Where things lie, what is shown, how fast data is read, what is computed again.
UNIMPORTANT = """checkpoint_every checkpoint_keep evaluate data.path data.root data.sha256
    data.workers output_dir run_dir model.activation_checkpointing task.loss_chunk
    trainer.log_every_n_steps"""


@pytest.mark.ci
def test_every_key_that_can_change_the_result_changes_the_id() -> None:
    seen, unimportant = set(), UNIMPORTANT.split()
    for overrides in COMPOSITIONS:
        cfg = compose(*overrides)
        before = run_id(cfg, "x")
        for path in {path for path, *_ in ruled(cfg)} - seen:
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
    values = to_dict(compose(*one.split()))
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


@pytest.mark.parametrize(
    ("key", "file"),
    [("data.tokenizer", "tokenizer.json"), ("model.pretrained", "model.safetensors")],
)
def test_a_local_folder_of_hugging_face_counts_by_its_files(tmp_path, key, file) -> None:
    for name, written in {"a": "x", "b": "x", "c": "y"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(written)
    names = [f"{key}='hf:{tmp_path / name}'" for name in ("a", "b", "c", "missing")]
    ids = [run_id(compose("data=shakespeare", name), "x") for name in names]
    assert [ids.index(one) for one in ids] == [0, 0, 2, 3]


# Revisions


def test_a_class_counts_the_revisions_of_its_bases(tmp_path, monkeypatch) -> None:
    """So that a revision that is raised anywhere is seen."""
    classes = "class Base:\n    revision = 3\n\n\nclass Part(Base):\n    revision = 2\n"
    (tmp_path / "parts_with_revisions.py").write_text(classes)
    monkeypatch.syspath_prepend(tmp_path)
    assert revision("parts_with_revisions.Part") == 4
    assert revision("torch.optim.AdamW") == 1


def test_a_raised_revision_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = compose()
    before = run_id(cfg, "x")
    assert revisions(content(cfg)) == {}
    score = "ablate.model.attention.scaled_dot.ScaledDot"
    monkeypatch.setattr(module, "revision", lambda target: 1 + (target == score))
    assert revisions(content(cfg)) == {"model.attention": 2}
    assert run_id(cfg, "x") != before


def test_a_run_that_other_processes_began_keeps_its_id():
    four = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=4"]
    begun, now = Composition(ablate.compose(*four)), Composition(ablate.compose())
    assert now.id != begun.id
    assert now.with_recorded_processes(begun.cfg) == [
        "trainer.devices=4",
        "trainer.strategy=ddp",
    ]
    assert now.id == begun.id
    assert now.recorded == begun.cfg
    other = Composition(ablate.compose("optimizer.lr=1"))
    other.with_recorded_processes(begun.cfg)
    assert other.id != begun.id
