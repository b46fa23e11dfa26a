"""A model and its task from a custom folder: docs/how-to/add-a-model-and-task.md."""

import importlib
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from refusals import refused
from test_add_a_component import FAMILY, SECTIONS, write_package
from test_resume import assert_resumes
from tiny import SMALL, overrides, pairs, task_of

import ablate
from ablate import evaluate, generate, show
from ablate.cli.summary import show_result
from ablate.errors import UserError
from ablate.model.mask.causal import Causal
from ablate.model.mask.none import NoMask
from ablate.run_files.checkpoint_io import read_state
from ablate.training.average import Average
from ablate.training.build import build, build_data
from ablate.training.custom_code import custom_code
from ablate.training.leakage import caution, decodes_otherwise, leaks
from ablate.training.parallel import Sharing

WITH_FIGURES = True  # tests/conftest.py


@pytest.fixture
def own(tmp_path, monkeypatch):
    return write_package(SECTIONS[FAMILY], tmp_path, monkeypatch)


def composed(own, *more):
    steps = "trainer.max_epochs=null trainer.max_steps=12 trainer.val_check_interval=4"
    often = "trainer.check_val_every_n_epoch=null trainer.log_every_n_steps=1 checkpoint_every=3"
    rest = ("schedule.warmup=2", "logger=none", f"output_dir={own.parents[1] / 'outputs'}")
    typed = ("model=denoiser", *steps.split(), *often.split(), *rest, *more)
    return ablate.compose(*typed, config_dir=own)


def built(own):
    return task_of(composed(own))


@pytest.mark.ci
def test_it_trains_resumes_is_evaluated_and_generates(own, tmp_path, printed, capsys):
    from my.task import Denoising

    cfg, whole, killed = composed(own), tmp_path / "whole", tmp_path / "killed"
    result = ablate.run(cfg, whole)
    assert result["status"] == "finished"
    assert result["artifacts"] == ["figures/drawn.png"]
    for row in tiny.rows_of(whole):
        terms = float(row["train/noise"]) + float(row["train/pull"])
        assert float(row["train/loss"]) == pytest.approx(terms, rel=1e-5)
    state = read_state(whole / "checkpoints/last.ckpt")
    last, average = state["state_dict"], state["callbacks"]["Average"]
    for name, start in build(cfg, build_data(cfg)).state_dict().items():
        assert torch.equal(last[f"reference.{name}"], start)
        assert not torch.equal(last[f"model.{name}"], average[f"module.{name}"])
    place = {"place": (Denoising, "losses"), "when": lambda task, *_: task.global_step == 7}
    assert_resumes((cfg, whole), killed, **place)
    assert (killed / "figures/drawn.png").read_bytes() == (whole / "figures/drawn.png").read_bytes()

    def call(command, *arguments):
        return printed(command, whole, "--allow", "my", *arguments)

    show_result(result, whole, cfg)
    assert f"python -m ablate.generate {whole} --allow my --seed 1\n" in capsys.readouterr().out
    assert json.loads(call(evaluate, "--json")) == pytest.approx(result["metrics"])
    other = Path(call(generate, "--seed", "3").strip())
    assert other.name == "drawn_3.png"
    assert other.read_bytes() != (whole / "figures/drawn.png").read_bytes()
    with pytest.raises(UserError, match=r"--prompt: .* is a diffusion model, .* --seed, --steps$"):
        call(generate, "--prompt", "a")
    with pytest.raises(UserError, match="no attention maps or LSTM gates to plot"):
        call(show)


def test_the_average_is_the_sum_over_the_steps(own):
    task = built(own)
    weight, expected, average = task.model.into.weight, None, Average(task).average
    for step in range(1, 4):
        with torch.no_grad():
            weight.fill_(float(step))
        average.update_parameters(task.model)
        expected = float(step) if expected is None else 0.8 * expected + 0.2 * step
    torch.testing.assert_close(average.module.into.weight, torch.full_like(weight, expected))
    assert not average.training
    assert not task.train().reference.training


def test_the_commands_know_no_task_by_its_class():
    for module in ("generate", "evaluate", "show", "figures/__init__", "cli/summary"):
        text = (Path(ablate.__file__).parent / f"{module}.py").read_text()
        assert "isinstance" not in text
        assert not re.search(r"from ablate\.(task|model)\S* import .*\b[A-Z]", text)


def test_what_has_no_meaning_is_refused(own):
    with pytest.raises(UserError, match=r"^task.ema=1.5: must be .* less than 1"):
        composed(own, "task.ema=1.5")
    task = built(own)
    task.trainer = SimpleNamespace(strategy=Sharing())
    with pytest.raises(UserError, match="Denoising keeps a copy of its model"):
        task.configure_model()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("key", "base"),
    [
        ("model.attention", "ablate.model.attention.Score"),
        ("model", "ablate.model.base.Model"),
        ("data", "ablate.data.Data"),
        ("task", "ablate.task.Task"),
        ("model.layers.attention", "ablate.model.attention.Score"),
    ],
)
def test_a_class_without_the_base_of_its_group_is_refused(own, key, base):
    (own.parent / "plain.py").write_text("class Plain:\n    def forward(self, q, k): ...\n")
    option = own / "model.attention/plain.yaml"
    option.parent.mkdir()
    option.write_text("_target_: my.plain.Plain\n_partial_: true\n")
    layers = ["model.layers.attention=[plain,dot]", "model.depth=2"]
    typed = layers if "layers" in key else [f"{key}._target_=my.plain.Plain"]
    with refused(f"_target_=my.plain.Plain: must be a subclass of {base}"):
        ablate.compose(*typed, config_dir=own)


PARTS = """
import torch
from ablate.model.attention import Score
from ablate.model.normalizer import Normalizer
from ablate.pos_enc.none import NoPosEnc
from ablate.task.causal_lm import CausalLM


class Dot(Score):
    def forward(self, q, k):
        return q @ k.transpose(-1, -2)


class Scaled(Dot):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        torch.nn.init.ones_(self.scale)

    def forward(self, q, k):
        return self.scale * super().forward(q, k)


class OneHead(Dot):
    def forward(self, q, k):
        return super().forward(q, k)[:, :1]


class Lacks(Dot):
    def __init__(self, *, power, **sizes):
        super().__init__(**sizes)


class Alone(Dot):
    def __init__(self):
        super().__init__()


class OneKey(Normalizer):
    def normalize(self, scores, seen, *, training):
        return scores.softmax(-1)[..., :1]


class OverQueries(Normalizer):
    def normalize(self, scores, seen, *, training):
        return scores.softmax(-2)


class OverKeys(Normalizer):
    def normalize(self, scores, seen, *, training):
        return scores.softmax(-1)


class Sums(NoPosEnc):
    def embed(self, x, start=0):
        return x.cumsum(1)


class OnCPU(Dot):
    def forward(self, q, k):
        return super().forward(q, k) + torch.ones(())[None]


class Misspelled(CausalLM):
    metric = "val/los"


class Higher(CausalLM):
    mode = "minimum"


class Pair(CausalLM):
    def measures(self, split):
        return {**super().measures(split), "pair": torch.ones(2)}


class Nothing(CausalLM):
    def measures(self, split):
        return {**super().measures(split), "pair": None}


class NeedsExamples(CausalLM):
    metric = "val/mean"

    def measures(self, split):
        if not self.mean_losses.update_called:
            raise ValueError("no samples")
        found = super().measures(split)
        return {**found, "mean": found["loss"]}
"""


def own_part(own, slot, text, *more):
    """The composition of a run with an own part. text: that of the file of its option."""
    (own.parent / "parts.py").write_text(PARTS)
    (own.parent / "broken.py").write_text("def f(:\n")
    option = own / slot / "mine.yaml"
    option.parent.mkdir(exist_ok=True)
    option.write_text(text)
    typed = overrides(own.parents[1], *SMALL, f"{slot}=mine", *more)
    return ablate.compose(*typed, config_dir=own)


def partial(name):
    return f"_target_: my.{name}\n_partial_: true\n"


def task(name):
    return f"defaults: [causal_lm]\n_target_: my.parts.{name}\n"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("slot", "text", "line"),
    [
        ("model.attention", "_partial_: true\n", "model.attention._target_ is missing; the file"),
        ("model.attention", "", "model.attention._target_ is missing; the file"),
        ("model.attention", partial("broken.X"), "cannot be imported (SyntaxError: invalid"),
        ("model.attention", partial("parts.Lacks"), "my.parts.Lacks: cannot be instantiated ("),
        ("model.attention", partial("parts.Alone"), "got an unexpected keyword argument 'heads')"),
        ("model.attention", partial("parts.OneHead"), "OneHead returns the shape"),
        ("model.attention", partial("parts.OnCPU"), "model: a component creates a tensor on"),
        ("model.attention", partial("parts.Dot") + "heads: 7\n", "no key model.attention.heads"),
        ("model.normalizer", "_target_: my.parts.OneKey\n", " x 1 instead of"),
        ("task", task("Misspelled"), "Misspelled.metric=val/los is not measured; allowed"),
        ("task", task("Pair"), "Pair.measures: pair has the shape (2,), and a"),
        ("task", task("Nothing"), "Nothing.measures: pair is a NoneType, and a measure is one"),
        ("task", task("Higher"), "Higher.mode=minimum: must be min or max"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_own_part_is_one_line(own, slot, text, line):
    with refused(line):
        ablate.run(own_part(own, slot, text))


@pytest.mark.ci
def test_a_measure_that_needs_examples_may_choose_the_best_weights(own):
    result = ablate.run(own_part(own, "task", task("NeedsExamples")))
    assert result["metric"]["value"] == result["metrics"]["val/mean"]


@pytest.mark.ci
def test_a_score_with_one_number_and_an_edit_after_its_training(own, capsys):
    cfg = own_part(own, "model.attention", partial("parts.Scaled"))
    first = ablate.run(cfg)
    assert first["status"] == "finished"
    (own.parent / "parts.py").write_text(f"{PARTS}\n# edited\n")
    ablate.load(first["folder"], allow=["my"])
    assert "ablate: my.parts: edited since" in capsys.readouterr().err
    assert ablate.run(cfg)["folder"] == first["folder"]
    assert "ablate: my.parts: edited since" in capsys.readouterr().out
    show_result(first, Path(first["folder"]), cfg)
    assert f"ablate.evaluate {first['folder']} --allow my\n" in capsys.readouterr().out


IMPORTS = """import crafted.scale
from . import shift
def unlikely():
    import crafted.broken
def later():
    from crafted.deep import last
class Part: ...
"""


def test_the_hash_of_a_part_has_all_that_it_imports(tmp_path, monkeypatch):
    """But no module that is beside it alone."""
    target = {"part": {"_target_": "crafted.parts.Part"}}
    files = {"parts": IMPORTS, "scale": "import crafted.table"}
    files |= dict.fromkeys(("shift", "table", "beside", "deep/last", "deep/__init__"), "")
    files |= {"__init__": "", "broken": "def f(:"}
    (tmp_path / "crafted" / "deep").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "crafted" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("crafted.parts")
    before = custom_code(target)
    assert [*before] == ["crafted.parts"]
    for name, text in files.items():
        (tmp_path / "crafted" / f"{name}.py").write_text(f"{text}# edited\n")
        assert (custom_code(target) != before) == (name != "beside"), name
        (tmp_path / "crafted" / f"{name}.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "leaks"),
    [("OverQueries", True), pytest.param("OverKeys", False, marks=pytest.mark.ci)],
)
def test_a_part_by_which_outputs_read_later_tokens_is_noticed(own, capsys, name, leaks):
    option, typed = f"_target_: my.parts.{name}\n", ("model.normalizer", "model.attention=additive")
    result = ablate.run(own_part(own, typed[0], option, typed[1]))  # whose weights begin equal
    assert ("label leakage: outputs depend" in capsys.readouterr().out) == leaks
    assert ("caution" in result) == leaks


def test_a_part_without_the_earlier_tokens_in_decoding_is_noticed(own, capsys):
    ablate.run(own_part(own, "pos_enc", partial("parts.Sums")))
    assert "decoding: with its cache" in capsys.readouterr().out


@pytest.mark.parametrize("model", ["transformer", "rnn_seq2seq", "gpt_seq2seq"])
def test_steps_of_a_decoder_with_other_outputs_are_noticed(tmp_path, monkeypatch, model):
    task = tiny.built(*pairs(tmp_path, f"model={model}"))
    assert not decodes_otherwise(task)
    kind = type(task.model)
    step = kind.step
    monkeypatch.setattr(kind, "step", lambda *given: 2 * step(*given))
    assert decodes_otherwise(task)


def test_a_decoder_that_reads_later_tokens_is_noticed(tmp_path):
    task = tiny.built(*pairs(tmp_path, "model=transformer"))
    assert caution(task, computed=True) is None
    for part in task.model.modules():
        if isinstance(getattr(part, "mask", None), Causal):
            part.mask = NoMask(causal=False)
    assert "label leakage" in caution(task, computed=True)


@pytest.mark.parametrize("change", [torch.randn_like, lambda x: x * torch.nan])
def test_outputs_that_are_drawn_or_not_finite_are_no_leakage(tmp_path, change):
    task = tiny.built(*pairs(tmp_path, "model=transformer"))
    task.model.register_forward_hook(lambda model, inputs, y: y + change(y))
    assert not leaks(task)
    assert not decodes_otherwise(task)


def test_a_sequence_of_one_token_cannot_leak(tmp_path):
    assert not leaks(tiny.built(*overrides(tmp_path), "data.seq_len=1"))


def test_an_option_with_the_name_of_one_of_ours_is_refused(own):
    option = own / "model.attention/dot.yaml"
    option.parent.mkdir()
    option.write_text(partial("parts.Dot"))
    with pytest.raises(UserError, match=r"model.attention=dot is a built-in option, which takes"):
        ablate.compose(config_dir=own)
