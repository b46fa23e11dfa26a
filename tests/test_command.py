"""What all commands share: `ablate COMMAND`, the current folder, and where they do not run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from tiny import in_a_process, overrides

from ablate import diff, evaluate, export, generate, report, show
from ablate.__main__ import COMMANDS
from ablate.cli import command as commands
from ablate.cli import folder
from ablate.cli.command import command
from ablate.config.keys import locate
from ablate.errors import UserError
from ablate.version import described

pytest_plugins = ["command_line"]
MODULES = (diff, evaluate, export, generate, report, show)


def test_every_command_is_a_word_of_ablate(ablate_command, monkeypatch):
    """`ablate show RUN_DIR` hands `show` what `python -m ablate.show RUN_DIR` would."""
    for word, module in zip(sorted(COMMANDS), MODULES, strict=True):
        assert module.__name__ == f"ablate.{word}"
        monkeypatch.setattr(module, "main", lambda: print(sys.argv[1:]))
        assert ablate_command(word, "RUN", "a=b") == (0, "['RUN', 'a=b']\n", "")


def test_a_command_refuses_in_one_line(ablate_command, tmp_path, monkeypatch):
    def refuses(words, says):
        code, _, err = ablate_command(*words.split())
        assert (code, err.count("\n"), err[:8]) == (2, 1, "ablate: ")
        assert says in err

    refuses("report nowhere --status", "nowhere")
    refuses("show", "run_dir; see python -m ablate.show --help")
    refuses("evalute RUN", "did you mean 'evaluate'?\n")
    refuses("seed = 3", "")
    monkeypatch.setattr(commands.sys, "platform", "win32")
    for words in ("model=vit", "show RUN"):
        refuses(words, "Windows is not supported")
    with pytest.raises(SystemExit, match="2"):
        command(lambda: pytest.fail("it was started"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("module", MODULES)
def test_every_argument_of_a_command_is_explained(module, monkeypatch):
    def parsed(parser, *_):
        unexplained.extend(action.dest for action in parser._actions if not action.help)
        raise SystemExit

    unexplained = []
    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(commands.Arguments, name, parsed)
    with pytest.raises(SystemExit):
        module.main()
    assert unexplained == []


def test_help_and_version(ablate_command):
    assert ablate_command("help", "pos_enc") == ablate_command("--help", "pos_enc")
    assert ablate_command("--version") == (0, f"{described()}\n", "")
    assert described().startswith("ablate ")


def places(folder: Path, *options: str, **environment: str) -> list[str]:
    """sys.path, and whether processes started from there have the current folder on it, in a
    command that is started as an installed one is: by a script that lies elsewhere."""
    script = folder / "bin" / "ablate"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import os, sys\nfrom ablate.cli.command import command\n"
        "command(lambda: print(*sys.path, os.environ.get('PYTHONSAFEPATH'), sep='\\n'))\n"
    )
    return in_a_process(*options, script, folder=folder, **environment).stdout.splitlines()


def test_the_current_folder_is_the_last_place_for_a_persons_parts(tmp_path):
    *first, last, _ = places(tmp_path)
    assert last == str(tmp_path)
    assert last not in first
    # Python's own switch against it holds for all processes.
    for found in (places(tmp_path, "-P"), places(tmp_path, PYTHONSAFEPATH="1")):
        assert str(tmp_path) not in found
        assert found[-1] == "1"


def test_a_part_that_cannot_be_imported_says_where_to_go(tmp_path, monkeypatch):
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


def test_a_refused_run_removes_only_what_it_made(tmp_path):
    """No folder with checkpoints, none where another one trains, whichever made it."""
    run, last = tmp_path / "runs" / "one", tmp_path / "runs" / "two" / "checkpoints" / "last.ckpt"
    folder.remember(run, of_sweep=False)
    assert folder.Folder.created == [run, run.parent]
    with FileLock(run / ".lock"):
        folder.remove_created()
        assert run.is_dir()
    folder.remove_created()
    assert not run.parent.exists()
    run.mkdir(parents=True)
    for of_sweep in (False, True):
        folder.remember(run, of_sweep=of_sweep)
        folder.remove_created()
        assert run.is_dir()
    folder.remember(last.parents[1], of_sweep=False)
    last.parent.mkdir()
    last.touch()
    folder.remove_created()
    assert last.exists()


@pytest.mark.slow
def test_two_identical_commands_at_once_lose_nothing(tmp_path):
    line = [sys.executable, "-m", "ablate", *overrides(tmp_path)]
    own = {"cwd": tmp_path, "text": True, "stderr": subprocess.PIPE}
    for seed in range(3):
        both = [subprocess.Popen([*line, f"seed={seed}"], **own) for _ in range(2)]
        errors = [process.communicate(timeout=300)[1] for process in both]
        assert sorted(process.returncode for process in both) in ([0, 0], [0, 2]), errors
        assert not any("Traceback" in text for text in errors), errors
    found = [json.loads(path.read_text()) for path in tmp_path.glob("outputs/runs/*/result.json")]
    assert [one["status"] for one in found] == ["finished"] * 3
