"""Feed-forward networks: their formulas, and equal numbers of parameters."""

import pytest
import torch
from make_model import normal, options, part, random_parts

B, N, D, HIDDEN = 2, 6, 12, 20
KINDS = [name for name in options("model.ffn") if name != "none"]


@pytest.mark.parametrize("kind", KINDS)
def test_feed_forward_is_its_formula(kind: str) -> None:
    feed = part("model.ffn", kind)(D, hidden=HIDDEN, bias=True)
    random_parts(feed)
    x = normal(B, N, D)
    up, down = feed.up(x), feed.down
    normal_cdf = torch.distributions.Normal(0.0, 1.0).cdf
    if kind == "gelu_tanh":
        activated = up * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (up + 0.044715 * up**3))) / 2
    elif feed.gate is None:
        activated = up.clamp(min=0) if kind == "relu" else up * normal_cdf(up)
    else:
        gate = feed.gate(x)
        activated = up * gate * (torch.sigmoid(gate) if kind == "swiglu" else normal_cdf(gate))
    torch.testing.assert_close(feed(x), down(activated))
    assert (feed.gate is not None) == (kind in ("swiglu", "geglu"))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dim", [32, 64, 128, 768])
def test_gated_networks_have_as_many_parameters(dim: int, bias: bool) -> None:
    counts = {
        kind: sum(
            p.numel() for p in part("model.ffn", kind)(dim, hidden=4 * dim, bias=bias).parameters()
        )
        for kind in KINDS
    }
    for count in counts.values():
        assert abs(count - counts["gelu"]) <= 0.01 * counts["gelu"]
