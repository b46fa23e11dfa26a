"""RNN encoder-decoder: steps against teacher forcing, naive references, padding, and refusals."""

import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from make_model import SIZES, options, random_parts, rnn_seq2seq, scores, tokens
from torch import Tensor, nn

from ablate.data.pairs import PAD
from ablate.decode.search import beam_search
from ablate.errors import UserError
from ablate.kernel import chunked
from ablate.model.attention.additive import Additive
from ablate.model.decoder.bahdanau import Bahdanau
from ablate.model.decoder.luong import Luong
from ablate.model.layers.multi_head import recording
from ablate.model.layers.stack import kernels
from ablate.model.rnn_seq2seq import RNNSeq2Seq
from ablate.model.window.local_m import LocalM
from ablate.training.flops import flops_per_step

D = 12
I, J = (SIZES["rnn_seq2seq"][f"{side}_length"] for side in ("target", "source"))  # noqa: E741
LENGTHS = [J, 1, 5]
DECODERS: dict[str, dict[str, Any]] = {
    "luong": {"decoder": "luong"},
    "luong, fed": {"decoder": "luong", "input_feeding": True},
    "bahdanau": {"decoder": "bahdanau"},
}
CELLS = options("model.cell")
CONTEXTS = [("none", "none"), *itertools.product(scores(), options("model.window"))]


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_kernel.py does that."""
    monkeypatch.setattr(chunked, "compiler", lambda device: False)


def made(decoder: str = "luong", **changes: Any) -> RNNSeq2Seq:
    model = rnn_seq2seq(**(DECODERS[decoder] | changes))
    random_parts(model)
    return model.eval()


def source() -> Tensor:
    real = torch.arange(J) < torch.tensor(LENGTHS)[:, None]
    return torch.where(real, tokens(3, J).clamp(min=1), PAD)


def target() -> Tensor:
    return tokens(3, I, seed=4)


def stepped(model: RNNSeq2Seq, read: Tensor, write: Tensor) -> Tensor:
    state = model.encode(read)
    return torch.stack([model.step(token, state) for token in write.unbind(1)], dim=1)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("attention", "window"), CONTEXTS)
def test_steps_are_teacher_forcing_and_all_learns(
    attention: str, window: str, decoder: str, cell: str
) -> None:
    model = made(decoder, attention=attention, window=window, cell=cell)
    at_once = model(source(), target())
    assert at_once.shape == (3, I, 11)
    torch.testing.assert_close(stepped(model, source(), target()), at_once)
    at_once.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("changes", [
    {"bidirectional": False},
    {"depth": 3},
    {"depth": 3, "residual": True},
    {"depth": 2, "residual": True, "bidirectional": False, "cell": "lstm"},
    {"embedding_dim": 5},
    {"dropout": 0.3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("attention", ["none", "additive"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_steps_are_teacher_forcing_in_every_form(
    decoder: str, attention: str, changes: dict[str, Any]
) -> None:
    model = made(decoder, attention=attention, **changes)
    at_once = model(source(), target())
    torch.testing.assert_close(stepped(model, source(), target()), at_once)
    at_once.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(("attention", "window"), CONTEXTS)
def test_padding_and_the_other_sentences_change_nothing(
    attention: str, window: str, decoder: str
) -> None:
    model = made(decoder, attention=attention, window=window)
    together = model(source(), target())
    for b, length in enumerate(LENGTHS):
        alone = model(source()[b : b + 1, :length], target()[b : b + 1])
        torch.testing.assert_close(alone, together[b : b + 1])
    # Nor does what stands after a target, nor its own length.
    shorter = model(source(), target()[:, : I - 2])
    torch.testing.assert_close(shorter, together[:, : I - 2])


@pytest.mark.parametrize("decoder", DECODERS)
def test_the_future_is_not_seen(decoder: str) -> None:
    model, write = made(decoder), target()
    before = model(source(), write)
    write[:, 3] = (write[:, 3] + 1) % 11
    changed = (model(source(), write) != before).any(-1).any(0)
    assert changed.tolist() == [False] * 3 + [True] * (I - 3)


# The decoders, naively: one sentence, one step at a time, from the papers' formulas


def cell_of(model: RNNSeq2Seq) -> nn.GRUCell:
    """The decoder's only layer as a cell of torch's."""
    layer = model.decoder.recurrent.layers[0]
    cell = nn.GRUCell(layer.input_size, layer.hidden_size).double()
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data = getattr(layer, f"{name}_l0").data
    return cell


def encoded(model: RNNSeq2Seq, sentence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Encoder states j d, and the last of the forward and of the backward reading."""
    layer = model.encoder.layers[0]
    embedded = model.source_embedding(sentence)
    states = layer(embedded[None])[0][0]
    half = layer.hidden_size
    return states, states[-1, :half], states[0, half:]


def average(model: RNNSeq2Seq, s: Tensor, states: Tensor, step: int) -> Tensor:
    """Additive attention of one decoder state; of local-m, around the place of its step."""
    p = {name: x[0] for name, x in model.decoder.context.score.named_parameters()}
    if isinstance(window := model.decoder.context.window, LocalM):
        states = states[max(step - window.size, 0) : step + window.size + 1]
        if not len(states):
            return torch.zeros_like(s)
    energies = torch.stack([p["v"] @ torch.tanh(s @ p["w"] + h @ p["u"]) for h in states])
    return energies.softmax(0) @ states


def naive_luong(model: RNNSeq2Seq, read: Tensor, write: Tensor) -> Tensor:
    decoder, cell = model.decoder, cell_of(model)
    assert isinstance(decoder, Luong)
    states, forward, backward = encoded(model, read)
    assert decoder.first is not None
    s = torch.tanh(decoder.first.layers[0][0].weight @ torch.cat([forward, backward]))
    fed, logits = torch.zeros(D, dtype=torch.float64), []
    for step, token in enumerate(write):
        x = model.target_embedding(token)
        s = cell(torch.cat([x, fed]) if decoder.input_feeding else x, s)
        context = average(model, s, states, step)
        fed = torch.tanh(decoder.combine.weight @ torch.cat([context, s]))
        logits.append(model.head.weight @ fed)  # type: ignore[union-attr]
    return torch.stack(logits)


def naive_bahdanau(model: RNNSeq2Seq, read: Tensor, write: Tensor) -> Tensor:
    decoder, cell = model.decoder, cell_of(model)
    assert isinstance(decoder, Bahdanau)
    states, _, backward = encoded(model, read)
    s = torch.tanh(decoder.first.layers[0][0].weight @ backward)
    u_o, v_o, c_o = decoder.maxout.weight.split([D, D, D], dim=1)
    logits = []
    for step, token in enumerate(write):
        x, context = model.target_embedding(token), average(model, s, states, step)
        t = u_o @ s + v_o @ x + c_o @ context
        largest = torch.stack([max(t[2 * n], t[2 * n + 1]) for n in range(D // 2)])
        logits.append(model.head.weight @ largest)  # type: ignore[union-attr]
        s = cell(torch.cat([x, context]), s)
    return torch.stack(logits)


@pytest.mark.parametrize("window", ["none", "local_m"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_are_the_papers(decoder: str, window: str) -> None:
    model = made(decoder, window=window)
    naive = naive_bahdanau if decoder == "bahdanau" else naive_luong
    together = model(source(), target())
    for b, length in enumerate(LENGTHS):
        expected = naive(model, source()[b, :length], target()[b])
        torch.testing.assert_close(together[b], expected)


@pytest.mark.parametrize("cell", CELLS)
def test_luongs_decoder_starts_from_the_state_of_an_encoder_of_one_direction(cell: str) -> None:
    model = made(bidirectional=False, depth=2, cell=cell)
    state = model.encode(source())
    for b, length in enumerate(LENGTHS):
        embedded = model.source_embedding(source()[b : b + 1, :length])
        _, last = model.encoder(embedded)
        for mine, theirs in zip(state.hidden, last, strict=True):
            for part, whole in zip(mine, theirs, strict=True):
                torch.testing.assert_close(part[:, b], whole[:, 0])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_without_attention_the_context_is_what_the_encoder_said_last(bidirectional: bool) -> None:
    model = made(attention="none", bidirectional=bidirectional)
    memory = model.encode(source()).memory
    for b, length in enumerate(LENGTHS):
        states = memory.states[b]
        expected = states[length - 1]
        if bidirectional:
            expected = torch.cat([states[length - 1, : D // 2], states[0, D // 2 :]])
        torch.testing.assert_close(memory.last[b], expected)
    assert model.cross == []
    assert kernels(model) == {}


# Decoding


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1], [0, 0, 1, 1, 2, 2]], ids=str)
@pytest.mark.parametrize(("attention", "window"), [("additive", "local_p"), ("none", "none")])
def test_a_state_follows_its_rows(
    attention: str, window: str, rows: list[int], decoder: str, cell: str
) -> None:
    """Whatever is chosen goes on as if it had stood there from the beginning."""
    model = made(decoder, cell=cell, attention=attention, window=window)
    chosen = torch.tensor(rows)
    state = model.encode(source())
    for token in target()[:, :3].unbind(1):
        model.step(token, state)
    state.select(chosen)
    last = target()[chosen, 3]
    expected = model(source()[chosen], target()[chosen, :4])[:, 3]
    torch.testing.assert_close(model.step(last, state), expected)
    # Within a source, as a beam search does, then across.
    state.select(torch.arange(len(rows)).flip(0))
    expected = model(source()[chosen], target()[chosen, :5])[:, 4].flip(0)
    torch.testing.assert_close(model.step(target()[chosen, 4].flip(0), state), expected)


def test_rows_that_change_places_within_a_source_leave_the_memory_alone() -> None:
    model = made()
    state = model.encode(source())
    state.select(torch.tensor([0, 0, 1, 1, 2, 2]))
    memory = state.memory
    state.select(torch.tensor([1, 0, 3, 3, 4, 5]))
    assert state.memory is memory
    state.select(torch.tensor([2, 0, 3, 3, 4, 5]))
    assert state.memory is not memory


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_source_is_read_once_and_all_steps_attend_in_one_call_unless_fed_back(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = made(decoder), Counter[str]()
    keys = Additive.keys
    monkeypatch.setattr(Additive, "keys", lambda *a: calls.update(["keys"]) or keys(*a))
    for name in ("encoder", "decoder.context"):
        part = model.get_submodule(name)
        part.register_forward_hook(lambda *_, name=name: calls.update([name]))
    model(source(), target())
    once = 1 if decoder == "luong" else I
    assert calls == {"encoder": 1, "keys": 1, "decoder.context": once}
    for write in (
        lambda: stepped(model, source(), target()),
        lambda: beam_search(model, source(), size=3, max_length=I),
    ):
        calls.clear()
        write()
        assert (calls["encoder"], calls["keys"]) == (1, 1)
        assert calls["decoder.context"] <= I


@pytest.mark.parametrize("decoder", DECODERS)
def test_recorded_weights_are_one_list_a_layer(decoder: str) -> None:
    model = made(decoder)
    assert [type(layer).__name__ for layer in model.cross] == ["RNNAttention"]
    with recording(model) as at_once:
        model(source(), target())
    with recording(model) as one_by_one:
        stepped(model, source(), target())
    assert len(at_once) == len(one_by_one) == 1
    assert [w.shape for w in one_by_one[0]] == [(3, 1, 1, J)] * I
    weights = torch.cat(at_once[0], dim=2)
    torch.testing.assert_close(torch.cat(one_by_one[0], dim=2), weights)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, I, dtype=torch.float64))


def test_kernels_are_recorded() -> None:
    assert kernels(made(attention="dot", kernel="auto")) == {"decoder.context": "sdpa"}
    assert kernels(made(kernel="auto")) == {"decoder.context": "chunked"}


# What is counted, drawn and refused


@pytest.mark.parametrize("fed", [False, True])
def test_flops_are_those_of_the_products(fed: bool) -> None:
    """A unidirectional rnn, its dot product and its maps, counted by hand."""
    e, v, b = 5, 11, 3

    def make() -> RNNSeq2Seq:
        return rnn_seq2seq(
            attention="dot", cell="rnn", bidirectional=False, embedding_dim=e, input_feeding=fed
        )

    encoder = 3 * J * D * e + 3 * J * D * D - D * D  # no gradient for the state of zeros
    decoder = 3 * I * D * (e + D * fed) + 3 * I * D * D
    attention = 3 * 2 * I * J * D
    maps = 3 * I * 2 * D * D + 3 * I * v * D
    products = b * (encoder + decoder + attention + maps)
    inputs = torch.ones(b, J, dtype=torch.long), torch.ones(b, I, dtype=torch.long)
    assert flops_per_step(make, *inputs) == 2 * products


def test_arms_share_their_initial_values() -> None:
    def initial(**changes: Any) -> dict[str, Tensor]:
        model = rnn_seq2seq(**changes)
        model.initialise(0)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    base = initial()
    for change in (
        *({"attention": name} for name in options("model.attention")),
        {"window": "local_p"},
        {"depth": 3},
        {"decoder": "bahdanau"},
        {"cell": "lstm"},
        {"dropout": 0.5},
    ):
        arm = initial(**change)
        shared = [name for name in base.keys() & arm.keys() if base[name].shape == arm[name].shape]
        if change.get("attention") == "gatv2":  # an additive score with initial values of its own
            shared = [name for name in shared if ".score." not in name]
        assert len(shared) >= 3
        for name in shared:
            assert torch.equal(base[name], arm[name]), (change, name)


def test_a_tied_output_map_is_the_table_of_the_target() -> None:
    for decoder, width in (("luong", D), ("bahdanau", D // 2)):
        model = made(decoder, tie_embeddings=True, embedding_dim=width)
        assert model.head is None
        logits = model(source(), target())
        logits.sum().backward()
        untied = made(decoder, embedding_dim=width)
        untied.load_state_dict(
            model.state_dict() | {"head.weight": model.target_embedding.weight.detach()}
        )
        torch.testing.assert_close(untied(source(), target()), logits)
        with pytest.raises(UserError, match=f"set model.embedding_dim={width}$"):
            made(decoder, tie_embeddings=True, embedding_dim=width + 1)


def test_an_odd_width_is_refused_where_it_is_halved() -> None:
    with pytest.raises(UserError, match=r"gives each direction half of model.dim=7"):
        made(dim=7)
    with pytest.raises(UserError, match=r"model.decoder=bahdanau reads out .* model.dim=7"):
        made("bahdanau", dim=7, bidirectional=False)
    made(dim=7, bidirectional=False)


def test_dropout_is_active_in_training_alone() -> None:
    model = made(dropout=0.5)
    plain = made()(source(), target())
    assert torch.equal(model(source(), target()), plain)
    model.train()
    assert not torch.allclose(model(source(), target()), model(source(), target()))


@pytest.mark.parametrize("decoder", DECODERS)
def test_dropout_acts_on_both_embeddings_and_before_the_output_map(decoder: str) -> None:
    model, seen = made(decoder, dropout=0.5).train(), []
    for dropout in (model.dropout, model.read_out.dropout):
        dropout.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    logits = model(source(), target())
    (read, _), (write, _), (_, out) = seen
    assert torch.equal(read, model.source_embedding(source()))
    assert torch.equal(write, model.target_embedding(target()))
    assert model.head is not None
    assert torch.equal(logits, model.head(out))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("cell", CELLS)
def test_it_trains_in_bfloat16(cell: str, decoder: str) -> None:
    """As trainer.precision=bf16-mixed does."""
    model = rnn_seq2seq(**DECODERS[decoder], cell=cell, kernel="auto")
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(source(), target())
    logits.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
