"""The command line: what reaches a run, exit codes, folders, help, what its commands share."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest
from filelock import FileLock
from make_rules import rules_of_keys
from refusals import refusal, refused
from tiny import in_a_process, overrides

from ablate.__main__ import COMMANDS
from ablate.cli import command as commands
from ablate.cli.command import command
from ablate.cli.help import help_text
from ablate.config.composition import Composition, compose
from ablate.config.parts import locate
from ablate.config.rules import OneOf
from ablate.config.tree import open_tree
from ablate.errors import Interrupted, RunFailed, UserError
from ablate.machine.version import PACKAGE, described
from ablate.run_files import named_folder
from ablate.run_files.created import created

pytest_plugins = ["command_line"]


def test_a_command_is_composed_and_its_run_named_by_its_id(ablate_command, runs, tmp_path):
    typed = ["model.attention=additive", "pos_enc=learned"]
    assert ablate_command(*typed)[::2] == (0, "")
    cfg, folder = runs[0]
    assert cfg == compose(*typed)
    assert folder == tmp_path / Composition(cfg).folder
    ablate_command(*typed, "study.name=mine", f"output_dir={tmp_path}/there")
    ablate_command(*typed, f"hydra.run.dir={tmp_path}/here")
    assert runs[1][1] == tmp_path / "there" / "mine" / Composition(cfg).id
    assert runs[2][1] == tmp_path / "here"


# As Hydra does with what a constructor raises.
WRAPPED = RuntimeError("Error in call to target 'ablate.X'")
WRAPPED.__cause__ = UserError("pos_enc.base=-1")
# As Lightning does with Ctrl-C.
EXIT = SystemExit(1)
EXIT.__context__ = KeyboardInterrupt()
DENIED = PermissionError(13, "Permission denied", "one.png")
DENIED_INSIDE = RuntimeError("Error in call to target 'ablate.X'")
DENIED_INSIDE.__cause__ = DENIED
FULL = OSError(28, "No space left on device")  # as of a write, which names no file
OPEN = "unable to open file </torch_1>: Too many open files (24)"
NO_TORCH = ImportError("`torch` can only be initialized once per process")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("data.path=x: no such file"), 2, "data.path=x: no such file"),
        (RunFailed("the loss is nan at step 3"), 1, "the loss is nan at step 3"),
        (Interrupted("stopped at step 3"), 130, "stopped at step 3"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (EXIT, 130, "interrupted"),
        (WRAPPED, 2, "pos_enc.base=-1"),
        (DENIED, 2, "one.png: cannot be read or written here (Permission denied)"),
        (DENIED_INSIDE, 2, "one.png: cannot be read or written here (Permission denied)"),
        (FULL, 2, "a file: cannot be read or written here (No space left on device)"),
        (RuntimeError(f"{OPEN}\nat ..."), 1, f"out of memory or disk space: {OPEN}"),
        (NO_TORCH, 1, "torch cannot be imported; run `python -c 'import torch'` for the reason"),
    ],
)
def test_an_error_has_its_exit_code_and_one_line(ablate_command, fail, error, code, line):
    fail.append(error)
    assert ablate_command()[::2] == (code, f"ablate: {line}\n")


def test_hydras_own_sweeper_ends_as_its_worst_run(ablate_command, fail):
    fail.append(RunFailed("nan"))
    basic = ("hydra/sweeper=basic", "hydra/launcher=basic")
    code, _, err = ablate_command("-m", "seed=0,1", *basic)
    assert (code, err.splitlines()[-1]) == (1, "ablate: 2 runs went wrong: nan (2 runs)")


def test_faults_show_tracebacks_and_mistakes_on_request(ablate_command, fail, monkeypatch):
    fail.append(ZeroDivisionError("ours"))
    code, _, err = ablate_command()
    assert (code, err.startswith("Traceback")) == (1, True)
    assert err.endswith("ZeroDivisionError: ours\n")
    fail[0] = UserError("wrong")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    code, _, err = ablate_command()
    assert (code, "Traceback" in err) == (2, True)
    assert err.endswith("ablate: wrong\n")


def test_a_refused_run_leaves_no_folder_but_those_of_others(ablate_command, fail, tmp_path):
    fail.append(UserError("no"))
    ablate_command()
    ablate_command(f"hydra.run.dir={tmp_path}/a/b/c")
    assert list(tmp_path.iterdir()) == []
    notes = tmp_path / "mine" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("keep")
    ablate_command(f"hydra.run.dir={notes.parent}")
    assert notes.read_text() == "keep"
    fail[0] = RunFailed("nan")
    ablate_command()
    assert len(list((tmp_path / "outputs" / "runs").iterdir())) == 1


def test_a_folder_that_cannot_be_written_and_one_outside_are_said(ablate_command, tmp_path):
    (tmp_path / "file").write_text("")
    refusal(ablate_command(f"output_dir={tmp_path}/file"), "ablate: output_dir: cannot write to")
    (tmp_path / "inside").mkdir()
    _, out, _ = ablate_command("output_dir=inside", "hydra.run.dir=escape")
    assert f"ablate: output in {tmp_path}/escape, outside output_dir=inside" in out.splitlines()
    for more in ([], ["-m", "seed=1,2"]):
        code, out, err = ablate_command("study.name=../x", *more)
        assert (code, out) == (2, "")
        assert 'study.name="../x": must be a name of a folder inside' in err


def test_a_run_may_compose(ablate_command, seen):
    seen["compose"] = "model=vit"
    assert ablate_command("seed=9")[0] == 0
    assert seen["composed"] == compose("model=vit")


def test_processes_started_by_lightning_join_the_same_run(ablate_command, runs, seen):
    """Lightning repeats the command with the folder of the first process."""
    ablate_command("seed=5", "trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    ablate_command(*seen["ddp"])
    first, second = runs
    assert first == second


@pytest.fixture
def own(tmp_path):
    """A folder for --config-dir."""
    (tmp_path / "pos_enc").mkdir()
    text = "# Round and round.\n_target_: mine.S\nturns: 3 # of the helix\n"
    (tmp_path / "pos_enc" / "spiral.yaml").write_text(text)
    return str(tmp_path)


def test_help_lists_every_option_and_every_switch(own):
    page = help_text(None, [])
    tree = open_tree()
    # Of an option in a folder, such as claims/parts, the folder.
    listed = {g: [o.partition("/")[0] for o in tree.options(g)] for g in tree.groups}
    for key, rules in rules_of_keys().items():
        for rule in rules:
            if key.startswith("model.") and isinstance(rule, OneOf) and True not in rule.options:
                listed[key] = rule.options
    for key, options in listed.items():
        entry = page.split(f"  {key}=")[1].split("=  ")[0]
        assert [option for option in options if option not in entry] == [], key
    assert all(len(line) <= 100 for line in page.splitlines())
    assert len(page.splitlines()) < 112
    assert "Bahdanau" in help_text(None, ["model.attention"])
    assert "spiral" in help_text(own, [])
    assert "pos_enc=spiral\n    Round and round." in help_text(own, ["pos_enc"])


@pytest.mark.ci
def test_help_finds_options_and_keys_by_a_word(own, ablate_command):
    """In names, comments and docstrings, in any case; every word has to begin one there."""
    for words, line in {
        "rope": "pos_enc=rotary",
        "weight tying": "model.tie_embeddings",
        "Longformer": "model.mask=window",  # in a docstring alone
        "parallel": "hydra.launcher.max_parallel_runs",
        # of an option, its keys and values
        "data=text": "  seq_len: 128",
        "model=vit": "    stride: null",
    }.items():
        lines = help_text(None, words.split()).splitlines()
        assert any(text.startswith(line) for text in lines), words
        assert "=" in words or all(len(text) <= 100 for text in lines)
    for key, texts in {
        "optimizer.lr": [
            "a finite number more than 0",
            "2e-3 (optimizer=adamw,",
            "set to 2e-3 by model=",
        ],
        "model.heads": ["an integer of at least 1", "each of width dim / heads", "= 4 ("],
        "hydra.launcher.max_parallel_runs": ["parallel runs", "auto (hydra/launcher=local)"],
    }.items():
        text = help_text(None, [key])
        assert [part for part in (f"{key}\n", *texts) if part not in text] == [], key
    assert help_text(None, ["model.sink"]) == help_text(None, ["model.mixer.sink"])
    sweeps = help_text(None, ["sweep"])
    assert "reading from left to right, reading only near tokens" in " ".join(sweeps.split())
    assert "python -m" not in sweeps
    assert help_text(own, ["pos_enc=spiral"]).startswith("pos_enc=spiral\n  # Round and round.")
    assert help_text(own, ["helix"]) == "pos_enc.turns\n    of the helix"
    depths = help_text(None, ["depth"]).splitlines()
    assert depths.count("model.depth") == 1
    assert any(line.startswith("    number of blocks (model=bert, ") for line in depths)
    assert "sweep=" not in depths  # though options of it have the word
    meant = {"atention": "'attention'", "data=txt": "'text'", "pos_enc=rope": "pos_enc=rotary"}
    for word, name in meant.items():
        refusal(ablate_command("--help", word), f"did you mean {name}?")


QUICK = {
    "model.attention=dot --cfg job seed=57": "ablate.model.attention.dot.Dot",
    "model.heads=3 pos_enc=rotary model.atention=uniform": "",  # is rejected
    "pos_enc=rotari": "",
    "+model.hedas=3": "",
    "-m model.attention=dot,rotari": "",
    "-m model.atention=dot,cosine": "",
}
HYDRAS = {"--help": "python -m ablate", "--cfg hydra": "output_dir", "--info searchpath": "/conf"}
SLOW = HYDRAS | {f"{word} --help": f"ablate.{word}" for word in COMMANDS}


@pytest.mark.parametrize("argv", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_quick_answers_hydras_own_among_them_do_not_import_torch(argv):
    code = (
        "import sys, ablate.__main__ as m\n"
        "try: m.main()\n"
        "finally: print([n for n in ('torch', 'lightning', 'wandb') if n in sys.modules])"
    )
    done = in_a_process("-c", code, *argv.split())
    assert done.stdout.endswith("[]\n")
    if part := (QUICK | SLOW)[argv]:
        assert part in done.stdout
    else:
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "[]\n", 1)


@pytest.mark.parametrize("flags", ["--cfg job --info config", "--resolve", "--config-path x"])
def test_flags_of_hydra_that_would_be_ignored_are_rejected(ablate_command, flags):
    refusal(ablate_command(*flags.split()), *re.findall(r"--\S+", flags))


# What all commands share


def test_every_command_is_a_word_of_ablate(ablate_command, monkeypatch):
    """`ablate show RUN_DIR` hands `show` what `python -m ablate.show RUN_DIR` would."""
    files = {path.stem: path.read_text() for path in PACKAGE.glob("*.py")}
    assert {name for name, text in files.items() if "\ndef main(" in text} == {
        *COMMANDS,
        "__main__",
    }
    for word in COMMANDS:
        module = import_module(f"ablate.{word}")
        monkeypatch.setattr(module, "main", lambda: print(sys.argv[1:]))
        assert ablate_command(word, "RUN", "a=b") == (0, "['RUN', 'a=b']\n", "")


def test_a_command_refuses_in_one_line(ablate_command, tmp_path, monkeypatch):
    def refuses(words, says):
        refusal(ablate_command(*words.split()), says)

    refuses("report nowhere --status", "nowhere")
    refuses("show", "run_dir; see python -m ablate.show --help")
    refuses("evalute RUN", "did you mean 'evaluate'?\n")
    refuses("seed = 3", "")
    refuses("--hlep", "did you mean '--help'?")
    refuses("generate --prompt x RUN", "RUN_DIR goes first, then --prompt")
    refuses("show RUN --lyer 1", "did you mean '--layer'?")
    refuses("diff --config-dir nowhere seed=1 seed=2", "--config-dir nowhere: directory not found")
    monkeypatch.setattr(commands.sys, "platform", "win32")
    for words in ("model=vit", "show RUN"):
        refuses(words, "Windows is not supported")
    with pytest.raises(SystemExit, match="2"):
        command(lambda: pytest.fail("it was started"))
    assert not list(tmp_path.iterdir())


def test_a_run_and_a_study_are_found_by_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, file in {"runs/one": "config.yaml", "two": "plan.json"}.items():
        (tmp_path / "outputs" / name).mkdir(parents=True)
        (tmp_path / "outputs" / name / file).touch()
    assert named_folder(Path("one")) == Path("outputs/runs/one")
    assert named_folder(Path("two"), "plan.json") == Path("outputs/two")
    assert named_folder(Path("two")) == Path("two")  # which is no run


def test_help_and_version(ablate_command):
    assert ablate_command("help", "pos_enc") == ablate_command("--help", "pos_enc")
    assert ablate_command("--version") == (0, f"{described()}\n", "")
    assert described().startswith("ablate ")
    assert "\nOUT is a directory" in ablate_command("export", "--help")[1]


def test_the_current_folder_is_the_last_place_for_a_persons_parts(tmp_path):
    """In a command that is started as an installed one is: by a script that lies elsewhere."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ablate").write_text(
        "import os, sys\nfrom ablate.cli.command import command\n"
        "command(lambda: print(*sys.path, os.environ.get('PYTHONSAFEPATH'), sep='\\n'))\n"
    )
    *first, last, _ = in_a_process("bin/ablate", folder=tmp_path).stdout.splitlines()
    assert last == str(tmp_path)
    assert last not in first
    # Python's own switch against it holds for all processes.
    found = in_a_process("-P", "bin/ablate", folder=tmp_path).stdout.splitlines()
    assert str(tmp_path) not in found
    assert found[-1] == "1"


def test_a_part_that_cannot_be_imported_says_where_to_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "my"]:
        monkeypatch.delitem(sys.modules, name)  # of another test
    says = (
        rf"No module named 'my'\); run the command in the directory that contains my .*{tmp_path}"
    )
    with pytest.raises(UserError, match=says):
        locate("my.l2.NegativeDistance")
    (tmp_path / "mine.py").write_text("import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("mine.Part", "json.Part", "ablate.nothing.Part"):
        with pytest.raises(UserError, match="cannot be imported") as error:
            locate(target)
        assert "directory that contains" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit(0)", "exit(3)", "raise SystemExit('enough')"]
)
def test_code_of_somebody_else_that_ends_the_process_is_named(tmp_path, monkeypatch, capsys, text):
    """Where it is imported, and later."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ends", raising=False)
    (tmp_path / "ends.py").write_text(f"class Part: pass\n{text}\n")
    with refused(f"_target_=ends.Part: cannot be imported ({tmp_path}/ends.py, line 2, ends the"):
        locate("ends.Part")
    with pytest.raises(SystemExit) as stop:
        command(lambda: import_module("ends"))
    assert stop.value.code == 1
    assert f"ablate: {tmp_path}/ends.py, line 2, ends the" in capsys.readouterr().err


def test_a_refused_run_removes_only_what_it_made(tmp_path):
    """No folder with checkpoints, none where another one trains, whichever made it."""

    def refuse(folder, change=lambda: None, **options):
        with suppress(UserError), created(folder, **options):
            change()
            raise UserError("no")

    run, last = tmp_path / "runs" / "one", tmp_path / "runs" / "two" / "checkpoints" / "last.ckpt"
    lock = FileLock(run / ".lock")
    refuse(run, lock.acquire)
    assert run.is_dir()
    lock.release()
    shutil.rmtree(run)
    refuse(run)
    assert not run.exists()
    assert run.parent.is_dir()
    run.parent.rmdir()
    refuse(run)
    assert not run.parent.exists()
    run.mkdir(parents=True)
    for of_study in (False, True):
        refuse(run, of_study=of_study)
        assert run.is_dir()
    shutil.rmtree(tmp_path / "runs")

    def locked():  # a lock there is refused
        (tmp_path / "runs" / "file").rmdir()
        (tmp_path / "runs" / "file").touch()

    refuse(tmp_path / "runs" / "file", locked)
    shutil.rmtree(tmp_path / "runs")
    refuse(last.parents[1], lambda: (last.parent.mkdir(), last.touch()))
    assert last.exists()


ONE, STUDY, PLAN = [], ["-m", "seed=0,1"], ["-m", "seed=0,1", "study.dry_run=true"]


@pytest.mark.parametrize(
    ("typed", "line", "ways"),
    [
        ("trainer=gpu", "trainer.accelerator=gpu: torch sees no such GPU", (ONE, STUDY, PLAN)),
        ("logger=tensorboard", "logger=tensorboard needs a package: pip", (ONE, STUDY, PLAN)),
        ("hydra/launcher=slurm", "hydra/launcher=slurm: this machine has no sbatch", (STUDY, PLAN)),
        ("hydra/launcher=ray", "hydra/launcher=ray needs the package ray: pip", (STUDY, PLAN)),
    ],
)
def test_what_the_machine_lacks_is_refused_before_the_data_are_read(
    ablate_command, monkeypatch, tmp_path, typed, line, ways
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for module in ("ablate.training.preflight", "ablate.study.launch.ray"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    for maker in ("composition.make_data", "run_id.make"):
        monkeypatch.setattr(f"ablate.config.{maker}", Mock(side_effect=AssertionError))
    if "slurm" in typed:
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    for way in ways:
        assert refusal(ended := ablate_command(*way, typed)).startswith(f"ablate: {line}")
        assert ended[1] == ""
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("ablate.training.train.check_machine", Mock(side_effect=NO_TORCH))
    refusal(ablate_command(), "ablate: torch cannot be imported; run `python -c", code=1)


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
