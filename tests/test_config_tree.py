"""The config tree is the test list: every option of every group makes a model that learns."""

from pathlib import Path
from typing import Any

import make_files
import numpy as np
import pytest
import torch
from hydra.utils import get_object
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
from ablate.data import Request
from ablate.kernel import chunked
from ablate.model.base import outputs
from ablate.training.build import build

SOURCE = Path(models.__file__).parents[1]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())
OPTIONS = [(group, name) for group in GROUPS for name in options(group)]
# Groups in which every file stands for a module of the same name.
MIRRORED = [
    "model",
    "model.attention",
    "model.cell",
    "model.condition",
    "model.decoder",
    "model.embedding",
    "model.ffn",
    "model.gate",
    "model.mixer",
    "model.norm_type",
    "model.points",
    "model.normalizer",
    "model.mask",
    "model.window",
    "pos_enc",
    "kernel",
    "task",
    "task.noise",
    "logger",
]
# Groups in which, besides, every module is an option.
COMPLETE = [group for group in MIRRORED if group not in ("model", "model.normalizer")]


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_kernel.py does that."""
    monkeypatch.setattr(chunked, "compiler", lambda device: False)


class Sizes:
    """In place of data: what a model and its embeddings ask of it."""

    def __init__(self, cfg: DictConfig) -> None:
        facts = Facts(cfg)
        if facts.option("model") == "bert" and facts.kind != LABELLED:
            self.sizes: dict[str, Any] = {"vocab_size": 11, "length": cfg.data.seq_len}
            self.sizes |= {"segments": 2, "next_sentence": True}
            shape = (2, cfg.data.seq_len)
            self.inputs: tuple[torch.Tensor, ...] = (
                *(torch.randint(11, shape), torch.randint(cfg.data.seq_len, (2, 3))),
                torch.randint(2, shape),
            )
        elif facts.kind == IMAGES:
            side = 8 if cfg.data.get("size") else facts.side
            self.sizes = {"image_size": (side, side), "channels": 2, "classes": 3}
            self.inputs = (torch.randn(2, 2, side, side),)
        elif facts.kind == PAIRS:
            self.sizes = {"source_vocab": 11, "target_vocab": 11, "joint": True}
            self.sizes |= {"source_length": 6, "target_length": 5}
            self.inputs = torch.randint(4, 11, (2, 6)), torch.randint(4, 11, (2, 5))
        elif facts.option("model") == "autoencoder":
            self.sizes = {"image_size": (8, 12), "channels": 1}
            self.sizes |= {"target_vocab": 11, "target_length": 5}
            self.inputs = (torch.randn(2, 1, 8, 12),)
        elif facts.option("model") == "dit":
            self.sizes = {"image_size": (8, 12), "channels": 1}
            self.sizes |= {"target_vocab": 11, "target_length": 5}
            words = torch.randint(4, 11, (2, 5))
            self.inputs = torch.randn(2, 1, 8, 12), words, torch.rand(2)
        elif facts.kind == CAPTIONS:
            self.sizes = {"image_size": (8, 13), "channels": 1}
            self.sizes |= {"target_vocab": 11, "target_length": 5}
            self.inputs = torch.randn(2, 1, 8, 13), torch.randint(4, 11, (2, 5))
        elif facts.kind == "images with masks":
            self.sizes = {"image_size": (8, 8), "channels": 1, "prompt_length": 3}
            points, labels = torch.tensor([[2, 3], [0, 0], [7, 7]]), torch.tensor([1, -1, 0])
            self.inputs = torch.randn(2, 1, 8, 8), points.repeat(2, 1, 1), labels.repeat(2, 1)
        elif facts.kind == SERIES:
            self.sizes = {"channels": 2, "length": cfg.data.window}
            self.inputs = (torch.randn(2, cfg.data.window, 2),)
        elif facts.kind == GRAPH:
            self.sizes = {"features": 5, "classes": 3, "nodes": 4}
            edges = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 3], [0, 1, 0, 1, 2, 1, 2, 3]])
            self.inputs = torch.randn(4, 5), edges
        elif not facts.predicts_tokens:  # of texts
            self.sizes = {"vocab_size": 11, "length": cfg.data.seq_len, "classes": 3}
            shape = (2, cfg.data.seq_len)
            self.inputs = torch.randint(11, shape), torch.ones(shape).bool()
        else:
            self.sizes = {"vocab_size": 11, "length": cfg.data.seq_len}
            self.inputs = (torch.randint(11, (2, cfg.data.seq_len)),)

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        return [np.arange(4, 11, dtype=np.int32)]


def tiny(model: str) -> list[str]:
    """Overrides that make a model small; `data.seq_len` stays, because some data needs it long."""
    return {
        "gpt": ["model.dim=8", "model.heads=2", "model.depth=2"],
        "bert": ["model.dim=8", "model.heads=2", "model.depth=2"],
        "vit": ["model.dim=8", "model.heads=2", "model.depth=2"],
        "resnet": ["model.dim=8"],
        "timm": ["model.name=test_resnet"],
        "transformer": ["model.dim=8", "model.heads=2"],
        "gpt_seq2seq": ["model.dim=8", "model.heads=2", "model.depth=2"],
        # Of four nodes, dropout often leaves nothing.
        "gat": ["model.dim=8", "model.heads=2", "model.dropout=0"],
        "rnn_lm": ["model.dim=8"],
        "rnn_seq2seq": ["model.dim=8", "model.embedding_dim=8"],
        "captioner": ["model.dim=8"],
        "sam": ["model.dim=8", "model.heads=2", "model.depth=1"],
        "dit": ["model.dim=8", "model.heads=2", "model.depth=2"],
        "autoencoder": ["model.dim=8"],
        "rnn_forecaster": ["model.dim=8"],
        "transformer_forecaster": ["model.dim=8", "model.heads=2"],
    }[model]


def assert_learns(network: nn.Module, *inputs: torch.Tensor) -> None:
    """Every parameter gets a gradient, and it is finite."""
    sum(out.square().sum() for out in outputs(network(*inputs))).backward()  # type: ignore[union-attr]
    parameters = dict(network.named_parameters())
    assert parameters
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
    grads = [parameter.grad for parameter in parameters.values()]
    assert any(grad.abs().max() > 0 for grad in grads if grad is not None)


# test_compose.py composes every sweep, test_debug.py every experiment.
WHOLE = ("experiment", "sweep")


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(group, name, marks=[pytest.mark.slow] if group in WHOLE else [])
        for group, name in OPTIONS
    ],
)
def test_every_option_builds_and_every_parameter_gets_a_gradient(group: str, name: str) -> None:
    override = f"{group}={name}"
    needs = NEEDS.get(override, [])
    named = dict(text.split("=") for text in (override, *needs)).get("model", "gpt")
    whole = group in WHOLE  # which may choose the model themselves
    model = compose(override, *needs).choices.model if whole else named
    cfg = compose(override, *tiny(model), *needs)
    assert (cfg.choices[group], cfg.choices.model) == (name, model)
    if override == "kernel=flex" and not torch.cuda.is_available():
        pytest.skip("FlexAttention has no backward pass on a CPU")
    data = Sizes(cfg)
    network = build(cfg, data)  # type: ignore[arg-type]
    assert_learns(network, *data.inputs)


READ = (
    *("images", "tokens", "keep", "source", "target_in", "points", "labels", "values"),
    *("features", "edges"),
)


@pytest.mark.parametrize("name", options("data"))
def test_every_data_set_feeds_its_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def target(group: str, name: str) -> str:
    content = OmegaConf.load(CONF / group / f"{name}.yaml")
    text = (CONF / group / f"{name}.yaml").read_text()
    node = content[group] if "@package _global_" in text else content
    return str(node.get("_target_", ""))


@pytest.mark.parametrize(("group", "name"), [item for item in OPTIONS if item[0] in MIRRORED])
def test_a_file_is_named_after_its_module(group: str, name: str) -> None:
    if (group, name) == ("logger", "none"):
        assert target(group, name) == ""  # nothing is logged, nothing is made
        return
    module, _, part_name = target(group, name).rpartition(".")
    assert module == f"ablate.{group}.{name}"
    assert get_object(f"{module}.{part_name}").__module__ == module


# Modules beside the options, which several of them share.
SHARED = {
    "kernel": {"additive_cpu", "additive_triton", "additive_triton_kernels", "heap"},
    "logger": {"role"},
    "task": {
        *(
            "accumulation",
            "attention",
            "decoding",
            "experts",
            "judge",
            "paint",
            "policy",
            "sampler",
        ),
        *("segment", "text_metrics", "translate"),
    },
}


@pytest.mark.parametrize("group", COMPLETE)
def test_every_module_is_an_option(group: str) -> None:
    folder = SOURCE / group.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    named = set(options(group)) - ({"none"} if group == "logger" else set())
    assert modules == named | SHARED.get(group, set())


def test_every_group_has_a_place_in_config_yaml_or_in_a_model() -> None:
    entries = OmegaConf.load(CONF / "config.yaml").defaults
    groups = {next(iter(entry)) for entry in entries if not isinstance(entry, str)}
    groups = {group for group in groups if not group.startswith(("override ", "optional "))}
    for group, name in (item for item in OPTIONS if item[0] in ("model", "task")):
        slots = OmegaConf.load(CONF / group / f"{name}.yaml").get("defaults", [])
        groups |= {
            key.removeprefix("/").removeprefix("override /")
            for entry in slots
            if not isinstance(entry, str)  # a fragment, which is no choice
            for key in entry
            if not key.startswith("override")
        }
    assert groups == set(GROUPS) - {"hydra"}


@pytest.mark.parametrize("name", [name for name in options("trainer") if name != "cpu"])
def test_a_trainer_is_that_of_the_cpu_but_for_what_its_file_says(name: str) -> None:
    cpu, own = compose().trainer, compose(f"trainer={name}", "trainer.log_every_n_steps=7")
    assert own.choices.trainer == name
    assert list(own.trainer) == list(cpu)
    content = OmegaConf.load(CONF / "trainer" / f"{name}.yaml")
    for key in set(content) - {"defaults"}:
        assert own.trainer[key] == content[key] != cpu[key]
    assert own.trainer.max_steps == cpu.max_steps > 0  # the model's wins over both files
    assert own.trainer.log_every_n_steps == 7  # and the command line over all
