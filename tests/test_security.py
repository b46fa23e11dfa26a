"""A stranger's run folder runs no code, and a person's secrets are not written down."""

import json
import os
import random
import shutil
import subprocess
import threading
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
import yaml
from make_model import options
from make_sweep import laid_out
from omegaconf import OmegaConf
from refusals import refused
from safetensors.torch import load_file
from tiny import SMALL, in_a_process, overrides, write_text
from ways import WAYS, Attack, called, resume, start, typed

import ablate
from ablate import evaluate, generate, show
from ablate.config.composition import Composition
from ablate.config.keys import option_content
from ablate.config.saved import require_trusted
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.machine.version import checkout
from ablate.run_files import CorruptFile
from ablate.run_files.checkpoint_io import (
    read_plain,
    read_state,
    read_weights,
    write_plain,
    write_state,
    write_weights,
)
from ablate.training.load import without_weights

pytest_plugins = ["ways"]
CONF = config_dir()

# Code that a config names


def attacks(place, made):
    """What each puts into a config, by dotted key. Whatever of it is run creates `made`."""
    run = {"_target_": "torch.utils.collect_env.run", "command": f"touch {made}"}
    code = f"__import__('pathlib').Path({str(made)!r}).touch()"
    # Hydra makes what stands in data.extra first, and only then finds that data has no such key.
    return {
        "a function": {"data.extra": run},
        "eval": {"data.extra": {"_target_": "builtins.eval", "_args_": [code]}},
        "a module in the model": {"model.ffn._target_": "stranger.Part"},
        "inside a part": {"data.path": run},
        "in a list": {"data.extra": [run]},
        "the class of another slot": {"task._target_": "ablate.data.text.Text"},
        "a class of torch in another slot": {"pos_enc._target_": "torch.nn.Linear"},
        "past a class of torch": {"model.ffn._target_": "torch.nn.modules.module.torch.load"},
        "a function of timm": {"model.ffn._target_": "timm.models.create_model"},
        "a class of another kind": {"optimizer._target_": "torch.optim.lr_scheduler.StepLR"},
        "a file as an option": {"model.ffn": os.path.relpath(place / "evil", CONF / "model.ffn")},
        "a key with dots": {"extra": {"model.ffn": run}},
        "a secret": {"data.path": "http://127.0.0.1:9/${oc.env:HOME}"},
        "an interpolated class": {"data._target_": "${oc.decode:torch.hub.load}"},
        "an interpolated part": {"data.extra": "${oc.create:{_target_:stranger.Part}}"},
        "a debugger": {"debug": run},
        "a logger": {"logger": run},
        "a callback": {"callbacks": {"x": run}},
    }


NAMES = list(attacks(Path(), Path()))


@pytest.mark.parametrize(
    ("file", "way", "name"),
    [
        *(("config.yaml", "load", name) for name in NAMES),  # as the commands do
        *(("config.yaml", "init_from", name) for name in NAMES[::8]),
    ],
)
def test_nothing_that_a_config_names_is_run(folder, whole, name, way, file, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    made = folder / "made"
    (folder / "stranger.py").write_text(f"open({str(made)!r}, 'w')\nclass Part: pass\n")
    (folder / "evil.yaml").write_text(f"_target_: stranger.Part\npath: {made}\n")
    config = OmegaConf.load(folder / file)
    for key, value in attacks(folder, made)[name].items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    (folder / file).write_text(OmegaConf.to_yaml(config))
    # What watches a training is not built when its run is read, and left out.
    with nullcontext() if name in ("a logger", "a callback") else refused(file):
        WAYS[way](folder, whole)
    assert not made.exists()


def test_weights_that_timm_would_read_before_ours_are_left_out():
    args = {"checkpoint_path": "evil.pth", "img_size": 8}
    config = OmegaConf.create({"model": {"pretrained": True, "args": args}})
    kept = without_weights(config)
    assert kept == {"model": {"pretrained": False, "args": {"img_size": 8}}}
    assert config.model.pretrained


# Parts that are allowed


def test_our_models_and_classes_of_libraries_that_a_slot_can_hold_are_trusted():
    for model in options("model"):
        cfg = ablate.compose(f"model={model}")
        require_trusted(OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)), ())
    for optimizer in options("optimizer"):
        content = option_content(CONF / "optimizer" / f"{optimizer}.yaml")[0]
        require_trusted(OmegaConf.create({"optimizer": content}), ())
    for slot, target in (
        ("optimizer", "torch.optim.NAdam"),
        ("optimizer", "timm.optim.Lamb"),
        ("model.norm_type", "torch.nn.RMSNorm"),
        ("model.ffn", "timm.layers.GluMlp"),
        ("model.mixer", "torchvision.ops.MLP"),
        ("trainer", "lightning.pytorch.Trainer"),
    ):
        config = OmegaConf.create()
        OmegaConf.update(config, f"{slot}._target_", target, force_add=True)
        require_trusted(config, ())
    for node in (
        {"optimizer": {"_target_": "torch.optim.lr_scheduler.StepLR"}},
        {"data": {"extra": [{"_target_": "builtins.eval"}]}},
        {"data": {"extra": ["${oc.env:HOME}"]}},
    ):
        with pytest.raises(UserError):
            require_trusted(OmegaConf.create(node), ())


def test_a_part_of_ones_own_needs_a_word(tmp_path, monkeypatch):
    norm = yaml.safe_load((CONF / "model.norm_type" / "layer.yaml").read_text())
    own_options = tmp_path / "conf" / "model.norm_type"
    for place in (own_options, tmp_path / "own_parts"):
        place.mkdir(parents=True)
    (tmp_path / "own_parts" / "norm.py").write_text(
        "from ablate.model.norm_type.layer import LayerNorm\nclass Mine(LayerNorm): pass\n"
    )
    norm["_target_"] = "own_parts.norm.Mine"
    (own_options / "mine.yaml").write_text(yaml.safe_dump(norm))
    monkeypatch.syspath_prepend(tmp_path)

    def trained(*more):
        line = overrides(tmp_path, *SMALL, "model.norm_type=mine", *more)
        ablate.run(cfg := ablate.compose(*line, config_dir=tmp_path / "conf"))
        return Composition(cfg).folder

    own = trained()
    with refused(
        "model.norm_type._target_=own_parts.norm.Mine is not an ablate component; loading it would"
        " run third-party code; to allow it: --allow own_parts.norm (Python:"
        " allow=['own_parts.norm']; ablate.report, init_from: set ABLATE_ALLOW=own_parts.norm)"
    ):
        ablate.load(own)
    with refused("own_parts"):
        ablate.load(own, allow=["own_part", "own_parts.nor", "norm", ""])
    for word in ("own_parts", "own_parts.norm", "own_parts.norm.Mine"):
        assert ablate.load(own, allow=[word]).result["status"] == "finished"
    generate_two = (generate.main, "--prompt", "the", "--tokens", "2")
    for main, *more in ((evaluate.main,), generate_two, (show.main,)):
        called(main, own, "--allow", "own_parts", *more)
    # The word of a command that trains is its own config, which has the part.
    second = trained(f"init_from={own}")
    monkeypatch.setenv("ABLATE_ALLOW", "else,own_parts")
    assert ablate.load(second).result["status"] == "finished"


# What is not written down

SECRET, USER, WORD, TOKEN = "s3cret-place", "us3r", "pa55word", "t0ken"
OFFLINE = ("logger=wandb", "logger.mode=offline")


def written(folder):
    """Every byte below a folder, names of files included."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return b"".join(str(path).encode() + path.read_bytes() for path in files)


PACKAGES = ("einops", "torch", "json", "rich", "lightning", "numpy", "hydra", "wandb")


def write_strange_packages(folder):
    """A stranger's folder may hold files with the names of packages."""
    for name in PACKAGES:
        (folder / f"{name}.py").write_text("open('made', 'w')\nraise SystemExit(9)\n")


@pytest.mark.ci
def test_no_secret_is_written_and_a_file_of_the_folder_is_no_package(tmp_path, monkeypatch):
    """Of a URL with user, password and query."""
    write_strange_packages(tmp_path)
    content = write_text(tmp_path / "x.txt").read_bytes()
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{USER}:{WORD}@127.0.0.1:{server.server_port}/x.txt?key={TOKEN}"
        line = [one for one in overrides(tmp_path, *SMALL) if not one.startswith("data.path")]
        line += [f'data.path="{url}"', f"data.sha256={sha256(content).hexdigest()}", *OFFLINE]
        done = in_a_process("-m", "ablate", *line, folder=tmp_path)
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "made").exists()
    found = written(tmp_path / "outputs") + (done.stdout + done.stderr).encode()
    assert [one for one in (USER, WORD, TOKEN) if one.encode() in found] == []
    config = next((tmp_path / "outputs").rglob("config.yaml"))
    assert ablate.load(config.parent).data.sizes  # from the local copy


def test_values_of_the_environment_are_not_written(tmp_path, monkeypatch):
    (tmp_path / SECRET).mkdir()
    text = write_text(tmp_path / SECRET / "x.txt")
    monkeypatch.setenv("MY_TEXT", str(text))
    monkeypatch.setenv("MY_DIM", "16")
    own = ("data.path=${oc.env:MY_TEXT}", "model.dim='${oc.decode:${oc.env:MY_DIM}}'")
    cfg = ablate.compose(*overrides(tmp_path, *SMALL), *OFFLINE, *own)
    assert ablate.run(cfg)["status"] == "finished"
    folder = Composition(cfg).folder
    assert SECRET.encode() not in written(folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["data"]["path"] == "${oc.env:MY_TEXT}"
    assert config["model"]["dim"] == 16
    with refused("--allow oc.env:MY_TEXT"):
        ablate.load(folder)
    assert ablate.load(folder, allow=["oc.env:MY_TEXT"]).config.data.path == str(text)
    text.unlink()
    with refused("data.path=${oc.env:MY_TEXT}: no such file"):
        ablate.run(cfg, tmp_path / "other")


@pytest.mark.parametrize(
    "key", ["project", "entity", "name", "tags", "notes", "dir", "wandb.group"]
)
def test_what_wandb_is_told_comes_from_no_secret(tmp_path, monkeypatch, key):
    """W&B writes it into its own files."""
    monkeypatch.setenv("MINE", SECRET)
    of_two = ("logger=many", "logger.wandb.mode=offline")
    chosen = of_two if "." in key else OFFLINE
    cfg = ablate.compose(*overrides(tmp_path, *SMALL), *chosen, f"logger.{key}=a-${{oc.env:MINE}}")
    with refused(f"logger.{key}=a-${{oc.env:MINE}}: W&B writes it", "a-${environment:MINE} may be"):
        ablate.run(cfg)
    assert not (tmp_path / "outputs").exists()


def test_no_path_of_the_environment_is_in_the_result(whole, tmp_path, monkeypatch):
    """Of the run that it starts from, or of what else is measured, once."""
    (tmp_path / SECRET).mkdir()
    monkeypatch.setenv("MY_RUN", str(shutil.copytree(whole, tmp_path / SECRET / "run")))
    monkeypatch.setenv("MY_TEXT", str(write_text(tmp_path / SECRET / "x.txt", 900)))
    own = ("init_from=${oc.env:MY_RUN}", "evaluate={other:{data.path:'${oc.env:MY_TEXT}'}}")
    cfg = ablate.compose(*overrides(tmp_path, *SMALL), *OFFLINE, *own)
    done = ablate.run(cfg)
    assert done["evaluated"] == {"other": {"data.path": "${oc.env:MY_TEXT}"}}
    assert SECRET.encode() not in written(Composition(cfg).folder)
    monkeypatch.setattr("ablate.training.train.measure_under", None)
    assert ablate.run(cfg) == done


def test_names_of_arms_and_provenance_hold_no_password(tmp_path):
    study = f"{{factors: {{data.path: [https://{USER}:{WORD}@host/x.txt, other.txt]}}}}"
    with pytest.raises(UserError, match="would name an arm") as caught:
        laid_out(tmp_path, study)
    assert WORD not in str(caught.value)
    remote = f"remote add origin https://{USER}:{WORD}@host/x.git"
    who = "-c user.name=a -c user.email=a@b"
    for command in ("init -q", remote, "add .", f"{who} commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True, capture_output=True)
    found = checkout(tmp_path)
    assert found is not None
    assert WORD not in json.dumps(found)


# Where code comes from


@pytest.mark.parametrize(
    "argv", [("diff", "--help"), pytest.param(("evaluate", "."), marks=pytest.mark.slow)]
)
def test_a_file_beside_a_run_is_no_package(folder, argv):
    write_strange_packages(folder)
    command, *more = argv
    done = in_a_process("-m", f"ablate.{command}", *more, folder=folder)
    assert done.returncode == 0, done.stderr
    assert not (folder / "made").exists()


# Checkpoints: what is damaged is found, and no code in a file is run


@pytest.mark.parametrize("count", [100, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["last.ckpt", "previous.ckpt", "best.safetensors"])
def test_a_flipped_bit_and_a_wrong_length_are_found(folder, name, count):
    path = folder / "checkpoints" / name
    content = path.read_bytes()
    size = 8 * len(content)
    bits = [*range(0, size, max(1, 2 * size // count))]
    bits += random.Random(0).sample(range(size), count - len(bits))
    flipped = []
    for bit in (*bits, 0, size - 1):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    cut = (content[:-1], content[: len(content) // 2], b"", content[:-64], content + b"0")
    for damaged in (*flipped, *cut):
        path.write_bytes(damaged)
        with refused(str(path), by=CorruptFile):
            (read_weights if name.startswith("best") else read_state)(path)


def finish(folder, whole):
    """The same command again, as if the run had not come to its end."""
    (folder / "result.json").unlink(missing_ok=True)
    resume(folder, whole)


# The commands load.
AGAIN = {"load": WAYS["load"], "init_from": start, "resume": finish}


def test_what_is_kept_of_the_data_runs_no_code(folder, tmp_path):
    write_plain(folder / "data.pt", {"fitted": Attack(tmp_path / "made")})
    with refused("data.pt contains Python objects"):
        ablate.load(folder)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("form", ["with a checksum", "torch"])
@pytest.mark.parametrize("way", AGAIN)
def test_no_code_in_a_checkpoint_is_run(folder, whole, way, form):
    """Of a file that creates another, in place of every checkpoint."""
    places, made = folder / "checkpoints", folder / "made"
    state = torch.load(places / "last.ckpt")
    state["state_dict"]["more"] = Attack(made)
    shutil.rmtree(places)
    places.mkdir()
    for name in ("last.ckpt", "best.safetensors"):
        if form == "with a checksum":
            write_state(places / name, state, whole.name)
        else:
            torch.save(state, places / name)
    said = ("arbitrary code", "ABLATE_TRUST_PICKLE=1")
    with refused("checkpoints", *said * (way == "resume" and form != "torch")):
        AGAIN[way](folder, whole)
    assert not made.exists()


require_same = partial(torch.testing.assert_close, rtol=0, atol=0)


def test_the_switch_reads_other_objects(tmp_path, monkeypatch):
    write_plain(tmp_path / "data.pt", {"fitted": Path("any object")})
    with refused("ABLATE_TRUST_PICKLE=1"):
        read_plain(tmp_path / "data.pt", {})
    monkeypatch.setenv("ABLATE_TRUST_PICKLE", "1")
    assert read_plain(tmp_path / "data.pt", {}) == {"fitted": Path("any object")}


def test_weights_are_what_safetensors_reads_and_writes(tmp_path):
    shared = torch.randn(3, 5)
    weights = {
        "a": shared, "tied": shared, "transposed": shared.T, "one": torch.tensor(2.5),
        "half": torch.randn(7).bfloat16(), "flags": torch.tensor([True, False, True]),
        "none": torch.empty(0, 4), "counts": torch.arange(3), "double": torch.randn(2).double(),
    }  # fmt: skip
    path = tmp_path / "best.safetensors"
    write_weights(path, weights, "0123456789ab")
    alone = {name: value.clone().contiguous() for name, value in weights.items()}
    require_same(load_file(path), alone)
    require_same(read_weights(path, "0123456789ab"), alone)


# Checkpoints of another run, and those that are whole and hold something else


@pytest.fixture(scope="module")
def other(whole):
    """The same run from another seed."""
    ablate.run(cfg := ablate.compose(*typed(whole, "seed=1")))
    return Composition(cfg).folder


def test_a_checkpoint_of_another_run_is_refused(folder, whole, other):
    """Although a run starts from any other."""
    places = folder / "checkpoints"
    for name, read in (("last.ckpt", read_state), ("best.safetensors", read_weights)):
        kept = (places / name).read_bytes()
        shutil.copy(other / "checkpoints" / name, places / name)
        with refused(f"{places / name} cannot be read: its checksum", by=CorruptFile):
            read(places / name)
        (places / name).write_bytes(kept)
    shutil.copytree(other / "checkpoints", places, dirs_exist_ok=True)
    for name, way in (("best.safetensors", "load"), ("last.ckpt", "resume")):
        with refused(f"{places / name} belongs to run {other.name}, not {whole.name}"):
            AGAIN[way](folder, whole)
    start(folder, whole)


@pytest.mark.ci
def test_a_state_of_another_kind_is_not_used(folder, whole, capsys):
    path = folder / "checkpoints" / "last.ckpt"
    state = read_state(path)
    for key, value in (("pytorch-lightning_version", None), ("callbacks", {}), ("loops", {})):
        write_state(path, {**state, key: value}, whole.name)
        capsys.readouterr()
        finish(folder, whole)
        assert f"ablate: {path} cannot be read: " in capsys.readouterr().out, key
        shutil.copytree(whole, folder, dirs_exist_ok=True)
