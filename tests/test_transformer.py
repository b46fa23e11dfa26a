"""The Transformer: torch's with copied weights; nothing leaks; decoding equals teacher forcing."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import SIZES, options, part, random_parts, together, transformer
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.config.composition import compose
from ablate.data.pairs import BOS, PAD
from ablate.errors import UserError
from ablate.model.layers.multi_head import recording
from ablate.model.layers.stack import kernels
from ablate.model.transformer import Transformer
from ablate.training.flops import flops_per_step

IN, OUT = SIZES["transformer"]["source_length"], SIZES["transformer"]["target_length"]
SOURCE_VOCAB, VOCAB = SIZES["transformer"]["source_vocab"], SIZES["transformer"]["target_vocab"]
SCORES = [name for name in options("model.attention") if part("model.attention", name).func.weighs]
ONE_D = [name for name in options("pos_enc") if not name.endswith("_2d")]
COMBINED = [pair for pair in itertools.product(SCORES, ONE_D) if together(*pair)]
# What says a distance, and so nothing between two sequences; and what stands in the states.
DISTANCES, STATES = (
    ["rotary", "alibi", "relative", "t5"],
    ["sinusoidal", "learned", "learned_from_sinusoidal"],
)
SIZE = {"dim": 12, "heads": 3}
LOOK_BACK = {"causal": "causal", "window": part("model.mask", "window", size=3)}


def random_transformer(**changes: Any) -> Transformer:
    model = transformer(**changes)
    random_parts(model)
    return model.eval()


def sentences(lengths: list[int], vocab: int, *, first: int | None = None, seed: int = 0) -> Tensor:
    """Sentences of these lengths as tokens, padded; `first` stands first in each."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, vocab, (len(lengths), max(lengths)), generator=rng)
    if first is not None:
        tokens[:, 0] = first
    return tokens.where(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None], PAD)


def batch(
    source: list[int] | None = None, target: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    return (
        sentences(source or [IN, 5, 3], SOURCE_VOCAB),
        sentences(target or [OUT, 2, 5], VOCAB, first=BOS, seed=1),
    )


def written(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    """The logits when the target arrives token by token."""
    state = model.encode(source)
    return torch.stack([model.step(tokens, state) for tokens in target_in.unbind(1)], dim=1)


# torch's Transformer


def copy(ours: Any, theirs: Any) -> None:
    """Weights of attention, or of linear maps and norms."""
    if isinstance(theirs, nn.MultiheadAttention):
        joined = [ours.query, ours.key, ours.value]
        with torch.no_grad():
            theirs.in_proj_weight.copy_(torch.cat([each.weight for each in joined]))
            theirs.in_proj_bias.copy_(torch.cat([each.bias for each in joined]))
        copy(ours.out, theirs.out_proj)
    else:
        theirs.load_state_dict(ours.state_dict())


def torchs(mine: Transformer, *, first: bool) -> nn.Transformer:
    dim, hidden = SIZE["dim"], 4 * SIZE["dim"]
    theirs = nn.Transformer(
        dim, SIZE["heads"], 2, 2, hidden, 0.0, batch_first=True, norm_first=first
    ).double()
    if first:
        copy(mine.encoder.final_norm, theirs.encoder.norm)
        copy(mine.decoder.final_norm, theirs.decoder.norm)
    else:  # torch adds a norm after the last, which the paper does not have
        theirs.encoder.norm = theirs.decoder.norm = None  # type: ignore[assignment]
    norm = "norm_before" if first else "norm_after"
    for stack, layers in ((mine.encoder, theirs.encoder), (mine.decoder, theirs.decoder)):
        for block, layer in zip(stack.blocks, layers.layers, strict=True):
            copy(block.attention.function, layer.self_attn)
            copy(block.feed_forward.function.up, layer.linear1)
            copy(block.feed_forward.function.down, layer.linear2)
            sublayers = [block.attention, block.feed_forward]
            if "cross_attention" in block:
                copy(block.cross_attention.function, layer.multihead_attn)
                sublayers.insert(1, block.cross_attention)
            for number, sublayer in enumerate(sublayers, 1):
                copy(getattr(sublayer, norm), getattr(layer, f"norm{number}"))
    return theirs.eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
@pytest.mark.parametrize("first", [True, False])
def test_it_equals_torchs(first: bool, kernel: str) -> None:
    mine = random_transformer(norm="pre" if first else "post", kernel=kernel, **SIZE)
    theirs, (source, target_in) = torchs(mine, first=first), batch()
    x = mine.source_embedding(source).detach().requires_grad_()
    y = mine.target_embedding(target_in).detach().requires_grad_()
    scale = SIZE["dim"] ** 0.5  # section 3.4 of the paper
    out = theirs(
        scale * x,
        scale * y,
        tgt_mask=torch.ones(OUT, OUT, dtype=torch.bool).triu(1),
        src_key_padding_mask=source == PAD,
        tgt_key_padding_mask=target_in == PAD,
        memory_key_padding_mask=source == PAD,
    )
    real = target_in != PAD
    expected = (out @ mine.target_embedding.weight.detach().T)[real]
    logits = mine(source, target_in)[real]
    torch.testing.assert_close(logits, expected)

    logits.square().sum().backward()
    expected.square().sum().backward()
    blocks = zip(mine.decoder.blocks, theirs.decoder.layers, strict=True)
    for block, layer in blocks:
        crossing = block.cross_attention.function
        pieces = [crossing.query, crossing.key, crossing.value]
        torch.testing.assert_close(
            torch.cat([piece.weight.grad for piece in pieces]),
            layer.multihead_attn.in_proj_weight.grad,
        )
        torch.testing.assert_close(
            block.feed_forward.function.up.weight.grad, layer.linear1.weight.grad
        )
    first_ours, first_theirs = mine.encoder.blocks[0], theirs.encoder.layers[0]
    torch.testing.assert_close(
        first_ours.attention.function.out.weight.grad, first_theirs.self_attn.out_proj.weight.grad
    )
    table = torch.zeros(SOURCE_VOCAB, SIZE["dim"], dtype=torch.float64)
    table.index_add_(0, source.flatten(), x.grad.flatten(0, 1))
    torch.testing.assert_close(mine.source_embedding.weight.grad, table)


# What sees what


@pytest.mark.parametrize("mask", LOOK_BACK)
@pytest.mark.parametrize(("score", "pos_enc"), COMBINED)
def test_the_future_does_not_leak(score: str, pos_enc: str, mask: str) -> None:
    model = random_transformer(
        attention=score, pos_enc=pos_enc, mask=LOOK_BACK[mask], kernel="auto"
    )
    source, target_in = batch([IN, 5], [OUT, OUT])
    before = model(source, target_in)
    for changed in (1, 4):
        other = target_in.clone()
        other[:, changed] = 2 + (other[:, changed] - 1) % (VOCAB - 2)
        difference = (before - model(source, other)).abs().amax((0, 2))
        assert (difference[:changed] == 0).all()
        assert difference[changed] > 1e-6


def test_every_target_position_sees_every_source_token() -> None:
    model = random_transformer(pos_enc="sinusoidal")
    source, target_in = batch([IN], [OUT])
    for changed in range(IN):
        other = source.clone()
        other[:, changed] = 2 + (other[:, changed] - 1) % (SOURCE_VOCAB - 2)
        assert ((model(source, target_in) - model(other, target_in)).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mask", options("model.mask"))
@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
def test_padding_and_company_have_no_effect(kernel: str, mask: str, norm: str) -> None:
    """Each pair alone, without padding, in a batch, and beside more padding."""
    model = random_transformer(kernel=kernel, mask=mask, norm=norm, pos_enc="sinusoidal")
    source, target_in = batch()
    together_ = model(source, target_in)
    wider = model(F.pad(source, (0, 2), value=PAD), F.pad(target_in, (0, 3), value=PAD))
    for row, (j, i) in enumerate([(IN, OUT), (5, 2), (3, 5)]):
        alone = model(source[row : row + 1, :j], target_in[row : row + 1, :i])[0]
        torch.testing.assert_close(together_[row, :i], alone)
        torch.testing.assert_close(wider[row, :i], alone)


@pytest.mark.parametrize("pos_enc", ["none", *DISTANCES, *STATES])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "location"])
def test_cross_attention_knows_no_positions_but_those_in_the_states(
    score: str, pos_enc: str
) -> None:
    """The memory turned around is read the same, whatever says distances."""
    model = random_transformer(cross_attention=score, pos_enc=pos_enc, kernel="auto")
    source, target_in = batch()
    keep = source != PAD
    encoded = model.encoder(model.source_embedding(source), keep=keep)
    order = torch.randperm(IN, generator=torch.Generator().manual_seed(0))

    def decoded(encoded: Tensor, keep: Tensor) -> Tensor:
        memory = model.decoder.remember(encoded, keep)
        return model.decoder(model.target_embedding(target_in), memory=memory)

    turned = decoded(encoded[:, order], keep[:, order])
    assert torch.allclose(turned, decoded(encoded, keep), atol=1e-10) == (score != "location")
    # Nor does the length of the target move what it reads: the encoder counts by itself.
    reversed_source = sentences([IN], SOURCE_VOCAB)
    logits = model(reversed_source, target_in[:1])
    same = torch.allclose(logits, model(reversed_source[:, order], target_in[:1]), atol=1e-10)
    assert same == (pos_enc == "none" and score != "location")


@pytest.mark.parametrize("pos_enc", STATES)
def test_each_side_has_positions_of_its_own_length(pos_enc: str) -> None:
    model = random_transformer(pos_enc=pos_enc)
    assert (model.encoder.pos_enc.length, model.decoder.pos_enc.length) == (IN, OUT)
    assert model.encoder.pos_enc is not model.decoder.pos_enc
    model(*batch([IN], [OUT]))
    if pos_enc == "learned":
        for source, target in ((IN + 1, OUT), (IN, OUT + 1)):
            with pytest.raises(UserError, match="pos_enc=learned was trained for"):
                model(*batch([source], [target]))


# Parameters


def assert_every_parameter_gets_a_gradient(model: nn.Module) -> None:
    model(*batch()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.slow
@pytest.mark.parametrize("cross", SCORES)
@pytest.mark.parametrize(("score", "pos_enc"), COMBINED)
def test_every_parameter_gets_a_gradient(score: str, pos_enc: str, cross: str) -> None:
    assert_every_parameter_gets_a_gradient(
        random_transformer(
            attention=score, pos_enc=pos_enc, cross_attention=cross, kernel="auto",
            encoder={"depth": 1}, decoder={"depth": 1},
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"share_layers": True},
        {"ffn": "none"},
        {"norm": "sandwich", "norm_type": "rms", "bias": False},
        {"norm": "none", "residual": False},
        {"mask": "none"},
        {"tie_embeddings": False},
        {"share_embeddings": True, "joint": True, "source_vocab": VOCAB},
        {"encoder": {"depth": 3}, "decoder": {"depth": 1}},
    ],
)
def test_every_switch_works_on_both_sides(change: dict[str, Any]) -> None:
    changed, plain = random_transformer(**change), random_transformer()
    shapes = [{n: p.shape for n, p in m.named_parameters()} for m in (changed, plain)]
    source, target_in = batch([5, 4])
    logits = [model(source % VOCAB, target_in[:2]) for model in (changed, plain)]
    assert shapes[0] != shapes[1] or not torch.allclose(*logits)
    changed.train()
    changed(source % VOCAB, target_in[:2]).square().sum().backward()
    assert all(parameter.grad is not None for parameter in changed.parameters())


def test_a_cross_attention_of_ones_own_changes_nothing_else() -> None:
    same, own = transformer(), transformer(cross_attention="additive")
    scores = [type(layer.score).__name__ for layer in own.cross]
    assert scores == ["Additive"] * 2
    assert [type(layer.score).__name__ for layer in same.cross] == ["ScaledDot"] * 2
    assert type(own.decoder.blocks[0].attention.function.score).__name__ == "ScaledDot"
    same.initialise(0)
    own.initialise(0)
    mine, theirs = dict(own.named_parameters()), dict(same.named_parameters())
    assert {name.rpartition(".")[2] for name in mine.keys() - theirs.keys()} == {"v"}
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_the_location_score_has_a_place_for_every_source_token() -> None:
    model = random_transformer(attention="location", kernel="auto")
    assert model.encoder.blocks[0].attention.function.score.max_length == IN
    assert model.decoder.blocks[0].attention.function.score.max_length == OUT
    assert model.cross[0].score.max_length == IN


def test_additions_to_the_stream_are_counted() -> None:
    """GPT-2's scaling: two a block in the encoder, three in the decoder."""
    model = transformer(dim=240, heads=2, encoder={"depth": 4}, decoder={"depth": 3})
    model.initialise(0)
    for stack, additions in ((model.encoder, 8), (model.decoder, 9)):
        for block in stack.blocks:
            attention = block.attention.function
            ratio = attention.out.weight.std() / attention.value.weight.std()
            assert ratio.item() == pytest.approx(additions**-0.5, rel=0.02)
    for block in model.decoder.blocks:
        for out in (block.cross_attention.function.out, block.feed_forward.function.down):
            expected = model.decoder.blocks[0].attention.function.out.weight.std().item()
            assert out.weight.std().item() == pytest.approx(expected, rel=0.02)


def test_tables_are_tied_and_shared() -> None:
    names = {}
    for tie, share in itertools.product([True, False], repeat=2):
        model = transformer(
            tie_embeddings=tie, share_embeddings=share, joint=True, source_vocab=VOCAB
        )
        names[tie, share] = {name for name, _ in model.named_parameters()}
    assert names[True, False] - names[True, True] == {"source_embedding.weight"}
    assert names[False, True] - names[True, True] == {"head.weight"}
    assert names[False, False] == names[True, False] | names[False, True]
    with pytest.raises(UserError, match=r"model\.share_embeddings=true needs one vocabulary"):
        transformer(share_embeddings=True)


def test_a_shared_table_embeds_both_sides() -> None:
    shared = random_transformer(share_embeddings=True, joint=True, source_vocab=VOCAB)
    apart = random_transformer(source_vocab=VOCAB)
    weights = shared.state_dict()
    weights["source_embedding.weight"] = weights["target_embedding.weight"]
    apart.load_state_dict(weights)
    source, target_in = batch()
    torch.testing.assert_close(shared(source % VOCAB, target_in), apart(source % VOCAB, target_in))


# Decoding


@pytest.mark.parametrize("mask", LOOK_BACK)
@pytest.mark.parametrize(("score", "pos_enc"), COMBINED)
def test_step_by_step_equals_teacher_forcing(score: str, pos_enc: str, mask: str) -> None:
    model = random_transformer(
        attention=score, pos_enc=pos_enc, mask=LOOK_BACK[mask], kernel="auto"
    )
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    torch.testing.assert_close(
        written(model, source, target_in), model(source, target_in), atol=1e-10, rtol=1e-8
    )


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
@pytest.mark.parametrize("cross", ["scaled_dot", "general", "location", "uniform"])
def test_every_kernel_decodes(kernel: str, cross: str) -> None:
    model = random_transformer(
        cross_attention=cross, kernel=kernel, share_layers=True, decoder={"depth": 3}
    )
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    with torch.no_grad():
        torch.testing.assert_close(written(model, source, target_in), model(source, target_in))


@pytest.mark.parametrize("kernel", ["reference", "chunked"])
def test_a_hidden_layer_of_the_score_is_prepared_once(kernel: str) -> None:
    cross = part("model.attention", "additive", hidden=5)
    model = random_transformer(cross_attention=cross, kernel=kernel)
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    keys, _ = next(iter(model.encode(source).memory.states.values()))
    assert keys.shape == (3, 3, IN, 5)
    torch.testing.assert_close(written(model, source, target_in), model(source, target_in))


@pytest.mark.parametrize("mask", ["none", "prefix"])
def test_masks_that_look_ahead_are_read_anew_at_every_step(mask: str) -> None:
    chosen = part("model.mask", mask, **({"size": 3} if mask == "prefix" else {}))
    model = random_transformer(mask=chosen, pos_enc="t5")
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    expected = [model(source, target_in[:, :i])[:, -1] for i in range(1, OUT + 1)]
    steps = written(model, source, target_in)
    torch.testing.assert_close(steps, torch.stack(expected, dim=1))
    assert not torch.allclose(steps, model(source, target_in))


@pytest.mark.parametrize("mask", ["causal", "none"])
def test_selected_rows_continue_where_they_were(mask: str) -> None:
    """As if each had been written with its source from the start."""
    model = random_transformer(mask=mask, pos_enc="sinusoidal")
    source, tokens = batch()[0], torch.full((3, 0), BOS)
    state = model.encode(source)
    for rows in ([0, 0, 1, 2], [1, 0, 3, 3, 2], [1, 0, 2, 3, 4], [4, 4, 0, 1, 2], [4, 0], [0]):
        index = torch.tensor(rows)
        state.select(index)
        new = torch.arange(len(rows)) + 3  # rows of one source go apart
        source, tokens = source[index], torch.cat([tokens[index], new[:, None]], dim=1)
        logits = model.step(new, state)
        torch.testing.assert_close(logits, model(source, tokens)[:, -1])


def test_keys_and_values_of_the_memory_are_made_once() -> None:
    model = random_transformer(share_layers=True, encoder={"depth": 2}, decoder={"depth": 4})
    calls: list[int] = []
    assert len(model.cross) == 1
    for projection in (model.cross[0].key, model.cross[0].value):
        projection.register_forward_hook(lambda *_: calls.append(1))
    source, target_in = batch([IN, 5, 3], [OUT, OUT, OUT])
    model(source, target_in)
    assert len(calls) == 2
    written(model, source, target_in)
    assert len(calls) == 4


def test_a_step_computes_its_own_token_alone() -> None:
    model, seen = random_transformer(pos_enc="rotary"), []
    for layer in (model.decoder.blocks[0].attention.function.value, model.cross[-1].query):
        layer.register_forward_hook(lambda _, args, out: seen.append(out.shape[1]))
    written(model, *batch([IN, 5], [OUT, OUT]))
    assert seen == [1] * (2 * OUT)


def test_rows_that_change_places_within_a_source_leave_the_memory_alone() -> None:
    state = random_transformer().encode(batch()[0])
    state.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    before = state.memory.states
    state.select(torch.tensor([1, 0, 3, 3, 4, 5]))
    assert state.memory.states is before
    state.select(torch.tensor([2, 0, 3, 3, 4, 5]))
    assert state.memory.states is not before


def test_decoding_beyond_the_training_length() -> None:
    """Sines go on; a table is at its end and says so."""
    source, target_in = batch([IN], [OUT + 2])
    model = random_transformer(pos_enc="sinusoidal")
    torch.testing.assert_close(written(model, source, target_in), model(source, target_in))
    with pytest.raises(UserError, match=f"trained for {OUT} positions"):
        written(random_transformer(pos_enc="learned"), source, target_in)


# Weights, kernels, cost


def test_weights_of_cross_attention_are_recorded() -> None:
    model, (source, target_in) = random_transformer(pos_enc="sinusoidal"), batch()
    with recording(model) as layers:
        model(source, target_in)
        whole = [layer.recorded[0] for layer in model.cross]
    assert len(layers) == 6  # two in the encoder, two and two in the decoder
    assert [each[0].shape for each in layers] == [(3, 3, IN, IN)] * 2 + [
        (3, 3, OUT, OUT), (3, 3, OUT, IN),
    ] * 2  # fmt: skip
    with recording(model):
        written(model, source, target_in)
        for layer, expected in zip(model.cross, whole, strict=True):
            steps = torch.cat(layer.recorded, dim=2)
            real = (target_in != PAD)[:, None, :, None]
            torch.testing.assert_close(steps * real, expected * real)
    padding = (source == PAD)[:, None, None].expand_as(whole[0])
    assert (whole[0][padding] == 0).all()
    torch.testing.assert_close(whole[0].sum(-1), torch.ones(3, 3, OUT, dtype=torch.float64))


def test_kernels_are_named_layer_by_layer() -> None:
    model = transformer(cross_attention="additive", kernel="auto", decoder={"depth": 1})
    assert kernels(model) == {
        "encoder.blocks.0.attention.function": "sdpa",
        "encoder.blocks.1.attention.function": "sdpa",
        "decoder.blocks.0.attention.function": "sdpa",
        "decoder.blocks.0.cross_attention.function": "chunked",
    }


def test_the_cost_is_that_of_its_matrix_products() -> None:
    def cost(b: int, i: int, j: int, **changes: Any) -> int:
        shapes = ((b, j), (b, i))
        inputs = [torch.ones(shape, dtype=torch.long) for shape in shapes]
        return flops_per_step(lambda: transformer(kernel="reference", **changes), *inputs)

    d, b, i, j = SIZE["dim"], 2, 4, 5
    encoder = 4 * j * d * d + 2 * j * j * d + 8 * j * d * d
    seen = i * (i + 1) // 2  # pairs that the causal mask allows
    decoder = (4 + 2 + 8) * i * d * d + 2 * j * d * d + 2 * seen * d + 2 * i * j * d
    forward = 2 * b * (2 * encoder + 2 * decoder + i * d * VOCAB)
    assert cost(b, i, j) == 3 * forward  # the backward pass costs twice the forward pass
    assert cost(b, i, j, cross_attention="uniform") < cost(b, i, j)


# The command line


def test_cross_attention_is_chosen_by_its_name() -> None:
    cfg = compose("model=transformer", "model.cross_attention=additive", "model.attention=dot")
    assert cfg.model.cross_attention._target_ == "ablate.model.attention.additive.Additive"
    assert cfg.choices["model.cross_attention"] == "additive"
    cfg = compose("model=transformer")
    assert cfg.choices["model.cross_attention"] == "same"
    assert "cross_attention" not in cfg.model
    assert options("model.cross_attention") == sorted([*SCORES, "same"])


def test_an_experiments_cross_attention_is_taken_back_by_its_name(tmp_path: Path) -> None:
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


def test_an_error_names_the_slot_of_the_score() -> None:
    short = {"attention": part("model.attention", "location", max_length=OUT)}
    with pytest.raises(UserError, match=rf"^model\.attention\.max_length={OUT} .*at least {IN}"):
        transformer(**short)
    own = part("model.attention", "location", max_length=OUT)
    with pytest.raises(UserError, match=rf"^model\.cross_attention\.max_length={OUT} .*{IN}"):
        transformer(cross_attention=own)
    model = transformer(cross_attention="location", pos_enc="none")
    source = torch.full((1, IN + 1), 5)
    with pytest.raises(
        UserError, match=rf"train with model\.cross_attention\.max_length={IN + 1} "
    ):
        model(source, source)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["model.cross_attention=addtive"], "did you mean 'additive'"),
        (["model.cross_attention=none"], r"no such option; allowed: .*same, .*uniform"),
        (
            ["model.cross_attention=additive", "model.cross_attention.hiden=3"],
            r"did you mean 'model\.cross_attention\.hidden'",
        ),
        (["model.cross_attention=additive", "model.cross_attention.hidden=0"], "at least 1"),
        (["model.cross_attention=additive", "kernel=sdpa"], r"model\.cross_attention=additive is"),
        (["model.depth=3"], r"no key model\.depth"),
        (["model.encoder.depth=0"], r"model\.encoder\.depth=0: must be"),
        (["+model.decoder.dept=3"], r"did you mean 'model\.decoder\.depth'"),
        (["model.encoder=3"], r"model\.encoder=3: is no value; set model\.encoder\.depth"),
        (
            ["model.share_layers=true", "model.encoder.depth=1", "model.decoder.depth=1"],
            r"model\.share_layers=true has no effect",
        ),
        (["model.share_embeddings=true", "data=multi30k", "data.joint=false"], r"data\.joint=true"),
        (["model.norm_type=batch"], "padding"),
        (["pos_enc=learned_2d"], "needs images"),
        (["data=pydoc"], "reads pairs"),
    ],
)
def test_what_has_no_meaning_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        compose("model=transformer", *overrides)


def test_other_models_have_no_cross_attention() -> None:
    with pytest.raises(UserError, match=r"model=gpt has no model\.cross_attention"):
        compose("model.cross_attention=additive")
