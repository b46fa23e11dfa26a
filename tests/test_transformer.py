"""The Transformer: torch's with copied weights; nothing leaks; decoding equals teacher forcing."""

import itertools
from functools import partial

import pytest
import torch
from make_model import SIZES, copy_to_torch, part, random_parts, transformer
from torch import nn
from torch.testing import assert_close

from ablate.config.composition import compose
from ablate.data.pairs import BOS, PAD
from ablate.errors import UserError
from ablate.model.layers.stack import kernels
from ablate.training.flops import flops_per_step

IN, OUT = SIZES["transformer"]["source_length"], SIZES["transformer"]["target_length"]
SOURCE_VOCAB, VOCAB = SIZES["transformer"]["source_vocab"], SIZES["transformer"]["target_vocab"]
SIZE = {"dim": 12, "heads": 3}


def random_transformer(**changes):
    return random_parts(transformer(**changes)).eval()


def sentences(lengths, vocab, *, first=None, seed=0):
    """Sentences of these lengths as tokens, padded; `first` stands first in each."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, vocab, (len(lengths), max(lengths)), generator=rng)
    tokens[:, 0] = tokens[:, 0] if first is None else first
    return tokens.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], PAD)


def batch(source=(IN, 5, 3), target=(OUT, 2, 5)):
    return sentences(source, SOURCE_VOCAB), sentences(target, VOCAB, first=BOS, seed=1)


def written(model, source, target_in):
    """The logits when the target arrives token by token."""
    state = model.encode(source)
    return torch.stack([model.step(tokens, state) for tokens in target_in.unbind(1)], dim=1)


def torchs(mine, *, first):
    dim, own = SIZE["dim"], {"batch_first": True, "norm_first": first}
    theirs = nn.Transformer(dim, SIZE["heads"], 2, 2, 4 * dim, 0.0, **own).double()
    if not first:  # torch adds a norm after the last, which the paper does not have
        theirs.encoder.norm = theirs.decoder.norm = None
    copy_to_torch(mine.encoder, theirs.encoder)
    copy_to_torch(mine.decoder, theirs.decoder)
    return theirs.eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
@pytest.mark.parametrize("first", [True, False])
def test_it_equals_torchs(first, kernel):
    mine = random_transformer(norm="pre" if first else "post", kernel=kernel, **SIZE)
    theirs, (source, target_in) = torchs(mine, first=first), batch()
    x = mine.source_embedding(source).detach().requires_grad_()
    y = mine.target_embedding(target_in).detach().requires_grad_()
    scale = SIZE["dim"] ** 0.5  # section 3.4 of the paper
    sides = {"src": source, "tgt": target_in, "memory": source}
    padding = {f"{side}_key_padding_mask": text == PAD for side, text in sides.items()}
    later = torch.ones(OUT, OUT, dtype=torch.bool).triu(1)
    out = theirs(scale * x, scale * y, tgt_mask=later, **padding)
    real = target_in != PAD
    expected = (out @ mine.target_embedding.weight.detach().T)[real]
    logits = mine(source, target_in)[real]
    assert_close(logits, expected)

    logits.square().sum().backward()
    expected.square().sum().backward()
    for block, layer in zip(mine.decoder.blocks, theirs.decoder.layers, strict=True):
        crossing = block.cross_attention.function
        pieces = [piece.weight.grad for piece in (crossing.query, crossing.key, crossing.value)]
        assert_close(torch.cat(pieces), layer.multihead_attn.in_proj_weight.grad)
    first_out = mine.encoder.blocks[0].attention.function.out
    assert_close(first_out.weight.grad, theirs.encoder.layers[0].self_attn.out_proj.weight.grad)
    table = torch.zeros(SOURCE_VOCAB, SIZE["dim"], dtype=torch.float64)
    table.index_add_(0, source.flatten(), x.grad.flatten(0, 1))
    assert_close(mine.source_embedding.weight.grad, table)


@pytest.mark.parametrize("pos_enc", ["none", "rotary", "t5", "learned"])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "location"])
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
    reversed_source = sentences([IN], SOURCE_VOCAB)
    logits = model(reversed_source, target_in[:1])
    same = torch.allclose(logits, model(reversed_source[:, order], target_in[:1]), atol=1e-10)
    assert same == (pos_enc == "none" and score != "location")


def test_the_cost_is_that_of_its_matrix_products():
    d, b, i, j = SIZE["dim"], 2, 4, 5

    def cost(**changes):
        inputs = [torch.ones(b, n, dtype=torch.long) for n in (j, i)]
        return flops_per_step(lambda: transformer(kernel="reference", **changes), *inputs)

    encoder = 4 * j * d * d + 2 * j * j * d + 8 * j * d * d
    seen = i * (i + 1) // 2  # pairs that the causal mask allows
    decoder = (4 + 2 + 8) * i * d * d + 2 * j * d * d + 2 * seen * d + 2 * i * j * d
    forward = 2 * b * (2 * encoder + 2 * decoder + i * d * VOCAB)
    assert cost() == 3 * forward  # the backward pass costs twice the forward pass
    assert cost(cross_attention="uniform") < cost()


def test_an_experiments_cross_attention_is_taken_back_by_its_name(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\ndefaults:\n  - override /model: transformer\n"
        "  - override /model.cross_attention: additive\n"
    )
    mine = partial(compose, "experiment=mine", config_dir=tmp_path)
    assert mine().choices["model.cross_attention"] == "additive"
    cfg = mine("model.cross_attention=same")
    cfg.choices.experiment = None
    assert cfg == compose("model=transformer")


def test_a_cross_attention_of_ones_own_changes_nothing_else():
    same, own = transformer(), transformer(cross_attention="additive", kernel="auto")
    parts = {"encoder.{}.attention": "sdpa", "decoder.{}.attention": "sdpa",
             "decoder.{}.cross_attention": "chunked"}  # fmt: skip
    assert {name.replace("blocks.", ""): kernel for name, kernel in kernels(own).items()} == {
        f"{part.format(n)}.function": kernel for part, kernel in parts.items() for n in (0, 1)
    }
    same.initialise(0)
    own.initialise(0)
    mine, theirs = dict(own.named_parameters()), dict(same.named_parameters())
    assert {name.rpartition(".")[2] for name in mine.keys() - theirs.keys()} == {"v"}
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_tables_are_tied_and_shared():
    names, joint = {}, {"joint": True, "source_vocab": VOCAB}
    for tie, share in itertools.product([True, False], repeat=2):
        model = transformer(tie_embeddings=tie, share_embeddings=share, **joint)
        names[tie, share] = {name for name, _ in model.named_parameters()}
    assert names[True, False] - names[True, True] == {"source_embedding.weight"}
    assert names[False, True] - names[True, True] == {"head.weight"}
    assert names[False, False] == names[True, False] | names[False, True]
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


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.cross_attention=none"], r"no such option .*allowed: .*same, .*uniform"),
        (["model.cross_attention=additive", "model.cross_attention.hiden=3"], r"n 'model.*hidden'"),
        (["model.depth=3"], r"no key model\.depth"),
        (["model.encoder=3"], r"model\.encoder=3: is no value; set model\.encoder\.depth"),
        (["model=gpt", "model.cross_attention=additive"], r"model=gpt has no model\.cross_att"),
    ],
)
def test_what_has_no_meaning_is_refused(overrides, said):
    with pytest.raises(UserError, match=said):
        compose("model=transformer", *overrides)
