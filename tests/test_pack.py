"""Seeds that are trained together: what is in their folders, and what is refused."""

import csv
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import offline_wandb
import pytest
import torch
from make_launch import launched, runs
from omegaconf import DictConfig
from tiny import images, overrides, pairs
from torch import Tensor, nn

import ablate
from ablate.config.run_id import run_dir, run_id
from ablate.errors import Interrupted, RunFailed, UserError
from ablate.files import best_weights, read_mapping
from ablate.study.launch.packs import Packing, packs, together
from ablate.study.launch.run import Run
from ablate.task.causal_lm import CausalLM
from ablate.training import pack
from ablate.training.checkpoint import Checkpoints
from ablate.training.pack.checkpoint import common, joined, part
from ablate.training.pack.task import PackTask, clip_each
from ablate.training.pack.trial import refuse_pack
from ablate.training.sealed import read_weights

WITH_FIGURES = True  # tests/conftest.py

# Of Adam, a gradient that is 0 but for rounding makes a whole step; here it stays rounding.
PLAIN = ("optimizer=sgd", "optimizer.lr=0.1", "trainer.gradient_clip_val=0.2")
SLOW = pytest.mark.slow
SMALL = ("trainer.max_steps=6", "trainer.val_check_interval=3", "checkpoint_every=2")


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take longer than the training."""
    if "drawn" not in request.node.name:
        monkeypatch.setattr("ablate.training.train.show", lambda task, run_dir, trainer: None)


def told(result: dict[str, Any], folder: Path) -> None:
    """Nobody."""


def configs(typed: Sequence[str], seeds: Sequence[int], place: Path) -> dict[Path, DictConfig]:
    found = {}
    for seed in seeds:
        cfg = ablate.compose(*typed, f"seed={seed}", f"output_dir={place}")
        found[run_dir(cfg)] = cfg
    return found


def rows(folder: Path) -> list[list[str]]:
    return list(csv.reader((folder / "metrics.csv").open()))


def state(folder: Path, name: str = "last.ckpt") -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / "checkpoints" / name, weights_only=True)
    return found


def require_same(alone: Path, packed: Path, tolerance: float) -> None:
    """Everything in two folders of a run that does not say when or where it was made."""
    one, other = rows(alone), rows(packed)
    assert one[0] == other[0]
    assert len(one) == len(other) > 2
    values = [[[float(x or "nan") for x in row] for row in table[1:]] for table in (one, other)]
    torch.testing.assert_close(
        *map(torch.tensor, values), rtol=tolerance, atol=tolerance, equal_nan=True
    )
    best = [read_weights(best_weights(folder)) for folder in (alone, packed)]
    torch.testing.assert_close(*best, rtol=tolerance, atol=tolerance)
    for name in ("last.ckpt", "previous.ckpt"):
        first, second = state(alone, name), state(packed, name)
        assert first.keys() == second.keys()
        assert first["global_step"] == second["global_step"]
        assert first.get("lr_schedulers") == second.get("lr_schedulers")
        assert first.get("callbacks", {}).keys() == second.get("callbacks", {}).keys()
        for key in ("state_dict", "optimizer_states"):
            torch.testing.assert_close(
                first.get(key), second.get(key), rtol=tolerance, atol=tolerance
            )
    results = [read_mapping(folder / "result.json") for folder in (alone, packed)]
    for key in ("status", "run_id", "seed", "steps", "best_step", "parameters", "kernels", "error"):
        assert results[0][key] == results[1][key], key
    assert results[0]["metrics"] == pytest.approx(results[1]["metrics"], rel=1e-5, abs=tolerance)
    texts = [(folder / "config.yaml").read_text() for folder in (alone, packed)]
    places = [re.sub(r"output_dir: .*|batched: .*", "", text) for text in texts]
    assert places[0] == places[1]
    names = [{str(path.relative_to(f)) for path in f.rglob("*")} for f in (alone, packed)]
    assert names[0] == names[1]


COMPOSED = {
    "dropout": ("model.dropout=0.1", "model.drop_path=0.2", "model.depth=2"),
    "additive": ("model.attention=additive", "pos_enc=alibi", "model.norm=post"),
}
FURTHER = {
    "cosine": ("model.attention=cosine", "pos_enc=rotary", "model.norm_type=rms"),
    "hard": ("model.normalizer=hard",),
    "general": ("model.attention=general", "pos_enc=t5"),
    "relative": ("pos_enc=relative", "model.ffn=swiglu", "model.mask=window", "model.mask.size=4"),
}


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("name", [*COMPOSED, *(pytest.param(n, marks=SLOW) for n in FURTHER)])
def test_a_pack_is_what_its_runs_are(tmp_path: Path, name: str, batched: bool) -> None:
    """In turns to the last bit, at once to float32's rounding; clipped by seed."""
    typed = overrides(
        tmp_path, *SMALL, *PLAIN, *(COMPOSED | FURTHER)[name], f"study.batched={batched}"
    )
    alone = configs(typed, [0, 1], tmp_path / "alone")
    for folder, cfg in alone.items():
        ablate.run(cfg, folder)
    packed = configs(typed, [0, 1], tmp_path / "packed")
    results = pack.train(packed, told)
    assert [result["packed"] for result in results] == [2, 2]
    for one, other in zip(alone, packed, strict=True):
        require_same(one, other, tolerance=2e-5 if batched else 0.0)


@pytest.mark.slow
def test_the_default_optimizer_and_what_is_drawn(tmp_path: Path) -> None:
    """AdamW, and images, in turns."""
    typed = images(tmp_path, "trainer.max_steps=6", "checkpoint_every=2")
    alone = configs(typed, [3, 4], tmp_path / "alone")
    for folder, cfg in alone.items():
        ablate.run(cfg, folder)
    packed = configs(typed, [3, 4], tmp_path / "packed")
    pack.train(packed, told)
    for one, other in zip(alone, packed, strict=True):
        require_same(one, other, tolerance=0.0)


@pytest.mark.slow
def test_batches_are_accumulated_by_seed(tmp_path: Path) -> None:
    """Pairs, whose batches hold different numbers of targets; in turns."""
    more = ("trainer.accumulate_grad_batches=2", "trainer.max_steps=4", "checkpoint_every=2")
    typed = pairs(tmp_path, *more)
    alone = configs(typed, [0, 1], tmp_path / "alone")
    for folder, cfg in alone.items():
        ablate.run(cfg, folder)
    packed = configs(typed, [0, 1], tmp_path / "packed")
    pack.train(packed, told)
    for one, other in zip(alone, packed, strict=True):
        require_same(one, other, tolerance=0.0)
    with pytest.raises(UserError, match="accumulate_grad_batches above 1 cannot be computed at on"):
        pack.train(configs([*typed, "study.batched=true"], [0, 1], tmp_path / "at once"), told)


@pytest.mark.slow
def test_every_seed_is_a_run_of_its_own_in_wandb(tmp_path: Path) -> None:
    found = configs(overrides(tmp_path, *SMALL, "logger=wandb"), [0, 1], tmp_path / "runs")
    pack.train(found, told)
    for folder, cfg in found.items():
        (sent,) = offline_wandb.run_folders(folder)
        logged = offline_wandb.read(sent)
        assert logged.config["seed"] == cfg.seed
        measured = [row["val/loss"] for row in csv.DictReader((folder / "metrics.csv").open())]
        assert [x["val/loss"] for x in logged.history if "val/loss" in x] == pytest.approx(
            [float(value) for value in measured if value]
        )


def test_clipping_is_by_seed() -> None:
    """As torch does it for each alone; one seed's gradient that is no number stays its own."""
    drawn = [torch.randn(3, 4, 5), torch.randn(3, 7)]
    drawn[0][1] *= 1e-3
    drawn[1][1] *= 1e-3
    expected = []
    for k in range(3):
        own = [nn.Parameter(torch.zeros_like(g[k])) for g in drawn]
        for parameter, gradient in zip(own, drawn, strict=True):
            parameter.grad = gradient[k].clone()
        nn.utils.clip_grad_norm_(own, 0.5)
        expected.append([parameter.grad for parameter in own])
    clipped = [gradient.clone() for gradient in drawn]
    clip_each(clipped, 0.5)
    for k in range(3):
        torch.testing.assert_close([gradient[k] for gradient in clipped], expected[k])
    drawn[0][2, 0, 0] = torch.nan
    clip_each(drawn, 0.5)
    torch.testing.assert_close([gradient[0] for gradient in drawn], expected[0])


def checkpoints(folders: Sequence[Path]) -> list[Checkpoints]:
    return [Checkpoints(one / "checkpoints", every=1, model=nn.Module()) for one in folders]


@pytest.mark.parametrize("batched", [False, True])
def test_a_stopped_pack_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    """Ctrl-C saves all, the same command ends as if it had never been stopped."""
    typed = overrides(tmp_path, *SMALL, *PLAIN, f"study.batched={batched}")
    whole = configs(typed, [0, 1], tmp_path / "whole")
    pack.train(whole, told)
    step = PackTask.training_step

    def pressed(self: PackTask, batches: Any, batch_idx: int) -> Tensor:
        if batch_idx == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batches, batch_idx)

    halved = configs(typed, [0, 1], tmp_path / "halved")
    with monkeypatch.context() as patch:
        patch.setattr(PackTask, "training_step", pressed)
        with pytest.raises(Interrupted, match="after step 5"):
            pack.train(halved, told)
    for folder in halved:
        assert "the same command resumes" in read_mapping(folder / "result.json")["error"]
        assert state(folder)["global_step"] == 5
    assert common(checkpoints([*halved])) == 5
    pack.train(halved, told)
    for one, other in zip(whole, halved, strict=True):
        assert rows(one) == rows(other)
        assert read_mapping(other / "result.json")["status"] == "finished"
        torch.testing.assert_close(
            state(one)["state_dict"], state(other)["state_dict"], rtol=0, atol=0
        )


@pytest.mark.slow
def test_seeds_at_different_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They go on from the last step that all have, else one by one; what is finished stays."""
    typed = overrides(tmp_path, *SMALL)
    whole = configs(typed, [0, 1, 2], tmp_path / "whole")
    pack.train(whole, told)
    _, second, third = whole
    for folder in (second, third):
        (folder / "result.json").unlink()
    (third / "checkpoints" / "last.ckpt").unlink()
    expected = {folder: rows(folder) for folder in whole}
    newest, before = state(second)["global_step"], state(second, "previous.ckpt")["global_step"]
    assert (newest, before) == (6, 4)
    assert common(checkpoints([second, third])) == 4
    pack.train(whole, told)
    assert "is finished" in capsys.readouterr().out
    (third / "result.json").unlink()
    (second / "result.json").unlink()
    for path in (third / "checkpoints").iterdir():
        path.unlink()
    assert common(checkpoints([second, third])) is None
    pack.train(whole, told)
    assert "are trained one by one" in capsys.readouterr().out
    assert {folder: rows(folder) for folder in whole} == expected


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_a_seed_that_fails_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: bool
) -> None:
    typed = overrides(tmp_path, *SMALL, *PLAIN, f"study.batched={batched}")
    good = configs(typed, [0, 2], tmp_path / "good")
    pack.train(good, told)
    step = PackTask.training_step

    def broken(self: PackTask, batches: Any, batch_idx: int) -> Tensor:
        if batch_idx == 3:
            with torch.no_grad():
                next(self.members[1].parameters()).fill_(torch.nan)
        return step(self, batches, batch_idx)

    monkeypatch.setattr(PackTask, "training_step", broken)
    mixed = configs(typed, [0, 1, 2], tmp_path / "mixed")
    with pytest.raises(RunFailed, match="seed 1: the loss is infinite or nan at step 3"):
        pack.train(mixed, told)
    first, second, third = mixed
    failed = read_mapping(second / "result.json")
    assert failed["status"] == "failed"
    assert "step 3" in failed["error"]
    assert state(second)["global_step"] == 3
    for one, other in zip(good, (first, third), strict=True):
        require_same(one, other, tolerance=2e-5 if batched else 0.0)


def test_a_pack_whose_seeds_all_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = CausalLM.loss
    monkeypatch.setattr(CausalLM, "loss", lambda self, batch: loss(self, batch) * torch.nan)
    wanted = configs(overrides(tmp_path, *SMALL), [0, 1], tmp_path / "mixed")
    with pytest.raises(RunFailed, match=r"seed 0: .*; seed 1: "):
        pack.train(wanted, told)
    assert {read_mapping(folder / "result.json")["status"] for folder in wanted} == {"failed"}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (("model.norm_type=batch",), "at once: Batch norm got a batched tensor"),
        (("trainer.precision=bf16-mixed",), "trainer.precision=bf16-mixed"),
        (("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"), "on one device"),
        (("kernel=chunked", "kernel.chunk=4"), "cannot be computed at once"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path: Path, typed: Sequence[str], says: str) -> None:
    cfg = ablate.compose(*overrides(tmp_path, "study.batched=true", *typed))
    with pytest.raises(UserError, match=re.escape(says)) as error:
        refuse_pack(cfg, [0, 1])
    assert "\n" not in str(error.value)


def test_mixup_is_refused_at_once(tmp_path: Path) -> None:
    """timm's draws from numpy, once for all seeds."""
    cfg = ablate.compose(*images(tmp_path, "study.batched=true", "task.mixup=0.5"))
    with pytest.raises(UserError, match="cannot be computed at once"):
        refuse_pack(cfg, [0, 1])


@pytest.mark.slow
def test_texts_of_different_lengths_are_refused_at_once(tmp_path: Path) -> None:
    typed = overrides(tmp_path)[6:]
    cfg = ablate.compose("model=transformer", "data=dates", "study.batched=true", *typed)
    with pytest.raises(UserError, match="its batches differ in shape"):
        refuse_pack(cfg, [0, 1])


def test_packing_is_no_part_of_a_run(tmp_path: Path) -> None:
    one, other = (ablate.compose(*overrides(tmp_path, f"study.pack={n}")) for n in (1, 4))
    assert run_id(one) == run_id(other)


def test_runs_that_differ_in_the_seed_alone_share_a_process() -> None:
    wanted = [
        Run(Path(f"/at/{arm}{seed}"), [f"model.attention={arm}", f"seed={seed}", "hydra.run.dir=x"])
        for seed in range(3)
        for arm in ("dot", "general")
    ]
    names = [[run.folder.name for run in group] for group in packs(wanted, 2)]
    assert names == [["dot0", "dot1"], ["general0", "general1"], ["dot2"], ["general2"]]
    assert [len(group) for group in packs(wanted, 1)] == [1] * 6
    assert together(wanted[:1], "auto") == wanted[0].arguments
    line = together([wanted[0], wanted[2]], True)
    assert line[-2:] == ["study.packed={1:'/at/dot1'}", "study.batched=true"]
    assert line[:-2] == wanted[0].arguments


def test_a_state_is_split_and_joined() -> None:
    def own(k: int) -> dict[str, Any]:
        groups = [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.1, "params": [2]}]
        state = {n: {"moment": torch.tensor([k, n])} for n in range(3)}
        weights = {"model.w": torch.tensor([float(k)])}
        return {
            "state_dict": weights,
            "optimizer_states": [{"state": state, "param_groups": groups}],
            "global_step": 3,
            "callbacks": {},
        }

    whole = joined([own(0), own(1)])
    assert whole["optimizer_states"][0]["param_groups"][0]["params"] == [0, 1, 2, 3]
    for k in range(2):
        torch.testing.assert_close(part(whole, k, 2), own(k))


@pytest.mark.slow
def test_the_local_launcher_packs(tmp_path: Path) -> None:
    """A pack of two and one alone; the same folders as without, and everything settled."""
    wanted = runs(tmp_path, [0, 1, 2])
    found = launched(wanted, packing=Packing(2), slots=1)
    assert [one.name for one in found] == ["finished"] * 3
    results = [read_mapping(run.folder / "result.json") for run in wanted]
    assert [result.get("packed") for result in results] == [2, 2, None]
    log = (wanted[1].folder / "stdout.log").read_text()
    assert str(wanted[0].folder) in log
    assert not any((run.folder / "queued.json").exists() for run in wanted)
