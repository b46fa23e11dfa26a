"""trainer.tensor_parallel: processes that share out heads and hidden units are as one."""

from typing import Any

import pytest
from make_parallel import Difference, differences

BLOCK: dict[str, dict[str, Any]] = {
    "plain": {},
    **{
        name: {"attention": name}
        for name in ("dot", "general", "additive", "cosine", "location", "uniform", "gatv2", "gat")
    },
    "additive without hidden": {"attention": "additive", "kernel": "chunked"},
    **{name: {"pos_enc": name} for name in ("t5", "alibi", "rotary", "relative", "learned")},
    "grouped": {"heads": 8, "kv_heads": 4, "kernel": "sdpa"},
    **{f"qk {name}": {"qk_norm": name} for name in ("l2", "rms", "layer")},
    "sink": {"sink": "learned", "softcap": 5.0},
    "gate of heads": {"output_gate": "head"},
    "gate of elements": {"output_gate": "element", "norm": "post"},
    **{name: {"mixer": name} for name in ("fixed", "gla", "retention", "delta", "gated_delta")},
    "latent": {"mixer": "latent", "pos_enc": "rotary"},
    "differential": {"mixer": "differential"},
    **{name: {"ffn": name} for name in ("swiglu", "moe", "none")},
    "parallel": {"parallel": True, "norm_type": "rms"},
    "shared": {"share_layers": True, "activation_checkpointing": True},
    "sparsemax": {"normalizer": "sparsemax", "attention": "cosine"},
}
CASES = {
    **{name: ("gpt", keys) for name, keys in BLOCK.items()},
    **{name: (name, {}) for name in ("bert", "vit", "transformer", "gpt_seq2seq")},
    "images": ("vit", {"pos_enc": "relative_2d"}),
    "pairs": ("transformer", {"attention": "additive", "cross_attention": "general"}),
}


@pytest.mark.parametrize("processes", [2, 4])
def test_values_and_gradients_are_those_of_one_process(tmp_path, processes):
    for name, found in differences(CASES, processes, tmp_path).items():
        assert isinstance(found, Difference), f"{name}: {found}"
        wrong = {path: error for path, error in found.gradients.items() if error > 1e-12}
        assert (found.output < 1e-12, wrong, found.norm < 1e-12) == (True, {}, True), name
        assert found.kept < (0.9 if processes == 2 else 0.8), name
