"""A stranger's run folder runs no code, and a person's secrets are not written down."""

import hashlib
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from make_model import CONF
from omegaconf import OmegaConf
from safetensors.torch import load_file, save
from tiny import SMALL, overrides, second_run, write_text
from ways import WAYS, Attack, called, changes, resume, start, typed

import ablate
from ablate import evaluate, generate, show
from ablate.config.composition import Composition
from ablate.config.run_id import weights
from ablate.config.trust import require_trusted
from ablate.errors import UserError
from ablate.run_files import Damaged
from ablate.run_files.sealed import ZEROS, read_state, read_weights, write_state, write_weights
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


# Code that a config names


def load_traps(place: Path, made: Path) -> None:
    """Write files that create `made` when they are read as code."""
    (place / "stranger.py").write_text(f"open({str(made)!r}, 'w')\nclass Part: pass\n")
    (place / "hubconf.py").write_text(f"def evil():\n    open({str(made)!r}, 'w')\n")
    (place / "evil.yaml").write_text(f"_target_: stranger.Part\npath: {made}\n")


def attacks(place: Path, made: Path) -> dict[str, dict[str, Any]]:
    """What each puts into a config, by dotted key. Whatever of it is run creates `made`."""
    run = {"_target_": "torch.utils.collect_env.run", "command": f"touch {made}"}
    code = f"__import__('pathlib').Path({str(made)!r}).touch()"
    hub = {"repo_or_dir": str(place), "model": "evil", "source": "local"}
    option = os.path.relpath(place / "evil", CONF / "model.ffn")
    # Hydra makes what stands in data.extra first, and only then finds that data has no such key.
    return {
        "collect_env": {"data.extra": run},
        "torch.hub": {"data.extra": {"_target_": "torch.hub.load", **hub}},
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
@pytest.mark.parametrize("way", ["evaluate", "generate", "show", "init_from"])
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


@pytest.mark.parametrize(
    "command",
    [
        "evaluate",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("show", "generate", "report")),
    ],
)
def test_a_file_beside_a_run_is_no_package(folder: Path, command: str) -> None:
    """A stranger's folder may hold files with the names of packages."""
    for name in ("einops", "torch", "json", "rich", "lightning", "numpy", "hydra"):
        (folder / f"{name}.py").write_text("open('made', 'w')\nraise SystemExit(9)\n")
    line = [sys.executable, "-m", f"ablate.{command}", "."]
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


# Checkpoints: a flipped bit is found, and no code in a file is run


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Flipped bits


def flips(count: int) -> list[Any]:
    return [pytest.param(100, id="100"), pytest.param(count, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", flips(3000))
@pytest.mark.parametrize("name", ["last.ckpt", "previous.ckpt", "best.safetensors"])
def test_a_flipped_bit_is_found_anywhere(folder: Path, name: str, count: int) -> None:
    path = folder / "checkpoints" / name
    content = path.read_bytes()
    read = read_weights if name.startswith("best") else read_state
    bits = [*range(0, 8 * len(content), max(1, 16 * len(content) // count))]
    bits += random.Random(0).sample(range(8 * len(content)), count - len(bits))
    for bit in [*bits, 0, 8 * len(content) - 1]:
        path.write_bytes(flipped(content, bit))
        with pytest.raises(Damaged) as caught:
            read(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("damage", ["end", "half", "empty", "comment", "appended"])
@pytest.mark.parametrize("name", ["last.ckpt", "best.safetensors"])
def test_what_is_cut_or_longer_is_found(folder: Path, name: str, damage: str) -> None:
    path = folder / "checkpoints" / name
    c = path.read_bytes()
    ways = {"end": c[:-1], "half": c[: len(c) // 2], "empty": b"", "comment": c[:-64]}
    path.write_bytes((ways | {"appended": c + b"0"})[damage])
    with pytest.raises(Damaged):
        (read_weights if name.startswith("best") else read_state)(path)


# Code in a file


def finish(folder: Path, whole: Path) -> None:
    """The same command again, as if the run had not come to its end."""
    (folder / "result.json").unlink(missing_ok=True)
    resume(folder, whole)


AGAIN = WAYS | {"resume": finish}


def attack(folder: Path, form: str) -> Path:
    """Put a file that creates another in place of every checkpoint; return what it would create."""
    places = folder / "checkpoints"
    state = torch.load(places / "last.ckpt")
    state["state_dict"]["more"] = Attack(folder / "made")
    shutil.rmtree(places)
    places.mkdir()
    name = "best.safetensors" if form == "safetensors" else "best.ckpt"
    for path in (places / "last.ckpt", places / name):
        if form == "with a checksum":
            write_state(path, state)
        elif form == "torch":
            torch.save(state, path)
        else:
            path.write_bytes(pickle.dumps(state))
    return folder / "made"


@pytest.mark.parametrize("form", ["torch", "with a checksum", "pickle", "safetensors"])
@pytest.mark.parametrize("way", AGAIN)
def test_no_code_in_a_checkpoint_is_run(folder: Path, whole: Path, way: str, form: str) -> None:
    made = attack(folder, form)
    if form in ("pickle", "safetensors") and way == "resume":
        AGAIN[way](folder, whole)  # a damaged checkpoint: training begins again
    else:
        with pytest.raises(UserError) as caught:
            AGAIN[way](folder, whole)
        assert "checkpoints" in str(caught.value)
        assert "\n" not in str(caught.value)
        if form in ("torch", "with a checksum"):
            assert "any code" in str(caught.value)
            assert "ABLATE_TRUST_PICKLE=1" in str(caught.value)
    assert not made.exists()


def first_form(folder: Path, **more: Any) -> None:
    """Make its best weights those of a version before safetensors."""
    path = folder / "checkpoints" / "best.safetensors"
    torch.save({"state_dict": read_weights(path), **more}, path.with_name("best.ckpt"))
    path.unlink()


def test_the_switch_reads_other_objects(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_form(folder, more=Path("any object"))
    with pytest.raises(UserError, match="ABLATE_TRUST_PICKLE=1"):
        ablate.load(folder)
    monkeypatch.setenv("ABLATE_TRUST_PICKLE", "1")
    assert ablate.load(folder).model.state_dict()


# Checkpoints of earlier versions


@pytest.mark.parametrize("way", [way for way in AGAIN if way != "resume"])
def test_best_weights_of_an_earlier_version_are_found(folder: Path, whole: Path, way: str) -> None:
    before = ablate.load(folder).model.state_dict()
    first_form(folder)
    AGAIN[way](folder, whole)
    torch.testing.assert_close(ablate.load(folder).model.state_dict(), before, rtol=0, atol=0)
    content = (folder / "checkpoints" / "best.ckpt").read_bytes()
    assert weights(str(folder)) == sha256(content).hexdigest()  # in the id of a run from there


def test_a_run_of_an_earlier_version_resumes(folder: Path, whole: Path) -> None:
    first_form(folder)
    places = folder / "checkpoints"
    state = torch.load(places / "previous.ckpt")
    torch.save(state, places / "last.ckpt")
    finish(folder, whole)
    ended = [torch.load(one / "checkpoints" / "last.ckpt") for one in (folder, whole)]
    torch.testing.assert_close(*(state["state_dict"] for state in ended), rtol=0, atol=0)


# The format of the weights


def test_weights_are_what_safetensors_reads_and_writes(tmp_path: Path) -> None:
    shared = torch.randn(3, 5)
    weights = {
        "a": shared, "tied": shared, "transposed": shared.T, "one": torch.tensor(2.5),
        "half": torch.randn(7).bfloat16(), "flags": torch.tensor([True, False, True]),
        "none": torch.empty(0, 4), "counts": torch.arange(3), "double": torch.randn(2).double(),
    }  # fmt: skip
    path = tmp_path / "best.safetensors"
    write_weights(path, weights, "0123456789ab")
    alone = {name: value.clone().contiguous() for name, value in weights.items()}
    for found in (load_file(path), read_weights(path, "0123456789ab")):
        torch.testing.assert_close(found, alone, rtol=0, atol=0)
    content = save(alone, metadata={"sha256": ZEROS.decode()})  # as earlier versions wrote it
    path.write_bytes(content.replace(ZEROS, sha256(content).hexdigest().encode(), 1))
    torch.testing.assert_close(read_weights(path), alone, rtol=0, atol=0)


# Checkpoints of another run


@pytest.fixture(scope="module")
def other(whole: Path) -> Path:
    """The same run from another seed."""
    cfg = ablate.compose(*typed(whole, "seed=1"))
    ablate.run(cfg)
    return Composition(cfg).folder


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("last.ckpt", ("resume",)),
        ("previous.ckpt", ("resume",)),
        ("best.safetensors", ("load", "evaluate", "generate", "show", "resume")),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    folder: Path, whole: Path, other: Path, name: str, ways: tuple[str, ...]
) -> None:
    places = folder / "checkpoints"
    for way in ways:
        if name == "previous.ckpt":
            (places / "last.ckpt").unlink()
        shutil.copy(other / "checkpoints" / name, places / name)
        with pytest.raises(UserError) as caught:
            AGAIN[way](folder, whole)
        found, wanted = (one.name for one in (other, whole))
        said = f"{places / name} belongs to the run {found}, and this is the run {wanted}"
        assert str(caught.value).startswith(said)
        shutil.copytree(whole, folder, dirs_exist_ok=True)  # with its result


def test_a_run_starts_from_any_other(folder: Path, other: Path, whole: Path) -> None:
    shutil.copytree(other / "checkpoints", folder / "checkpoints", dirs_exist_ok=True)
    start(folder, whole)


# Checkpoints that are whole and hold something else


@pytest.mark.parametrize("count", [6, pytest.param(400, marks=pytest.mark.slow)])
def test_states_of_another_kind(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    """They are not used, or refused in one line, or are harmless."""
    path = folder / "checkpoints" / "last.ckpt"
    every = list(changes(read_state(path), (7, {})))
    bad = ("pytorch-lightning_version',) removed", "callbacks',) {}", "loops',) {}")
    named = [one for one in every if one[0].endswith(bad)]
    for what, content in named + every[:: len(every) // count + 1]:
        write_state(path, content)
        capsys.readouterr()
        with suppress(UserError):
            finish(folder, whole)
        if what.endswith(bad):
            assert f"ablate: {path} cannot be read: " in capsys.readouterr().out, what
        shutil.copytree(whole, folder, dirs_exist_ok=True)
