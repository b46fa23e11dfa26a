"""model=dit: its four conditionings, against DiT's formulas written out, and what they read."""

import pytest
import torch
import torch.nn.functional as F
from make_model import SIZES, context, dit, normal, options, random_parts
from torch.testing import assert_close

from ablate.data.pairs import BOS, PAD

CONDITIONS = options("model.condition")
B, DIM, HEADS = 3, 12, 3
HEIGHT, WIDTH = SIZES["dit"]["image_size"]


def made(**changes):
    model = dit(**changes)
    random_parts(model)
    return model.eval()


def images():
    return normal(B, 1, HEIGHT, WIDTH)


WORDS = torch.tensor([[BOS, 4, 5, PAD], [BOS, 6, PAD, PAD], [BOS, 5, 4, 7]])
TIMES = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)


def reference(block, x, condition, *, gated):
    """A block of DiT with adaLN, by its paper: one map of the condition to all of its values."""
    layers = [block["attention"], block["feed_forward"]]
    maps = [layer.modulation.linear for layer in layers]
    weight, bias = torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps])
    values = (F.silu(condition) @ weight.T + bias)[:, None].chunk(len(weight) // DIM, dim=-1)
    shift, scale, gate = values[0], values[1], values[2] if gated else 1
    second = values[len(values) // 2 :]
    norm = layers[0].norm_before
    read = F.layer_norm(x, (DIM,), norm.weight, norm.bias, norm.eps) * (1 + scale) + shift
    attention = layers[0].function
    q, k, v = (
        projection(read).view(B, -1, HEADS, DIM // HEADS).transpose(1, 2)
        for projection in (attention.query, attention.key, attention.value)
    )
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
    x = x + gate * attention.out(mixed)
    norm = layers[1].norm_before
    shift, scale, gate = second[0], second[1], second[2] if gated else 1
    read = F.layer_norm(x, (DIM,), norm.weight, norm.bias, norm.eps) * (1 + scale) + shift
    return x + gate * layers[1].function(read, context())


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
        model = dit(condition=condition)
        model.initialise(0)
        y = x
        for block in model.stack.blocks:
            y = block(y, context(condition=c))
        assert torch.equal(x, y) == (condition == "adaln_zero")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_time_caption_and_the_order_of_words_matter(condition):
    model, x = made(condition=condition), images()
    first = model(x, WORDS, TIMES)
    assert first.shape == x.shape
    others = [
        model(x, WORDS, TIMES.flip(0)),
        model(x, WORDS.where(WORDS != 4, 8), TIMES),
        model(x, torch.tensor([[BOS, 5, 4, PAD], [BOS, 6, PAD, PAD], [BOS, 4, 5, 7]]), TIMES),
    ]
    for other in others:
        assert not torch.allclose(first[0], other[0])
    assert_close(first[1], others[1][1])  # an example without the word


def test_patches_are_put_where_they_were_read():
    """With an output map that undoes the embedding, an image is given back as it was."""
    model = made(condition="adaln", mixer="none", patch=3, depth=1, channels=1)
    weight = torch.eye(DIM, 9, dtype=torch.float64)
    states = []
    model.patches.register_forward_hook(lambda *args: states.append(args[-1]))
    model.head.register_forward_pre_hook(lambda *_: (states[0],))
    with torch.no_grad():
        model.patches.weight.copy_(weight.view(DIM, 1, 3, 3))
        model.head.weight.copy_(weight.T)
        for bias in (model.patches.bias, model.head.bias):
            bias.zero_()
    assert_close(model(images(), WORDS, TIMES), images())
