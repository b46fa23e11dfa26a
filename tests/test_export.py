"""A run in formats of other libraries: what they read has equal outputs; the rest is refused."""

import pytest
import torch
from tiny import images, overrides

import ablate
from ablate import export as command
from ablate.config.composition import Composition, compose
from ablate.errors import UserError
from ablate.training import exported

transformers = pytest.importorskip("transformers")

# A GPT with biases other than zero, since training has moved them.
RUNS = {
    "gpt": (overrides, ["trainer.max_steps=4", "trainer.val_check_interval=2"]),
    "untied": (overrides, ["trainer.max_steps=2", "model.tie_embeddings=false", "model.ffn=relu"]),
    "rotary": (overrides, ["trainer.max_steps=2", "pos_enc=rotary"]),
    "swiglu": (overrides, ["trainer.max_steps=2", "model.ffn=swiglu"]),
    "rnn": (overrides, ["trainer.max_steps=2", "model=rnn_lm"]),
    "vit": (images, []),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of each run, trained when it is first asked for."""
    found = {}

    def folder(name):
        if name not in found:
            typed, more = RUNS[name]
            root = tmp_path_factory.mktemp(name)
            dropped = ("model.depth", "model.heads", "model.dropout") if name == "rnn" else ()
            words = [w for w in typed(root, *more) if not w.startswith(dropped)]
            words = [w for w in words if name == "vit" or "val_check" not in w or w in more]
            cfg = compose(*words)
            ablate.run(cfg)
            found[name] = Composition(cfg).folder
        return found[name]

    return folder


@pytest.fixture
def export(folders, tmp_path, monkeypatch, capsys):
    """`ablate export RUN tmp_path/NAME --format FORMAT`; returns what it prints."""

    def written(name, out, kind):
        words = [str(folders(name)), str(tmp_path / out), "--format", kind]
        monkeypatch.setattr("sys.argv", ["export", *words])
        command.main()
        return capsys.readouterr().out

    return written


def compared(run, read, count=3):
    """Outputs for some validation examples, of the run and of what was read."""
    from ablate.data import Request

    batch = run.data.splits["val"][Request(0, torch.arange(count))]
    inputs = run.task.inputs(batch)
    with torch.no_grad():
        return read(*inputs), run.model(*inputs)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt", "AutoModelForCausalLM"),
        ("untied", "AutoModelForCausalLM"),
        ("vit", "AutoModelForImageClassification"),
    ],
)
def test_transformers_reads_an_equal_network(name, kind, folders, tmp_path, export):
    assert "outputs differ from the run's by at most" in export(name, "x", "hf")
    read = getattr(transformers, kind).from_pretrained(tmp_path / "x").eval()
    theirs, ours = compared(ablate.load(folders(name)), lambda images: read(images).logits)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    assert ours.std() > 0.01


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rotary", "made of other parts than this model: pos_enc=learned"),
        ("swiglu", "model.ffn=swiglu: transformers' networks have "),
        ("rnn", "model=rnn_lm; gpt and vit can be written"),
    ],
)
def test_what_transformers_does_not_have_is_refused(name, says, tmp_path, export):
    with pytest.raises(UserError, match=says):
        export(name, "x", "hf")
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.parametrize("name", ["gpt", "rotary", "vit"])
def test_a_program_of_torch_takes_any_number_of_examples(name, folders, tmp_path, export):
    export(name, "x.pt2", "torch")
    read = torch.export.load(tmp_path / "x.pt2").module()
    theirs, ours = compared(ablate.load(folders(name)), read, count=5)
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)


def test_a_file_of_onnx_has_equal_outputs(folders, tmp_path, export):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    export("gpt", "x.onnx", "onnx")
    read = onnx.load(str(tmp_path / "x.onnx"))
    (name,) = (node.name for node in read.graph.input)
    run = reference.ReferenceEvaluator(read).run
    theirs, ours = compared(
        ablate.load(folders("gpt")), lambda tokens: run(None, {name: tokens.numpy()})[0]
    )
    torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=1e-4, atol=1e-4)


def test_nothing_is_written_over(tmp_path, export):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(UserError, match="exists; choose another name"):
        export("gpt", "x", "hf")
    assert (tmp_path / "x").read_text() == "mine"


def test_what_has_other_outputs_is_not_kept(monkeypatch, tmp_path, export):
    right = exported.network_of

    def wrong(*arguments):
        network = right(*arguments)
        with torch.no_grad():
            network.transformer.wpe.weight *= 3
        return network

    monkeypatch.setattr(exported, "network_of", wrong)
    with pytest.raises(UserError, match="what was written has other outputs"):
        export("gpt", "x", "hf")
    assert not list(tmp_path.glob("*x*"))
