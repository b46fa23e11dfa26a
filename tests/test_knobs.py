"""Every key of a model and of its parts changes what is computed or learned.

The keys come from the composed config, so that a new one without an entry here fails.
"""

from collections.abc import Iterator
from typing import Any

import make_files
import pytest
import torch
from make_axes import GROUPS, MODELS
from make_knobs import MEANINGLESS, keys_of
from make_model import CONF, kernels, options
from make_rows import base, base_overrides, option
from omegaconf import OmegaConf
from test_ignored import after_two_steps

from ablate.config.check import leaves
from ablate.config.composition import compose
from ablate.config.keys import option_content
from ablate.kernel import chunked

AROUND = {
    "kv_heads": 1, "qk_norm": "rms", "softcap": 0.5, "sink": "learned", "output_gate": "head",
}  # fmt: skip
BLOCKS = AROUND | {
    "depth": 3, "heads": 1, "dim": 6, "ffn_dim": 20, "norm": "sandwich", "norm_eps": 0.5,
    "embedding_scale": 2.0, "init_std": 0.3, "init_depth_scale": False, "residual": False,
    "dropout": 0.5, "drop_path": 0.5, "bias": False, "share_layers": True, "parallel": True,
}  # fmt: skip
SIDES = {key: value for key, value in BLOCKS.items() if key != "depth"}
LAYERS = {"depth": 3, "dim": 6, "residual": True, "dropout": 0.5}
# Another value for every key of a model.
KNOBS: dict[str, dict[str, Any]] = {
    "gpt": {"freeze": "embeddings", "tie_embeddings": False, "logit_softcap": 0.5} | BLOCKS,
    "bert": {"freeze": "encoder", "tie_embeddings": False} | BLOCKS,
    "vit": {"freeze": "embeddings", "stride": 1, "pool": "class"} | BLOCKS | {"patch": 4},
    "resnet": {"dim": 6, "depth": 2, "residual": False},
    "timm": {"name": "test_resnet", "args": {"stem_width": 8}},
    "transformer": {"encoder.depth": 1, "decoder.depth": 3, "tie_embeddings": False}
    | {"logit_softcap": 0.5}
    | SIDES,
    "gpt_seq2seq": {"tie_embeddings": False, "logit_softcap": 0.5} | BLOCKS,
    "gat": {"dim": 6, "depth": 3, "heads": 1, "out_heads": 2, "shared": False, "residual": True}
    | {"dropout": 0.5, "bias": False},
    "sam": {"decoder.depth": 1, "decoder.ffn_dim": 20, "masks": 1, "exchange": "one_way"}
    | BLOCKS
    | {"dim": 8, "mask_prompt": False, "patch": 2},
    "dit": {"text_depth": 2} | BLOCKS | {"dim": 8, "patch": 2},
    "autoencoder": {"dim": 6, "latent": 2, "halvings": 1},
    "rnn_lm": {"tie_embeddings": False, "embedding_dim": 7} | LAYERS,
    "rnn_seq2seq": {"embedding_dim": 6, "bidirectional": False, "input_feeding": True}
    | LAYERS
    | {"tie_embeddings": True},
    "captioner": {"dim": 8, "depth": 3, "residual": False, "dropout": 0.5, "embedding_dim": 7}
    | {"gating_scalar": False},
    "rnn_forecaster": {"difference": False} | LAYERS,
    "transformer_forecaster": {"difference": False} | BLOCKS,
}
BESIDE = {"dit": {"model.condition": "cross_attention"}}  # adaLN-Zero needs residuals
# test_pretrained.py, test_activation_checkpoints.py, test_transformer.py, test_mup.py
ELSEWHERE = {
    *("model.pretrained", "model.activation_checkpointing", "model.share_embeddings"),
    "model.base_dim",
}
BY_LAYER = {
    "kv_heads": "[1,2]", "qk_norm": "[l2,rms]", "softcap": "[1.0,2.0]", "sink": "[zero,learned]",
    "output_gate": "[head,element]", "connection": "[rezero,plain]", "parallel": "[false,true]",
    "heads": "[1,2]", "ffn_dim": "[8,16]", "norm": "[pre,post]", "norm_eps": "[1e-5,0.1]",
    "residual": "[true,false]", "dropout": "[0.1,0.2]", "bias": "[true,false]",
    "init_std": "[0.1,0.2]", "pos_enc": "[rotary,none]", "mask": "[{window:{size:2}},causal]",
    "attention": "[dot,additive]", "ffn": "[gelu,swiglu]", "norm_type": "[layer,rms]",
    "normalizer": "[softmax,sparsemax]", "mixer": "[convolution,attention]",
}  # fmt: skip
# A model, an option, and another value for every key of it.
PARTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("gpt", "model.attention", "additive", {"hidden": 5}),
    ("gpt", "model.attention", "gatv2", {"hidden": 5}),
    ("gpt", "model.attention", "location", {"max_length": 40}),
    ("gpt", "model.connection", "scaled", {"factor": 0.3}),
    ("gpt", "model.connection", "layer_scale", {"initial": 0.5}),
    ("gpt", "model.connection", "x0", {"initial": 0.5}),
    ("gpt", "model.connection", "hyper", {"streams": 2, "dynamic": False}),
    ("gpt", "model.norm_type", "dyt", {"alpha": 1.5}),
    ("gpt", "model.ffn", "moe", {"experts": 3, "top_k": 3, "shared": 1, "width": 5}),
    ("gpt", "model.ffn", "moe", {"expert": "swiglu", "normalise": False, "balance": 0.5}),
    ("gpt", "model.mask", "prefix", {"size": 4}),
    ("gpt", "model.mask", "window", {"size": 2}),
    (
        "gpt",
        "model.mixer",
        "attention",
        {"short_conv": 2, "key_shift": True, "exclusive": True, "value_residual": True},
    ),
    ("gpt", "model.mixer", "latent", {"rank": 5, "rotary_dim": 4}),
    ("gpt", "model.mixer", "differential", {"initial": 0.5}),
    ("gpt", "model.mixer", "retention", {"expand": 2}),
    ("gpt", "model.mixer", "gla", {"rank": 3}),
    ("gpt", "model.mixer", "delta", {"short_conv": None}),
    ("gpt", "model.mixer", "gated_delta", {"short_conv": 2}),
    ("gpt", "model.mixer", "mamba2", {"state": 3, "expand": 1, "short_conv": 2}),
    ("gpt", "model.mixer", "convolution", {"size": 3, "depthwise": False}),
    ("gpt", "model.normalizer", "hard", {"temperature": 0.5}),
    ("transformer", "model.cross_attention", "additive", {"hidden": 5}),
    ("transformer", "model.cross_attention", "gatv2", {"hidden": 5}),
    ("transformer", "model.cross_attention", "location", {"max_length": 40}),
    ("rnn_seq2seq", "model.window", "local_m", {"size": 3}),
    ("rnn_seq2seq", "model.window", "local_p", {"size": 3}),
    ("resnet", "model.gate", "se", {"reduction": 2}),
    ("sam", "model.points", "fourier", {"scale": 2.0}),
    ("gpt", "pos_enc", "sinusoidal", {"base": 100.0, "randomise": 300}),
    ("gpt", "pos_enc", "learned_from_sinusoidal", {"base": 100.0}),
    ("vit", "pos_enc", "sinusoidal_2d", {"base": 100.0}),
    (
        "gpt",
        "pos_enc",
        "rotary",
        {"base": 100.0, "layout": "interleaved", "share": 0.7, "randomise": 300},
    ),
    ("gpt", "pos_enc", "rotary", {"scaling": "yarn", "factor": 4.0}),
    ("gpt", "pos_enc", "relative", {"max_distance": 3, "keys": False}),
    ("gpt", "pos_enc", "relative", {"values": False}),
    ("gpt", "pos_enc", "t5", {"buckets": 4, "max_distance": 3}),
]


@pytest.fixture(autouse=True, scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "compiler", lambda device: False)  # test_kernel.py compiles
        make_files.write(tmp_path_factory.mktemp("data"), patch)
        yield


def assert_each_acts(model: str, chosen: dict[str, Any], values: dict[str, Any]) -> None:
    """The values are set one after another; each changes something."""
    before = after_two_steps(model, chosen)
    assert all(map(torch.equal, before, after_two_steps(model, chosen)))
    for key, value in values.items():
        chosen = chosen | {key: value}
        after = after_two_steps(model, chosen)
        same = [tensor.shape for tensor in before] == [tensor.shape for tensor in after]
        assert not (same and all(map(torch.equal, before, after))), key
        before = after


OTHERS = {"bert", "vit", "gpt_seq2seq", "sam", "dit", "transformer_forecaster"}
CASES = [
    *((model, model not in OTHERS) for model in MODELS),
    *(pytest.param(model, True, marks=pytest.mark.slow) for model in OTHERS),
]


@pytest.mark.parametrize(("model", "whole"), CASES)
def test_every_key_of_a_model_acts(model: str, whole: bool) -> None:
    """whole: those of blocks, too, which gpt and transformer have as well."""
    row = {f"model.{key}": value for key, value in KNOBS[model].items()}
    of_parts = tuple(f"{group}." for group in base(model).choices if group in GROUPS)
    keys = {key for key in keys_of(base(model), "model") if not key.startswith(of_parts)}
    by_layer = {key for key in keys if key.startswith("model.layers.")}  # in test_layers.py
    assert keys - by_layer - ELSEWHERE == {*row}
    assert not [key for key in row if OmegaConf.select(base(model), key) == row[key]]
    own = {
        key: value
        for key, value in row.items()
        if whole or key.removeprefix("model.") not in BLOCKS
    }
    assert_each_acts(model, BESIDE.get(model, {}), own)


def test_every_key_of_a_block_acts_by_layer() -> None:
    content = option_content(CONF / "_block.yaml")[0]
    assert set(content["layers"]) == {*BY_LAYER, "cross_attention"}
    of_the_stack = {"drop_path", "embedding_scale", "share_layers", "activation_checkpointing"}
    assert set(content) - {*BY_LAYER} == {"layers", "init_depth_scale", *of_the_stack}
    given = (f"model.layers.{key}={values}" for key, values in BY_LAYER.items())
    layers = compose(*base_overrides("gpt"), "pos_enc=rotary", *given).model.layers
    row = {f"model.layers.{key}": layers[key] for key in BY_LAYER}
    assert_each_acts("gpt", {"pos_enc": "rotary"}, row)


@pytest.mark.parametrize(("model", "group", "name", "values"), PARTS)
def test_every_key_of_a_part_acts(
    model: str, group: str, name: str, values: dict[str, Any]
) -> None:
    row = {f"{group}.{key}": value for key, value in values.items()}
    beside = {"pos_enc": "rotary"} if name == "latent" else {}
    assert_each_acts(model, {group: name, **beside}, row)


def test_no_key_of_a_part_is_left_out() -> None:
    """But for those of word2vec: test_embedding.py."""
    found = set()
    for group in [name for name in GROUPS if name.startswith(("model.", "pos_enc"))]:
        for name in options(group):
            keys = {key for key, _ in leaves(option(group, name))}
            found |= {(group, name, key) for key in keys if not key.endswith(MEANINGLESS)}
    known = {(group, name, key) for _, group, name, values in PARTS for key in values}
    assert {item for item in found if item[0] != "model.embedding"} == known


@pytest.mark.parametrize(
    ("model", "chosen", "names"),
    [
        ("gpt", {}, kernels()),
        ("rnn_seq2seq", {"model.attention": "general", "model.decoder": "luong"}, kernels()),
        ("gat", {}, ["sparse"]),
    ],
)
def test_a_kernel_changes_nothing(model: str, chosen: dict[str, Any], names: list[str]) -> None:
    expected = after_two_steps(model, chosen | {"kernel": "reference"})
    for name in names:
        found = after_two_steps(model, chosen | {"kernel": name})
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
