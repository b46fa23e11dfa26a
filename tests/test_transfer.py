"""init_from and model.freeze: what is taken over, what is refused, what stays as it is."""

import json
import shutil
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch
from refusals import refused
from tiny import SMALL, overrides, trained

import ablate
from ablate.config.composition import Composition
from ablate.config.saved import read_config
from ablate.run_files import best_weights
from ablate.run_files.checkpoint_io import read_state, read_weights
from ablate.task.causal_lm import CausalLM
from ablate.training.average import Average
from ablate.training.build import build, build_data, data_of_run
from ablate.training.transfer import describe_transfer, fitting


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished language model."""
    return trained(*overrides(tmp_path_factory.mktemp("first")))


def classes(folder: Path, *more: str) -> list[str]:
    """A classification of texts whose model has the sizes of the language model."""
    for name, words in {"cats": "the cat sat", "mats": "all saw a mat"}.items():
        (folder / "texts" / name).mkdir(parents=True, exist_ok=True)
        for n in range(30):
            (folder / "texts" / name / f"{n}.txt").write_text(" ".join([words] * (1 + n % 4)))
    kept = [text for text in overrides(folder) if text[:9] not in ("data=text", "data.path")]
    return [*kept, "data=text_files", f"data.root={folder / 'texts'}", "data.tokenizer=char",
            "task=classification", *more]  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = read_weights(best_weights(folder))
    return {name[6:]: value for name, value in state.items() if name.startswith("model.")}


@pytest.mark.ci
def test_a_classification_starts_from_a_language_model(first: Path, tmp_path: Path) -> None:
    """With its weights and its tokens."""
    cfg = ablate.compose(*classes(tmp_path), f"init_from={first}")
    data, own = (build_data(one) for one in (cfg, ablate.compose(*classes(tmp_path))))
    read = ablate.load(first).data.tokenizer.characters
    assert data.tokenizer.characters == read != own.tokenizer.characters
    model, scratch = build(cfg, data), build(ablate.compose(*classes(tmp_path)), data)
    theirs, mine = weights(first), model.state_dict()
    assert mine.keys() - theirs.keys() == {"head.weight"}
    assert all(mine[name].equal(value) for name, value in theirs.items())
    assert mine["head.weight"].equal(scratch.state_dict()["head.weight"])
    assert model.started_from is not None
    said = f"{len(theirs)} tensors from {first}; new: head.weight; left: none"
    assert describe_transfer(model.started_from) == said


@pytest.mark.ci
def test_a_classification_starts_from_a_bert(tmp_path: Path) -> None:
    """Its pooler is loaded, and the segments of its pairs are there."""
    own = ["model=bert", "pos_enc=learned"]
    first = trained(*overrides(tmp_path), *own, "task.next_sentence=true")
    second = ablate.compose(*classes(tmp_path), *own, f"init_from={first}")
    model = build(second, build_data(second))
    note = model.started_from
    assert note is not None
    assert note["new"] == ["classifier.bias", "classifier.weight"]
    assert all(name.startswith(("head.", "next_sentence.")) for name in note["left"])
    loaded = weights(first)
    assert all(model.state_dict()[name].equal(loaded[name]) for name in note["loaded"])
    assert ablate.run(second)["status"] == "finished"


@pytest.mark.ci
def test_a_run_says_where_it_comes_from_and_can_be_loaded_without_it(first, tmp_path):
    here = shutil.copytree(first, tmp_path / "moved")
    folder = trained(*classes(tmp_path), f"init_from={here}")  # whose name depends on the weights
    theirs, saved = (json.loads((one / "result.json").read_text()) for one in (first, folder))
    assert saved["started_from"]["run"] == str(here)
    assert saved["started_from"]["run_id"] == theirs["run_id"]
    run = ablate.load(folder)
    batch = run.data.example()
    before = run.model(batch["tokens"], batch["keep"])
    # One that starts from it has the tokens of the first.
    third = data_of_run(folder, read_config(folder / "config.yaml"))
    assert third.tokenizer.characters == run.data.tokenizer.characters
    shutil.rmtree(here)
    again = ablate.load(folder)
    assert before.equal(again.model(batch["tokens"], batch["keep"]))
    assert again.data.tokenizer.characters == run.data.tokenizer.characters


def test_the_id_of_a_run_depends_on_the_weights_and_not_on_their_place(first, tmp_path):
    copy, texts = shutil.copytree(first, tmp_path / "copy"), classes(tmp_path)

    def id_from(*start: object) -> str:
        return Composition(ablate.compose(*texts, *(f"init_from={one}" for one in start))).id

    assert id_from() != id_from(first) == id_from(copy)
    with open(best_weights(copy), "ab") as file:
        file.write(b"other")
    assert id_from(copy) != id_from(first)


GOES_ON = ("init_optimizer=true", "data.batch_size=8", "optimizer.lr=0.01", "trainer.max_steps=2",
           "trainer.val_check_interval=2")  # fmt: skip


@pytest.mark.ci
def test_a_run_goes_on_with_the_optimizer_of_another(tmp_path, monkeypatch, capsys):
    """From its last weights, with its moments and averages, and with rates of its own."""
    ablate.run(ablate.compose(*overrides(tmp_path, "task.ema=0.9")), here := tmp_path / "here")
    typed = overrides(tmp_path, f"init_from={here}", "task.ema=0.9", *GOES_ON)
    last, found = read_state(here / "checkpoints/last.ckpt"), {}
    loss = CausalLM.losses

    def noted(task, batch):
        if task.training and not found:
            optimizer = task.optimizers(use_pl_optimizer=False)
            (average,) = (each for each in task.trainer.callbacks if isinstance(each, Average))
            found["average"] = deepcopy(average.state_dict())
            found.update(deepcopy({"state": optimizer.state_dict(), "task": task.state_dict()}))
        return loss(task, batch)

    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "losses", noted)
        result = ablate.run(ablate.compose(*typed), tmp_path / "there")
    assert result["steps"] == 2
    (saved,) = last["optimizer_states"]
    equal = partial(torch.testing.assert_close, rtol=0, atol=0)
    equal(found["state"]["state"], saved["state"])
    equal(found["task"], last["state_dict"])
    equal(found["average"], last["callbacks"]["Average"])
    assert {group["initial_lr"] for group in found["state"]["param_groups"]} == {0.01}
    told = f"average, the optimizer's state and the weights after step 12 of {here} are kept;"
    assert told in capsys.readouterr().out
    ended = read_state(tmp_path / "there/checkpoints/last.ckpt")["optimizer_states"][0]["state"]
    assert {float(each["step"]) for each in ended.values()} == {14}
    both = [compose_id(*typed), compose_id(*(text for text in typed if text != GOES_ON[0]))]
    assert both[0] != both[1]
    with open(best_weights(here), "ab") as file:
        file.write(b"other")
    assert compose_id(*typed) == both[0]  # its last state counts


def compose_id(*typed: str) -> str:
    return Composition(ablate.compose(*typed)).id


@pytest.mark.ci
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["optimizer=sgd"], "optimizer._target_ is torch.optim.AdamW there and torch.optim.SGD"),
        (["model.tie_embeddings=false"], "the other run has no head.weight"),
        (["trainer=fsdp", "trainer.accelerator=cpu"], "init_optimizer=true needs the optimizer wh"),
        (["init_from=null"], "set init_from=RUN_DIR"),
        (["model.freeze=embeddings"], "trained other parameters, as with another model.freeze"),
    ],
)
def test_an_optimizer_that_does_not_fit_is_refused(more, says, first, tmp_path):
    with refused(says):
        ablate.run(ablate.compose(*overrides(tmp_path, f"init_from={first}", *GOES_ON, *more)))


@pytest.mark.ci
def test_an_average_over_all_steps_is_not_continued(tmp_path):
    typed = overrides(tmp_path, "optimizer=schedule_free", "schedule=constant", *SMALL)
    ablate.run(ablate.compose(*typed), here := tmp_path / "here")
    goes_on = [text for text in GOES_ON if not text.startswith("optimizer")]
    with refused("init_optimizer=true: the optimizer averages over its steps"):
        ablate.run(ablate.compose(*typed, f"init_from={here}", *goes_on))


def test_a_run_without_its_last_state_is_refused(first, tmp_path):
    copy = shutil.copytree(first, tmp_path / "copy")
    (copy / "checkpoints/last.ckpt").unlink()
    with refused("last.ckpt is missing; checkpoint_keep=all keeps it, as does"):
        ablate.run(ablate.compose(*overrides(tmp_path, f"init_from={copy}", *GOES_ON)))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "pos_enc=sinusoidal",
            "architecture: pos_enc is learned there and sinusoidal here",
        ),
        ("data.tokenizer=byte", "data.tokenizer is char there and byte here"),
        ("data.seq_len=5", "stack.pos_enc.table is"),
    ],
)
def test_other_parts_are_refused_with_the_difference(more, says, first, tmp_path):
    cfg = ablate.compose(*classes(tmp_path), f"init_from={first}", more)
    with refused(says):
        build(cfg, build_data(cfg))


@pytest.mark.parametrize("name", ["missing", "unknown"])
def test_parameters_of_the_body_have_to_be_the_same(name: str) -> None:
    own = {"body.weight": torch.ones(2), "head.weight": torch.ones(3)}
    more = own | {"body.bias": torch.ones(2), "head.bias": torch.ones(3)}
    target, source = (more, own) if name == "missing" else (own, more)
    with refused(f"x does not fit this model: {name}: body.bias"):
        fitting(target, source, ("head.",), "x")


@pytest.mark.ci
def test_what_is_frozen_stays_and_all_else_learns(first: Path, tmp_path: Path) -> None:
    cfg = ablate.compose(*classes(tmp_path), f"init_from={first}", "model.freeze=embeddings")
    result = ablate.run(cfg)
    before, after = weights(first), weights(Composition(cfg).folder)
    same = {name for name, value in before.items() if after[name].equal(value)}
    frozen = {n for n in before if n.startswith(("embedding.", "stack.pos_enc."))}
    # Key biases hardly move.
    assert {name for name in same if not name.endswith("key.bias")} == frozen
    trained = sum(value.numel() for name, value in after.items() if name not in frozen)
    assert result["parameters"]["trainable"] == trained
    cfg.model.freeze = "encoder"
    learns = [name for name, p in build(cfg, build_data(cfg)).named_parameters() if p.requires_grad]
    assert learns == ["head.weight"]


@pytest.mark.parametrize("tokenizer", ["char", "byte"])
def test_a_text_of_other_characters_is_refused_by_the_tokens_of_the_run(first, tmp_path, tokenizer):
    (tmp_path / "tiny.txt").write_text("the 7 cats " * 300)
    typed = overrides(tmp_path, f"init_from={first}", f"data.tokenizer={tokenizer}")
    said = {"char": "its tokens are used; the character '7' does not", "byte": "data.tokenizer is"}
    with refused(f"init_from={first}", said[tokenizer]):
        ablate.run(ablate.compose(*typed))


def test_of_a_folder_that_is_not_there_the_nearest_run_is_named(first):
    with refused(f"it does not exist; did you mean '{first.name}'?"):
        ablate.load(f"{first}s")


@pytest.mark.parametrize("inside", ["checkpoints/last.ckpt", "checkpoints"])
def test_of_what_lies_in_the_folder_of_a_run_the_run_is_named(inside, first, tmp_path):
    line = f"is not the folder of a run: it has no config.yaml; the run is {first}"
    with refused(f"init_from={first / inside} {line}"):
        build(ablate.compose(*overrides(tmp_path), f"init_from={first / inside}"))
    with refused(f"{first / inside} {line}"):
        ablate.load(first / inside)
