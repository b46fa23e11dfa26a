"""What models have in common: causality, padding, caches, and parameters that all learn."""

import itertools
from functools import partial

import pytest
import torch
from make_model import (
    PAIRS,
    VOCAB,
    bert,
    gpt,
    gpt_seq2seq,
    normal,
    options,
    part,
    random_parts,
    resnet,
    rnn_lm,
    rnn_seq2seq,
    scores,
    sentences,
    tiny,
    together,
    transformer,
    vit,
)
from make_systems import list_of_systems, rows_of_systems
from torch.nn import functional as F
from torch.testing import assert_close

from ablate.data.pairs import BOS, PAD
from ablate.model.base import Seq2Seq, outputs
from ablate.model.layers.multi_head import recording

ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
COMBINED = [pair for pair in itertools.product(scores(), ONE_D) if together(*pair)]
WINDOW, PREFIX = part("model.mask", "window", size=3), part("model.mask", "prefix", size=3)
AND_ONE = part("model.mask", "prefix", size=PAIRS["source_length"] + 1)


SOURCE, TARGET, TEXT = sentences(7, 5, 3), sentences(6, 2, 4, seed=1), sentences(6, 3, 5, seed=2)


# How a model is made, and a batch of three for it.
FAMILIES = {
    "gpt": (gpt, TEXT),
    "rnn_lm": (rnn_lm, TEXT),
    "bert": (partial(bert, segments=1, next_sentence=False), TEXT),
    "transformer": (transformer, SOURCE, TARGET),
    "gpt_seq2seq": (gpt_seq2seq, SOURCE, TARGET),
    "rnn_seq2seq": (rnn_seq2seq, SOURCE, TARGET),
    "vit": (vit, normal(3, 2, 6, 6)),
    "resnet": (resnet, normal(3, 2, 9, 9)),
    **{
        name: (partial(tiny, name, **changes), *inputs())
        for name, (changes, inputs) in rows_of_systems("FAMILIES").items()
    },
}


def made(family, changes):
    make, *inputs = FAMILIES[family]
    return random_parts(make(**changes)).eval(), inputs


def forward(family, model, inputs):
    keep = inputs[0] != PAD
    keep = None if keep.all() else keep
    if family == "bert":
        return model.encode(inputs[0], keep=keep)
    return outputs(model(inputs[0], keep=keep) if family == "gpt" else model(*inputs))[0]


pytestmark = pytest.mark.usefixtures("no_compiler")


def case(family, *, slow=False, **changes):
    named = ", ".join(f"{k}={getattr(v, 'keywords', v)}" for k, v in changes.items())
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(family, changes, id=f"{family} {named}", marks=marks)


def of_systems(table):
    return [case(family, **changes) for family, changes in list_of_systems(table)]


def crossed():
    """Every score with every encoding that it can be combined with; by default each once."""
    for (score, pos_enc), mask in itertools.product(COMBINED, ("causal", WINDOW)):
        once = mask == "causal" and (score == "scaled_dot" or pos_enc == "alibi")
        chosen = {"attention": score, "pos_enc": pos_enc, "mask": mask, "kernel": "auto"}
        yield case("gpt", slow=not once, **chosen)
        both = once and score == "scaled_dot" and pos_enc in ("learned", "rotary", "t5")
        yield case("transformer", slow=not both, **chosen)


DECODERS = [
    {"decoder": "luong"},
    {"decoder": "luong", "input_feeding": True},
    {"decoder": "bahdanau"},
]
MIXERS = ("convolution", "fixed")
RECURRENT = ("retention", "gla", "delta", "gated_delta", "mamba2")
HYBRID = [{"mixer": part("model.mixer", name)} for name in ("gated_delta", "attention")]
NEAR = part("model.mixer", "attention", short_conv=3, key_shift=True)
GROUPED = {"mixer": NEAR, "kv_heads": 1, "qk_norm": "rms", "sink": "learned"}
# One score of each kind: a product, a sum with prepared keys, places, and none.
KINDS = ("scaled_dot", "additive", "location", "uniform")
NGPT = {
    "connection": "sphere", "attention": "cosine_weighted", "ffn": "swiglu_scaled", "norm": "none",
    "pos_enc": "rotary", "kv_heads": 1, "unit_weights": True, "logit_scale": True,
}  # fmt: skip
# Models that write one token after another, from what they have read.
LANGUAGE = [
    *(case("rnn_lm", cell=cell, depth=2, residual=True) for cell in options("model.cell")),
    case("rnn_lm", embedding_dim=5, tie_embeddings=False),
    case("gpt", mask=WINDOW, pos_enc="t5", kernel="chunked"),
    case("gpt", share_layers=True, depth=3, norm_type="batch"),
    *(case("gpt", mixer=name, pos_enc="rotary") for name in (*RECURRENT, "latent")),
    *(case("gpt", pos_enc=name, **GROUPED) for name in ("rotary", "alibi")),
    case("gpt", layers=HYBRID, pos_enc="rotary"),
    case("gpt", smear=True, pos_enc="rotary"),
    case("gpt", bigram=2, pos_enc="rotary"),
    case("gpt", **NGPT),
    case("gpt", mixer=part("model.mixer", "attention", value_embedding=True), pos_enc="rotary"),
    *(case("gpt", normalizer=name) for name in ("hard", "sigmoid")),
]
WRITERS = [
    *(case("transformer", cross_attention=score, kernel="auto") for score in KINDS),
    *(case(family, mixer=name) for family in ("gpt", "transformer") for name in MIXERS),
    *(case("gpt_seq2seq", mixer=name) for name in ("gla", "gated_delta")),
    *(case("gpt_seq2seq", mixer=name, mask="causal") for name in ("convolution", "differential")),
    case("gpt_seq2seq", mask="causal", **GROUPED),
    case("gpt_seq2seq", connection="hyper", parallel=True, sink="learned", mask="causal"),
    case("gpt_seq2seq", connection="x0", mask="causal"),
    case("transformer", mask=WINDOW, norm="post", share_layers=True, decoder={"depth": 3}),
    *(case("gpt_seq2seq", pos_enc=name) for name in ("rotary", "relative", "sinusoidal")),
    *(case("gpt_seq2seq", pos_enc="learned", mask=mask) for mask in ("causal", WINDOW)),
    *(case("rnn_seq2seq", attention=score) for score in KINDS),
    *(case("rnn_seq2seq", attention="none", **decoder) for decoder in DECODERS),
    *(
        case("rnn_seq2seq", window=window, cell=cell, **DECODERS[n])
        for n, window, cell in (
            (0, "local_m", "rnn"),
            (1, "local_p", "gru"),
            (2, "none", "lstm"),
            (1, "local_m", "lstm"),
            (2, "local_p", "gru"),
        )
    ),
    case("rnn_seq2seq", depth=3, residual=True, bidirectional=False, embedding_dim=5),
    *of_systems("WRITERS"),
]
FORECASTERS = of_systems("FORECASTERS")
# Of all tokens together a part learns nothing: the first block's shares mix nothing, and an expert
# may be without a token.
MIXED = [
    case("gpt_seq2seq", mask="causal", mixer=part("model.mixer", "attention", value_residual=True)),
    case("gpt", ffn="moe"),
]
LOOK_BACK = [*crossed(), *LANGUAGE, *WRITERS, *MIXED]
CAUSAL_ENCODERS = [
    case("bert", mask="causal", kernel="auto", **changes)
    for changes in ({"pos_enc": "t5"}, {"mixer": "convolution"}, {"mixer": "fixed"})
]
# Models that are not asked for the past alone.
LOOK_AROUND = [
    *(
        case(family, mask=mask, kernel=kernel, pos_enc="learned")
        for family, mask, kernel in (
            ("gpt", "none", "sdpa"),
            ("gpt", PREFIX, "chunked"),
            ("bert", "none", "chunked"),
            ("bert", WINDOW, "sdpa"),
            ("transformer", PREFIX, "sdpa"),
            ("gpt_seq2seq", "none", "chunked"),
        )
    ),
    *of_systems("LOOK_AROUND"),
    case("vit", norm_type="batch", pos_enc="relative"),
    case("vit", attention="cosine", pos_enc="relative_2d", pool="mean"),
    *(case("resnet", norm_type=name) for name in ("batch", "layer")),
]


EVERY = [*LANGUAGE, *WRITERS, *FORECASTERS, *CAUSAL_ENCODERS, *LOOK_AROUND]


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "changes"), [*LOOK_BACK, *FORECASTERS, *CAUSAL_ENCODERS], ids=str
)
def test_the_future_is_not_seen_and_the_past_is(family, changes):
    model, (*read, last) = made(family, changes)
    last = normal(*last.shape) if last.is_floating_point() else sentences(*[6] * 3, seed=3)
    before = forward(family, model, [*read, last])
    changed = []  # at each place, all in one batch
    for place in range(last.shape[1]):
        other, chosen = last.clone(), last[:, place]
        next_word = BOS + 1 + (chosen - BOS) % (VOCAB - BOS - 1)
        other[:, place] = chosen + 1 if last.is_floating_point() else next_word
        changed.append(other)
    several = [torch.cat(each) for each in zip(*([*read, other] for other in changed), strict=True)]
    for place, after in enumerate(forward(family, model, several).split(3)):
        found = (after - before).abs().amax((0, 2))
        assert (found[:place] < 1e-12).all()
        assert found[place] > 1e-9
        if changes.get("mask") not in (WINDOW, "window") and "mixer" not in changes:
            assert (found[place:] > 0).all()


@torch.no_grad()
@pytest.mark.parametrize(("family", "changes"), LOOK_BACK)
def test_one_after_another_is_as_all_at_once(family, changes):
    model, inputs = made(family, changes)
    at_once = outputs(model(*inputs))[0]
    if isinstance(model, Seq2Seq):
        source, target = inputs
        state = model.encode(source)
        found = torch.stack([model.step(token, state) for token in target.unbind(1)], dim=1)
        assert_close(found[target != PAD], at_once[target != PAD])
        return
    for pieces in ([1, 1, 2, 1, 1], [4, 1, 1]):
        cache = model.new_cache()
        split = inputs[0].split(pieces, dim=1)
        found = torch.cat([model(piece, cache=cache) for piece in split], dim=1)
        assert_close(found, at_once)
        assert cache.length() == 6


@torch.no_grad()
@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_padding_and_the_rest_of_the_batch_change_nothing(family, changes):
    model, inputs = made(family, changes)
    wider = [x if x.is_floating_point() else F.pad(x, (0, 1), value=PAD) for x in inputs]
    batches = [forward(family, model, given) for given in (inputs, wider)]
    for row in range(3):
        mine = (x[row : row + 1] for x in inputs)
        shorter = [x if x.is_floating_point() else x[:, : int((x != PAD).sum())] for x in mine]
        alone = forward(family, model, shorter)
        for found in batches:
            assert_close(found[row : row + 1, : alone.shape[1]], alone)
    if hasattr(model, "source_embedding"):
        model.source_embedding.weight[PAD] = model.source_embedding.weight[BOS]
        assert_close(forward(family, model, inputs), batches[0])


@pytest.mark.parametrize(("family", "changes"), EVERY)
def test_every_parameter_learns(family, changes):
    model, inputs = made(family, changes)
    forward(family, model.train(), inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        if family == "bert" and name.startswith(("head.", "pooler.", "next_sentence.")):
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith("key.bias"):  # the softmax cancels it
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "resnet"])
def test_evaluation_drops_nothing(family):
    (model, inputs), (plain, _) = made(family, {"dropout": 0.5}), made(family, {"dropout": 0.0})
    found = forward(family, model, inputs)
    assert torch.equal(found, forward(family, plain, inputs))
    model.train()
    first, second = (forward(family, model, inputs) for _ in range(2))
    assert not torch.allclose(first, second)


def memory(state):
    """What is read of the sources; a GPT has it in its cache."""
    return state.memory.states if hasattr(state, "memory") else None


FOLLOWED = [
    *(case("transformer", pos_enc="sinusoidal", mask=mask) for mask in ("causal", "none", PREFIX)),
    *(case("gpt_seq2seq", pos_enc="rotary", mask=mask) for mask in ("source", "none", AND_ONE)),
    *(case("rnn_seq2seq", window="local_p", cell="lstm", **decoder) for decoder in DECODERS),
    case("rnn_seq2seq", attention="none"),
    *of_systems("FOLLOWED"),
]


@torch.no_grad()
@pytest.mark.parametrize(("family", "changes"), FOLLOWED)
def test_chosen_rows_go_on_as_if_written_from_the_start(family, changes):
    """A beam search chooses rows of one source, and leaves sources that are finished."""
    model, (source, _) = made(family, changes)
    state, tokens = model.encode(source), torch.full((3, 0), BOS)
    for rows in ([0, 0, 1, 2], [1, 0, 3, 3, 2], [1, 0, 2, 3, 4], [4, 4, 0, 1, 2], [4, 0], [0]):
        index, before = torch.tensor(rows), memory(state)
        state.select(index)
        if before is not None:  # rows that change places within a source need no copy of it
            assert (memory(state) is before) == (rows == [1, 0, 2, 3, 4])
        new = torch.arange(len(rows)) + 3  # rows of one source go apart
        source, tokens = source[index], torch.cat([tokens[index], new[:, None]], dim=1)
        assert_close(model.step(new, state), model(source, tokens)[:, -1])


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        case("transformer", pos_enc="sinusoidal"),
        *(case("rnn_seq2seq", **decoder) for decoder in DECODERS),
        *of_systems("FOLLOWED"),
    ],
)
def test_weights_of_what_is_read_are_recorded(family, changes):
    model, (source, target) = made(family, changes)

    def step_by_step(source, target):
        state = model.encode(source)
        for token in target.unbind(1):
            model.step(token, state)

    found = []
    for run in (model, step_by_step):
        with recording(model):
            run(source, target)
            found.append([torch.cat(layer.recorded, dim=2) for layer in model.cross])
    at_once, steps = found
    assert len(at_once) == (2 if family == "transformer" else 1)
    for one, other in zip(at_once, steps, strict=True):
        assert one.shape[:3] == (3, 3 if family == "transformer" else 1, target.shape[1])
        real = (target != PAD)[:, None, :, None]
        assert_close(one * real, other * real)
        assert_close(one.sum(-1), torch.ones(one.shape[:-1]).double())
        if not source.is_floating_point():
            assert (one[(source == PAD)[:, None, None].expand_as(one)] == 0).all()
