"""compile=true: the same numbers, in one piece, not compiled again for each step or length.

What captures the model (torch._dynamo) is tested in every run of the tests; the compiler behind it
takes half a minute for a model, so that its tests are slow ones.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from make_axes import MODELS
from make_systems import list_of_systems
from tiny import overrides
from torch import nn
from torch.testing import assert_close

import ablate
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.kernel import chunked
from ablate.model.base import outputs
from ablate.model.layers.stack import kernels
from ablate.training.build import build, build_data, make_task
from ablate.training.compile import Compiled, compiled_parts, refusing

pytestmark = pytest.mark.usefixtures("small_files")
WITH_FIGURES = True  # tests/conftest.py

CHECKPOINTED = "model.activation_checkpointing=true"
LOOPED = ("rnn_seq2seq", "model.decoder=bahdanau", "model.window=local_p", "model.dropout=0.1")
# Parts that a model can have and that reach for something of their own.
PARTS = [
    ("gpt", "kernel=chunked", "kernel.chunk=6", "model.attention=additive", "model.dropout=0.1"),
    ("gpt", "kernel=chunked", "kernel.compile=true", "model.attention=gatv2"),
    ("gpt", "kernel=triton", "model.attention=additive", "pos_enc=t5", "model.dropout=0.1"),
    ("gpt", "model.normalizer=hard", "model.norm_type=batch", "model.attention=cosine"),
    ("gpt", "model.mixer=convolution"),
    ("gpt", "model.normalizer=sparsemax", "pos_enc=relative", "model.share_layers=true"),
    ("vit", "model.drop_path=0.2", "pos_enc=relative_2d"),
    # Beside recurrent layers.
    LOOPED,
    ("rnn_seq2seq", "model.attention=none", "model.dropout=0.1", "model.tie_embeddings=true"),
    ("rnn_seq2seq", "model.input_feeding=true", "model.window=local_m", "model.attention=gatv2"),
    # In blocks that are computed again for the gradient.
    ("vit", CHECKPOINTED, "model.dropout=0.3", "model.drop_path=0.5"),
    ("transformer", CHECKPOINTED, "model.share_layers=true", "model.dropout=0.1"),
    ("gpt", CHECKPOINTED, "model.depth=1", "kernel=chunked", "model.attention=additive"),
]
EVERY = [*((name,) for name in MODELS), *PARTS, *list_of_systems("COMPILED")]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture
def captured(monkeypatch):
    """Compiling is capturing alone: graphs, and how often these run as they are."""
    found, compile_ = SimpleNamespace(graphs=0, runs=0), nn.Module.compile

    def backend(graph, inputs):
        found.graphs += 1

        def run(*arguments):
            found.runs += 1
            return graph(*arguments)

        return run

    def capture(part, **settings):
        settings.pop("options")
        compile_(part, backend=backend, **settings)

    monkeypatch.setattr(nn.Module, "compile", capture)
    return found


def made(model, *more):
    """A tiny model in float64 with its task, and its batches."""
    cfg = ablate.compose(f"model={model}", *MODELS[model].overrides, "logger=none", *more)
    data = build_data(cfg)
    data.train_batches = 12
    network = build(cfg, data).double().train()
    return network, make_task(cfg, data, network), data


def passed(network, inputs):
    """Values and gradients; random numbers are those of one seed."""
    network.zero_grad()
    torch.manual_seed(0)
    found = outputs(network(*inputs))
    torch.stack([value.square().sum() for value in found]).sum().backward()
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    return [*(value.detach() for value in found), *gradients]


def require_same(model, *more, compile_):
    network, task, data = made(model, *more)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    batch = task.inputs(task.prepared(next(iter(data.train_dataloader()))))
    inputs = [x.double() if x.is_floating_point() else x for x in batch]
    plain = passed(network, inputs)
    network.load_state_dict(state)  # averages of a batch norm
    for part in network.compiles:
        compile_(part)
    compiled = passed(network, inputs)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert_close(plain, compiled, rtol=1e-9, atol=1e-11)
    assert network.state_dict().keys() == state.keys()


# The backward pass, too; where torch captures the forward pass alone (backend="eager", as in
# `captured`) it draws dropout anew for a block that is computed again.
CAPTURE = partial(nn.Module.compile, backend="aot_eager", fullgraph=True)
# As ablate.training.compile does.
INDUCTOR = partial(nn.Module.compile, fullgraph=True, options={"fallback_random": True})


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(
            ("gpt", CHECKPOINTED, "model.dropout=0.1", "model.normalizer=sparsemax"),
            marks=pytest.mark.ci,
        ),
        pytest.param(
            ("gpt", "model.activation_checkpointing=selective", "model.dropout=0.1"),
            marks=pytest.mark.ci,
        ),
        *list_of_systems("CAPTURED"),
    ],
    ids=str,
)
def test_a_model_is_captured_whole(parts):
    require_same(*parts, compile_=CAPTURE)


@pytest.mark.slow
@pytest.mark.parametrize("parts", EVERY)
def test_compiled_equals_eager_in_value_and_gradient(parts):
    require_same(*parts, compile_=INDUCTOR)


LENGTHS = [
    LOOPED,
    pytest.param(("transformer", "model.attention=additive"), marks=pytest.mark.slow),
    pytest.param(("rnn_seq2seq", "model.attention=none"), marks=pytest.mark.slow),
]


@pytest.mark.ci
@pytest.mark.parametrize("parts", LENGTHS)
def test_other_lengths_are_not_compiled_again(parts, captured):
    """After two, which make the lengths variables; a first step has a version of its own."""
    network, _, _ = made(*parts)
    for part in network.compiles:
        part.compile(fullgraph=True, options={})

    def texts(*lengths):
        return (torch.randint(4, 9, (3, n)) for n in lengths)

    network(*texts(5, 7))
    network(*texts(8, 9))
    so_far = captured.graphs
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths in [(6, 5), (9, 11), (12, 4), (4, 12), (7, 8)]:
            assert network(*texts(*lengths)).shape[1] == lengths[1]
    assert captured.graphs == so_far == 2 + (parts == LOOPED)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("model.dropout=0.0", CHECKPOINTED)])
def test_a_run_is_the_same_and_compiled_in_training_alone(more, tmp_path, captured):
    found = []
    for typed in (more[:1], (*more, "compile=true")):
        cfg = ablate.compose(*overrides(tmp_path, *typed))
        result, folder = ablate.run(cfg), Composition(cfg).folder
        saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        curves = (folder / "metrics.csv").read_text()
        found.append((result["metrics"], curves, saved["state_dict"]))
    assert found[0][:2] == found[1][:2]
    assert_close(found[0][2], found[1][2], rtol=0, atol=0)
    # 12 steps of the model and of its loss; the validations, figures and the text written are none
    # of them.
    assert (captured.graphs, captured.runs) == (2, 24)
    assert ablate.load(folder).result["kernels"] == {
        "stack.blocks.0.attention.function": "sdpa (training: compiled; evaluation: flash)"
    }


def test_the_loss_of_logits_is_compiled_too(captured):
    _, task, _ = made("gpt")
    Compiled().begin(compiled_parts(task), options={})
    task.criterion(torch.randn(6, 9), torch.arange(6))
    assert captured.graphs == captured.runs == 1


def test_without_a_compiler_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chunked, "compiler", lambda device: False)
    with pytest.raises(UserError, match=r"^compile=true needs a C\+\+ compiler .* on the path$"):
        ablate.run(ablate.compose(*overrides(tmp_path, "compile=true")))
    assert not (tmp_path / "outputs").exists()


class Breaks(nn.Module):
    """Asks what a number is, which no compiler knows."""

    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


class Counts(nn.Module):
    """As many operations as its argument is long, so that each length is compiled for itself."""

    def forward(self, x):
        return sum(row for row in x)


@pytest.mark.parametrize(
    ("part", "settings", "line"),
    [
        (Counts(), {"dynamic": False}, r".* \(batches of varying shapes .*\)"),
        (Breaks(), {}, "torch cannot .*"),
    ],
)
def test_what_torch_cannot_compile_is_refused_in_one_line(part, settings, line):
    part.compile(fullgraph=True, backend="eager", **settings)
    with pytest.raises(UserError, match=f"^compile=true: {line}; set compile=false$"), refusing():
        [part(torch.ones(length, 3)) for length in range(2, 20)]
    with pytest.raises(ZeroDivisionError), refusing():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("score", "says"),
    [
        ("additive", "chunked (fused)"),
        pytest.param("gatv2", "chunked (compiled)", marks=pytest.mark.ci),
    ],
)
def test_a_score_of_its_own_is_called_so(score, says):
    more = (CHECKPOINTED, "model.depth=1")  # where nothing may be noted
    network = made("gpt", "kernel=chunked", f"model.attention={score}", *more)[0]
    Compiled().begin(network.compiles, backend="eager")
    tokens = torch.zeros(1, 4, dtype=torch.long)
    network(tokens)
    network._compiled_call_impl = None
    network.eval()(tokens)
    assert set(kernels(network).values()) == {says}
