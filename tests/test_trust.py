"""Checkpoints: a flipped bit is found, and no code in a file is run."""

import copy
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from tiny import overrides

import ablate
from ablate import evaluate, generate, show
from ablate.config.composition import Composition
from ablate.config.run_id import weights
from ablate.errors import UserError
from ablate.run_files import Damaged
from ablate.training.build import build, build_data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    cfg = ablate.compose(*overrides(tmp_path_factory.mktemp("whole"), "trainer.max_steps=8"))
    ablate.run(cfg)
    return Composition(cfg).folder


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
    from ablate.training.sealed import read_state, read_weights

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
    from ablate.training.sealed import read_state, read_weights

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


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "load": load,
    "evaluate": lambda folder, whole: called(evaluate.main, folder),
    "generate": lambda folder, whole: called(generate.main, folder, "--prompt", "the"),
    "show": lambda folder, whole: called(show.main, folder),
    "init_from": start,
    "resume": finish,
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
            from ablate.training.sealed import write_state

            write_state(path, state)
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


# The format of the weights


def test_weights_are_what_safetensors_reads_and_writes(tmp_path: Path) -> None:
    from ablate.training.sealed import ZEROS, read_weights, write_weights

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
            WAYS[way](folder, whole)
        found, wanted = (one.name for one in (other, whole))
        said = f"{places / name} belongs to the run {found}, and this is the run {wanted}"
        assert str(caught.value).startswith(said)
        shutil.copytree(whole, folder, dirs_exist_ok=True)  # with its result


def test_a_run_starts_from_any_other(folder: Path, other: Path, whole: Path) -> None:
    shutil.copytree(other / "checkpoints", folder / "checkpoints", dirs_exist_ok=True)
    start(folder, whole)


@pytest.mark.parametrize(("name", "way"), [("last.ckpt", finish), ("best.safetensors", load)])
def test_a_checkpoint_without_the_id_of_its_run_is_used(
    folder: Path,
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    way: Callable[[Path, Path], Any],
) -> None:
    from ablate.training.sealed import read_state, read_weights, write_state, write_weights

    path = folder / "checkpoints" / name
    if name == "last.ckpt":
        state = read_state(path)
        del state["run_id"]
        write_state(path, state)
    else:
        write_weights(path, read_weights(path))
    way(folder, whole)
    assert f"{path} does not name its run" in capsys.readouterr().out


# Checkpoints that are whole and hold something else


@pytest.mark.parametrize("way", ["load", "evaluate", "init_from"])
@pytest.mark.parametrize("damage", ["sparse", "meta", "a number as a key"])
def test_weights_of_another_kind(folder: Path, whole: Path, way: str, damage: str) -> None:
    from ablate.training.sealed import read_weights

    first_form(folder)
    path = folder / "checkpoints" / "best.ckpt"
    weights: dict[Any, Any] = read_weights(path)
    name = next(name for name, value in weights.items() if value.dim() == 2)
    if damage == "a number as a key":
        weights[7] = weights[name]
    elif damage == "meta":
        weights[name] = weights[name].to("meta")
    else:
        weights[name] = weights[name].to_sparse()
    torch.save({"state_dict": weights}, path)
    with pytest.raises(UserError) as caught:
        WAYS[way](folder, whole)
    assert str(caught.value).startswith(f"{path} cannot be read: ")
    assert "\n" not in str(caught.value)


def forged(state: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The state without each of its keys, and with numbers in their place."""
    made = []

    def walk(node: Any, place: tuple[Any, ...]) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node[:1]))
        for key in keys:
            for value in (None, 7, {}):
                copied = copy.deepcopy(state)
                inner: Any = copied
                for one in place:
                    inner = inner[one]
                if value is None:
                    del inner[key]
                else:
                    inner[key] = value
                made.append((f"{(*place, key)} {value}", copied))
            if isinstance(node[key], dict | list) and key != "state_dict":
                walk(node[key], (*place, key))

    walk(state, ())
    return made


@pytest.mark.parametrize("count", [12, pytest.param(None, marks=pytest.mark.slow)])
def test_states_of_another_kind(
    folder: Path, whole: Path, capsys: pytest.CaptureFixture[str], count: int | None
) -> None:
    """They are not used, or refused in one line, or are harmless."""
    from ablate.training.sealed import read_state, write_state

    path = folder / "checkpoints" / "last.ckpt"
    state = read_state(path)
    every = forged(state)
    if count:
        named = ("pytorch-lightning_version',) None", "callbacks',) {}", "loops',) {}")
        every = [one for one in every if one[0].endswith(named)] + every[:: len(every) // count]
    for what, content in every:
        write_state(path, content)
        capsys.readouterr()
        with suppress(UserError):
            finish(folder, whole)
        if what.endswith(named if count else ()):
            assert f"ablate: {path} cannot be read: " in capsys.readouterr().out, what
        shutil.copytree(whole, folder, dirs_exist_ok=True)
