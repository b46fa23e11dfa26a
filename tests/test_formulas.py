"""docs/reference/formulas.md: the code computes the examples."""

import re
from collections.abc import Callable, Sequence
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import context, options, part, place
from make_systems import rows_of_systems
from torch import Tensor, nn

from ablate.kernel import AttentionInputs, attention_weights, mix
from ablate.model.layers.block import Sublayer
from ablate.model.layers.layer import Context, Layer
from ablate.model.layers.modulation import Modulation
from ablate.model.layers.qk_norm import QKNorm, qk_norms
from ablate.model.layers.recurrence import recurrence
from ablate.model.layers.token_before import Bigram, Smear
from ablate.pos_enc.none import NoPosEnc

ROOT = Path(__file__).parents[1]
# Of every row: its name, and what it comes to.
FILES = (ROOT / "docs/reference/formulas.md", *ROOT.glob("src/ablate/systems/*/README.md"))
PAGES = "\n".join(file.read_text() for file in FILES)
ROWS = {
    line[2:].split(" | ")[0]: line.removesuffix(" |").split(" | ")[-1]
    for line in PAGES.splitlines()
    if line.startswith("| ") and line.count(" | ") == 5 and not line.startswith("| name |")
}


def tensor(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def fill(module: nn.Module, **values: Any) -> Any:
    """Its parameters set to these numbers, in float64."""
    module = module.double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            value = values.pop(name.replace(".", "_"), None)
            assert value is not None, name
            parameter.copy_(torch.as_tensor(value, dtype=torch.float64).reshape(parameter.shape))
    assert not values
    return module


def filled(module: nn.Module, value: float) -> Any:
    """All of its parameters set to one number, in float64."""
    for parameter in module.double().parameters():
        nn.init.constant_(parameter, value)
    return module


def score(name: str, q: Sequence[float], k: Sequence[float], *, at: int = 0, **values: Any) -> Any:
    """One head, one query, one key in place `at`."""
    sizes = {"heads": 1, "query_dim": len(q), "key_dim": len(k), "length": at + 1}
    made = fill(part("model.attention", name)(**sizes), **values)
    keys = tensor(k).repeat(at + 1, 1)[None, None]
    query = tensor(q)[None, None]
    if not made.query:
        query = query[..., :0]
    if not made.key:
        keys = keys[..., :0]
    return made(query, keys)[0, 0, 0, at]


def normalized(name: str, *scores: float) -> Any:
    return part("model.normalizer", name)(tensor(*scores))


def positions(name: str, *, heads: int = 1, dim: int = 2, causal: bool = True, **own: Any) -> Any:
    sizes = {"dim": dim, "heads": heads, "head_dim": dim // heads, "length": 4, "depth": 1}
    return part("pos_enc", name, **own)(**sizes, causal=causal).double()


def relative() -> Any:
    made = positions("relative", max_distance=1, keys=True, values=False)
    made = fill(made, key_tables_0=[[1.0, 2.0], [3.0, 4.0]])
    return made.bias(tensor([1.0, 1.0])[None, None], torch.tensor([2]), torch.arange(3), 0)


def relative_2d() -> Any:
    """The first of 2 x 2 patches against all four."""
    sizes = {"dim": 2, "heads": 1, "head_dim": 2, "length": 4, "depth": 1, "grid": (2, 2)}
    made = fill(part("pos_enc", "relative_2d")(**sizes), row_tables_0=[1, 2, 4],
                column_tables_0=[8, 16, 32])  # fmt: skip
    return made.bias(tensor([1.0, 2.0])[None, None], torch.tensor([0]), torch.arange(4), 0)


def t5() -> Any:
    made = fill(positions("t5", buckets=4, max_distance=8), table=[[0.0], [1.0], [2.0], [3.0]])
    return made.bias(tensor([0.0, 0.0])[None, None], torch.tensor([9]), torch.arange(10), 0)


def attention(**around: Any) -> Any:
    """Two keys whose scaled products are ln 2 and 0; their values are 3 and 6."""
    attend = AttentionInputs(
        q=tensor([log(2.0)])[None, None],
        k=tensor([1.0], [0.0])[None, None],
        v=tensor([3.0], [6.0])[None, None],
        score=part("model.attention", "scaled_dot")(heads=1, query_dim=1, key_dim=1, length=2),
        normalizer=part("model.normalizer", "softmax"),
        mask=part("model.mask", "none")(causal=False),
        pos=NoPosEnc(dim=1, heads=1, head_dim=1, length=2, depth=1),
        layer=0,
        **around,
    )
    return mix(attend, attention_weights(attend))


def qk_normed(kind: QKNorm, heads: int = 1) -> Any:
    """The norm of keys."""
    _, keys = qk_norms(kind, 2 // heads, heads=heads, kv_heads=heads, length=4)
    return keys.double()(tensor([3.0, 4.0]).view(1, heads, 1, -1))


def read(**own: Any) -> Any:
    """What a causal layer of one head gives for 1 and 3 when its maps change nothing."""
    here = place(1, 1, 2, mask=part("model.mask", "causal")(causal=True), bias=False)
    made = filled(part("model.mixer", "attention", **own)(here), 1.0)
    return made(tensor([1.0], [3.0])[None], context())


def smeared() -> Any:
    """Embeddings of width 1, 1 and 3, with a weight of 1 and a factor of 2."""
    made = fill(Smear(1), share=2.0, gate_weight=[1.0])
    return made(tensor([1.0], [3.0])[None])


def hashed() -> Any:
    """Tokens 1 and 2 with vectors 0 to 9 of width 1 and a factor of 2: number 9, which is the
    last, and (36313 * 2 xor 27191 * 1) % 9 = 94597 % 9 = 7."""
    made = fill(Bigram(10, 1), factor=2.0, table_weight=torch.arange(10.0)[:, None])
    return made(torch.tensor([[1, 2]]))


def value_embedded() -> Any:
    """Inputs 1 and 0 of width 1, embeddings 5 and 7; all maps are 1."""
    here = place(1, 1, 2, mask=part("model.mask", "causal")(causal=True), bias=False)
    made = filled(part("model.mixer", "attention", value_embedding=True)(here), 1.0)
    given = {made: tensor([5.0], [7.0])[None]}
    return made(tensor([1.0], [0.0])[None], context(value_embeddings=given))


def connected(name: str) -> Any:
    """x = 3, the output of the sublayer 5, the embedding 7; every learned number is 2."""
    made = filled(part("model.connection", name)(1, depth=2, index=0), 2.0)
    return made.write(*(torch.full((1, 1, 1), value).double() for value in (3, 5, 7)))


def on_sphere() -> Any:
    """a = 1 / depth."""
    made = part("model.connection", "sphere")(2, depth=2, index=0).double()
    return made.write(tensor([0.6, 0.8])[None], tensor([0.0, 2.0])[None], None)


def local_p() -> Any:
    """A state that points to the middle of 4 source positions."""
    window = fill(part("model.window", "local_p", size=2)(dim=1), w=[[0.0]], v=[0.0])
    return window.factors(tensor([5.0])[None], torch.ones(1, 4, dtype=torch.bool))


def norm(name: str, *x: float) -> Any:
    made = part("model.norm_type", name)(len(x), bias=True, eps=0.0).double()
    return made(tensor([*x])[None])


def feed_forward(kind: str, x: float) -> Any:
    """All maps are one but the last, which is 2; one hidden number."""
    made = filled(part("model.ffn", kind)(1, hidden=1, bias=False), 1.0)
    filled(made.down, 2.0)
    return made(tensor([x])[None])


def scaled_network() -> Any:
    made = part("model.ffn", "swiglu_scaled")(1, hidden=1, bias=False)
    factors = {"up_scale_weight": [3.0], "gate_scale_weight": [0.5]}
    return fill(made, up_weight=[[1.0]], gate_weight=[[1.0]], down_weight=[[2.0]], **factors)(
        tensor([2.0])[None]
    )


def mixture_of_experts() -> Any:
    made = part("model.ffn", "moe", experts=3, expert="relu", width=1)(1, hidden=1, bias=False)
    fill(made.router, weight=[[0.0], [log(2)], [log(3)]])
    for number, expert in enumerate(made.experts, 1):
        fill(expert, **{"up_weight": [[float(number)]], "down_weight": [[1.0]]})
    return made(tensor([1.0])[None], context())


class Doubled(Layer):
    def forward(self, x: Tensor, context: Context) -> Tensor:
        return 2 * x + tensor([1.0, 0.0])


def placed(placement: str) -> Any:
    """f(x) = 2 x + (1, 0) at x = (3, 1)."""
    made = Sublayer(
        Doubled(), norm=placement, dropout=0.0, drop_path=0.0,
        connection=part("model.connection", "plain")(2, depth=1, index=0),
        make_norm=lambda: part("model.norm_type", "layer")(2, bias=True, eps=0.0).double(),
    )  # fmt: skip
    return made(tensor([3.0, 1.0])[None], context())


def mixed(name: str, **own: Any) -> Any:
    """Three positions of width 1 with the numbers 1, 2, 3, under a causal mask."""
    here = place(
        1, 1, 3, mask=part("model.mask", "causal")(causal=True), bias=False, std=1.0, out_std=1.0
    )
    chosen = {"size": 3} if name == "convolution" else {}
    made = fill(part("model.mixer", name, **chosen)(here), **own)
    return made(tensor([1.0], [2.0], [3.0])[None], context())


def recurred(beta: float | None) -> Any:
    one = torch.ones(1, 1, 2, 1, dtype=torch.float64)
    k, v = (tensor(pair)[:, None, :, None] for pair in ((1.0, 2.0), (3.0, 5.0)))
    step = None if beta is None else beta * one[..., 0]
    return recurrence(one, k, v, one * log(0.5), beta=step)[0]


def gate() -> Any:
    """Channels whose means are 1 and 3, squeezed to relu(1 - 3 + 5) = 3."""
    made = part("model.gate", "se", reduction=2)(2)
    made = fill(
        made, squeeze_weight=[[1.0, -1.0]], squeeze_bias=[5.0],
        excite_weight=[[0.5], [-1.0]], excite_bias=[0.0, 3.0],
    )  # fmt: skip
    return made(tensor([[[0.0, 2.0]], [[3.0, 3.0]]]))


def rate(name: str, step: int, total: int, **own: Any) -> float:
    factor: float = part("schedule", name, **own)(step, total)
    return factor


def modulated() -> list[float]:
    c, linear = log(3), [0, 4 / log(3), 1 / log(3)]
    made = fill(Modulation(1, gate=True, std=0.0), linear_weight=linear, linear_bias=[0, 0, 0])
    x, gate = made(tensor(2.0)[None, None], tensor(c)[None])
    return [float(x.detach()), float(gate.detach())]


# The example of every row, by the code.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "dot": lambda: score("dot", [1, 2], [3, 1]),
    "scaled dot": lambda: score("scaled_dot", [1, 2], [3, 1]),
    "general": lambda: score("general", [1, 2], [3, 1], weight=[[1, 0], [2, 1]]),
    "additive": lambda: score("additive", [1, 0], [-1, 2], v=[5, 3]),
    "cosine": lambda: score("cosine", [3, 4], [5, 12], log_t=[log(13)]),
    "cosine, fixed factor": lambda: score("cosine_fixed", [3, 4], [5, 12]),
    "cosine, weighted": lambda: score(
        "cosine_weighted", [3, 4], [5, 12], scale_weight=[sqrt(1 / 2), sqrt(2)]
    ),
    "location": lambda: score("location", [1, 2], [9, 9], at=1, table=[[0, 0], [3, 4]]),
    "graph attention": lambda: score("gat", [1, 2], [3, 1], a=[1, 0], b=[-2, 1]),
    "graph attention, version 2": lambda: score("gatv2", [1, 0], [-3, 2], v=[5, 3]),
    "uniform": lambda: score("uniform", [1, 2], [3, 1]),
    "softmax": lambda: normalized("softmax", 1, 0, -2),
    "sparsemax": lambda: normalized("sparsemax", 1, 0.5, -1),
    "1.5-entmax": lambda: normalized("entmax15", 1.2, 0.8, -4),
    "sigmoid": lambda: normalized("sigmoid", 0, log(2)),
    "hard, evaluated": lambda: normalized("hard", 1, 0, -2),
    "attention": attention,
    "predicted window": local_p,
    "sinusoidal": lambda: positions("sinusoidal").embed(tensor([1.0, 1.0])[None], 3),
    "rotary": lambda: positions("rotary").turn(tensor([1.0, 0.0])[None, None], torch.tensor([2])),
    "ALiBi": lambda: positions("alibi", heads=2, dim=4).bias(
        tensor([[0.0, 0.0]], [[0.0, 0.0]])[None], torch.tensor([3]), torch.tensor([1]), 0
    ),
    "relative": relative,
    "relative in two dimensions": relative_2d,
    "T5": t5,
    "layer norm": lambda: norm("layer", 1, 3, 5, 7),
    "RMS norm": lambda: norm("rms", 1, 7),
    "DyT": lambda: norm("dyt", 1, 7),
    "feed-forward, relu": lambda: feed_forward("relu", 3.0),
    "feed-forward, relu2": lambda: feed_forward("relu2", 3.0),
    "feed-forward, gelu": lambda: feed_forward("gelu", 1.0),
    "feed-forward, swiglu": lambda: feed_forward("swiglu", 2.0),
    "feed-forward, swiglu_scaled": scaled_network,
    "feed-forward, geglu": lambda: feed_forward("geglu", 2.0),
    "feed-forward, moe": mixture_of_experts,
    "post-norm": lambda: placed("post"),
    "pre-norm": lambda: placed("pre"),
    "sandwich": lambda: placed("sandwich"),
    "norm of the output": lambda: placed("output"),
    "residual connection, scaled": lambda: connected("scaled"),
    "residual connection, rezero": lambda: connected("rezero"),
    "residual connection, layer_scale": lambda: connected("layer_scale"),
    "residual connection, x0": lambda: connected("x0"),
    "residual connection, sphere": on_sphere,
    "QK norm, l2": lambda: qk_normed("l2"),
    "QK norm, rms": lambda: qk_normed("rms"),
    "QK norm, rms_all": lambda: qk_normed("rms_all", heads=2),
    "QK norm, layer": lambda: qk_normed("layer"),
    "soft cap": lambda: attention(softcap=1.0),
    "sink": lambda: attention(sink=tensor(log(3.0))),
    "output gate": lambda: read(output_gate="head"),
    "key shift": lambda: read(key_shift=True),
    "smear": smeared,
    "bigram": hashed,
    "value embedding": value_embedded,
    "exclusive self-attention": lambda: read(exclusive=True),
    "short convolution": lambda: read(short_conv=2),
    "fixed weights": lambda: mixed(
        "fixed", value_weight=1.0, out_weight=1.0, weight=[[1, 9, 9], [2, 3, 9], [4, 5, 6]]
    ),
    "linear recurrence": lambda: recurred(None),
    "delta rule": lambda: recurred(0.5),
    "convolution": lambda: mixed("convolution", weight=[1, 10, 100]),
    "squeeze and excitation": gate,
    "adaptive layer norm": modulated,
    "rate, Noam": lambda: [rate("noam", step, 99, warmup=4) for step in (1, 3, 15)],
    "rate, cosine": lambda: [
        rate("cosine", step, 100, warmup=0, floor=0.2) for step in (0, 25, 50, 100)
    ],
    "rate, linear": lambda: [
        rate("linear", step, 101, warmup=1, floor=0.2) for step in (0, 1, 51, 101)
    ],
    **rows_of_systems("EXAMPLES"),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_code_comes_to_what_was_worked_by_hand(name: str) -> None:
    by_hand = [float(part.rpartition(" = ")[2]) for part in ROWS[name].split(", ")]
    found = torch.as_tensor(EXAMPLES[name]()).detach().flatten().tolist()
    assert found == pytest.approx(by_hand, rel=1e-5, abs=1e-6)


def test_no_score_or_normalizer_is_left_out_and_the_files_are_there() -> None:
    assert set(EXAMPLES) == set(ROWS)
    linked = re.findall(r"^\| .*\((?:\.\./)+(src/\S+)\) \| .* \|$", PAGES, re.MULTILINE)
    assert len(linked) == len(ROWS)
    assert all((ROOT / path).is_file() for path in linked)
    for group in ("model.attention", "model.normalizer"):
        files = {f"src/ablate/{group.replace('.', '/')}/{name}.py" for name in options(group)}
        assert {path for path in files if not path.endswith("/none.py")} <= set(linked)
