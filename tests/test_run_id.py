"""The run id: equal for the same work, different for everything that can change a result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from ablate.config.check import leaves
from ablate.config.composition import Composition, compose
from ablate.config.keys import plain
from ablate.config.run_id import run_id

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


def unimportant(path: str) -> bool:
    """Where things lie, what is shown, how fast data is read, what is computed again."""
    return path.startswith(("logger.", "study.")) or path in {
        "checkpoint_every",
        "data.path",
        "data.root",
        "data.sha256",
        "data.workers",
        "model.activation_checkpointing",
        "output_dir",
        "trainer.log_every_n_steps",
    }


def every_leaf() -> Iterator[tuple[DictConfig, str]]:
    for overrides in COMPOSITIONS:
        cfg = compose(*overrides)
        for path, _ in leaves(cfg):
            yield cfg, path


def test_every_key_that_can_change_the_result_changes_the_id() -> None:
    seen = set()
    for cfg, path in every_leaf():
        assert (run_id(changed(cfg, path), "x") == run_id(cfg, "x")) == unimportant(path), path
        seen.add(path)
    assert {"seed", "model.heads", "data.workers", "logger.project", "output_dir"} <= seen


def test_every_option_changes_the_id() -> None:
    ids = [run_id(compose(f"model.attention={o}"), "x") for o in ("dot", "scaled_dot", "uniform")]
    ids += [run_id(compose(f"pos_enc={o}"), "x") for o in ("none", "alibi")]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (["optimizer.lr=1e-3"], ["optimizer.lr=0.001"]),
        (["optimizer.weight_decay=0"], ["optimizer.weight_decay=0.0"]),
        (["model.attention=dot", "seed=1"], ["seed=1", "model.attention=dot"]),
        (["model.dim=64"], ["++model.dim=64"]),
        (["seed=2"], ["seed=2", "study.name=other", "checkpoint_every=9"]),
        (["trainer.max_steps=300"], ["trainer.max_steps=300", "logger=none", "output_dir=/x"]),
    ],
)
def test_the_same_work_written_differently_has_the_same_id(one: list[str], two: list[str]) -> None:
    assert run_id(compose(*one), "x") == run_id(compose(*two), "x")


def test_the_data_counts_by_its_content(tmp_path: Path) -> None:
    text = "To be, or not to be, that is the question. " * 100
    a, b, c = (tmp_path / name for name in ("a.txt", "b.txt", "c.txt"))
    a.write_text(text)
    b.write_text(text)
    c.write_text(text.upper())
    ids = [Composition(compose("data=text", f"data.path={path}")).id for path in (a, b, c)]
    assert ids[0] == ids[1] != ids[2]
    missing = [
        Composition(compose("data=text", f"data.path={tmp_path}/{n}")).id for n in ("x", "y")
    ]
    assert missing[0] == missing[1] != ids[0]


def test_the_folder_of_a_run() -> None:
    cfg = compose("output_dir=/results", "study.name=positions")
    name = Composition(cfg).id
    assert Composition(cfg).folder == Path("/results/positions") / name
    assert len(name) == 12
    assert int(name, 16) >= 0


def test_choices_and_hydra_are_not_part_of_the_work() -> None:
    cfg = compose()
    with_more = cfg.copy()
    with open_dict(with_more):
        del with_more["choices"]
        with_more.hydra = {"run": {"dir": "${run_id:}"}}
    assert run_id(with_more, "x") == run_id(cfg, "x")


def test_the_order_of_keys_does_not_count() -> None:
    values = plain(compose())
    assert run_id(dict(reversed(values.items())), "x") == run_id(values, "x")
