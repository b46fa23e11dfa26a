"""Checkpoints: a flipped bit is found, and no code in a file is run."""

import pickle
import random
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import overrides

import ablate
from ablate import evaluate, generate, show
from ablate.config.run_id import run_dir, weights
from ablate.errors import UserError
from ablate.training import pack
from ablate.training.build import build, build_data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    cfg = ablate.compose(*overrides(tmp_path_factory.mktemp("whole"), "trainer.max_steps=8"))
    ablate.run(cfg)
    return run_dir(cfg)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def typed(whole: Path, *more: str) -> list[str]:
    return overrides(whole.parents[2], "trainer.max_steps=8", *more)


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
    from ablate.training.sealed import Damaged, read_state, read_weights

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
    from ablate.training.sealed import Damaged, read_state, read_weights

    path = folder / "checkpoints" / name
    c = path.read_bytes()
    ways = {"end": c[:-1], "half": c[: len(c) // 2], "empty": b"", "comment": c[:-64]}
    path.write_bytes((ways | {"appended": c + b"0"})[damage])
    with pytest.raises(Damaged):
        (read_weights if name.startswith("best") else read_state)(path)


def test_damaged_best_weights_are_refused_in_one_line(folder: Path, whole: Path) -> None:
    path = folder / "checkpoints" / "best.safetensors"
    path.write_bytes(flipped(path.read_bytes(), 80_000))
    for way in (load, start, finish):
        with pytest.raises(UserError) as caught:
            way(folder, whole)
        assert str(caught.value) == f"{path} cannot be read: its checksum does not match"


def test_a_flipped_bit_in_the_last_checkpoint_is_said(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = folder / "checkpoints" / "last.ckpt"
    last.write_bytes(flipped(last.read_bytes(), 200_000))
    finish(folder, whole)
    said = capsys.readouterr().out.splitlines()
    assert f"ablate: {last} cannot be read: its checksum does not match; it is not used" in said
    assert f"ablate: resuming from {last.with_name('previous.ckpt')}" in said
    ended = [torch.load(one / "checkpoints" / "last.ckpt") for one in (folder, whole)]
    torch.testing.assert_close(*(state["state_dict"] for state in ended), rtol=0, atol=0)


def test_a_pack_says_which_checkpoint_is_damaged(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = folder / "checkpoints" / "last.ckpt"
    last.write_bytes(flipped(last.read_bytes(), 200_000))
    together(folder, whole)
    assert f"{last} cannot be read: its checksum does not match" in capsys.readouterr().out


# Code in a file


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self.made,)


def called(main: Callable[[], None], *arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ablate", *map(str, arguments)])
        main()


def load(folder: Path, whole: Path) -> Any:
    return ablate.load(folder)


def start(folder: Path, whole: Path) -> None:
    cfg = ablate.compose(*typed(whole, f"init_from={folder}"))
    build(cfg, build_data(cfg))


def finish(folder: Path, whole: Path) -> None:
    """The same command again, as if the run had not come to its end."""
    (folder / "result.json").unlink(missing_ok=True)
    ablate.run(ablate.compose(*typed(whole)), folder)


def together(folder: Path, whole: Path) -> None:
    """The same of a pack of two seeds."""
    (folder / "result.json").unlink(missing_ok=True)
    runs = {folder: ablate.compose(*typed(whole))}
    runs[folder.with_name("other")] = ablate.compose(*typed(whole, "seed=1"))
    pack.train(runs, lambda result, run_dir: None)


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "load": load,
    "evaluate": lambda folder, whole: called(evaluate.main, folder),
    "generate": lambda folder, whole: called(generate.main, folder, "--prompt", "the"),
    "show": lambda folder, whole: called(show.main, folder),
    "init_from": start,
    "resume": finish,
    "resume a pack": together,
}


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
            from ablate.training.sealed import state_bytes

            path.write_bytes(state_bytes(state))
        elif form == "torch":
            torch.save(state, path)
        else:
            path.write_bytes(pickle.dumps(state))
    return folder / "made"


@pytest.mark.parametrize("form", ["torch", "with a checksum", "pickle", "safetensors"])
@pytest.mark.parametrize("way", WAYS)
def test_no_code_in_a_checkpoint_is_run(folder: Path, whole: Path, way: str, form: str) -> None:
    made = attack(folder, form)
    if form in ("pickle", "safetensors") and way.startswith("resume"):
        WAYS[way](folder, whole)  # a damaged checkpoint: training begins again
    else:
        with pytest.raises(UserError) as caught:
            WAYS[way](folder, whole)
        assert "checkpoints" in str(caught.value)
        assert "\n" not in str(caught.value)
        if form in ("torch", "with a checksum"):
            assert "any code" in str(caught.value)
            assert "ABLATE_TRUST_PICKLE=1" in str(caught.value)
    assert not made.exists()


def first_form(folder: Path, **more: Any) -> None:
    """Make its best weights those of a version before safetensors."""
    from ablate.training.sealed import read_weights

    path = folder / "checkpoints" / "best.safetensors"
    torch.save({"state_dict": read_weights(path), **more}, path.with_name("best.ckpt"))
    path.unlink()


def test_the_switch_reads_other_objects(
    folder: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_form(folder, more=Path("any object"))
    with pytest.raises(UserError, match="ABLATE_TRUST_PICKLE=1"):
        load(folder, whole)
    monkeypatch.setenv("ABLATE_TRUST_PICKLE", "1")
    assert load(folder, whole).model.state_dict()


# Checkpoints of earlier versions


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("resume")])
def test_best_weights_of_an_earlier_version_are_found(folder: Path, whole: Path, way: str) -> None:
    before = load(folder, whole).model.state_dict()
    first_form(folder)
    WAYS[way](folder, whole)
    torch.testing.assert_close(load(folder, whole).model.state_dict(), before, rtol=0, atol=0)
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


@pytest.mark.parametrize("count", flips(3000))
def test_a_flipped_bit_of_an_earlier_version_is_found_or_harmless(folder: Path, count: int) -> None:
    """It has CRC-32 of its records, and none of what stands between them."""
    from ablate.training.sealed import read_weights

    before = read_weights(folder / "checkpoints" / "best.safetensors")
    first_form(folder)
    path = folder / "checkpoints" / "best.ckpt"
    content = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(content)), count):
        path.write_bytes(flipped(content, bit))
        try:
            found = read_weights(path)
        except UserError:
            continue
        torch.testing.assert_close(found, before, rtol=0, atol=0)
