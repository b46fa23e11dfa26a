"""python -m ablate.lm_eval: a run in lm-evaluation-harness."""

import json
import sys
from types import SimpleNamespace

import pytest
from refusals import refused
from tiny import SMALL, images, overrides
from ways import called

import ablate
from ablate import export, lm_eval
from ablate.config.composition import Composition
from ablate.study.analysis.results import read_results
from ablate.study.plan.planned_study import metric_of
from ablate.training.build import build_data

pytest.importorskip("lm_eval")

TEXTS = ["the cat sat on a mat", "all was well and that was all the cat saw on that mat", "a mat"]
TASK = """task: cats
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: [" cat", " mat"]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    cfg = ablate.compose(*overrides(tmp_path_factory.mktemp("runs"), *SMALL, "data.tokenizer=byte"))
    ablate.run(cfg)
    return Composition(cfg).folder


def asked(*arguments):
    return SimpleNamespace(args=arguments)


@pytest.mark.ci
def test_log_likelihoods_are_those_of_the_exported_network(run, tmp_path):
    """By the harness's own class for transformers; also of texts longer than the model reads."""
    transformers = pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    from ablate.training.harness import Harness

    called(export.main, run, tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    tokenizer.eos_token = "\N{LATIN CAPITAL LETTER C WITH DOT ABOVE}"  # its letter for a line break
    settings = {"device": "cpu", "batch_size": 2, "max_length": 16, "logits_cache": False}
    theirs = HFLM(str(tmp_path / "hf"), tokenizer=tokenizer, **settings)
    ours = Harness(run, batch_size=2)
    assert ours.eot_token_id == theirs.eot_token_id == 10
    ends = [asked(text[:cut], text[cut:]) for text in TEXTS for cut in (len(text) // 2, -2)]
    pairs = [pair for pair in ends if len(pair.args[1]) < 16] + [asked("", "a mat")]
    for one, other in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    texts = [asked(text) for text in TEXTS]
    assert ours.loglikelihood_rolling(texts) == pytest.approx(
        theirs.loglikelihood_rolling(texts), abs=1e-4
    )
    until = [asked(text, {"until": ["t", "at "], "max_gen_toks": 8}) for text in TEXTS]
    greedy = ours.generate_until(until)
    assert greedy == theirs.generate_until(until)
    assert not any("t" in text for text in greedy)
    (free,) = ours.generate_until([asked(TEXTS[0], {})])
    letter = next(c for c in free if c.isascii() and c.isalpha() and c != free[0])
    (ours.tokens.end_id,) = ours.tok_encode(letter)  # as if it was the end of a document
    assert ours.generate_until([asked(TEXTS[0], {})]) == [free.partition(letter)[0]]
    ours.tokens.end_id = None
    with refused("a continuation of 17 tokens is longer than the 16 that the model reads at once"):
        ours.loglikelihood([asked("a", "b" * 17)])


@pytest.mark.slow
@pytest.mark.ci
def test_a_finished_run_is_measured_by_the_harness(run, tmp_path, capsys):
    """Without training it again: the metrics and their items, by the answers with more weight."""
    rows = [{"context": "the", "answer": n % 2} for n in range(4)]
    (tmp_path / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "cats.yaml").write_text(TASK.replace("FILE", str(tmp_path / "rows.json")))

    def measured(node):
        given = (*SMALL, "data.tokenizer=byte", f"evaluate={node}")
        return ablate.run(ablate.compose(*overrides(run.parents[2], *given)))

    for _ in range(2):  # the second time nothing is left to do
        result = measured(f"{{core: 'lm_eval:{tmp_path}/cats.yaml'}}")
        assert result["metrics"]["core/cats/acc"] == 0.5
    lines = (run / "items.csv").read_text().splitlines()
    assert lines[0] == "metric,item,value"
    values = {line.rpartition(",")[0]: float(line.rpartition(",")[2]) for line in lines[1:]}
    assert [*values] == [f"core/cats/acc,{n}" for n in range(4)]
    assert sum(values.values()) == 2
    with refused("evaluate.core: arc_eazy is neither a task of lm-evaluation-harness nor a file"):
        measured("{core: lm_eval:arc_eazy}")
    with refused("evaluate.val: use another name"):
        measured("{val: lm_eval:arc_easy}")
    (tmp_path / "rows.json").unlink()
    with refused("cannot be read: FileNotFoundError"):
        measured(f"{{core: 'lm_eval:{tmp_path}/./cats.yaml'}}")


@pytest.mark.ci
def test_the_metric_of_a_study_may_be_that_of_a_task(run, tmp_path):
    """Its name is checked before the first run."""
    (tmp_path / "rows.json").write_text(json.dumps({"context": "the", "answer": 0}))
    (tmp_path / "cats.yaml").write_text(TASK.replace("FILE", str(tmp_path / "rows.json")))
    node = f"evaluate={{core: 'lm_eval:{tmp_path}/cats.yaml'}}"
    cfg = ablate.compose(*overrides(run.parents[2], *SMALL, "data.tokenizer=byte", node))
    found = metric_of({"metric": "core/cats/acc", "mode": None}, cfg, build_data)
    assert found == {"name": "core/cats/acc", "mode": "max"}
    with refused("study.metric=core/cats/ac: a run of the baseline measures", "'core/cats/acc'?"):
        metric_of({"metric": "core/cats/ac", "mode": None}, cfg, build_data)
    with refused("must be a name that begins with val/ or test/"):
        metric_of({"metric": "cats/acc", "mode": None}, cfg, build_data)


@pytest.mark.slow
@pytest.mark.ci
def test_the_command_measures_a_task_of_a_folder(run, tmp_path, monkeypatch, capsys):
    rows = [{"context": "the", "answer": 0}, {"context": "on a", "answer": 1}]
    (tmp_path / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "cats.yaml").write_text(TASK.replace("FILE", str(tmp_path / "rows.json")))
    monkeypatch.setattr(sys, "argv", [])
    out = tmp_path / "out"
    folder = ("--include_path", tmp_path, "--output_path", out, "--device", "cpu")
    called(lm_eval.main, run, "--tasks", "cats", *folder)
    assert "|cats |" in capsys.readouterr().out
    (found,) = out.rglob("results_*.json")
    assert json.loads(found.read_text())["results"]["cats"]["acc,none"] in (0.0, 0.5, 1.0)
    (value,) = read_results(out).values
    assert (value.arm, value.seed, value.metric) == (run.name, 0, "cats/acc")


@pytest.mark.ci
def test_only_language_models_of_text_are_measured(run, tmp_path):
    with refused("--tasks NAMES is missing"):
        called(lm_eval.main, run)
    cfg = ablate.compose(*images(tmp_path))
    with refused("lm-evaluation-harness needs a language model of text"):
        called(lm_eval.main, ablate.run(cfg)["folder"], "--tasks", "arc_easy")
