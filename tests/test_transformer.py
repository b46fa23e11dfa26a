"""Transformers of pairs: torch's with copied weights, GPT with a prefix, reads of the source."""

from functools import partial

import pytest
import torch
from make_model import (
    SIZES,
    copy_to_torch,
    flops,
    gpt,
    gpt_seq2seq,
    part,
    random_parts,
    sentences,
    transformer,
)
from tiny import built, pairs
from torch import nn
from torch.testing import assert_close

from ablate.data.pairs import PAD
from ablate.errors import UserError
from ablate.task.attention import attention_maps

IN, OUT = SIZES["transformer"]["source_length"], SIZES["transformer"]["target_length"]
SOURCE_VOCAB, VOCAB = SIZES["transformer"]["source_vocab"], SIZES["transformer"]["target_vocab"]
DIM, HEADS = SIZES["transformer"]["dim"], SIZES["transformer"]["heads"]


def random_transformer(**changes):
    return random_parts(transformer(**changes)).eval()


def batch(source=(IN, 5, 3), target=(OUT, 2, 5)):
    return sentences(*source), sentences(*target, seed=1)


def written(model, source, target_in):
    """The logits when the target arrives token by token."""
    state = model.encode(source)
    return torch.stack([model.step(tokens, state) for tokens in target_in.unbind(1)], dim=1)


def torchs(mine, *, first):
    own = {"batch_first": True, "norm_first": first}
    theirs = nn.Transformer(DIM, HEADS, 2, 2, 4 * DIM, 0.0, **own).double()
    if not first:  # torch adds a norm after the last, which the paper does not have
        theirs.encoder.norm = theirs.decoder.norm = None
    copy_to_torch(mine.encoder, theirs.encoder)
    copy_to_torch(mine.decoder, theirs.decoder)
    return theirs.eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("first", [True, False])
def test_it_equals_torchs(first):
    mine = random_transformer(norm="pre" if first else "post")
    theirs, (source, target_in) = torchs(mine, first=first), batch()
    scale = DIM**0.5  # section 3.4 of the paper
    x, y = scale * mine.source_embedding(source), scale * mine.target_embedding(target_in)
    sides = {"src": source, "tgt": target_in, "memory": source}
    padding = {f"{side}_key_padding_mask": text == PAD for side, text in sides.items()}
    later = torch.ones(OUT, OUT, dtype=torch.bool).triu(1)
    out = theirs(x, y, tgt_mask=later, **padding)
    real = target_in != PAD
    assert_close(mine(source, target_in)[real], (out @ mine.target_embedding.weight.T)[real])


@pytest.mark.parametrize(
    ("score", "pos_enc"),
    [("scaled_dot", "none"), ("additive", "learned"), ("scaled_dot", "rotary"), ("location", "t5")],
)
def test_cross_attention_knows_no_positions_but_those_in_the_states(score, pos_enc):
    """The memory turned around is read the same, whatever says distances."""
    model = random_transformer(cross_attention=score, pos_enc=pos_enc, kernel="auto")
    source, target_in = batch()
    keep = source != PAD
    encoded = model.encoder(model.source_embedding(source), keep=keep)
    order = torch.randperm(IN, generator=torch.Generator().manual_seed(0))

    def decoded(encoded, keep):
        memory = model.decoder.remember(encoded, keep)
        return model.decoder(model.target_embedding(target_in), memory=memory)

    turned = decoded(encoded[:, order], keep[:, order])
    assert torch.allclose(turned, decoded(encoded, keep), atol=1e-10) == (score != "location")
    # Nor does the length of the target move what it reads: the encoder counts by itself.
    reversed_source = sentences(IN)
    logits = model(reversed_source, target_in[:1])
    same = torch.allclose(logits, model(reversed_source[:, order], target_in[:1]), atol=1e-10)
    assert same == (pos_enc == "none" and score != "location")


def test_the_cost_is_that_of_its_matrix_products():
    d, b, i, j = DIM, 2, 4, 5

    def cost(**changes):
        inputs = [torch.ones(b, n, dtype=torch.long) for n in (j, i)]
        return flops(lambda: transformer(kernel="reference", **changes), *inputs)

    encoder = 4 * j * d * d + 2 * j * j * d + 8 * j * d * d
    seen = i * (i + 1) // 2  # pairs that the causal mask allows
    decoder = (4 + 2 + 8) * i * d * d + 2 * j * d * d + 2 * seen * d + 2 * i * j * d
    forward = 2 * b * (2 * encoder + 2 * decoder + i * d * VOCAB)
    assert cost() == 3 * forward  # the backward pass costs twice the forward pass
    assert cost(cross_attention="uniform") < cost()


def test_tables_are_tied_and_shared():
    def names(**changes):
        return {name for name, _ in transformer(**joint | changes).named_parameters()}

    joint = {"joint": True, "source_vocab": VOCAB}
    both = names(share_embeddings=True)
    assert names() - both == {"source_embedding.weight"}
    assert names(tie_embeddings=False, share_embeddings=True) - both == {"head.weight"}
    with pytest.raises(UserError, match=r"model\.share_embeddings=true needs one vocabulary"):
        transformer(share_embeddings=True)
    shared = random_transformer(share_embeddings=True, **joint)
    apart = random_transformer(source_vocab=VOCAB)
    weights = shared.state_dict()
    weights["source_embedding.weight"] = weights["target_embedding.weight"]
    apart.load_state_dict(weights)
    source, target_in = batch()
    assert_close(shared(source % VOCAB, target_in), apart(source % VOCAB, target_in))


def test_a_step_computes_its_own_token_and_the_memory_once():
    model = random_transformer(share_layers=True, pos_enc="rotary", decoder={"depth": 4})
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    (cross,) = model.cross
    own, lengths = model.decoder.blocks[0].attention.function, dict[str, list[int]]()
    for name, layer in (("own", own.value), ("query", cross.query), ("key", cross.key)):
        lengths[name] = []
        layer.register_forward_hook(lambda _, x, y, name=name: lengths[name].append(y.shape[1]))
    written(model, source, target_in)
    assert lengths == {"own": [1] * 4 * OUT, "query": [1] * 4 * OUT, "key": [IN]}
    model(source, target_in)
    assert lengths["key"] == [IN, IN]


def test_each_side_has_positions_of_its_own_length():
    """Sines go on beyond it; a table is at its end and says so."""
    model = random_transformer(pos_enc="sinusoidal")
    source, target_in = batch([IN], [OUT + 2])
    assert_close(written(model, source, target_in), model(source, target_in))
    model = random_transformer(pos_enc="learned")
    model(*batch([IN], [OUT]))
    for j, i, most in ((IN + 1, OUT, IN), (IN, OUT + 1, OUT)):
        for call in (model, partial(written, model)):
            with pytest.raises(UserError, match=f"=learned was trained for {most} positions"):
                call(*batch([j], [i]))


def test_an_error_names_the_slot_of_the_score():
    for slot in ("attention", "cross_attention"):
        short = part("model.attention", "location", max_length=OUT)
        with pytest.raises(UserError, match=rf"^model\.{slot}\.max_length={OUT} .*at least {IN}"):
            transformer(**{slot: short})
    source = torch.full((1, IN + 1), 5)
    longer = rf"train with model\.cross_attention\.max_length={IN + 1} "
    with pytest.raises(UserError, match=longer):
        transformer(cross_attention="location")(source, source)


def test_one_stack_of_both_sides_is_a_gpt_with_a_prefix():
    """Of whole sources: a GPT that has the tokens of both sides, and another size of prefix."""
    model = random_parts(gpt_seq2seq(pos_enc="learned")).eval()
    prefix = part("model.mask", "prefix", size=IN)
    sizes = {"vocab_size": SOURCE_VOCAB + VOCAB, "length": IN + OUT, "tie_embeddings": False}
    one = random_parts(gpt(mask=prefix, pos_enc="learned", **sizes)).eval()
    one.stack.load_state_dict(model.stack.state_dict())
    tables = model.source_embedding.weight, model.target_embedding.weight
    with torch.no_grad():
        one.embedding.weight.copy_(torch.cat(tables))
        one.head.weight.copy_(torch.cat(tables))
    source, target_in = (tokens[:1] for tokens in batch())
    expected = one(torch.cat([source, target_in + SOURCE_VOCAB], dim=1))[:, IN:, SOURCE_VOCAB:]
    assert_close(model(source, target_in), expected)
    with pytest.raises(UserError, match="trained for 8 at most"):
        model(torch.cat([source, source], dim=1), target_in)


def test_maps_of_one_stack_show_where_the_target_looks_in_the_source(tmp_path):
    task = built(*pairs(tmp_path, "model=gpt_seq2seq", "model.heads=2", "model.parallel=true"))
    example = task.data.example(0)
    maps = attention_maps(task, example)
    assert {one.kind for one in maps} == {"cross"}
    shape = len(example["target_labels"]), len(example["source_labels"])
    assert all(one.weights.shape[1:] == shape for one in maps)
