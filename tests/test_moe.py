"""A mixture of experts: what each token gets, what it costs, and how even the load is."""

from functools import partial
from itertools import product

import pytest
import tiny
import torch
from make_model import context, flops, gpt, normal, part, random_parts, transformer
from torch.nn import functional as F
from torch.testing import assert_close

from ablate.data.pairs import PAD
from ablate.figures.experts import draw_load
from ablate.task.experts import expert_loads

B, N, D = 3, 5, 6
TOKENS = torch.randint(11, (2, 6), generator=torch.Generator().manual_seed(0))


def mixture(**keys):
    return random_parts(part("model.ffn", "moe", **keys)(D, hidden=8, bias=True), std=1.0)


TEXT = normal(B, N, D)


@pytest.mark.parametrize(
    "keys",
    [
        {"expert": "gelu"},
        {"expert": "relu2", "top_k": 1, "normalize": False},
        {"expert": "swiglu", "top_k": 3, "experts": 3, "shared": 2},
    ],
)
def test_each_token_is_the_sum_of_its_experts(keys):
    made = mixture(**keys)
    y = made(TEXT, context())
    for b, i in product(range(B), range(N)):
        token = TEXT[b, i]
        p = torch.softmax(made.router.weight @ token, 0).tolist()
        best = sorted(range(len(p)), key=lambda e, p=p: -p[e])[: made.top_k]
        total = sum(p[e] for e in best) if made.normalize else 1.0
        parts = [made.experts[e](token[None, None])[0, 0] * p[e] / total for e in best]
        parts += [shared(token[None, None])[0, 0] for shared in made.shared]
        assert_close(y[b, i], sum(parts))


def test_the_balance_loss_is_that_of_switch_transformers_over_real_tokens():
    made = mixture(top_k=1, normalize=False, balance=0.5, experts=4)
    keep = torch.tensor([[True] * N, [True] * 3 + [False] * 2, [True] + [False] * 4])
    read = context(keep=keep)
    made(TEXT, read)
    p = torch.stack([torch.softmax(made.router.weight @ token, 0) for token in TEXT[keep]])
    f = torch.tensor([(p.argmax(1) == e).double().mean() for e in range(4)])
    ((name, loss),) = read.losses
    assert name == "balance"
    assert_close(loss, 0.5 * 4 * (f * p.mean(0)).sum(), check_dtype=False, rtol=1e-6, atol=1e-6)
    read, silent = context(), context()
    mixture(experts=2, top_k=2, balance=1.0)(TEXT, read)
    assert read.losses[0][1].item() == pytest.approx(1)  # an even load
    mixture(balance=0.0)(TEXT, silent)
    assert not silent.losses


def test_an_expert_without_tokens_has_a_gradient_of_zero():
    made = mixture(experts=4, top_k=1, normalize=False, balance=0.0)
    with torch.no_grad():
        made.router.weight.zero_()[2] = 1.0
    made(TEXT.abs(), context()).sum().backward()
    for number, expert in enumerate(made.experts):
        assert (expert.down.weight.grad.abs().sum() > 0) == (number == 2)
    assert made.router.weight.grad.abs().sum() > 0


def test_a_token_costs_what_it_costs_in_the_dense_network():
    """But for the router; and the parameters of the experts that it does not pass through."""
    dense = partial(gpt, ffn="gelu", ffn_dim=48)
    sparse = partial(gpt, ffn=part("model.ffn", "moe", experts=6, top_k=2), ffn_dim=48)
    model = sparse()
    routers = [p for name, p in model.named_parameters() if "router" in name]
    extra = flops(sparse, TOKENS) - flops(dense, TOKENS)
    assert extra == 3 * 2 * TOKENS.numel() * sum(router.numel() for router in routers)
    maps, whole = (
        sum(p.numel() for name, p in made.named_parameters() if part in name and p.dim() > 1)
        for made, part in ((model, "experts"), (dense(), "feed_forward"))
    )
    assert maps == 3 * whole


def test_both_stacks_of_a_transformer_have_losses():
    model = transformer(ffn="moe")
    model(TOKENS, TOKENS)
    assert len(model.encoder.losses) == len(model.decoder.losses) == 2
    before = model.decoder.losses
    model(TOKENS, F.pad(TOKENS, (0, 3), value=PAD))  # which no token reads
    assert_close(dict(model.decoder.losses), dict(before))


def test_the_load_counts_the_choices_of_real_tokens_and_is_drawn(tmp_path):
    task = tiny.built(*tiny.overrides(tmp_path, "model.ffn=moe", "model.ffn.experts=4"))
    (load,) = expert_loads(task)
    batches = list(task.data.val_dataloader())[:8]
    assert float(load.sum()) == 2 * sum(batch["tokens"].numel() for batch in batches)
    shares = load / load.sum()
    texts = [text.get_text() for text in draw_load([shares]).axes[0].texts]
    assert texts == [f"{share:.0%}" for share in shares.tolist()]
