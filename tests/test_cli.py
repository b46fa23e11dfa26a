"""The command line: what reaches a run, exit codes, folders, help, and how quick it is."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from make_rules import rules_of_keys
from omegaconf import DictConfig
from tiny import overrides

from ablate.cli import command as commands
from ablate.cli import job
from ablate.cli.help import help_text
from ablate.config.composition import Composition, compose
from ablate.config.rules import OneOf
from ablate.config.tree import open_tree
from ablate.errors import Interrupted, RunFailed, UserError

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]
Runs = list[tuple[DictConfig, Path]]

SOURCE = str(Path(job.__file__).parents[2])


def in_a_process(
    *argv: str, code: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "ablate"]
    return subprocess.run(
        [sys.executable, *start, *argv],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": SOURCE} | env,
    )


def test_the_exact_command(ablate_command: Command, runs: Runs, tmp_path: Path) -> None:
    code, _, err = ablate_command("model.attention=additive", "pos_enc=learned")
    assert (code, err) == (0, "")
    cfg, folder = runs[0]
    assert cfg == compose("model.attention=additive", "pos_enc=learned")
    assert cfg.model.attention.hidden is None
    assert folder == tmp_path / Composition(cfg).folder
    assert not (folder / "train.log").exists()  # nothing was logged


def test_the_run_is_named_by_its_id_or_by_the_person(
    ablate_command: Command, runs: Runs, tmp_path: Path
) -> None:
    ablate_command("seed=1", "study.name=mine", f"output_dir={tmp_path}/there")
    ablate_command("seed=1", f"hydra.run.dir={tmp_path}/here")
    assert runs[0][1] == tmp_path / "there" / "mine" / Composition(runs[0][0]).id
    assert runs[1][1] == tmp_path / "here"
    assert Composition(runs[0][0]).id == Composition(runs[1][0]).id


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("data.path=x: no such file"), 2, "ablate: data.path=x: no such file\n"),
        (RunFailed("the loss is nan at step 3"), 1, "ablate: the loss is nan at step 3\n"),
        (Interrupted("stopped at step 3"), 130, "ablate: stopped at step 3\n"),
        (KeyboardInterrupt(), 130, "ablate: interrupted\n"),
    ],
)
def test_exit_codes(
    ablate_command: Command, fail: list[BaseException], error: BaseException, code: int, line: str
) -> None:
    fail.append(error)
    assert ablate_command()[::2] == (code, line)


def test_a_fault_of_ours_shows_its_traceback(
    ablate_command: Command, fail: list[BaseException]
) -> None:
    fail.append(ZeroDivisionError("ours"))
    code, _, err = ablate_command()
    assert code == 1
    assert err.startswith("Traceback")
    assert err.endswith("ZeroDivisionError: ours\n")


def test_a_mistake_shows_its_traceback_on_request(
    ablate_command: Command, fail: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail.append(UserError("wrong"))
    monkeypatch.setattr(commands, "TYPED", "1")
    code, _, err = ablate_command()
    assert code == 2
    assert "Traceback" in err
    assert err.endswith("ablate: wrong\n")


def test_a_mistake_found_by_a_part_is_found_behind_hydra(
    ablate_command: Command, fail: list[BaseException]
) -> None:
    """Hydra wraps what a constructor raises."""
    wrapped = RuntimeError("Error in call to target 'ablate.X'")
    wrapped.__cause__ = UserError("pos_enc.base=-1 must be more than 0")
    fail.append(wrapped)
    assert ablate_command()[::2] == (2, "ablate: pos_enc.base=-1 must be more than 0\n")


def test_a_refused_run_leaves_no_folder(
    ablate_command: Command, fail: list[BaseException], tmp_path: Path
) -> None:
    fail.append(UserError("no"))
    ablate_command()
    ablate_command(f"hydra.run.dir={tmp_path}/a/b/c")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_run_leaves_the_folders_of_others(
    ablate_command: Command, fail: list[BaseException], tmp_path: Path
) -> None:
    (tmp_path / "outputs" / "runs" / "other").mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    fail.append(UserError("no"))
    ablate_command()
    ablate_command(f"hydra.run.dir={mine}")
    assert [p.name for p in (tmp_path / "outputs" / "runs").iterdir()] == ["other"]
    assert (mine / "notes.txt").read_text() == "keep"


def test_a_failed_run_keeps_its_folder(
    ablate_command: Command, fail: list[BaseException], tmp_path: Path
) -> None:
    fail.append(RunFailed("nan"))
    ablate_command()
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 1


def test_a_folder_that_cannot_be_written(ablate_command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = ablate_command(f"output_dir={tmp_path}/file")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("ablate: output_dir: cannot write there")


def test_the_environment_of_a_run_is_the_persons(
    ablate_command: Command, seen: dict[str, Any]
) -> None:
    """HYDRA_FULL_ERROR is set only while Hydra composes: other processes inherit it otherwise."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    ablate_command()
    assert seen["HYDRA_FULL_ERROR"] == before == os.environ.get("HYDRA_FULL_ERROR")


def test_processes_started_by_lightning_join_the_same_run(
    ablate_command: Command, runs: Runs, seen: dict[str, Any]
) -> None:
    """Lightning repeats the command with the folder of the first process."""
    ablate_command("seed=5", "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    ablate_command(*seen["ddp"])
    (cfg, folder), (cfg_again, folder_again) = runs
    assert folder == folder_again
    assert cfg == cfg_again


def test_composing_inside_a_run(ablate_command: Command, seen: dict[str, Any]) -> None:
    seen["compose"] = "model=vit"
    assert ablate_command("seed=9")[0] == 0
    assert seen["composed"] == compose("model=vit")


def test_help_lists_every_option_and_every_switch() -> None:
    page = help_text(None, [])
    with open_tree() as tree:
        for group in tree.groups:
            entry = page.split(f"  {group}=")[1].split("=  ")[0]
            for option in tree.options(group):
                assert option in entry, f"{group}={option}"
    for key, rules in rules_of_keys().items():
        for rule in rules:
            if key.startswith("model.") and isinstance(rule, OneOf):
                assert all(option in page.split(f"  {key}=")[1] for option in rule.options)
    assert page.count("python -m ablate") >= 5
    assert "outputs/" in page
    assert all(len(line) <= 100 for line in page.splitlines())
    assert len(page.splitlines()) < 100
    assert "_target_" not in page


def test_help_on_a_group_says_what_its_options_are(tmp_path: Path) -> None:
    assert "Bahdanau" in help_text(None, ["model.attention"])
    (tmp_path / "pos_enc").mkdir()
    (tmp_path / "pos_enc" / "spiral.yaml").write_text("# Round and round.\n_target_: mine.S\n")
    assert "spiral" in help_text(str(tmp_path), [])
    assert "pos_enc=spiral\n    Round and round." in help_text(str(tmp_path), ["pos_enc"])


def test_a_real_process_refuses_in_one_line() -> None:
    done = in_a_process("model.heads=3", "pos_enc=rotary", "model.attention=uniform")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    full = in_a_process("model.heads=3", HYDRA_FULL_ERROR="1")
    assert full.returncode == 2
    assert "Traceback" in full.stderr


@pytest.mark.parametrize(
    "more",
    [
        ["logger=wandb"],
        # Imports torch's compiler and Triton.
        pytest.param(
            ["model.attention=additive", "kernel=chunked", "kernel.compile=true"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["wandb", "compiled"],
)
@pytest.mark.usefixtures("no_interpreter")
def test_a_whole_run_prints_nothing_but_what_we_say(tmp_path: Path, more: list[str]) -> None:
    done = in_a_process(*overrides(tmp_path, *more), WANDB_SILENT="false")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "leaked" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("  python -m ablate ")


@pytest.mark.parametrize("argv", [["--help"], ["--cfg", "job"], ["model.heads=3"], ["model=gtp"]])
def test_quick_answers_do_not_import_torch(argv: list[str]) -> None:
    code = (
        "import sys, ablate.__main__ as m\n"
        "try: m.main()\n"
        "finally: print([n for n in ('torch', 'lightning', 'wandb') if n in sys.modules])"
    )
    assert in_a_process(*argv, code=code).stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--cfg", "job", "model.attention=dot"], "ablate.model.attention.dot.Dot"),
        (["model.attention=dot", "--cfg", "job", "seed=57"], "seed: 57"),
        (["--cfg", "hydra"], "output_dir"),
        (["--info", "searchpath"], "/conf"),
        (["--hydra-help"], "Hydra"),
    ],
)
def test_hydras_own_questions_still_have_answers(argv: list[str], part: str) -> None:
    done = in_a_process(*argv)
    assert done.returncode == 0
    assert part in done.stdout


def test_the_stand_in_has_the_real_signature() -> None:
    import inspect

    from ablate.training.train import train

    assert list(inspect.signature(train).parameters) == ["composition", "run_dir"]
    assert isinstance(sys.modules["ablate.training.train"], ModuleType)
