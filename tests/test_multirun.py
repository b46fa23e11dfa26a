"""Several runs by one command: -m and sweeps."""

from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from ablate.errors import Interrupted
from ablate.run_id import run_id

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]
Runs = list[tuple[DictConfig, Path]]


def test_multirun_runs_every_combination(
    ablate_command: Command, runs: Runs, tmp_path: Path
) -> None:
    code, _, err = ablate_command("-m", "model.attention=additive,dot,scaled_dot", "seed=0,1")
    assert (code, err) == (0, "")
    found = {(cfg.choices["model.attention"], cfg.seed) for cfg, _ in runs}
    assert found == {(a, s) for a in ("additive", "dot", "scaled_dot") for s in (0, 1)}
    assert len({folder for _, folder in runs}) == 6
    for cfg, folder in runs:
        assert folder == tmp_path / "outputs" / "runs" / run_id(cfg)


def test_a_refused_run_of_a_sweep_leaves_the_others_their_turn(
    ablate_command: Command, runs: Runs
) -> None:
    code, out, err = ablate_command("-m", "model.heads=2,3,4,5")
    assert code == 2
    assert [cfg.model.heads for cfg, _ in runs] == [2, 4]
    last = err.splitlines()[-1]
    assert last.startswith("ablate: 2 runs went wrong: [model.heads=3] model.heads=3 does not")
    assert "[model.heads=5]" in last
    assert "refused: model.heads=3 does not divide" in out


def test_a_failed_run_of_a_sweep(
    ablate_command: Command, fail: list[BaseException], runs: Runs
) -> None:
    fail.append(ZeroDivisionError("ours"))
    code, out, err = ablate_command("-m", "seed=0,1")
    assert (code, len(runs)) == (1, 2)
    assert "Traceback" in out
    assert err.splitlines()[-1] == ("ablate: 2 runs went wrong: ZeroDivisionError: ours (2 runs)")


def test_stopping_one_run_stops_the_sweep(
    ablate_command: Command, fail: list[BaseException], runs: Runs
) -> None:
    fail.append(Interrupted("stopped"))
    assert ablate_command("-m", "seed=0,1,2")[0] == 130
    assert len(runs) == 1


def test_a_sweep_by_name(ablate_command: Command, runs: Runs, tmp_path: Path) -> None:
    code, _, err = ablate_command("sweep=attention_scores", "trainer.max_steps=150")
    assert (code, err) == (0, "")
    assert len({cfg.choices["model.attention"] for cfg, _ in runs}) == len(runs) >= 6
    for cfg, folder in runs:
        assert folder.parent == tmp_path / "outputs" / "attention_scores"
        assert cfg.trainer.max_steps == 150
