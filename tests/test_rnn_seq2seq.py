"""RNN encoder-decoder: naive references, how often it reads; test_properties.py has the rest."""

from collections import Counter

import pytest
import torch
from make_model import SIZES, random_parts, rnn_seq2seq, tokens
from torch import Tensor, nn
from torch.testing import assert_close

from ablate.data.pairs import PAD
from ablate.decode.search import beam_search
from ablate.model.attention.additive import Additive
from ablate.model.layers.stack import kernels
from ablate.model.window.local_m import LocalM

D = 12
I, J = (SIZES["rnn_seq2seq"][f"{side}_length"] for side in ("target", "source"))  # noqa: E741
LENGTHS = [J, 1, 5]
DECODERS = {
    "luong": {"decoder": "luong"},
    "luong, fed": {"decoder": "luong", "input_feeding": True},
    "bahdanau": {"decoder": "bahdanau"},
}


def made(decoder="luong", **changes):
    return random_parts(rnn_seq2seq(**(DECODERS[decoder] | changes))).eval()


def source() -> Tensor:
    real = torch.arange(J) < torch.tensor(LENGTHS)[:, None]
    return torch.where(real, tokens(3, J).clamp(min=1), PAD)


def target() -> Tensor:
    return tokens(3, I, seed=4)


# The decoders, naively: one sentence, one step at a time, from the papers' formulas


def cell_of(model):
    """The decoder's only layer as a cell of torch's."""
    layer = model.decoder.recurrent.layers[0]
    cell = nn.GRUCell(layer.input_size, layer.hidden_size).double()
    cell.load_state_dict({k.removesuffix("_l0"): v for k, v in layer.state_dict().items()})
    return cell


def encoded(model, sentence):
    """Encoder states j d, and the last of the forward and of the backward reading."""
    states = model.encoder.layers[0](model.source_embedding(sentence)[None])[0][0]
    half = D // 2
    return states, states[-1, :half], states[0, half:]


def average(model, s, states, step):
    """Additive attention of one decoder state; of local-m, around the place of its step."""
    p = {name: x[0] for name, x in model.decoder.context.score.named_parameters()}
    if isinstance(window := model.decoder.context.window, LocalM):
        states = states[max(step - window.size, 0) : step + window.size + 1]
        if not len(states):
            return torch.zeros_like(s)
    energies = torch.stack([p["v"] @ torch.tanh(s @ p["w"] + h @ p["u"]) for h in states])
    return energies.softmax(0) @ states


def naive_luong(model, read, write):
    decoder, cell = model.decoder, cell_of(model)
    states, *last = encoded(model, read)
    s = torch.tanh(decoder.first.layers[0][0].weight @ torch.cat(last))
    fed, logits = torch.zeros(D, dtype=torch.float64), []
    for step, token in enumerate(write):
        x = model.target_embedding(token)
        s = cell(torch.cat([x, fed]) if decoder.input_feeding else x, s)
        context = average(model, s, states, step)
        fed = torch.tanh(decoder.combine.weight @ torch.cat([context, s]))
        logits.append(model.head.weight @ fed)
    return torch.stack(logits)


def naive_bahdanau(model, read, write):
    decoder, cell = model.decoder, cell_of(model)
    states, _, backward = encoded(model, read)
    s = torch.tanh(decoder.first.layers[0][0].weight @ backward)
    u_o, v_o, c_o = decoder.maxout.weight.split([D, D, D], dim=1)
    logits = []
    for step, token in enumerate(write):
        x, context = model.target_embedding(token), average(model, s, states, step)
        t = u_o @ s + v_o @ x + c_o @ context
        largest = torch.stack([max(t[2 * n], t[2 * n + 1]) for n in range(D // 2)])
        logits.append(model.head.weight @ largest)
        s = cell(torch.cat([x, context]), s)
    return torch.stack(logits)


@pytest.mark.parametrize("window", ["none", "local_m"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_are_the_papers(decoder, window):
    model = made(decoder, window=window)
    naive = naive_bahdanau if decoder == "bahdanau" else naive_luong
    together = model(source(), target())
    for b, length in enumerate(LENGTHS):
        expected = naive(model, source()[b, :length], target()[b])
        assert_close(together[b], expected)


def test_luongs_decoder_starts_from_the_state_of_an_encoder_of_one_direction():
    model = made(bidirectional=False, depth=2, cell="lstm")
    state = model.encode(source())
    for b, length in enumerate(LENGTHS):
        _, last = model.encoder(model.source_embedding(source()[b : b + 1, :length]))
        mine = [[part[:, [b]] for part in layer] for layer in state.hidden]
        assert_close(mine, [[*layer] for layer in last])


@pytest.mark.parametrize("bidirectional", [True, False])
def test_without_attention_the_context_is_what_the_encoder_said_last(bidirectional):
    model = made(attention="none", bidirectional=bidirectional)
    memory = model.encode(source()).memory
    for b, length in enumerate(LENGTHS):
        states = memory.states[b]
        expected = states[length - 1]
        if bidirectional:
            expected = torch.cat([states[length - 1, : D // 2], states[0, D // 2 :]])
        assert_close(memory.last[b], expected)
    assert model.cross == []
    assert kernels(model) == {}


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_source_is_read_once_and_all_steps_attend_in_one_call_unless_fed_back(
    decoder, monkeypatch
):
    model, calls = made(decoder), Counter[str]()
    keys = Additive.keys
    monkeypatch.setattr(Additive, "keys", lambda *a: calls.update(["keys"]) or keys(*a))
    for name in ("encoder", "decoder.context"):
        part = model.get_submodule(name)
        part.register_forward_hook(lambda *_, name=name: calls.update([name]))
    model(source(), target())
    steps = 1 if decoder == "luong" else I
    assert calls == {"encoder": 1, "keys": 1, "decoder.context": steps}
    calls.clear()
    beam_search(model, source(), size=3, max_length=I)
    assert (calls["encoder"], calls["keys"]) == (1, 1)
    assert calls["decoder.context"] <= I


def test_a_tied_output_map_is_the_table_of_the_target():
    for decoder, width in (("luong", D), ("bahdanau", D // 2)):
        model = made(decoder, tie_embeddings=True, embedding_dim=width)
        untied = made(decoder, embedding_dim=width)
        tied = {"head.weight": model.target_embedding.weight.detach()}
        untied.load_state_dict(model.state_dict() | tied)
        assert_close(untied(source(), target()), model(source(), target()))


@pytest.mark.parametrize("decoder", DECODERS)
def test_dropout_acts_on_both_embeddings_and_before_the_output_map(decoder):
    model, seen = made(decoder, dropout=0.5).train(), []
    for dropout in (model.dropout, model.read_out.dropout):
        dropout.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    logits = model(source(), target())
    (read, _), (write, _), (_, out) = seen
    assert torch.equal(read, model.source_embedding(source()))
    assert torch.equal(write, model.target_embedding(target()))
    assert torch.equal(logits, model.head(out))
