"""init_from and model.freeze: what is taken over, what is refused, what stays as it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.config.saved import read_config
from ablate.errors import UserError
from ablate.run_files import best_weights
from ablate.run_files.sealed import read_weights
from ablate.training.build import build, build_data
from ablate.training.transfer import Source, describe_transfer


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished language model."""
    cfg = ablate.compose(*overrides(tmp_path_factory.mktemp("first")))
    ablate.run(cfg)
    return Composition(cfg).folder


def classes(folder: Path, *more: str) -> list[str]:
    """A classification of texts whose model has the sizes of the language model."""
    for name, words in {"cats": "the cat sat", "mats": "all saw a mat"}.items():
        (folder / "texts" / name).mkdir(parents=True, exist_ok=True)
        for n in range(30):
            (folder / "texts" / name / f"{n}.txt").write_text(" ".join([words] * (1 + n % 4)))
    small = [text for text in overrides(folder) if not text.startswith("data")]
    length = next(text for text in overrides(folder) if text.startswith("data.seq_len"))
    return [
        *small,
        *("data=text_files", f"data.root={folder / 'texts'}", "data.tokenizer=char", length),
        *("data.batch_size=4", "task=classification", *more),
    ]


def refusal(*texts: str) -> str:
    cfg = ablate.compose(*texts)
    with pytest.raises(UserError) as caught:
        build(cfg, build_data(cfg))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = read_weights(best_weights(folder))
    prefix = "model."
    return {name.removeprefix(prefix): v for name, v in state.items() if name.startswith(prefix)}


def test_a_classification_starts_from_a_language_model(first: Path, tmp_path: Path) -> None:
    cfg = ablate.compose(*classes(tmp_path), f"init_from={first}")
    data = build_data(cfg)
    model = build(cfg, data)
    theirs = weights(first)
    mine = model.state_dict()
    assert mine.keys() - theirs.keys() == {"head.weight"}
    assert all(mine[name].equal(value) for name, value in theirs.items())
    scratch = build(ablate.compose(*classes(tmp_path)), data)
    assert mine["head.weight"].equal(scratch.state_dict()["head.weight"])
    note = model.started_from
    assert note is not None
    assert (note["new"], note["left"]) == (["head.weight"], [])
    assert (
        describe_transfer(note)
        == f"{len(theirs)} tensors from {first}; new: head.weight; left: none"
    )


@pytest.mark.parametrize("pairs", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_a_classification_starts_from_a_bert(pairs: str, tmp_path: Path) -> None:
    """Its pooler is loaded where it was trained, and the segments of its pairs are there."""
    own = ["model=bert", "pos_enc=learned"]
    cfg = ablate.compose(*overrides(tmp_path), *own, f"task.next_sentence={pairs}")
    ablate.run(cfg)
    second = ablate.compose(*classes(tmp_path), *own, f"init_from={Composition(cfg).folder}")
    model = build(second, build_data(second))
    note = model.started_from
    assert note is not None
    pooler = [] if pairs == "true" else ["pooler.dense.bias", "pooler.dense.weight"]
    assert note["new"] == ["classifier.bias", "classifier.weight", *pooler]
    assert all(name.startswith(("head.", "next_sentence.")) for name in note["left"])
    loaded = weights(Composition(cfg).folder)
    assert all(model.state_dict()[name].equal(loaded[name]) for name in note["loaded"])
    result = ablate.run(second)
    assert result["status"] == "finished"


def test_tokens_are_those_of_the_run_it_starts_from(first: Path, tmp_path: Path) -> None:
    def vocabulary(*more: str) -> list[str]:
        data: Any = build_data(ablate.compose(*classes(tmp_path), *more))
        characters: list[str] = data.tokenizer.characters
        return characters

    theirs: Any = ablate.load(first).data
    assert vocabulary(f"init_from={first}") == theirs.tokenizer.characters != vocabulary()


def test_a_run_says_where_it_comes_from_and_can_be_loaded_without_it(
    first: Path, tmp_path: Path
) -> None:
    here = tmp_path / "moved"
    shutil.copytree(first, here)
    cfg = ablate.compose(*classes(tmp_path), f"init_from={here}")
    ablate.run(cfg)
    folder = Composition(cfg).folder  # whose name depends on the weights
    saved = json.loads((folder / "result.json").read_text())
    assert saved["started_from"]["run"] == str(here)
    assert (
        saved["started_from"]["run_id"] == json.loads((first / "result.json").read_text())["run_id"]
    )
    run = ablate.load(folder)
    batch = run.data.example()
    before = run.model(batch["tokens"], batch["keep"])
    # One that starts from it has the tokens of the first.
    third = read_config(Source(str(folder)).tokens)
    assert third.data._target_ == OmegaConf.load(first / "config.yaml").data._target_
    shutil.rmtree(here)
    again = ablate.load(folder)
    assert before.equal(again.model(batch["tokens"], batch["keep"]))
    assert again.data.tokenizer.characters == run.data.tokenizer.characters  # type: ignore[attr-defined]


def test_the_id_of_a_run_depends_on_the_weights_and_not_on_their_place(
    first: Path, tmp_path: Path
) -> None:
    shutil.copytree(first, tmp_path / "copy")
    texts = classes(tmp_path)
    ids = [
        Composition(ablate.compose(*texts, *more)).id
        for more in ([], [f"init_from={first}"], [f"init_from={tmp_path / 'copy'}"])
    ]
    assert ids[0] != ids[1] == ids[2]
    with open(best_weights(tmp_path / "copy"), "ab") as file:
        file.write(b"other")
    assert Composition(ablate.compose(*texts, f"init_from={tmp_path / 'copy'}")).id != ids[1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            ["pos_enc=sinusoidal"],
            "is made of other parts: pos_enc is learned there and sinusoidal here",
        ),
        (["data.tokenizer=byte"], "data.tokenizer is char there and byte here"),
        (["data.seq_len=5"], "stack.pos_enc.table is"),
    ],
)
def test_other_parts_are_refused_with_the_difference(
    more: list[str], says: str, first: Path, tmp_path: Path
) -> None:
    assert says in refusal(*classes(tmp_path), f"init_from={first}", *more)


@pytest.mark.parametrize("part", ["embeddings", pytest.param("encoder", marks=pytest.mark.slow)])
def test_what_is_frozen_stays_and_all_else_learns(part: str, first: Path, tmp_path: Path) -> None:
    cfg = ablate.compose(*classes(tmp_path), f"init_from={first}", f"model.freeze={part}")
    result = ablate.run(cfg)
    before, after = weights(first), weights(Composition(cfg).folder)
    same = {name for name, value in before.items() if after[name].equal(value)}
    frozen = {
        "embeddings": {n for n in before if n.startswith(("embedding.", "stack.pos_enc."))},
        "encoder": set(before),
    }[part]
    # Rows of tokens that no text holds get no gradient, but they decay; key biases hardly move.
    assert frozen <= same
    assert {name for name in same - frozen if not name.endswith("key.bias")} == set()
    trained = sum(value.numel() for name, value in after.items() if name not in frozen)
    assert result["parameters"]["trainable"] == trained
