"""The formulas that ablate implements, each worked by hand on small numbers.

`python tests/formulas.py > docs/formulas.md` writes the page; test_formulas.py works every example
with the code and compares the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import cos, e, erf, exp, log, pi, sin, sqrt, tanh
from typing import Any, Literal

import numpy as np
import torch
from make_model import context, part, place
from torch import Tensor, nn

from ablate.kernel import Attend, attention_weights, mix
from ablate.model.ffn import FeedForward
from ablate.model.layers.block import Sublayer
from ablate.model.layers.layer import Context, Layer
from ablate.model.layers.modulation import Modulation
from ablate.model.layers.qk_norm import qk_norms
from ablate.model.layers.recurrence import recurrence
from ablate.pos_enc.none import NoPosEnc
from ablate.speech.mel import frame_distortion, mel
from ablate.task.autoencoding import divergence
from ablate.task.captioning import unevenness
from ablate.task.dpo import dpo_loss
from ablate.task.policy import leave_one_out
from ablate.task.reward import unlikelihood
from ablate.task.rlhf import clipped, policy_gradient
from ablate.task.segmentation import dice_loss, sigmoid_focal_loss


@dataclass(frozen=True)
class Formula:
    """given: the example in words. by_hand: what it comes to, written as one would work it out.
    by_code: the same by the code of `module`."""

    name: str
    says: str
    paper: str
    module: str
    given: str
    by_hand: Sequence[float]
    by_code: Callable[[], Any]


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


def normalised(name: str, *scores: float) -> Any:
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


def fourier() -> Any:
    made = part("model.points", "fourier")(dim=2, image_size=(1, 1))
    return fill(made, frequencies=[0.25, 0.0])(tensor(0.75, 0.5))


def attention(**around: Any) -> Any:
    """Two keys whose scaled products are ln 2 and 0; their values are 3 and 6."""
    attend = Attend(
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


def qk_normed(kind: Literal["l2", "rms", "layer"]) -> Any:
    """The norm of keys."""
    _, keys = qk_norms(kind, 2, heads=1, length=4)
    return keys.double()(tensor([3.0, 4.0])[None, None])


def read(own: dict[str, Any], **around: Any) -> Any:
    """What a causal layer of one head gives for 1 and 3 when its maps change nothing."""
    here = place(1, 1, 2, mask=part("model.mask", "causal")(causal=True), bias=False, **around)
    made = part("model.mixer", "attention", **own)(here).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(1.0)
    return made(tensor([1.0], [3.0])[None], context())


def connected(name: str) -> Any:
    """x = 3, the output of the sublayer 5, the embedding 7; every learned number is 2."""
    made = part("model.connection", name)(1, depth=2, index=0).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(2.0)
    return made.write(*(torch.full((1, 1, 1), value).double() for value in (3, 5, 7)))


def local_p() -> Any:
    """A state that points to the middle of 4 source positions."""
    window = fill(part("model.window", "local_p", size=2)(dim=1), w=[[0.0]], v=[0.0])
    return window.factors(tensor([5.0])[None], torch.ones(1, 4, dtype=torch.bool))


def norm(name: str, *x: float) -> Any:
    made = part("model.norm_type", name)(len(x), bias=True, eps=0.0).double()
    return made(tensor([*x])[None])


def feed_forward(kind: str, x: float) -> Any:
    """All maps are one but the last, which is 2; one hidden number."""
    made = part("model.ffn", kind)(1, hidden=1, bias=False)
    return fill(made, **{f"{n}_weight": [[2.0 if n == "down" else 1.0]] for n in maps(made)})(
        tensor([x])[None]
    )


def mixture_of_experts() -> Any:
    made = part("model.ffn", "moe", experts=3, expert="relu", width=1)(1, hidden=1, bias=False)
    fill(made.router, weight=[[0.0], [log(2)], [log(3)]])
    for number, expert in enumerate(made.experts, 1):
        fill(expert, **{"up_weight": [[float(number)]], "down_weight": [[1.0]]})
    return made(tensor([1.0])[None], context())


def maps(made: FeedForward) -> list[str]:
    return ["up", "down"] if made.gate is None else ["up", "gate", "down"]


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


def gelu(x: float) -> float:
    return x * (1 + erf(x / sqrt(2))) / 2


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def modulated() -> list[float]:
    c, linear = log(3), [0, 4 / log(3), 1 / log(3)]
    made = fill(Modulation(1, gate=True, std=0.0), linear_weight=linear, linear_bias=[0, 0, 0])
    x, gate = made(tensor(2.0)[None, None], tensor(c)[None])
    return [float(x.detach()), float(gate.detach())]


def flow() -> list[float]:
    process = part("task.noise", "rectified_flow")
    x, step = tensor(4.0), {"fresh": None, "bounds": (-9, 9)}
    added = process.add(x, tensor(2.0), tensor(0.25))
    return [float(added), float(process.step(tensor(3.0), tensor(2.0), 0.25, 0.0, **step))]


def noisy() -> list[float]:
    process, n = part("task.noise", "ddpm", timesteps=100), tensor(0.02)
    one, zero = tensor(1.0), tensor(0.0)
    return [float(process.add(one, zero, n)), float(process.add(zero, one, n))]


FORMULAS = [
    Formula(
        "dot", "q · k", "Luong et al. 2015, https://arxiv.org/abs/1508.04025",
        "ablate.model.attention.dot", "q = (1, 2), k = (3, 1)",
        [1 * 3 + 2 * 1], lambda: score("dot", [1, 2], [3, 1]),
    ),
    Formula(
        "scaled dot", "q · k / √k", "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        "ablate.model.attention.scaled_dot", "q = (1, 2), k = (3, 1)",
        [5 / sqrt(2)], lambda: score("scaled_dot", [1, 2], [3, 1]),
    ),
    Formula(
        "general", "q W k", "Luong et al. 2015, https://arxiv.org/abs/1508.04025",
        "ablate.model.attention.general", "q = (1, 2), W = (1 0; 2 1), k = (3, 1)",
        [(1 + 4) * 3 + 2 * 1],
        lambda: score("general", [1, 2], [3, 1], weight=[[1, 0], [2, 1]]),
    ),
    Formula(
        "additive", "v · tanh(W q + U k)", "Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473",
        "ablate.model.attention.additive", "W q = (1, 0), U k = (-1, 2), v = (5, 3)",
        [5 * tanh(0) + 3 * tanh(2)], lambda: score("additive", [1, 0], [-1, 2], v=[5, 3]),
    ),
    Formula(
        "cosine", "t q · k / (|q| |k|)", "Graves et al. 2014, https://arxiv.org/abs/1410.5401",
        "ablate.model.attention.cosine", "q = (3, 4), k = (5, 12), t = 13",
        [13 * (15 + 48) / (5 * 13)],
        lambda: score("cosine", [3, 4], [5, 12], log_t=[log(13)]),
    ),
    Formula(
        "location", "q · table[j]", "Luong et al. 2015, https://arxiv.org/abs/1508.04025",
        "ablate.model.attention.location", "q = (1, 2), table = (0 0; 3 4), key 1",
        [3 + 8], lambda: score("location", [1, 2], [9, 9], at=1, table=[[0, 0], [3, 4]]),
    ),
    Formula(
        "graph attention", "LeakyReLU(a · q + b · k), slope 0.2",
        "Velickovic et al. 2018, https://arxiv.org/abs/1710.10903",
        "ablate.model.attention.gat", "q = (1, 2), k = (3, 1), a = (1, 0), b = (-2, 1)",
        [0.2 * (1 - 5)], lambda: score("gat", [1, 2], [3, 1], a=[1, 0], b=[-2, 1]),
    ),
    Formula(
        "graph attention, version 2", "v · LeakyReLU(W q + U k), slope 0.2",
        "Brody et al. 2022, https://arxiv.org/abs/2105.14491",
        "ablate.model.attention.gatv2", "W q = (1, 0), U k = (-3, 2), v = (5, 3)",
        [5 * 0.2 * -2 + 3 * 2], lambda: score("gatv2", [1, 0], [-3, 2], v=[5, 3]),
    ),
    Formula(
        "uniform", "0", "the ablated score",
        "ablate.model.attention.uniform", "any q and k",
        [0], lambda: score("uniform", [1, 2], [3, 1]),
    ),
    Formula(
        "softmax", "exp(s) / Σ exp(s)", "Bridle 1990",
        "ablate.model.normalizer.softmax", "s = (1, 0, -2)",
        [x / (e + 1 + e**-2) for x in (e, 1, e**-2)], lambda: normalised("softmax", 1, 0, -2),
    ),
    Formula(
        "sparsemax", "max(s - τ, 0), Σ = 1",
        "Martins and Astudillo 2016, https://arxiv.org/abs/1602.02068",
        "ablate.model.normalizer.sparsemax", "s = (1, 0.5, -1): two stay, τ = (1.5 - 1) / 2",
        [0.75, 0.25, 0], lambda: normalised("sparsemax", 1, 0.5, -1),
    ),
    Formula(
        "1.5-entmax", "max(s / 2 - τ, 0)², Σ = 1",
        "Peters et al. 2019, https://arxiv.org/abs/1905.05702",
        "ablate.model.normalizer.entmax15", "s = (1.2, 0.8, -4): τ = -0.2 leaves 0.8² and 0.6²",
        [0.64, 0.36, 0], lambda: normalised("entmax15", 1.2, 0.8, -4),
    ),
    Formula(
        "sigmoid", "1 / (1 + exp(ln n - s)) of n keys",
        "Ramapuram et al. 2024, https://arxiv.org/abs/2409.04431",
        "ablate.model.normalizer.sigmoid", "s = (0, ln 2)",
        [1 / 3, 1 / 2], lambda: normalised("sigmoid", 0, log(2)),
    ),
    Formula(
        "hard, evaluated", "1 for the highest score",
        "Xu et al. 2015, https://arxiv.org/abs/1502.03044",
        "ablate.model.normalizer.hard", "s = (1, 0, -2)",
        [1, 0, 0], lambda: normalised("hard", 1, 0, -2),
    ),
    Formula(
        "doubly stochastic attention", "Σⱼ (1 - Σₜ a(t, j))²",
        "Xu et al. 2015, equation 14, https://arxiv.org/abs/1502.03044",
        "ablate.task.captioning", "two words over three places: (0.5 0.5 0), (0.2 0.7 0.1)",
        [0.3**2 + 0.2**2 + 0.9**2], lambda: unevenness(tensor([[0.5, 0.5, 0], [0.2, 0.7, 0.1]])),
    ),
    Formula(
        "reward model", "-ln sigmoid(r - r'), r of the chosen text, r' of the rejected one",
        "Ouyang et al. 2022, equation 1, https://arxiv.org/abs/2203.02155",
        "ablate.task.reward", "r - r' = ln 3: sigmoid 3/4",
        [-log(3 / 4)], lambda: unlikelihood(tensor(log(3))),
    ),
    Formula(
        "DPO", "-ln sigmoid(β (w - l)), w = ln π(chosen) / π₀(chosen), l of the rejected one",
        "Rafailov et al. 2023, equation 7, https://arxiv.org/abs/2305.18290",
        "ablate.task.dpo", "β = 1/2, w = ln 3, l = -ln 3: the same",
        [-log(3 / 4)], lambda: dpo_loss(tensor(log(3)), tensor(-log(3)), 0.5),
    ),
    Formula(
        "RLOO", "rᵢ - mean of the other r, of responses to one prompt",
        "Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740",
        "ablate.task.policy", "r = (1, 2, 6): the others have 4, 3.5, 1.5",
        [-3, -1.5, 4.5], lambda: leave_one_out(tensor([1, 2, 6])),
    ),
    Formula(
        "policy gradient", "-A Σ ln π(token)", "Williams 1992",
        "ablate.task.rlhf", "A = 2, two tokens of probability 1/2",
        [4 * log(2)], lambda: policy_gradient(tensor([log(1 / 2), log(1 / 2)]), tensor(2)),
    ),
    Formula(
        "PPO's clipped ratio", "-Σ min(r A, clip(r, 1 - ε, 1 + ε) A), r = π(token) / π_old(token)",
        "Schulman et al. 2017, equation 7, https://arxiv.org/abs/1707.06347",
        "ablate.task.rlhf", "ε = 0.2, A = 2, r = 1.5 and 0.5: 2.4 and 1",
        [-3.4], lambda: clipped(tensor([log(1.5), log(0.5)]), tensor([0, 0]), tensor(2), 0.2),
    ),
    Formula(
        "mel scale", "2595 log10(1 + f / 700)",
        "HTK's; Davis and Mermelstein 1980, https://doi.org/10.1109/TASSP.1980.1163420",
        "ablate.speech.mel", "f = 6300 Hz: 1 + f / 700 is 10",
        [2595], lambda: tensor(mel(6300.0)),
    ),
    Formula(
        "mel-cepstral distortion", "10 / ln 10 · √(2 Σ (c - c')²)",
        "Kubichek 1993, https://doi.org/10.1109/PACRIM.1993.407206",
        "ablate.speech.mel", "c = (3, 0), c' = (0, 4)",
        [10 / log(10) * sqrt(2) * 5],
        lambda: tensor(frame_distortion(np.array([3.0, 0.0]), np.array([0.0, 4.0]))),
    ),
    Formula(
        "dice loss", "1 - (2 Σ p t + 1) / (Σ p + Σ t + 1)",
        "Milletari et al. 2016, https://arxiv.org/abs/1606.04797",
        "ablate.task.segmentation", "two pixels of p = 1/2, one of them of the object",
        [1 / 3], lambda: dice_loss(torch.zeros(1, 2).double(), tensor([1.0, 0.0])),
    ),
    Formula(
        "focal loss", "-a (1 - p)^g ln p of the object, -(1 - a) p^g ln(1 - p) elsewhere",
        "Lin et al. 2017, https://arxiv.org/abs/1708.02002",
        "ablate.task.segmentation", "a = 1/4, g = 2, p = 1/2: of the object, and elsewhere",
        [1 / 16 * log(2), 3 / 16 * log(2)],
        lambda: sigmoid_focal_loss(torch.zeros(2).double(), tensor(1.0, 0.0)),
    ),
    Formula(
        "random Fourier features", "sin(2π G p), cos(2π G p), p from -1 to 1",
        "Tancik et al. 2020, https://arxiv.org/abs/2006.10739",
        "ablate.model.points.fourier", "G = (1/4, 0), at 3/4 of the width: G p = 1/8",
        [0.5**0.5, 0.5**0.5], fourier,
    ),
    Formula(
        "attention", "Σ softmax(q · k / √k) v",
        "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        "ablate.kernel", "scores (ln 2, 0), values 3 and 6: weights 2/3 and 1/3",
        [2 / 3 * 3 + 1 / 3 * 6], attention,
    ),
    Formula(
        "predicted window", "exp(-2 (s - p)² / D²), |s - p| ≤ D, p = S sigmoid(v tanh(W h))",
        "Luong et al. 2015, https://arxiv.org/abs/1508.04025",
        "ablate.model.window.local_p", "S = 4, D = 2, v = 0: p = 2; positions 0 to 3",
        [exp(-2), exp(-1 / 2), 1, exp(-1 / 2)], local_p,
    ),
    Formula(
        "sinusoidal", "x + (sin n / b^(2m/d), cos n / b^(2m/d))",
        "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        "ablate.pos_enc.sinusoidal", "x = (1, 1), d = 2, n = 3",
        [1 + sin(3), 1 + cos(3)],
        lambda: positions("sinusoidal").embed(tensor([1.0, 1.0])[None], 3),
    ),
    Formula(
        "rotary", "pair m turned by n / b^(2m/k)",
        "Su et al. 2021, https://arxiv.org/abs/2104.09864",
        "ablate.pos_enc.rotary", "q = (1, 0), n = 2",
        [cos(2), sin(2)],
        lambda: positions("rotary").turn(tensor([1.0, 0.0])[None, None], torch.tensor([2])),
    ),
    Formula(
        "ALiBi", "score - |i - j| / 2^(8h/H)", "Press et al. 2022, https://arxiv.org/abs/2108.12409",
        "ablate.pos_enc.alibi", "H = 2 heads, i = 3, j = 1",
        [-2 / 2**4, -2 / 2**8],
        lambda: positions("alibi", heads=2, dim=4).bias(
            tensor([[0.0, 0.0]], [[0.0, 0.0]])[None], torch.tensor([3]), torch.tensor([1]), 0
        ),
    ),
    Formula(
        "relative", "score + q · a[j - i] / √k", "Shaw et al. 2018, https://arxiv.org/abs/1803.02155",
        "ablate.pos_enc.relative", "q = (1, 1), a[≤ -1] = (1, 2), a[0] = (3, 4); i = 2, j = 0 to 2",
        [3 / sqrt(2), 3 / sqrt(2), 7 / sqrt(2)], relative,
    ),
    Formula(
        "relative in two dimensions", "score + q · [r[row offset]; c[column offset]] / √k",
        "Ramachandran et al. 2019, https://arxiv.org/abs/1906.05909",
        "ablate.pos_enc.relative_2d",
        "2 x 2 patches, q = (1, 2) of the first, r[-1 to 1] = (1, 2, 4), c[-1 to 1] = (8, 16, 32)",
        [(2 + 2 * 16) / sqrt(2), (2 + 2 * 32) / sqrt(2), (4 + 2 * 16) / sqrt(2),
         (4 + 2 * 32) / sqrt(2)],
        relative_2d,
    ),
    Formula(
        "T5", "score + table[bucket(i - j)]", "Raffel et al. 2020, https://arxiv.org/abs/1910.10683",
        "ablate.pos_enc.t5",
        "buckets 0, 1, 2 to 3, from 4 on; table = (0, 1, 2, 3); i = 9, j = 0 to 9",
        [3, 3, 3, 3, 3, 3, 2, 2, 1, 0], t5,
    ),
    Formula(
        "layer norm", "(x - mean) / deviation", "Ba et al. 2016, https://arxiv.org/abs/1607.06450",
        "ablate.model.norm_type.layer", "x = (1, 3, 5, 7): mean 4, variance 5",
        [-3 / sqrt(5), -1 / sqrt(5), 1 / sqrt(5), 3 / sqrt(5)], lambda: norm("layer", 1, 3, 5, 7),
    ),
    Formula(
        "RMS norm", "x / √mean(x²)", "Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467",
        "ablate.model.norm_type.rms", "x = (1, 7): mean square 25",
        [1 / 5, 7 / 5], lambda: norm("rms", 1, 7),
    ),
    Formula(
        "DyT", "tanh(a x), a = 1/2 at the start", "Zhu et al. 2025, https://arxiv.org/abs/2503.10622",
        "ablate.model.norm_type.dyt", "x = (1, 7)", [tanh(0.5), tanh(3.5)],
        lambda: norm("dyt", 1, 7),
    ),
    *(
        Formula(
            f"feed-forward, {kind}", says, paper,
            f"ablate.model.ffn.{kind}",
            f"W1{' = V' if gated else ''} = 1, W2 = 2, x = {x:g}",
            [value], lambda kind=kind, x=x: feed_forward(kind, x),  # type: ignore[misc]
        )
        for kind, says, paper, gated, x, value in (
            ("relu", "W2 max(0, W1 x)", "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
             False, 3.0, 6.0),
            ("relu2", "W2 max(0, W1 x)²", "So et al. 2021, https://arxiv.org/abs/2109.08668",
             False, 3.0, 18.0),
            ("gelu", "W2 (y Φ(y)), y = W1 x",
             "Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415",
             False, 1.0, 2 * gelu(1)),
            ("swiglu", "W2 (y sigmoid(y) · V x), y = W1 x",
             "Shazeer 2020, https://arxiv.org/abs/2002.05202", True, 2.0, 2 * 2 * sigmoid(2) * 2),
            ("geglu", "W2 (y Φ(y) · V x), y = W1 x",
             "Shazeer 2020, https://arxiv.org/abs/2002.05202", True, 2.0, 2 * gelu(2) * 2),
        )
    ),
    Formula(
        "feed-forward, moe", "sum of w_e f_e(x), w = p / sum of p, top k of p = softmax(R x)",
        "Jiang et al. 2024, https://arxiv.org/abs/2401.04088",
        "ablate.model.ffn.moe", "R x = (0, ln 2, ln 3), top 2, f_e = max(0, e x), x = 1",
        [(2 * 2 + 3 * 3) / 5], mixture_of_experts,
    ),
    Formula(
        "post-norm", "norm(x + f(x))", "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        "ablate.model.layers.block", "x = (3, 1), f(x) = 2 x + (1, 0): norm(10, 3)",
        [1, -1], lambda: placed("post"),
    ),
    Formula(
        "pre-norm", "x + f(norm(x))", "Xiong et al. 2020, https://arxiv.org/abs/2002.04745",
        "ablate.model.layers.block", "the same: norm(x) = (1, -1), f = (3, -2)",
        [6, -1], lambda: placed("pre"),
    ),
    Formula(
        "sandwich", "x + norm(f(norm(x)))", "Ding et al. 2021, https://arxiv.org/abs/2105.13290",
        "ablate.model.layers.block", "the same: norm(3, -2) = (1, -1)",
        [4, 0], lambda: placed("sandwich"),
    ),
    Formula(
        "norm of the output", "x + norm(f(x))", "OLMo 2, https://arxiv.org/abs/2501.00656",
        "ablate.model.layers.block", "the same: norm(7, 2) = (1, -1)",
        [4, 0], lambda: placed("output"),
    ),
    *(
        Formula(
            f"residual connection, {kind}", says, paper, f"ablate.model.connection.{kind}",
            "x = 3, y = 5, x0 = 7, learned numbers 2, depth 2",
            [value], lambda kind=kind: connected(kind),  # type: ignore[misc]
        )
        for kind, says, paper, value in (
            ("scaled", "x + factor y", "factor = 1 / √(2 depth)", 3 + 5 / 2),
            ("rezero", "x + a y", "Bachlechner et al. 2020, https://arxiv.org/abs/2003.04887", 13),
            ("layer_scale", "x + g · y", "Touvron et al. 2021, https://arxiv.org/abs/2103.17239",
             13),
            ("x0", "a x + b x0 + y", "modded-nanogpt, record 9", 2 * 3 + 2 * 7 + 5),
        )
    ),
    *(
        Formula(
            f"QK norm, {kind}", says, paper, "ablate.model.layers.qk_norm", "k = (3, 4), gain 1",
            value, lambda kind=kind: qk_normed(kind),  # type: ignore[misc]
        )
        for kind, says, paper, value in (
            ("l2", "k / |k|", "Henry et al. 2020, https://arxiv.org/abs/2010.04245", [0.6, 0.8]),
            ("rms", "k / √mean(k²)", "OLMo 2, https://arxiv.org/abs/2501.00656",
             [3 / sqrt(12.5), 4 / sqrt(12.5)]),
            ("layer", "(k - mean) / √(variance + 10⁻⁵)",
             "Dehghani et al. 2023, https://arxiv.org/abs/2302.05442",
             [-0.5 / sqrt(0.25 + 1e-5), 0.5 / sqrt(0.25 + 1e-5)]),
        )
    ),
    Formula(
        "soft cap", "c tanh(s / c)", "Gemma 2, https://arxiv.org/abs/2408.00118", "ablate.kernel",
        "scores ln 2 and 0, c = 1, values 3 and 6",
        [(3 * exp(tanh(log(2))) + 6) / (exp(tanh(log(2))) + 1)], lambda: attention(softcap=1.0),
    ),
    Formula(
        "sink", "Σ exp(s) v / (exp(sink) + Σ exp(s))",
        "gpt-oss, https://arxiv.org/abs/2508.10925; softmax plus one: sink = 0", "ablate.kernel",
        "scores ln 2 and 0, sink ln 3, values 3 and 6",
        [(2 * 3 + 6) / (3 + 2 + 1)], lambda: attention(sink=tensor(log(3.0))),
    ),
    Formula(
        "output gate", "sigmoid(x W) · o", "Qiu et al. 2025, https://arxiv.org/abs/2505.06708",
        "ablate.model.layers.multi_head", "x = (1, 3), causal, all maps 1",
        [sigmoid(1), sigmoid(3) * (exp(3) + 3 * exp(9)) / (exp(3) + exp(9))],
        lambda: read({}, output_gate="head"),
    ),
    Formula(
        "key shift", "k[j] of x[j - 1]", "Olsson et al. 2022, https://arxiv.org/abs/2209.11895",
        "ablate.model.mixer.attention", "x = (1, 3), causal, all maps 1: keys 0 and 1",
        [1, (1 + 3 * exp(3)) / (1 + exp(3))], lambda: read({"key_shift": True}),
    ),
    Formula(
        "exclusive self-attention", "o - (o · v) v / |v|²", "x-transformers",
        "ablate.model.mixer.attention", "width 1: nothing is left",
        [0, 0], lambda: read({"exclusive": True}),
    ),
    Formula(
        "short convolution", "x[i] + Σ w[m] x[i - size + 1 + m]",
        "So et al. 2021, https://arxiv.org/abs/2109.08668", "ablate.model.layers.short_conv",
        "x = (1, 3), size 2, all numbers 1: 2 and 3 + 4 = 7",
        [2, (2 * exp(14) + 7 * exp(49)) / (exp(14) + exp(49))], lambda: read({"short_conv": 2}),
    ),
    Formula(
        "fixed weights", "Σ W[i, j] v over what the mask allows",
        "Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601",
        "ablate.model.mixer.fixed", "v = (1, 2, 3), causal, W = (1 9 9; 2 3 9; 4 5 6)",
        [1, 2 + 6, 4 + 10 + 18],
        lambda: mixed("fixed", value_weight=1.0, out_weight=1.0,
                      weight=[[1, 9, 9], [2, 3, 9], [4, 5, 6]]),
    ),
    Formula(
        "linear recurrence", "S = a S + k vᵀ, y = Sᵀ q", "Sun et al. 2023, https://arxiv.org/abs/2307.08621",
        "ablate.model.layers.recurrence", "q = 1, k = (1, 2), v = (3, 5), a = 1/2",
        [3, 3 / 2 + 10], lambda: recurred(None),
    ),
    Formula(
        "delta rule", "S = a S + β k (v - a Sᵀ k)ᵀ, y = Sᵀ q",
        "Yang et al. 2024, https://arxiv.org/abs/2412.06464",
        "ablate.model.layers.recurrence", "the same, β = 1/2",
        [3 / 2, 3 / 4 + (5 - 3 / 4 * 2)], lambda: recurred(0.5),
    ),
    Formula(
        "convolution", "Σ W[j - i] x[j]", "Gehring et al. 2017, https://arxiv.org/abs/1705.03122",
        "ablate.model.mixer.convolution", "x = (1, 2, 3), causal, W[-2 to 0] = (1, 10, 100)",
        [100, 210, 321], lambda: mixed("convolution", weight=[1, 10, 100]),
    ),
    Formula(
        "squeeze and excitation", "x sigmoid(W2 relu(W1 mean(x)))",
        "Hu et al. 2018, https://arxiv.org/abs/1709.01507",
        "ablate.model.gate.se",
        "channels (0, 2), (3, 3); W1 = (1 -1) + 5, W2 = (0.5; -1) + (0, 3)",
        [0, 2 * sigmoid(1.5), 1.5, 1.5], gate,
    ),
    Formula(
        "adaptive layer norm", "(1 + a) x + b, and a gate, of W swish(c)",
        "Peebles and Xie 2023, https://arxiv.org/abs/2212.09748",
        "ablate.model.layers.modulation",
        "x = 2, c = ln 3: swish 3 ln 3 / 4; W = (0; 4 / ln 3; 1 / ln 3)",
        [2 * (1 + 3), 3 / 4], modulated,
    ),
    Formula(
        "rectified flow", "x(t) = (1 - t) x + t z; a step of Euler is x + (t' - t) v",
        "Liu et al. 2023, https://arxiv.org/abs/2209.03003",
        "ablate.task.noise.rectified_flow", "x = 4, z = 2, t = 1/4; from 3 with v = 2 to t' = 0",
        [3.5, 2.5], flow,
    ),
    Formula(
        "DDPM", "x(n) = √a(n) x + √(1 - a(n)) z, a(n) = Π (1 - β)",
        "Ho et al. 2020, equation 4, https://arxiv.org/abs/2006.11239",
        "ablate.task.noise.ddpm",
        "T = 100, β = 0.001 and 0.001 + 0.199 / 99; x = 1, z = 0 and x = 0, z = 1",
        [sqrt(0.999 * (0.999 - 0.199 / 99)), sqrt(1 - 0.999 * (0.999 - 0.199 / 99))], noisy,
    ),
    Formula(
        "divergence of a latent", "(m² + s² - 1 - ln s²) / 2",
        "Kingma and Welling 2014, appendix B, https://arxiv.org/abs/1312.6114",
        "ablate.task.autoencoding", "m = 2, s² = e",
        [(4 + e - 1 - 1) / 2], lambda: divergence(tensor(2.0), tensor(1.0)),
    ),
    Formula(
        "rate, Noam", "min(n / w, √(w / n)), n = step + 1",
        "Vaswani et al. 2017, https://arxiv.org/abs/1706.03762",
        "ablate.schedule.noam", "w = 4: steps 1, 3, 15",
        [1 / 2, 1, 1 / 2],
        lambda: [rate("noam", step, 99, warmup=4) for step in (1, 3, 15)],
    ),
    Formula(
        "rate, cosine", "f + (1 - f)(1 + cos π t) / 2",
        "Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983",
        "ablate.schedule.cosine", "f = 0.2, no warm-up, steps 0, 25, 50, 100 of 100",
        [1, 0.2 + 0.8 * (1 + cos(pi / 4)) / 2, 0.6, 0.2],
        lambda: [rate("cosine", s, 100, warmup=0, floor=0.2) for s in (0, 25, 50, 100)],
    ),
    Formula(
        "rate, linear", "f + (1 - f)(1 - t)", "Devlin et al. 2018, https://arxiv.org/abs/1810.04805",
        "ablate.schedule.linear", "f = 0.2, 1 step of warm-up, steps 0, 1, 51, 101 of 101",
        [1 / 2, 1, 0.6, 0.2],
        lambda: [rate("linear", s, 101, warmup=1, floor=0.2) for s in (0, 1, 51, 101)],
    ),
]  # fmt: skip


def found(formula: Formula) -> list[float]:
    """What the code makes of the example."""
    numbers: list[float] = torch.as_tensor(formula.by_code()).detach().flatten().tolist()
    return numbers


def page() -> str:
    lines = [
        "# The formulas and where they live",
        "",
        "Each is worked by hand on small numbers in [tests/formulas.py](../tests/formulas.py), and",
        "tests/test_formulas.py has the code work them too. Letters: q query, k key, v value,",
        "s scores, i position of the query, j of the key, n a position, d width. Written by",
        "`python tests/formulas.py > docs/formulas.md`.",
        "",
        "| what | formula | paper | file | example | comes to |",
        "|---|---|---|---|---|---|",
    ]
    for formula in FORMULAS:
        path = f"src/{formula.module.replace('.', '/')}"
        path += "/__init__.py" if formula.module == "ablate.kernel" else ".py"
        numbers = ", ".join(f"{number:.4g}" for number in formula.by_hand)
        says = formula.says.replace("|", "\\|")
        lines.append(
            f"| {formula.name} | {says} | {formula.paper} | [{formula.module}](../{path})"
            f" | {formula.given.replace('|', chr(92) + '|')} | {numbers} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
