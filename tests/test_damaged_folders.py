"""Damaged files in the folder of a run or study: one line that names the file, and no traceback."""

import json
import os
import shutil
import signal
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_study import scores
from tiny import SMALL, overrides, second_run

import ablate
from ablate import evaluate, generate, report, show
from ablate.cli.command import command
from ablate.cli.summary import show_result
from ablate.run_files import Damaged
from ablate.training.build import build, build_data
from ablate.training.sealed import read_weights

OTHERS = (7, "x", [1], {"a": 1}, None)  # values of other types
WHOLE: dict[str, Callable[[bytes], bytes]] = {
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
RUN_FILES = {
    "config.yaml": ("load", "evaluate", "generate", "show", "init_from"),
    "tokens.yaml": ("load", "evaluate", "generate", "show", "init_from"),
    "result.json": ("load", "evaluate", "generate", "show", "init_from", "resume"),
    "checkpoints/best.safetensors": ("load", "evaluate", "generate", "show", "init_from", "resume"),
    "checkpoints/last.ckpt": ("resume",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """A finished run that started from another, so that it has every file."""
    return second_run(place)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scores(tmp_path_factory.mktemp("study"))


def ended(
    name: str, folder: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """The exit code of a command on a folder, and what it printed."""

    def load() -> None:
        ablate.load(folder)

    def start() -> None:
        cfg = ablate.compose(*overrides(folder.parent, *SMALL, f"init_from={folder}"))
        build(cfg, build_data(cfg))

    def resume() -> None:
        config = yaml.safe_load((whole / "config.yaml").read_text())
        place = whole.parents[2]
        cfg = ablate.compose(*overrides(place, *SMALL, f"init_from={config['init_from']}"))
        show_result(ablate.run(cfg, folder), folder, cfg.task._target_)

    mains: dict[str, tuple[Callable[[], None], list[str]]] = {
        "load": (load, []),
        "init_from": (start, []),
        "resume": (resume, []),
        "evaluate": (evaluate.main, [str(folder)]),
        "generate": (generate.main, [str(folder), "--prompt", "the", "--tokens", "2"]),
        "show": (show.main, [str(folder)]),
        "report": (report.main, [str(folder)]),
        "status": (report.main, [str(folder), "--status"]),
    }
    main, arguments = mains[name]
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["ablate", *arguments])
        with pytest.raises(SystemExit) as exited:
            command(main)
    told = capsys.readouterr()
    return int(exited.value.code or 0), told.out + told.err


def require_one_line(told: tuple[int, str], name: str, what: str) -> None:
    """Done, or refused in one line that names the file."""
    code, text = told
    said = [line for line in text.splitlines() if line.startswith("ablate: ")]
    assert "Traceback" not in text, f"{what}: {text[-2000:]}"
    assert code in (0, 1, 2), what
    if code:
        # A config that is whole and says another model is refused by the keys that differ.
        named = Path(name).name in said[-1] or "is made of other parts" in said[-1]
        assert named, f"{what}: {said}"


def changes(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The content without each key, and with values of other types in its place."""

    def put(value: Any, *, remove: bool = False) -> Any:
        made = json.loads(json.dumps(content))
        node = made
        for key in path[:-1]:
            node = node[key]
        if remove:
            del node[path[-1]]
        else:
            node[path[-1]] = value
        return made

    node = content
    for key in path:
        node = node[key]
    if path:
        yield f"{path} removed", put(None, remove=True)
        for value in OTHERS:
            if type(value) is not type(node):
                yield f"{path}={value}", put(value)
    keys = (
        list(node) if isinstance(node, dict) else range(len(node) if isinstance(node, list) else 0)
    )
    for key in keys:
        yield from changes(content, (*path, key))


def every(name: str, path: Path) -> list[tuple[str, bytes]]:
    """All damages to the keys of a file."""
    write = yaml.safe_dump if name.endswith(".yaml") else json.dumps
    content = yaml.safe_load(path.read_text())
    return [(what, write(made).encode()) for what, made in changes(content)]


FEW = ("half", "list")  # for a command that takes long


@pytest.mark.parametrize(
    ("name", "way", "damages"),
    [
        pytest.param(name, way, damages, id=f"{name}-{way}-{len(damages)}", marks=marks)
        for name, ways in RUN_FILES.items()
        for way in ways
        for damages, marks in ((FEW, []), (tuple(WHOLE), pytest.mark.slow))
        if damages is not FEW or way in ("load", "resume")
    ],
)
def test_a_damaged_file_of_a_run(
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    way: str,
    damages: tuple[str, ...],
) -> None:
    content = (whole / name).read_bytes()
    for what in damages:
        folder = tmp_path / what
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(WHOLE[what](content))
        if name.startswith("checkpoints"):
            (folder / "result.json").unlink()
        told = ended(way, folder, whole, capsys)
        require_one_line(told, name, f"{name} {what} {way}")
        gone = name.endswith(".yaml") and what in DESTROYED
        if gone or name.startswith("checkpoints/best"):
            assert told[0] == 2, f"{what} {way}"
        elif not name.endswith(".yaml"):  # read where it can be done without
            assert told[0] == 0, f"{what} {way}"
            assert way == "init_from" or f"{folder / name} cannot be read: " in told[1]


KEYED = {"config.yaml": "load", "tokens.yaml": "load", "result.json": "resume"}
COUNTS = [pytest.param(13, id="13"), pytest.param(None, id="all", marks=pytest.mark.slow)]


def spread(damages: list[tuple[str, bytes]], count: int | None) -> list[tuple[str, bytes]]:
    return damages[:: len(damages) // count] if count else damages


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", KEYED)
def test_a_file_of_a_run_with_other_keys(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, count: int | None
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for what, content in spread(every(name, whole / name), count):
        (folder / name).write_bytes(content)
        require_one_line(ended(KEYED[name], folder, whole, capsys), name, f"{name} {what}")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["evaluate", "generate", "show", "init_from"])
@pytest.mark.parametrize("name", KEYED)
def test_other_keys_and_the_other_commands(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for what, content in spread(every(name, whole / name), 60):
        (folder / name).write_bytes(content)
        require_one_line(ended(way, folder, whole, capsys), name, f"{name} {what} {way}")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("plan.json", "status"),
        ("result.json", "status"),
        pytest.param("plan.json", "report", marks=pytest.mark.slow),
        pytest.param("result.json", "report", marks=pytest.mark.slow),
        pytest.param("provenance.json", "report", marks=pytest.mark.slow),
    ],
)
def test_a_damaged_file_of_a_study(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    folder = tmp_path / study.name
    shutil.copytree(study, folder)
    path = folder / name if name == "plan.json" else next(iter(folder.glob(f"*/{name}")))
    content = path.read_bytes()
    for what, damage in WHOLE.items():
        path.write_bytes(damage(content))
        told = ended(way, folder, study, capsys)
        require_one_line(told, name, f"{name} {what} {way}")
        if name == "plan.json":
            assert told[0] == 2, what


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("status", 100),
        pytest.param("status", None, marks=pytest.mark.slow),
        pytest.param("report", 100, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", ["plan.json", "result.json"])
def test_a_file_of_a_study_with_other_keys(
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    way: str,
    count: int | None,
) -> None:
    folder = tmp_path / study.name
    shutil.copytree(study, folder)
    path = folder / name if name == "plan.json" else next(iter(folder.glob(f"*/{name}")))
    plan = json.loads((folder / "plan.json").read_text())
    plan["arms"], plan["cells"] = plan["arms"][:2], plan["cells"][:10]
    (folder / "plan.json").write_text(json.dumps(plan))
    for what, content in spread(every(name, path), count):
        path.write_bytes(content)
        require_one_line(ended(way, folder, study, capsys), name, f"{name} {what} {way}")


# What is no file, and files that grow when they are read


def bomb(levels: int) -> str:
    """A YAML mapping of 3 to the power of `levels` values."""
    lines = ["a0: &a0 [x, x, x]"]
    lines += [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, levels)]
    return "\n".join([*lines, ""])


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "proc": lambda path: path.symlink_to("/proc/kmsg"),
    "loop": lambda path: path.symlink_to(path.name),
    "folder": Path.mkdir,
    "socket": lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
}


@pytest.fixture
def soon() -> Iterator[None]:
    """Ends a test that hangs."""

    def late(*args: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in ("fifo", "device") else pytest.mark.slow) for k in SPECIAL],
)
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("config.yaml", "load"),
        ("tokens.yaml", "load"),
        ("result.json", "load"),
        ("result.json", "resume"),
        ("provenance.json", "resume"),
        ("checkpoints/best.safetensors", "load"),
        ("checkpoints/best.safetensors", "init_from"),
        ("checkpoints/last.ckpt", "resume"),
        (".lock", "resume"),
    ],
)
def test_what_is_no_file(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    way: str,
    kind: str,
) -> None:
    if kind == "sparse" and ("checkpoints" in name or name == ".lock"):
        pytest.skip("may be as long as the disk has room for")
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    if way == "resume":
        (folder / "result.json").unlink()
    (folder / name).unlink(missing_ok=True)
    monkeypatch.chdir((folder / name).parent)  # the path of a socket is short
    SPECIAL[kind](Path(Path(name).name))
    require_one_line(ended(way, folder, whole, capsys), name, f"{name} {kind} {way}")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [*SPECIAL, "link"])
@pytest.mark.parametrize("name", ["result.json", "stdout.log", ".lock", "queued.json", "plan.json"])
def test_the_status_of_a_study_with_what_is_no_file(
    study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kind: str,
) -> None:
    folder = tmp_path / study.name
    shutil.copytree(study, folder)
    run = next(iter(folder.glob("*/result.json"))).parent
    (run / "result.json").write_text('{"status": "running"}')
    place = folder if name == "plan.json" else run
    (place / name).unlink(missing_ok=True)
    monkeypatch.chdir(place)
    {**SPECIAL, "link": lambda path: path.symlink_to("/etc/hostname")}[kind](Path(name))
    require_one_line(ended("status", folder, study, capsys), name, f"{name} {kind}")


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", ["config.yaml", "tokens.yaml"])
@pytest.mark.parametrize("way", ["load", "init_from"])
def test_aliases_are_not_expanded(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / name).write_text(bomb(30) + (whole / name).read_text())
    code, told = ended(way, folder, whole, capsys)
    assert code == 2
    assert f"{folder / name} cannot be used: it has the alias *a0" in told


def test_records_that_unpack_to_more(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "best.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(1 << 24))
    with pytest.raises(Damaged, match="its records are compressed"):
        read_weights(path)
