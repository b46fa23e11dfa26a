"""What all commands share: `ablate COMMAND`, the current folder, and where they do not run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from tiny import overrides

from ablate import diff, evaluate, generate, report, show
from ablate.__main__ import COMMANDS
from ablate.cli import command as commands
from ablate.cli import folder
from ablate.cli.command import command
from ablate.config.keys import locate
from ablate.errors import UserError
from ablate.version import described

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]

SOURCE = str(Path(commands.__file__).parents[2])


def test_every_command_is_a_word_of_ablate(
    ablate_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ablate show RUN_DIR` hands `show` what `python -m ablate.show RUN_DIR` would."""
    modules = (diff, evaluate, generate, report, show)
    assert {module.__name__.removeprefix("ablate.") for module in modules} == set(COMMANDS)
    for module in modules:
        word = module.__name__.removeprefix("ablate.")
        monkeypatch.setattr(module, "main", lambda: print(sys.argv[1:]))
        assert ablate_command(word, "RUN", "a=b") == (0, "['RUN', 'a=b']\n", "")


def test_a_command_refuses_as_ever(ablate_command: Command, tmp_path: Path) -> None:
    code, _, err = ablate_command("report", "nowhere", "--status")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("ablate: ")
    code, _, err = ablate_command("show")
    assert (code, err.count("\n")) == (2, 1)
    assert "run_dir; see python -m ablate.show --help" in err
    assert not list(tmp_path.iterdir())


def test_help_is_a_word_too(ablate_command: Command) -> None:
    assert ablate_command("help") == ablate_command("--help")
    assert ablate_command("help", "pos_enc") == ablate_command("--help", "pos_enc")


def test_a_misspelt_command_gets_the_right_name(ablate_command: Command, tmp_path: Path) -> None:
    code, _, err = ablate_command("evalute", "RUN")
    assert (code, err.count("\n")) == (2, 1)
    assert "'evalute' is no command" in err
    assert err.endswith("did you mean 'evaluate'?\n")
    assert ablate_command("seed", "=", "3")[0] == 2
    assert not list(tmp_path.iterdir())


def test_version(ablate_command: Command) -> None:
    assert ablate_command("--version") == (0, f"{described()}\n", "")
    assert described().startswith("ablate ")


def test_windows_is_refused_in_one_line(
    ablate_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(commands.sys, "platform", "win32")
    for words in ("model=vit", "show RUN"):
        code, _, err = ablate_command(*words.split())
        assert (code, err.count("\n")) == (2, 1)
        assert "Windows is not supported" in err
    with pytest.raises(SystemExit, match="2"):
        command(lambda: pytest.fail("it was started"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_windows_lacks_is_not_imported_before_it_is_refused() -> None:
    lacks = "{'fcntl', 'resource', 'pwd', 'grp', 'termios'}"
    code = f"import sys; from ablate import {', '.join(COMMANDS)}, __main__\n"
    code += "ours = {n: vars(m) for n, m in sys.modules.items() if n.startswith('ablate.')}\n"
    code += f"print(len(ours) > 50, {{name for name in ours if {lacks} & set(ours[name])}})"
    out = subprocess.check_output(
        [sys.executable, "-c", code], text=True, env=os.environ | {"PYTHONPATH": SOURCE}
    )
    assert out == "True set()\n"


def places(folder: Path, *options: str, **environment: str) -> list[str]:
    """sys.path, and whether processes started from there have the current folder on it, in a
    command that is started as an installed one is: by a script that lies elsewhere."""
    script = folder / "bin" / "ablate"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import os, sys\nfrom ablate.cli.command import command\n"
        "command(lambda: print(*sys.path, os.environ.get('PYTHONSAFEPATH'), sep='\\n'))\n"
    )
    done = subprocess.check_output(
        [sys.executable, *options, script],
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": SOURCE} | environment,
    )
    return done.splitlines()


def test_the_current_folder_is_the_last_place_for_a_person_s_parts(tmp_path: Path) -> None:
    *first, last, _ = places(tmp_path)
    assert last == str(tmp_path)
    assert last not in first


def test_pythons_own_switch_against_it_holds_for_all_processes(tmp_path: Path) -> None:
    for found in (places(tmp_path, "-P"), places(tmp_path, PYTHONSAFEPATH="1")):
        assert str(tmp_path) not in found
        assert found[-1] == "1"


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise PermissionError(13, "Permission denied", "maps/one.png")

    with pytest.raises(SystemExit, match="2"):
        command(main)
    said = "ablate: maps/one.png: cannot be read or written here (Permission denied)\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "says",
    [
        "libtorch_python.so: failed to map segment from shared object",
        "`torch` can only be initialized once per process, so this module cannot be imported again",
    ],
)
def test_a_torch_that_cannot_be_loaded(says: str, capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        raise ImportError(says)

    with pytest.raises(SystemExit, match="1"):
        command(main)
    said = "ablate: torch cannot be loaded here; `python -c 'import torch'` says why\n"
    assert capsys.readouterr().err == said


def test_a_folder_that_was_removed(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && {sys.executable} -c '"
    script += 'import sys; sys.argv[1:] = ["--help"]; from ablate.__main__ import main; main()\''
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run(script, shell=True, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "the current folder was removed" in done.stderr


def test_a_part_that_cannot_be_imported_says_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    says = rf"No module named 'my'\); give the command in the folder that holds my .*{tmp_path}"
    with pytest.raises(UserError, match=says):
        locate("my.l2.NegativeDistance")
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("mine.Part", "json.Part", "ablate.nothing.Part"):
        with pytest.raises(UserError, match="cannot be imported") as error:
            locate(target)
        assert "folder that holds" not in str(error.value)


def test_a_refusal_after_training_keeps_the_checkpoints(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    folder.remember(run, of_sweep=False)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.ckpt").touch()
    folder.remove_made()
    assert (run / "checkpoints" / "last.ckpt").exists()


def test_a_refused_run_removes_no_folder_where_another_one_trains(tmp_path: Path) -> None:
    """Whichever of two identical commands creates it."""
    run = tmp_path / "runs" / "one"
    folder.remember(run, of_sweep=False)
    assert folder.Folder.made == [run, run.parent]
    with FileLock(run / ".lock"):
        folder.remove_made()
        assert run.is_dir()
    folder.remove_made()
    assert not run.parent.exists()
    run.mkdir(parents=True)
    folder.remember(run, of_sweep=False)
    folder.remove_made()
    assert run.is_dir()


@pytest.mark.slow
def test_two_identical_commands_at_once_lose_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "ablate", *overrides(tmp_path, "logger=none")]
    for attempt in range(3):
        both = [
            subprocess.Popen(
                [*line, f"seed={attempt}"], cwd=tmp_path, text=True, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        errors = [process.communicate(timeout=300)[1] for process in both]
        codes = sorted(process.returncode for process in both)
        assert codes in ([0, 0], [0, 2]), errors
        assert not any("Traceback" in text for text in errors), errors
    found = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/runs/*/result.json")]
    assert [one["status"] for one in found] == ["finished"] * 3
