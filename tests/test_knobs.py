"""Every knob does something: it changes parameters, outputs at the start, or gradients.

The keys come from the composed config, so that a new one without an entry here fails.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import timm
import torch
from make_axes import long_for
from make_knobs import MEANINGLESS, equal, fitting, keys_of
from make_model import kernels, options
from make_rows import option, refusal
from numpy.typing import NDArray
from omegaconf import OmegaConf
from test_rnn_knobs import KNOBS as RECURRENT
from torch import Tensor, nn

from ablate.config.check import leaves
from ablate.config.composition import compose
from ablate.kernel import chunked
from ablate.model import pretrained
from ablate.model.base import outputs
from ablate.model.layers.modulation import Modulation
from ablate.training.build import build

TRANSLATED = {
    "source_vocab": 11,
    "target_vocab": 11,
    "source_length": 32,
    "target_length": 32,
    "joint": True,
}
SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"vocab_size": 11, "length": 32},
    "bert": {"vocab_size": 11, "length": 32, "segments": 2, "next_sentence": True},
    "vit": {"image_size": (8, 8), "channels": 1, "classes": 3},
    "timm": {"image_size": (8, 8), "channels": 1, "classes": 3},
    "resnet": {"image_size": (8, 8), "channels": 1, "classes": 3},
    "transformer": TRANSLATED,
    "gpt_seq2seq": TRANSLATED,
    "transformer_forecaster": {"channels": 1, "length": 32},
    "gat": {"features": 5, "classes": 3, "nodes": 6},
    "sam": {"image_size": (8, 8), "channels": 1, "prompt_length": 3},
    "dit": {"image_size": (8, 8), "channels": 1, "target_vocab": 11, "target_length": 4},
    "autoencoder": {"image_size": (8, 8), "channels": 1, "target_vocab": 11, "target_length": 4},
}
# Six nodes in a circle: each sees itself and the next one.
RING = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0]])
# A click and padding, or the corners of a box; then a click.
CLICKS = torch.tensor([[[2, 3], [0, 0], [7, 7]], [[1, 1], [5, 6], [3, 2]]])
SMALL = ["model.dim=12", "model.heads=2"]
START = {
    "gpt": ["model=gpt", "model.dim=12", "model.heads=2", "model.depth=2", "data.seq_len=32"],
    "bert": ["model=bert", "pos_enc=learned", "model.depth=2", "data.seq_len=32", *SMALL],
    "vit": ["model=vit", "model.dim=12", "model.heads=2", "model.depth=2", "model.dropout=0"],
    "timm": ["model=timm", "model.name=test_resnet"],
    "resnet": ["model=resnet", "model.dim=12"],
    "transformer": ["model=transformer", "data=reverse", "model.dropout=0", *SMALL],
    "gpt_seq2seq": [
        *("model=gpt_seq2seq", "data=reverse", "model.dropout=0", "model.depth=2", *SMALL),
    ],
    "transformer_forecaster": [
        "model=transformer_forecaster",
        *("data.window=32", "model.dropout=0", "model.depth=2", *SMALL),
    ],
    "gat": ["model=gat", "model.dropout=0", *SMALL],
    "sam": ["model=sam", "model.dim=24", "model.heads=2", "model.depth=2", "model.patch=2"],
    "dit": ["model=dit", "model.depth=2", "model.text_depth=2", *SMALL],
    "autoencoder": ["model=autoencoder", "model.dim=12"],
}
# Models that are made of blocks with attention.
BLOCKS_OF = [name for name in START if name not in ("timm", "resnet", "autoencoder")]
MEAN: dict[str, list[str]] = {"vit": ["model.pool=mean"]}  # every mask is allowed
UNTIED = ["model.tie_embeddings=false"]  # so is every embedding
# Another value for every key of a model, and what else has to be set for it to have an effect.
BLOCKS: dict[str, list[str]] = {
    "model.dim": ["24"],
    "model.depth": ["3"],
    "model.heads": ["3"],
    "model.ffn_dim": ["20"],
    "model.norm": ["post", "sandwich", "none"],
    "model.norm_eps": ["0.5"],
    "model.embedding_scale": ["2", "sqrt"],
    "model.init_std": ["0.3"],
    "model.init_depth_scale": ["false"],
    "model.residual": ["false"],
    "model.dropout": ["0.5"],
    "model.drop_path": ["0.5"],
    "model.bias": ["false"],
    "model.share_layers": ["true"],
    "model.activation_checkpointing": [],  # changes nothing: test_activation_checkpoints.py
}
KNOBS: dict[str, dict[str, list[str]]] = {
    "gpt": BLOCKS
    | {"model.tie_embeddings": ["false"], "model.freeze": ["embeddings"]}
    | {"model.pretrained": ["hf:small"]},
    "bert": BLOCKS
    | {"model.norm": ["pre", "sandwich", "none"], "model.tie_embeddings": ["false"]}
    | {"model.freeze": ["embeddings", "encoder"], "model.pretrained": ["hf:small"]},
    "vit": BLOCKS
    | {
        "model.patch": ["4"],
        "model.stride": ["1"],
        "model.pool": ["mean"],
        "model.pretrained": ["vit_tiny_patch16_224"],
        "model.freeze": ["embeddings", "encoder"],
    },
    "resnet": {
        "model.dim": ["24"],
        "model.depth": ["2"],
        "model.residual": ["false"],
    },
    "timm": {
        "model.name": ["test_efficientnet"],
        "model.args": ["{stem_width: 8}"],
        "model.pretrained": ["true"],
    },
    "transformer": {key: values for key, values in BLOCKS.items() if key != "model.depth"}
    | {
        "model.embedding_scale": ["1", "2"],
        "model.encoder.depth": ["1"],
        "model.decoder.depth": ["1"],
        "model.norm": ["pre", "sandwich", "none"],
        "model.tie_embeddings": ["false"],
        "model.share_embeddings": ["true"],
    },
    "gpt_seq2seq": BLOCKS | {"model.tie_embeddings": ["false"]},
    "transformer_forecaster": BLOCKS | {"model.difference": ["false"]},
    "sam": BLOCKS
    | {
        "model.dim": ["16"],
        "model.patch": ["4"],
        "model.decoder.depth": ["1"],
        "model.decoder.ffn_dim": ["20", "null"],
        "model.masks": ["1"],
        "model.exchange": ["one_way", "none"],
        "model.mask_prompt": ["false"],
        "model.points.scale": ["2.0"],
    },
    "gat": {
        "model.dim": ["24"],
        "model.depth": ["3"],
        "model.heads": ["3"],
        "model.out_heads": ["2"],
        "model.shared": ["false"],
        "model.residual": ["true"],
        "model.dropout": ["0.5"],
        "model.bias": ["false"],
    },
    # adaLN-Zero needs residuals.
    "dit": BLOCKS | {"model.residual": [], "model.text_depth": ["1"], "model.patch": ["2"]},
    "autoencoder": {"model.dim": ["24"], "model.latent": ["2"], "model.halvings": ["1"]},
}
# Keys of parts: the choice of the part, the key, another value.
PARTS: list[tuple[str, str, str]] = [
    ("model.embedding=word2vec", "model.embedding.algorithm", "cbow"),
    ("model.embedding=word2vec", "model.embedding.window", "1"),
    ("model.embedding=word2vec", "model.embedding.negative", "1"),
    ("model.embedding=word2vec", "model.embedding.epochs", "1"),
    ("model.embedding=word2vec", "model.embedding.freeze", "true"),
    ("model.attention=additive", "model.attention.hidden", "5"),
    ("model.attention=location", "model.attention.max_length", "40"),
    ("model.attention=gatv2", "model.attention.hidden", "5"),
    ("model.gate=se", "model.gate.reduction", "2"),
    ("model.mixer=convolution", "model.mixer.size", "3"),
    ("model.mixer=convolution", "model.mixer.depthwise", "false"),
    ("model.cross_attention=gatv2", "model.cross_attention.hidden", "5"),
    ("model.cross_attention=additive", "model.cross_attention.hidden", "5"),
    ("model.cross_attention=location", "model.cross_attention.max_length", "40"),
    ("model.mask=window", "model.mask.size", "3"),
    ("model.mask=prefix", "model.mask.size", "3"),
    ("model.points=fourier", "model.points.scale", "2.0"),
    ("pos_enc=sinusoidal", "pos_enc.base", "100"),
    ("pos_enc=learned_from_sinusoidal", "pos_enc.base", "100"),
    ("pos_enc=sinusoidal_2d", "pos_enc.base", "100"),
    ("pos_enc=rotary", "pos_enc.base", "100"),
    ("pos_enc=rotary", "pos_enc.layout", "interleaved"),
    ("pos_enc=relative", "pos_enc.max_distance", "3"),
    ("pos_enc=relative", "pos_enc.keys", "false"),
    ("pos_enc=relative", "pos_enc.values", "false"),
    ("pos_enc=t5", "pos_enc.buckets", "8"),
    ("pos_enc=t5", "pos_enc.max_distance", "20"),
]


class Sizes:
    """In place of data: what a model asks of it."""

    def __init__(self, model: str) -> None:
        self.sizes = SIZES[model]

    def sequences(self, name: str) -> list[NDArray[np.int64]]:
        return [np.random.default_rng(0).integers(11, size=999)]


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_kernel.py does that."""
    monkeypatch.setattr(chunked, "compiler", lambda device: False)


@pytest.fixture(autouse=True)
def _weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded: loading weights is changing them."""

    def create(name: str, *, pretrained: bool, **options: Any) -> nn.Module:
        made: nn.Module = create_model(name, **options)
        if pretrained:
            nn.init.ones_(made.get_classifier().weight)  # type: ignore[operator]
        return made

    def first(model: nn.Module) -> nn.Parameter:
        return next(model.parameters())

    create_model = timm.create_model
    monkeypatch.setattr(pretrained, "start_from", lambda model, cfg: nn.init.ones_(first(model)))
    monkeypatch.setattr(timm, "create_model", create)


def measured(model: str, overrides: list[str]) -> dict[str, Tensor]:
    """Parameters, outputs in evaluation, and gradients of a training step, all from one seed."""
    cfg = compose(*START[model], *overrides)
    network = build(cfg, Sizes(model))  # type: ignore[arg-type]
    torch.manual_seed(0)
    if model == "dit":  # its gates start at zero, and would hide what is behind them
        for part in network.modules():
            if isinstance(part, Modulation):
                nn.init.normal_(part.linear.bias)
    inputs = {
        "gpt": lambda: [torch.randint(11, (2, 32))],
        "bert": lambda: [
            *(torch.randint(11, (2, 32)), torch.randint(32, (2, 5))),
            torch.arange(32).expand(2, 32) // 16,
        ],
        **dict.fromkeys(
            ("transformer", "gpt_seq2seq"),
            lambda: [torch.randint(1, 11, (2, 32)), torch.randint(1, 11, (2, 32))],
        ),
        "transformer_forecaster": lambda: [torch.randn(2, 32, 1)],
        "gat": lambda: [torch.randn(6, 5), RING],
        "sam": lambda: [torch.randn(2, 1, 8, 8), CLICKS, torch.tensor([[1, -1, 0], [2, 3, 1]])],
        "dit": lambda: [torch.randn(2, 1, 8, 8), torch.randint(4, 11, (2, 3)), torch.rand(2)],
    }.get(model, lambda: [torch.randn(2, 1, 8, 8)])()
    found = {f"value {name}": p.detach().clone() for name, p in network.named_parameters()}
    with torch.no_grad():
        found |= {f"output {n}": out for n, out in enumerate(outputs(network.eval()(*inputs)))}
    network.train()
    sum(out.square().sum() for out in outputs(network(*inputs))).backward()  # type: ignore[union-attr]
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            assert "freeze" in " ".join(overrides) or name == "prompts.points.frequencies"
            continue
        assert parameter.grad is not None
        found[f"gradient {name}"] = parameter.grad
    return found


@pytest.mark.parametrize("model", KNOBS)
def test_the_measure_is_repeatable(model: str) -> None:
    dropout = ["model.dropout=0.1"] if model in BLOCKS_OF else []
    assert equal(measured(model, dropout), measured(model, dropout))


def test_no_model_is_left_out() -> None:
    """Here, or, where it is recurrent, in test_rnn_knobs.py."""
    assert {*KNOBS, *RECURRENT} == set(options("model"))
    assert KNOBS.keys().isdisjoint(RECURRENT)


@pytest.mark.parametrize("model", KNOBS)
def test_no_key_of_a_model_is_left_out(model: str) -> None:
    keys = keys_of(compose(*START[model]), "model")
    by_layer = {key for key in keys if key.startswith("model.layers.")}  # in test_layers.py
    assert keys - by_layer == set(KNOBS[model])


@pytest.mark.parametrize(
    ("model", "override"),
    [
        pytest.param(model, f"{key}={value}", marks=long_for(model))
        for model, knobs in KNOBS.items()
        for key, values in knobs.items()
        for value in values
    ],
)
def test_every_knob_of_a_model_changes_something(model: str, override: str) -> None:
    assert not equal(measured(model, []), measured(model, [override]))


@pytest.mark.parametrize(
    ("group", "model"),
    [
        pytest.param(group, model, marks=long_for(model))
        for group, model in [
            *product(["model.attention", "model.mask", "pos_enc"], BLOCKS_OF),
            *product(["model.ffn", "model.norm_type"], [m for m in BLOCKS_OF if m != "gat"]),
            ("model.norm_type", "resnet"),
            *product(["model.mixer"], [model for model in BLOCKS_OF if model != "gat"]),
            *product(["model.cross_attention"], ["transformer", "sam"]),
            ("model.points", "sam"),
            ("model.condition", "dit"),
            ("model.embedding", "gpt"),
            ("model.gate", "resnet"),
        ]
    ],
)
def test_no_two_options_of_a_group_are_the_same(group: str, model: str) -> None:
    """With the mean of all patches, which allows a causal mask; masks narrower than the text."""
    always = ["pos_enc=none", *MEAN.get(model, [])]
    always += UNTIED if group == "model.embedding" else []
    found: dict[str, dict[str, Tensor]] = {}
    for name in set(fitting(group, *START[model], *always)) - {"same"}:  # that of model.attention
        narrow = ["model.mask.size=3"] if name in ("window", "prefix") else []
        found[name] = measured(model, [*always, f"{group}={name}", *narrow])
    for first in found:
        for second in found:
            assert first == second or not equal(found[first], found[second]), (first, second)


PARTS_OF = (
    *("model.gate", "model.embedding", "model.attention", "model.cross_attention"),
    *("model.mixer", "model.mask", "model.points"),
)


def of_parts() -> set[tuple[str, str]]:
    """Every key of every part that one of these models takes, with its choice."""
    found = set()
    for group in (*PARTS_OF, "pos_enc"):
        for name in options(group):
            keys = {f"{group}.{key}" for key, _ in leaves(option(group, name))}
            wanted = {key for key in keys if not key.endswith(MEANINGLESS)}
            if wanted and any(
                refusal(model, {group: name}) is None
                for model in ("transformer", "vit", "resnet", "sam")
            ):
                found |= {(f"{group}={name}", key) for key in wanted}
    return found


def test_no_key_of_a_part_is_left_out() -> None:
    assert of_parts() == {(choice, key) for choice, key, _ in PARTS}


@pytest.mark.parametrize(("choice", "key", "value"), PARTS)
def test_every_knob_of_a_part_changes_something(choice: str, key: str, value: str) -> None:
    of = {"_2d": "vit", "cross": "transformer", "gate": "resnet", "points": "sam"}
    model = next((model for part, model in of.items() if part in choice), "gpt")
    chosen = [choice, *(UNTIED if "embedding" in choice else [])]
    assert not equal(measured(model, chosen), measured(model, [*chosen, f"{key}={value}"]))


@pytest.mark.parametrize("kernel", [*kernels(), "sparse"])
def test_a_kernel_changes_nothing(kernel: str) -> None:
    """No more than the rounding of float32."""
    model = "gat" if kernel == "sparse" else "gpt"
    reference = measured(model, ["kernel=reference"])
    other = measured(model, [f"kernel={kernel}"])
    assert reference.keys() == other.keys()
    for name, value in reference.items():
        torch.testing.assert_close(value, other[name], atol=1e-5, rtol=1e-3)


def test_keys_are_known_by_their_config() -> None:
    """The base of the comparison is what a person gets, made small."""
    small = OmegaConf.to_container(compose(*START["gpt"]).model)
    plain = OmegaConf.to_container(compose("model=gpt").model)
    assert isinstance(small, dict)
    assert isinstance(plain, dict)
    assert {key for key in small if small[key] != plain[key]} == {"dim", "heads", "depth"}
