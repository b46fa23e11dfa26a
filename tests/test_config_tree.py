"""The config tree is the test list: every option of every group makes a model that learns."""

from pathlib import Path
from typing import Any

import make_files
import numpy as np
import pytest
import torch
from make_axes import MODELS
from make_data import ready
from make_files import FILES
from make_model import CONF, options
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from test_compose import NEEDS
from torch import nn

from ablate import model as models
from ablate.config.composition import compose
from ablate.config.facts import CAPTIONS, GRAPH, IMAGES, LABELLED, PAIRS, SERIES, Facts
from ablate.config.keys import option_content
from ablate.config.schema import base_of
from ablate.data import Request
from ablate.kernel import chunked
from ablate.model.base import outputs
from ablate.training.build import build

listed = str.split
SOURCE = Path(models.__file__).parents[1]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())
OPTIONS = [(group, name) for group in GROUPS for name in options(group)]
# Groups in which every file stands for a module of the same name.
MIRRORED = listed("""kernel logger pos_enc task task.noise model.attention model.cell
    model.condition model.decoder model.embedding model.ffn model.gate model.mask model.mixer
    model.norm_type model.points model.window""")


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_kernel.py does that."""
    monkeypatch.setattr(chunked, "compiler", lambda device: False)


def words(*shape: int) -> torch.Tensor:
    return torch.randint(4, 11, shape)


class Sizes:
    """In place of data: what a model and its embeddings ask of it."""

    def __init__(self, cfg: DictConfig) -> None:
        facts = Facts(cfg)
        model, kind, length = facts.option("model"), facts.kind, cfg.data.get("seq_len", 1)
        captions = {"channels": 1, "target_vocab": 11, "target_length": 5}
        texts = {"vocab_size": 11, "length": length}
        sizes: dict[str, Any]
        inputs: tuple[torch.Tensor, ...]
        if model == "bert" and kind != LABELLED:
            sizes = texts | {"segments": 2, "next_sentence": True}
            inputs = words(2, length), torch.randint(length, (2, 3)), torch.randint(2, (2, length))
        elif kind == IMAGES:
            side = 8 if cfg.data.get("size") else facts.side
            sizes = {"image_size": (side, side), "channels": 2, "classes": 3}
            inputs = (torch.randn(2, 2, side, side),)
        elif kind == PAIRS:
            sizes = {"source_vocab": 11, "target_vocab": 11, "joint": True}
            sizes |= {"source_length": 6, "target_length": 5}
            inputs = words(2, 6), words(2, 5)
        elif model in ("autoencoder", "dit"):
            sizes = captions | {"image_size": (8, 12)}
            beside = (words(2, 5), torch.rand(2)) if model == "dit" else ()
            inputs = torch.randn(2, 1, 8, 12), *beside
        elif kind == CAPTIONS:
            sizes = captions | {"image_size": (8, 13)}
            inputs = torch.randn(2, 1, 8, 13), words(2, 5)
        elif kind == "images with masks":
            sizes = {"image_size": (8, 8), "channels": 1, "prompt_length": 3}
            points, labels = torch.tensor([[2, 3], [0, 0], [7, 7]]), torch.tensor([1, -1, 0])
            inputs = torch.randn(2, 1, 8, 8), points.repeat(2, 1, 1), labels.repeat(2, 1)
        elif kind == SERIES:
            sizes = {"channels": 2, "length": cfg.data.window}
            inputs = (torch.randn(2, cfg.data.window, 2),)
        elif kind == GRAPH:
            sizes = {"features": 5, "classes": 3, "nodes": 4}
            edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 3], [0, 1, 0, 1, 2, 1, 2, 3]])
            inputs = torch.randn(4, 5), edges
        else:
            predicts = facts.predicts_tokens
            sizes = texts | ({} if predicts else {"classes": 3})
            inputs = words(2, length), *(() if predicts else [torch.ones(2, length).bool()])
        self.sizes, self.inputs = sizes, inputs

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        return [np.arange(4, 11, dtype=np.int32)]


def tiny(model: str) -> list[str]:
    """Overrides that make a model small; `data.seq_len` stays, because some data needs it long."""
    # Of four nodes, dropout often leaves nothing.
    return [*MODELS[model].overrides, *(["model.dropout=0"] if model == "gat" else [])]


def assert_learns(network: nn.Module, *inputs: torch.Tensor) -> None:
    """Every parameter gets a gradient, and it is finite."""
    sum(out.square().sum() for out in outputs(network(*inputs))).backward()  # type: ignore[union-attr]
    learning = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for name, parameter in learning.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(p.grad.abs().max() > 0 for p in learning.values() if p.grad is not None)


# test_compose.py composes every sweep, test_debug.py every experiment.
WHOLE = ("experiment", "sweep")
# What two experiments set must fit the small sizes.
FITS = {
    "experiment=multi30k_rnn": ["model.embedding_dim=12"],
    "experiment=vit_fashion_mnist": ["model.stride=1"],
}


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, marks=[pytest.mark.slow] if group in WHOLE else [])
        for group, name in OPTIONS
    ],
)
def test_every_option_builds_and_every_parameter_gets_a_gradient(group, name):
    override = f"{group}={name}"
    needs = NEEDS.get(override, [])
    named = dict(text.split("=") for text in (override, *needs)).get("model", "gpt")
    whole = group in WHOLE  # which may choose the model themselves
    model = compose(override, *needs).choices.model if whole else named
    cfg = compose(override, *tiny(model), *needs, *FITS.get(override, []))
    assert (cfg.choices[group], cfg.choices.model) == (name, model)
    if override == "kernel=flex" and not torch.cuda.is_available():
        pytest.skip("FlexAttention has no backward pass on a CPU")
    data = Sizes(cfg)
    assert_learns(build(cfg, data), *data.inputs)  # type: ignore[arg-type]


READ = listed("images tokens keep source target_in points labels values features edges")


@pytest.mark.parametrize("name", options("data"))
def test_every_data_set_feeds_its_model(name, tmp_path, monkeypatch):
    make_files.write(tmp_path, monkeypatch)
    given = FILES.get(name, {})
    typed = [f"data.{key}={'null' if v is None else v}" for key, v in given.items()]
    overrides = [f"data={name}", *NEEDS.get(f"data={name}", []), *typed]
    cfg = compose(*overrides, *tiny(compose(*overrides).choices.model))
    data = ready(name, **given)
    batch = data.splits["train"][Request(0, torch.arange(2))]
    if cfg.choices.model == "sam":  # the mask before a click comes from the task
        cfg.model.mask_prompt = False
    assert_learns(build(cfg, data), *(batch[key] for key in READ if key in batch))


# conf/ and src/ have the same names


# Modules beside the options, which several of them share.
SHARED = {
    "kernel": listed("additive_cpu additive_triton additive_triton_kernels context_parallel heap"),
    "logger": ["role"],
    "task": listed("""accumulation attention decoding experts judge paint policy sampler segment
        text_metrics translate"""),
}


@pytest.mark.parametrize("group", MIRRORED)
def test_every_module_is_the_option_of_its_name(group: str) -> None:
    folder = SOURCE / group.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    named = set(options(group)) - ({"none"} if group == "logger" else set())
    assert modules == named | {*SHARED.get(group, [])}
    for name in named:
        made = str(option_content(CONF / group / f"{name}.yaml")[0]["_target_"])
        assert made.startswith(f"ablate.{group}.{name}.")


def test_every_group_has_a_place_in_config_yaml_or_in_a_model():
    files = [CONF / "config.yaml", *(CONF.glob("model/*.yaml")), *(CONF.glob("task/*.yaml"))]
    lists = [OmegaConf.load(file).get("defaults", []) for file in files]
    # A text is a fragment, which is no choice.
    chosen = [entry for defaults in lists for entry in defaults if OmegaConf.is_dict(entry)]
    keys = {key for entry in chosen for key in entry}
    groups = {key.removeprefix("/") for key in keys if not key.startswith(("override", "optional"))}
    assert groups == set(GROUPS) - {"hydra"}


@pytest.mark.parametrize("name", [name for name in options("trainer") if name != "cpu"])
def test_a_trainer_is_that_of_the_cpu_but_for_what_its_file_says(name):
    cpu, own = compose().trainer, compose(f"trainer={name}", "trainer.log_every_n_steps=7")
    assert own.choices.trainer == name
    assert list(own.trainer) == list(cpu)
    content = OmegaConf.load(CONF / "trainer" / f"{name}.yaml")
    for key in set(content) - {"defaults"}:
        assert own.trainer[key] == content[key] != cpu[key]
    assert own.trainer.max_steps == cpu.max_steps > 0  # the model's wins over both files
    assert own.trainer.log_every_n_steps == 7  # and the command line over all


@pytest.mark.parametrize(
    ("group", "base"),
    [
        ("model", "Model"), ("model.attention", "Score"), ("model.mixer", "Layer"),
        ("model.mask", "Mask"), ("pos_enc", "PosEnc"), ("data", "Data"), ("task", "Task"),
        ("kernel", "Kernel"), ("logger", "RunLogger"),
        ("model.norm_type", None), ("optimizer", None), ("schedule", None),
    ],
)  # fmt: skip
def test_what_a_part_must_be_is_what_the_options_of_its_group_are(group, base):
    """Where one of them is a function, or another package's class, anything may stand there."""
    found = base_of(group)
    assert (found and found.__name__) == base
