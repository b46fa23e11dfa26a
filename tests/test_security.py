"""A stranger's run folder runs no code, and a person's secrets are not written down."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from make_model import CONF
from omegaconf import OmegaConf
from tiny import SMALL, overrides, second_run, write_text

import ablate
from ablate import evaluate, generate, show
from ablate.config.composition import Composition
from ablate.config.trust import require_trusted
from ablate.errors import UserError
from ablate.training.build import build, build_data
from ablate.training.load import without_weights
from ablate.version import checkout

SOURCE = Path(ablate.__file__).parents[1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trust")


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    """A finished run that started from another, so that it has a tokens.yaml."""
    return second_run(place)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def called(main: Callable[[], None], *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ablate", *map(str, arguments)])
        main()


def start(folder: Path, whole: Path) -> None:
    cfg = ablate.compose(*overrides(whole.parents[2], *SMALL, f"init_from={folder}"))
    build(cfg, build_data(cfg))


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda folder, whole: ablate.load(folder),
    "evaluate": lambda folder, whole: called(evaluate.main, folder),
    "generate": lambda folder, whole: called(generate.main, folder, "--prompt", "the"),
    "show": lambda folder, whole: called(show.main, folder),
    "init_from": start,
}


# Code that a config names


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def load_traps(place: Path, made: Path) -> None:
    """Write files that create `made` when they are read as code."""
    (place / "evil.pkl").write_bytes(pickle.dumps(Attack(made)))
    (place / "stranger.py").write_text(f"open({str(made)!r}, 'w')\nclass Part: pass\n")
    (place / "hubconf.py").write_text(f"def evil():\n    open({str(made)!r}, 'w')\n")
    (place / "evil.yaml").write_text(f"_target_: stranger.Part\npath: {made}\n")


def attacks(place: Path, made: Path) -> dict[str, dict[str, Any]]:
    """What each puts into a config, by dotted key. Whatever of it is run creates `made`."""
    run = {"_target_": "torch.utils.collect_env.run", "command": f"touch {made}"}
    code = f"__import__('pathlib').Path({str(made)!r}).touch()"
    pickled = str(place / "evil.pkl")
    hub = {"repo_or_dir": str(place), "model": "evil", "source": "local"}
    option = os.path.relpath(place / "evil", CONF / "model.ffn")
    # Hydra makes what stands in data.extra first, and only then finds that data has no such key.
    return {
        "collect_env": {"data.extra": run},
        "sympify": {"data.extra": {"_target_": "sympy.sympify", "a": code}},
        "torch.hub": {"data.extra": {"_target_": "torch.hub.load", **hub}},
        "torch.load": {
            "data.extra": {"_target_": "torch.load", "f": pickled, "weights_only": False}
        },
        "numpy": {"data.extra": {"_target_": "numpy.load", "file": pickled, "allow_pickle": True}},
        "pandas": {"data.extra": {"_target_": "pandas.read_pickle", "filepath_or_buffer": pickled}},
        "ours": {
            "data.extra": {
                "_target_": "ablate.run_files.write_text",
                "path": str(made),
                "text": "x",
            }
        },
        "eval": {"data.extra": {"_target_": "builtins.eval", "_args_": [code]}},
        "a module": {"data.extra": {"_target_": "stranger.Part"}},
        "a module in the model": {"model.ffn._target_": "stranger.Part"},
        "a module as the model": {"model._target_": "stranger.Part"},
        "inside a part": {"data.path": run},
        "in a list": {"data.extra": [run]},
        "the class of another slot": {"task._target_": "ablate.data.text.Text"},
        "a class of torch in another slot": {"pos_enc._target_": "torch.nn.Linear"},
        "past a class of torch": {"model.ffn._target_": "torch.nn.modules.module.torch.load"},
        "a function of timm": {"model.ffn._target_": "timm.models.create_model"},
        "a class of another kind": {"optimizer._target_": "torch.optim.lr_scheduler.StepLR"},
        "a file as an option": {"model.ffn": option},
        "a key with dots": {"extra": {"model.ffn": run}},
        "a secret": {"data.path": "http://127.0.0.1:9/${oc.env:HOME}"},
        "an interpolated class": {"data._target_": "${oc.decode:torch.hub.load}"},
        "an interpolated part": {"data.extra": "${oc.create:{_target_:stranger.Part}}"},
        "a logger": {"logger": run},
        "a callback": {"debug": run},
    }


NAMES = list(attacks(Path(), Path()))


def put(path: Path, changes: dict[str, Any]) -> None:
    config = OmegaConf.load(path)
    for key, value in changes.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    path.write_text(OmegaConf.to_yaml(config))


def require_refused(
    folder: Path, whole: Path, file: str, name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    made = folder / "made"
    load_traps(folder, made)
    put(folder / file, attacks(folder, made)[name])
    with pytest.raises(UserError) as caught:
        WAYS[way](folder, whole)
    assert "\n" not in str(caught.value)
    assert file in str(caught.value)
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "file"),
    [(name, "config.yaml") for name in NAMES]
    + [(name, "tokens.yaml") for name in NAMES if name != "a file as an option"],
)
def test_nothing_that_a_config_names_is_run(
    folder: Path, whole: Path, name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_refused(folder, whole, file, name, "load", monkeypatch)


@pytest.mark.parametrize("file", ["config.yaml", "tokens.yaml"])
@pytest.mark.parametrize("name", ["collect_env", "a module", "a secret"])
@pytest.mark.parametrize("way", [way for way in WAYS if way != "load"])
def test_no_command_runs_it(
    folder: Path, whole: Path, way: str, name: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_refused(folder, whole, file, name, way, monkeypatch)


def test_weights_that_timm_would_read_before_ours_are_left_out() -> None:
    args = {"checkpoint_path": "evil.pth", "img_size": 8}
    config = OmegaConf.create({"model": {"pretrained": True, "args": args}})
    kept = without_weights(config)
    assert kept == {"model": {"pretrained": False, "args": {"img_size": 8}}}
    assert config.model.pretrained


# Parts that are allowed


@pytest.mark.parametrize("model", sorted(path.stem for path in (CONF / "model").glob("*.yaml")))
def test_every_model_of_ours_is_trusted(model: str) -> None:
    cfg = ablate.compose(f"model={model}")
    require_trusted(OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)), ())


@pytest.mark.parametrize(
    ("slot", "target"),
    [
        ("optimizer", "torch.optim.NAdam"),
        ("optimizer", "timm.optim.Lamb"),
        ("model.norm_type", "torch.nn.RMSNorm"),
        ("model.ffn", "timm.layers.GluMlp"),
        ("model.mixer", "torchvision.ops.MLP"),
        ("trainer", "lightning.pytorch.Trainer"),
    ],
)
def test_classes_of_libraries_that_a_slot_can_hold_are_trusted(slot: str, target: str) -> None:
    config = OmegaConf.create()
    OmegaConf.update(config, f"{slot}._target_", target, force_add=True)
    require_trusted(config, ())


OWN = """
from ablate.model.norm_type.layer import LayerNorm

class Mine(LayerNorm):
    pass
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a part of a person's own."""
    norm = yaml.safe_load((CONF / "model.norm_type" / "layer.yaml").read_text())
    (tmp_path / "own_parts").mkdir()
    (tmp_path / "own_parts" / "norm.py").write_text(OWN)
    options = tmp_path / "conf" / "model.norm_type"
    options.mkdir(parents=True)
    (options / "mine.yaml").write_text(yaml.safe_dump(norm | {"_target_": "own_parts.norm.Mine"}))
    monkeypatch.syspath_prepend(tmp_path)
    cfg = ablate.compose(
        *overrides(tmp_path, *SMALL, "model.norm_type=mine"), config_dir=tmp_path / "conf"
    )
    ablate.run(cfg)
    return Composition(cfg).folder


def test_a_part_of_ones_own_needs_a_word(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError) as caught:
        ablate.load(own)
    assert str(caught.value).endswith(
        "model.norm_type._target_=own_parts.norm.Mine is no part of ablate, and its code would be"
        " run; if you trust it: --allow own_parts.norm (in Python: allow=['own_parts.norm'])"
    )
    with pytest.raises(UserError, match="own_parts"):
        ablate.load(own, allow=["own_part", "own_parts.nor", "norm", ""])
    for words in (["own_parts"], ["own_parts.norm"], ["own_parts.norm.Mine"]):
        assert ablate.load(own, allow=words).result["status"] == "finished"
    called(evaluate.main, own, "--allow", "own_parts", "data.seq_len=8")
    called(generate.main, own, "--allow", "own_parts", "--prompt", "the", "--tokens", "2")
    called(show.main, own, "--allow", "own_parts")
    # The word of a command that trains is its own config, which has the part.
    cfg = ablate.compose(
        *overrides(own.parents[2], *SMALL, "model.norm_type=mine", f"init_from={own}"),
        config_dir=own.parents[2] / "conf",
    )
    ablate.run(cfg)
    monkeypatch.setenv("ABLATE_ALLOW", "else,own_parts")
    assert ablate.load(Composition(cfg).folder).result["status"] == "finished"


# What is not written down

SECRET, USER, WORD, TOKEN = "s3cret-place", "us3r", "pa55word", "t0ken"


@pytest.fixture
def address(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """A URL with user, password and query, and the sha256 of what is there."""
    served = place / "served"
    served.mkdir(exist_ok=True)
    content = write_text(served / "x.txt").read_bytes()
    monkeypatch.setenv("ABLATE_CACHE", str(place / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        url = f"http://{USER}:{WORD}@{host}/x.txt?key={TOKEN}"
        yield url, hashlib.sha256(content).hexdigest()
        server.shutdown()


def written(folder: Path) -> bytes:
    """Every byte below a folder, names of files included."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return b"".join(str(path).encode() + path.read_bytes() for path in files)


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_secret_is_written(tmp_path: Path, address: tuple[str, str], many: bool) -> None:
    url, sha256 = address
    typed = [text for text in overrides(tmp_path, *SMALL) if not text.startswith("data.path")]
    typed += [f'data.path="{url}"', f"data.sha256={sha256}", "logger=wandb", "logger.mode=offline"]
    line = [sys.executable, "-m", "ablate", *typed]
    if many:
        line += ["-m", "pos_enc=none,learned"]
    done = subprocess.run(
        line, cwd=tmp_path, env=own_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = written(tmp_path / "outputs") + (done.stdout + done.stderr).encode()
    for secret in (USER, WORD, TOKEN):
        assert secret.encode() not in found, secret
    config = next((tmp_path / "outputs").rglob("config.yaml"))
    assert ablate.load(config.parent).data.sizes  # from the local copy


def own_environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    return kept | {"PYTHONPATH": str(SOURCE)} | more


def test_values_of_the_environment_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SECRET).mkdir()
    text = write_text(tmp_path / SECRET / "x.txt")
    monkeypatch.setenv("MY_TEXT", str(text))
    monkeypatch.setenv("MY_DIM", "16")
    typed = [*overrides(tmp_path, *SMALL), "logger=wandb", "logger.mode=offline"]
    typed += ["data.path=${oc.env:MY_TEXT}", "model.dim='${oc.decode:${oc.env:MY_DIM}}'"]
    cfg = ablate.compose(*typed)
    result = ablate.run(cfg)
    assert result["status"] == "finished"
    folder = Composition(cfg).folder
    assert SECRET.encode() not in written(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["data"]["path"] == "${oc.env:MY_TEXT}"
    assert config["model"]["dim"] == 16
    with pytest.raises(UserError, match=r"--allow oc\.env:MY_TEXT"):
        ablate.load(folder)
    assert ablate.load(folder, allow=["oc.env:MY_TEXT"]).config.data.path == str(text)
    text.unlink()
    with pytest.raises(UserError) as caught:
        ablate.run(cfg, tmp_path / "other")
    assert str(caught.value).startswith("data.path=${oc.env:MY_TEXT}: no such file")


def test_the_names_of_arms_hold_no_secret(tmp_path: Path) -> None:
    from make_sweep import laid_out

    url = f"https://{USER}:{WORD}@host/x.txt"
    study = f"{{factors: {{data.path: [{url}, other.txt]}}}}"
    with pytest.raises(UserError, match="would name an arm") as caught:
        laid_out(tmp_path, study)
    assert WORD not in str(caught.value)


def test_provenance_has_no_address_of_a_remote(tmp_path: Path) -> None:
    git = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True)
    git(["git", "init", "-q"])
    git(["git", "remote", "add", "origin", f"https://{USER}:{WORD}@host/x.git"])
    (tmp_path / "x.py").touch()
    git(["git", "add", "."])
    git(["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x"])
    found = checkout(tmp_path)
    assert found is not None
    assert WORD not in json.dumps(found)


# Where code comes from, and where files go


@pytest.mark.parametrize("command", ["evaluate", "show", "generate", "report"])
def test_a_file_beside_a_run_is_no_package(folder: Path, command: str) -> None:
    """A stranger's folder may hold files with the names of packages."""
    for name in ("einops", "torch", "json", "rich", "lightning", "numpy", "hydra"):
        (folder / f"{name}.py").write_text("open('made', 'w')\nraise SystemExit(9)\n")
    more = ["--prompt", "the"] if command == "generate" else []
    line = [sys.executable, "-m", f"ablate.{command}", ".", *more]
    done = subprocess.run(line, cwd=folder, env=own_environment(), capture_output=True, text=True)
    assert done.returncode == (2 if command == "report" else 0), done.stderr  # a run is no study
    assert not (folder / "made").exists()


def test_a_folder_outside_is_said(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    typed = [*overrides(tmp_path, *SMALL), "output_dir=outputs", "hydra.run.dir=../escape"]
    line = [sys.executable, "-m", "ablate", *typed, "model.depth=0"]
    done = subprocess.run(
        line, cwd=tmp_path / "here", env=own_environment(), capture_output=True, text=True
    )
    said = f"ablate: output in {tmp_path / 'escape'}, outside output_dir=outputs"
    assert said in done.stdout.splitlines()
