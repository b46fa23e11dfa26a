"""model=dit: its four conditionings, against DiT's formulas written out, and what they read."""

import pytest
import torch
import torch.nn.functional as F
from make_model import SIZES, context, normal, options, random_parts, tiny
from torch.testing import assert_close

from ablate.data.pairs import BOS, PAD

CONDITIONS = options("model.condition")
B, DIM, HEADS = 3, SIZES["dit"]["dim"], SIZES["dit"]["heads"]


def made(**changes):
    return random_parts(tiny("dit", **changes)).eval()


IMAGES = normal(B, 1, *SIZES["dit"]["image_size"])
WORDS = torch.tensor([[BOS, 4, 5, PAD], [BOS, 6, PAD, PAD], [BOS, 5, 4, 7]])
TIMES = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)


def reference(block, x, condition, *, gated):
    """A block of DiT with adaLN, by its paper: shift, scale and gate are maps of the condition."""
    for name in ("attention", "feed_forward"):
        layer = block[name]
        linear, norm = layer.modulation.linear, layer.norm_before
        values = F.silu(condition) @ linear.weight.T + linear.bias
        shift, scale, *gate = values[:, None].split(DIM, dim=-1)
        y = F.layer_norm(x, (DIM,), norm.weight, norm.bias, norm.eps) * (1 + scale) + shift
        if name == "attention":
            maps = layer.function.query, layer.function.key, layer.function.value
            q, k, v = (m(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for m in maps)
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            y = layer.function.out(mixed)
        else:
            y = layer.function(y, context())
        assert len(gate) == gated
        x = x + (gate[0] * y if gated else y)
    return x


@pytest.mark.parametrize("condition", ["adaln", "adaln_zero"])
def test_an_adaptive_block_is_dits(condition):
    block = made(condition=condition).stack.blocks[0]
    x, c = normal(B, 5, DIM, seed=3), normal(B, DIM, seed=4)
    expected = reference(block, x, c, gated=condition == "adaln_zero")
    assert_close(block(x, context(condition=c)), expected)


def test_at_the_start_adaln_zero_is_the_identity():
    """And nothing else is: the other three add something."""
    x, c = normal(B, 8, DIM, seed=3).float(), normal(B, DIM, seed=4).float()
    for condition in ("adaln", "adaln_zero"):
        model = tiny("dit", condition=condition)
        model.initialize(0)
        y = model.stack.blocks[0](x, context(condition=c))
        assert torch.equal(x, y) == (condition == "adaln_zero")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_time_caption_and_the_order_of_words_matter(condition):
    model = made(condition=condition)
    first = model(IMAGES, WORDS, TIMES)
    assert first.shape == IMAGES.shape
    other_words, turned = WORDS.where(WORDS != 4, 8), WORDS[:, [0, 2, 1, 3]].clone()
    turned[1] = WORDS[1]
    for words, times in ((WORDS, TIMES.flip(0)), (other_words, TIMES), (turned, TIMES)):
        assert not torch.allclose(first[0], model(IMAGES, words, times)[0])
    # An example without the word.
    assert_close(first[1], model(IMAGES, other_words, TIMES)[1])


def test_patches_are_put_where_they_were_read():
    """With an output map that undoes the embedding, an image is given back as it was."""
    model = made(condition="adaln", mixer="none", patch=3, depth=1, channels=1)
    weight, states = torch.eye(DIM, 9, dtype=torch.float64), []
    model.patches.register_forward_hook(lambda *args: states.append(args[-1]))
    model.head.register_forward_pre_hook(lambda *_: (states[0],))
    with torch.no_grad():
        model.patches.weight.copy_(weight.view(DIM, 1, 3, 3))
        model.head.weight.copy_(weight.T)
        for bias in (model.patches.bias, model.head.bias):
            bias.zero_()
    assert_close(model(IMAGES, WORDS, TIMES), IMAGES)
