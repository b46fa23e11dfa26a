"""Damaged files in the folder of a run or study: one line that names the file, and no traceback."""

import json
import os
import shutil
import signal
import socket
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from make_study import ADDITIVE, BASE, arm, make_study, shifted
from ways import WAYS, called, changes

from ablate import diff, report
from ablate.cli.command import command
from ablate.run_files import CorruptFile, read_text
from ablate.run_files.checkpoint_io import read_state, replace_file

pytest_plugins = ["ways"]
OTHERS = (7, "x", [1], {"a": 1}, None)  # values of other types
WHOLE = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "binary": lambda content: bytes(range(256)) * 20,
    "text": lambda content: b"no run\n",
    "list": lambda content: b"[1, 2]\n",
    "number": lambda content: b"7\n",
    "deep": lambda content: b"[" * 100_000,
    "cycle": lambda content: content + b"\nseed: ${seed}\n",
    "cycle of two": lambda content: content + b"\nmodel: ${data}\ndata: ${model}\n",
    "unknown": lambda content: content + b"\noptimizer: ${nothing.here}\n",
}
DESTROYED = ("empty", "binary", "text", "list", "number", "deep")
READS = ("load", "init_from")  # evaluate, generate and show load
RUN_FILES = {
    "config.yaml": READS,
    "data.pt": READS,
    "result.json": (*READS, "resume"),
    "checkpoints/best.safetensors": (*READS, "resume"),
    "checkpoints/last.ckpt": ("resume",),
    "checksums.json": READS,
    "checkpoints/checksums.json": (*READS, "resume"),
}


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path / "scores", {"baseline": arm(BASE), ADDITIVE: arm(shifted(0.1))})


@pytest.fixture
def soon():
    """Ends a test that hangs."""
    before = signal.signal(signal.SIGALRM, Mock(side_effect=TimeoutError("it hangs")))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def one_line(capsys):
    """Done, or refused in one line that names the file: the exit code, and what was printed."""
    ways = WAYS | {
        "report": lambda folder, whole: called(report.main, folder),
        "status": lambda folder, whole: called(report.main, folder, "--status"),
        "diff": lambda folder, whole: called(diff.main, folder, whole),
        "table": lambda folder, whole: called(report.main, folder.parent),
    }

    def require(way, folder, whole, name, what):
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            command(lambda: ways[way](folder, whole))
        text, code = "".join(capsys.readouterr()), int(exited.value.code or 0)
        said = [line for line in text.splitlines() if line.startswith("ablate: ")]
        told = f"{name} {way} {what}: {text[-2000:]}"
        assert "Traceback" not in text, told
        assert code in (0, 1, 2), told
        # A config that is whole and says another model is refused by the keys that differ.
        parts = (Path(name).name, "has a different architecture")
        assert not code or any(part in said[-1] for part in parts), told
        return code, text

    return require


def keyed(path, count):
    """A file without some of its keys, and with other values in their place."""
    write = yaml.safe_dump if path.suffix == ".yaml" else json.dumps
    made = list(changes(yaml.safe_load(path.read_text()), OTHERS))
    return [
        (what, write(one).encode())
        for what, one in made[:: max(1, len(made) // (count or len(made)))]
    ]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "way", "damages"),
    [
        (name, way, ("half", "list")) if few else slow(name, way, WHOLE)
        for few in (True, False)
        for name, ways in RUN_FILES.items()
        for way in ways
        if not few or way != "init_from"
    ],
)
def test_a_damaged_file_of_a_run(whole, tmp_path, one_line, name, way, damages):
    content = (whole / name).read_bytes()
    for what in damages:
        folder = shutil.copytree(whole, tmp_path / what)
        (folder / name).write_bytes(WHOLE[what](content))
        if name.startswith("checkpoints"):
            (folder / "result.json").unlink()
        code, told = one_line(way, folder, whole, name, what)
        gone = (name.endswith(".yaml") and what in DESTROYED) or name == "data.pt"
        if gone or name.endswith(("best.safetensors", "checksums.json")):
            assert code == 2, f"{what} {way}"
        elif not name.endswith(".yaml"):  # read where it can be done without
            assert code == 0, f"{what} {way}"
            assert way == "init_from" or f"{folder / name} cannot be read: " in told


@pytest.mark.ci
@pytest.mark.parametrize(
    "name", ["checkpoints/last.ckpt", "checkpoints/previous.ckpt", "metrics.csv"]
)
def test_a_folder_in_the_place_of_a_file_is_refused_before_training(whole, folder, one_line, name):
    (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    code, told = one_line("resume", folder, whole, name, "folder")
    assert (code, "parameters |" in told) == (2, False)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "way", "count"),
    [
        ("config.yaml", "load", 4),
        ("config.yaml", "resume", 4),
        ("config.yaml", "table", 4),
        ("result.json", "resume", 4),
        *(slow("config.yaml", way, None) for way in RUN_FILES["config.yaml"]),
        *(slow("result.json", way, None) for way in RUN_FILES["result.json"]),
    ],
)
def test_a_file_of_a_run_with_other_keys(whole, folder, one_line, name, way, count):
    if way == "table":  # which has another row
        shutil.copytree(whole, folder.with_name("other"))
    for what, content in keyed(whole / name, count):
        (folder / name).write_bytes(content)
        one_line(way, folder, whole, name, what)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("way", "count"), [("status", 60), slow("status", None), slow("report", 100)]
)
@pytest.mark.parametrize("name", ["plan.json", "result.json", "provenance.json"])
def test_a_damaged_file_of_a_study(study, one_line, name, way, count):
    path = study / name if name == "plan.json" else next(study.glob(f"*/{name}"))
    before = path.read_bytes()
    damages = [(what, damage(before)) for what, damage in WHOLE.items()]
    for what, content in damages + keyed(path, count):
        path.write_bytes(content)
        code, _ = one_line(way, study, study, name, what)
        assert code == 2 or name != "plan.json" or what not in WHOLE, what


NUMBERS = ("1e308", "1" + "0" * 400, "-1e101", "1e999", "NaN", "Infinity")


@pytest.mark.parametrize("name", ["plan.json", "result.json"])
def test_numbers_that_no_sum_can_hold_and_halves_of_pairs(study, one_line, name):
    path = study / name if name == "plan.json" else next(study.glob(f"*/{name}"))
    before = path.read_text()
    key = '"margin": null' if name == "plan.json" else '"wall_seconds": 20.0'
    assert key in before
    for value in (*NUMBERS, '"\\ud800"'):
        path.write_text(before.replace(key, f"{key.partition(':')[0]}: {value}"))
        code, told = one_line("status", study, study, name, value)
        assert f"{path} cannot be read: " in told if code else "to do" in told


def arms(change):
    """In the second arm of a plan."""
    return lambda plan: plan["arms"][1].update(change(plan["arms"]))


CONTRADICTIONS = {
    "metric.mode is not max or min": lambda plan: plan["metric"].update(mode="up"),
    "unknown factors: x": arms(lambda arms: {"changes": {"x": "y"}}),
    "the combination of model.attention=additive twice": arms(lambda arms: {"changes": {}}),
    "the runs of unknown arms: x": arms(lambda arms: {"same_as": "x"}),
    "a duplicate arm or seed": lambda plan: plan["seeds"].append(0),
    "a duplicate arm or seed ": lambda plan: plan["arms"].append(plan["arms"][1]),
    "differences must be [": arms(lambda arms: {"differs": {"x": []}}),
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_a_plan_that_contradicts_itself(study, one_line, said):
    plan = json.loads((study / "plan.json").read_text()) | {"design": "factorial"}
    CONTRADICTIONS[said](plan)
    (study / "plan.json").write_text(json.dumps(plan))
    code, told = one_line("report", study, study, "plan.json", said)
    assert (code, said.strip() in told) == (2, True)


def test_a_run_that_is_finished_needs_no_config(folder, whole, one_line):
    """Which the same command has; other commands say what is wrong with it."""
    path = folder / "config.yaml"
    content = yaml.safe_load(path.read_text())
    for edited in ({**content, "model": 7}, {"seed": 0}):
        path.write_text(yaml.safe_dump(edited))
        assert one_line("resume", folder, whole, "config.yaml", "edited")[0] == 0
    path.write_text(yaml.safe_dump({k: v for k, v in content.items() if k != "init_from"}))
    code, told = one_line("diff", folder, whole, "config.yaml", "edited")
    assert (code, f"{path} cannot be used: " in told) == (2, True)


@pytest.mark.ci
@pytest.mark.parametrize("way", ["load", "show", "init_from", "diff", "table"])
def test_a_config_with_another_valid_value_is_refused(whole, folder, one_line, way):
    """But a value that the id of the run does not count may be edited, such as where data lie."""
    shutil.copytree(whole, folder.with_name("other"))
    path, content = folder / "config.yaml", yaml.safe_load((whole / "config.yaml").read_text())
    for node, key, value in (("model", "dropout", 0.2), ("data", "seq_len", 8)):
        path.write_text(yaml.safe_dump(content | {node: content[node] | {key: value}}))
        code, told = one_line(way, folder, whole, "config.yaml", key)
        assert code == (0 if way == "table" else 2)
        assert f"{path} cannot be used: it was edited since its run was trained" in told
    moved = content["data"] | {"path": "/elsewhere/text.txt"}
    path.write_text(yaml.safe_dump(content | {"data": moved, "output_dir": "/elsewhere"}))
    assert way == "diff" or one_line(way, folder, whole, "config.yaml", "moved")[0] == 0


def test_a_run_without_its_weights_says_what_to_do(whole, folder, one_line):
    name, lost = "checkpoints/best.safetensors", "its weights, checkpoints/best.safetensors, are"
    (folder / name).unlink()
    for way, code, said in (
        ("load", 2, f"{folder} is finished, but {lost}"),
        ("init_from", 2, f"init_from={folder} is finished, but {lost}"),
        ("resume", 0, f"{folder} is finished, so nothing was trained, but {lost}"),
    ):
        ended, told = one_line(way, folder, whole, name, "missing")
        assert ended == code
        assert f"{said} missing; remove the run's folder to train it again" in told
    (folder / "result.json").unlink()
    assert "has no weights yet" in one_line("load", folder, whole, name, "missing")[1]
    ended, told = one_line("resume", folder, whole, name, "missing")
    assert (ended, f"{folder}: {lost}" in told) == (2, True)


# What is no file, and files that grow when they are read


SPECIAL = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "proc": lambda path: path.symlink_to("/proc/kmsg"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
    "link": lambda path: path.symlink_to("/etc/hostname"),
}


@pytest.mark.ci
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [k if k == "fifo" else slow(k) for k in SPECIAL])
@pytest.mark.parametrize("name", [*RUN_FILES, "provenance.json", ".lock"])
def test_what_is_no_file(whole, folder, monkeypatch, one_line, name, kind):
    way = RUN_FILES.get(name, ("resume",))[-1]
    if kind in ("sparse", "link") and ("checkpoints" in name or name == ".lock"):
        pytest.skip("may be as long as the disk has room for")
    if way == "resume":
        (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    monkeypatch.chdir((folder / name).parent)  # the path of a socket is short
    SPECIAL[kind](Path(Path(name).name))
    one_line(way, folder, whole, name, kind)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", ["result.json", "stdout.log", ".lock", "queued.json", "plan.json"])
def test_the_status_of_a_study_with_what_is_no_file(study, monkeypatch, one_line, name):
    run = next(study.glob("*/result.json")).parent
    (run / "result.json").write_text('{"status": "running"}')
    monkeypatch.chdir(study if name == "plan.json" else run)
    for kind, make in SPECIAL.items():
        path = Path(name)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        make(path)
        one_line("status", study, study, name, kind)


@pytest.mark.usefixtures("soon")
def test_aliases_are_not_expanded(whole, folder, one_line):
    """Those of 30 lines, each of which names the one before three times."""
    name = "config.yaml"
    bomb = [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 30)]
    (folder / name).write_text("\n".join(["a0: &a0 [x, x, x]", *bomb, (whole / name).read_text()]))
    code, told = one_line("load", folder, whole, name, "")
    assert code == 2
    assert f"{folder / name} cannot be used: it has the alias *a0" in told


def test_what_is_longer_than_it_should_be_is_not_read(tmp_path):
    path = tmp_path / "last.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 24))
    content = path.read_bytes()
    replace_file(path, lambda file: file.write(content))
    with pytest.raises(CorruptFile, match="its records are compressed"):
        read_state(path)
    path.write_bytes(b"12345")
    with pytest.raises(CorruptFile, match="5 bytes, and at most 4 are read"):
        read_text(path, longest=4)
