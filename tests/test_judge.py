"""Results of other programs: python -m ablate.judge, and ablate.judge in Python."""

import json
import re
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
from statsmodels.stats.multitest import multipletests
from tiny import in_a_process

import ablate
from ablate import judge as module
from ablate.cli.command import command
from ablate.errors import UserError
from ablate.study.analysis.results import read_results, study_of
from ablate.study.analysis.rows import assemble
from ablate.study.numbers import signed

SHIFTS = {"adamw": 0.0, "lion": -0.03, "sgd": 0.3, "soap": 0.01, "muon": -0.2}


def benchmark(seeds: int = 20, noise: float = 0.1) -> pd.DataFrame:
    """A benchmark of optimizers, generated."""
    rng = np.random.default_rng(0)
    of_seed = rng.normal(3, 0.7, seeds)
    return pd.DataFrame(
        {"arm": arm, "seed": seed, "value": of_seed[seed] + SHIFTS[arm] + rng.normal(0, noise)}
        for arm, seed in product(SHIFTS, range(seeds))
    )


def of(results: Path, **options) -> dict[str, str]:
    """Arm -> verdict."""
    study = study_of(read_results(results, options.get("metric")), Path(), **options)
    return {arm.name: arm.verdict for arm in module.judged(study).arms}


def run(monkeypatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["ablate.judge", *map(str, words)])
    command(module.main)


# Final test accuracies of tuned optimizers on Fashion-MNIST (fmnist_2c2d, 100 epochs, large budget,
# constant learning rate), seeds 43 to 51: Schmidt, Schneider and Hennig 2021, Descending through a
# Crowded Valley, https://github.com/SirRob1997/Crowded-Valley---Results (df102fc2).
PUBLISHED = pd.read_csv(Path(__file__).with_name("crowded_valley.csv"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("frame", "baseline", "better"),
    [
        *((benchmark(noise=noise), "adamw", "lower") for noise in (0.02, 0.1, 0.4)),
        *((PUBLISHED, arm, "higher") for arm in ("Momentum", "AMSGrad", "AMSBound")),
    ],
)
def test_the_decision_is_that_of_a_linear_model_in_statsmodels(frame, baseline, better):
    metric = frame.columns[2]
    first = f"C(arm, Treatment('{baseline}'))"
    fit = smf.ols(f"{metric} ~ {first} + C(seed)", frame).fit()
    terms = {arm: f"{first}[T.{arm}]" for arm in frame["arm"].unique() if arm != baseline}
    shown, p, *_ = multipletests([fit.pvalues[term] for term in terms.values()], method="holm")
    arms = {arm.name: arm for arm in ablate.judge(frame, baseline=baseline, better=better).arms}
    for (name, term), differs, adjusted in zip(terms.items(), shown, p, strict=True):
        arm, effect = arms[name], fit.params[term]
        assert arm.difference == pytest.approx(effect)
        assert arm.verdict == (
            "inconclusive" if not differs else "better" if (effect > 0) == (better == "higher")
            else "worse"
        )  # fmt: skip
        assert (arm.p <= 0.05) == differs
        # No error is smaller than that of the arm's own differences.
        assert arm.p >= adjusted * 0.999
        assert (arm.interval[0] <= 0 <= arm.interval[1]) != differs


def test_a_table_gets_the_files_of_a_report_and_a_frame_the_same_content(
    tmp_path, monkeypatch, capsys
):
    frame = benchmark(seeds=5)
    frame.to_csv(tmp_path / "results.csv", index=False)
    claims = [{"statement": "Muon wins.", "arm": "muon", "direction": "better", "min_effect": 0.05}]
    (tmp_path / "claims.yaml").write_text(json.dumps({"study": {"claims": claims}}))
    words = ("--baseline", "adamw", "--metric", "loss", "--claims", tmp_path / "claims.yaml")
    with pytest.raises(SystemExit, match="0"):
        run(monkeypatch, tmp_path / "results.csv", *words)
    assert "confirmed: Muon wins" in capsys.readouterr().out
    written = json.loads((tmp_path / "report.json").read_text())
    inside = {"results.csv", "claims.yaml", "report.html", "report.json", "table.tex"}
    assert {path.name for path in tmp_path.iterdir()} == inside
    assert "sgd" in (tmp_path / "table.tex").read_text()
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "ablate.report" not in page
    same = ablate.judge(frame, baseline="adamw", metric="loss", claims=claims)
    for key in ("arms", "claims", "metric", "warnings"):
        assert json.loads(json.dumps(same[key])) == written[key]
    for code in ("0", "2"):  # over its own files, and not over those of something else
        with pytest.raises(SystemExit, match=code):
            run(monkeypatch, tmp_path / "results.csv", *words)
        (tmp_path / "report.json").unlink(missing_ok=True)
    assert "report.html exists, and is not of ablate.judge: add --to" in capsys.readouterr().err


@pytest.mark.ci
def test_torch_is_not_imported(tmp_path):
    benchmark(seeds=3).to_csv(tmp_path / "results.csv", index=False)
    code = "import sys; from ablate.judge import main; main(); print('torch' in sys.modules)"
    typed = ("results.csv", "--baseline", "adamw", "--better", "lower")
    assert in_a_process("-c", code, *typed, folder=tmp_path).stdout.endswith("False\n")


def test_the_module_can_be_called_like_the_function():
    """`import ablate.judge` puts the module in the place of the function."""
    frame = benchmark(seeds=3)
    assert module(frame, baseline="adamw", better="lower") == ablate.judge(
        frame, baseline="adamw", better="lower"
    )


def test_a_table_of_metrics_blocks_steps_and_items(tmp_path):
    frame = benchmark(seeds=4)
    wide = frame.rename(columns={"value": "val/loss"}).assign(lr=1e-3, note="x")
    wide.to_csv(tmp_path / "wide.csv", index=False)
    assert of(tmp_path / "wide.csv", baseline="adamw", metric="val/loss")["sgd"] == "worse"

    blocks = pd.concat([frame.assign(block="a"), frame.assign(block="b", value=frame.value + 1)])
    report = ablate.judge(blocks, baseline="adamw", metric="loss")
    assert [*report["blocks"]] == ["a", "b"]
    single = ablate.judge(frame, baseline="adamw", metric="loss")
    for one, other in zip(report.arms, single.arms, strict=True):
        assert one.difference == pytest.approx(other.difference)

    steps = pd.concat([frame.assign(step=9), frame.assign(step=1, value=7.0)])
    report = ablate.judge(steps, baseline="adamw", metric="loss")
    assert [arm.difference for arm in report.arms] == [arm.difference for arm in single.arms]
    short = steps[(steps.arm != "sgd") | (steps.step == 1)]
    refused = {a.name: a.verdict for a in ablate.judge(short, baseline="adamw", metric="loss").arms}
    assert refused["sgd"] == "excluded"  # other steps than the baseline

    items = pd.concat([frame.assign(item=n, value=frame.value + n * 0.1) for n in range(6)])
    over = ablate.judge(items, baseline="adamw", better="higher")["examples"]
    assert [(each["examples"], each["better"]) for each in over if each["arm"] == "muon"] == [
        (6, 0)
    ]
    (muon,) = (arm for arm in single.arms if arm.name == "muon")
    both = next(each["crossed"] for each in over if each["arm"] == "muon")
    assert np.mean(both) == pytest.approx(muon.difference)  # items differ in no difference


def table(columns: str, **arms: list[float]) -> pd.DataFrame:
    """Columns "arm seed METRIC", with the values of each arm."""
    rows = ((arm, seed, value) for arm, values in arms.items() for seed, value in enumerate(values))
    return pd.DataFrame(rows, columns=columns.split())


def test_a_column_with_the_name_of_the_metric_is_the_metric():
    frame = table("arm seed loss", a=[2.0, 2.1, 2.05], b=[1.0, 1.1, 1.06])
    other = ablate.judge(frame.assign(value=9.0 - frame.loss), baseline="a", metric="loss")
    assert other.arms == ablate.judge(frame, baseline="a", metric="loss").arms
    two = frame.assign(accuracy=0.5)
    two.loc[1, "loss"] = np.nan
    with pytest.raises(UserError, match="several metrics"):
        ablate.judge(two, baseline="a")


def test_names_of_a_frame_may_be_numbers_and_no_column_is_read_twice():
    frame = table("arm seed loss", a=[2.0, 2.1, 2.05], b=[1.0, 1.1, 1.06])
    numbers = frame.assign(arm=frame.arm.map({"a": 64, "b": 128})).rename(columns={"loss": 0})
    judged = ablate.judge(numbers, baseline=64, better="lower")
    assert [arm.name for arm in judged.arms] == ["64", "128"]
    with pytest.raises(UserError, match="the frame: has a column twice"):
        ablate.judge(pd.concat([frame, 2 * frame[["loss"]]], axis=1), baseline="a")


def test_the_direction_of_a_claim_needs_no_better_value():
    frame = table("arm seed reward", a=[1.0, 1.1, 1.05], b=[2.0, 2.1, 2.06])
    claim = {"statement": "More.", "arm": "b", "direction": "higher", "metric": "reward"}
    found = ablate.judge(frame, baseline="a", better="higher", claims=[claim])["claims"]
    assert found[0]["verdict"] == "confirmed"


def test_a_claim_needs_only_the_runs_of_its_arms_and_block():
    parts = {"a": [1.0, 1.1, 1.05], "b": [2.0, 2.1, 2.06], "c": [3.0, 3.1, 3.02]}
    frame = pd.concat(table("arm seed loss", **parts).assign(block=block) for block in "xy")
    claims = [
        {"statement": "In x.", "arm": "b", "block": "x", "direction": "worse"},
        {"statement": "c over b.", "arm": "c", "versus": "b", "direction": "worse", "block": "y"},
    ]
    for lost, block, judged in (("b", "y", 0), ("a", "x", 1)):
        kept = (frame.arm != lost) | (frame.seed != 2) | (frame.block != block)
        found = ablate.judge(frame[kept], baseline="a", claims=claims)["claims"]
        assert found[judged]["verdict"] == "confirmed"


def test_equal_differences_need_four_seeds_and_small_ones_have_digits(tmp_path):
    base, small = [20.0, 21.5, 18.9, 20.3], 0.04
    frame = table("arm seed loss", a=base, b=[x - small for x in base])
    arm = ablate.judge(frame[frame.seed < 3], baseline="a")["arms"][1]
    assert "about 4 seeds" in arm["verdict_text"]
    (warning,) = (line for line in ablate.judge(frame, baseline="a")["warnings"] if "pair" in line)
    assert "Holm" not in warning
    frame.to_csv(tmp_path / "small.csv", index=False)
    report = assemble(study_of(read_results(tmp_path / "small.csv", None), Path(), baseline="a"))
    assert signed(report.others[0].difference, report.digits).endswith("0.04")


@pytest.mark.parametrize("logger", ["", "csv/version_0/", "lightning_logs/version_0/"])
def test_hydra_runs(tmp_path, logger):
    for n, row in enumerate(benchmark(seeds=3).itertuples()):
        folder = tmp_path / "multirun" / str(n)
        (folder / ".hydra").mkdir(parents=True)
        words = [f"optimizer={row.arm}", f"seed={row.seed}", "trainer=gpu"]
        (folder / ".hydra/overrides.yaml").write_text("".join(f"- {word}\n" for word in words))
        (folder / logger).mkdir(parents=True, exist_ok=True)
        lines = ["epoch,step,train/loss,val/loss", "0,9,5.0,", f"0,9,,{row.value + 1}"]
        lines += ["1,19,4.0,", f"1,19,,{row.value}"]
        (folder / logger / "metrics.csv").write_text("\n".join(lines) + "\n")
    verdicts = of(tmp_path / "multirun", baseline="adamw", metric="val/loss")
    assert {*verdicts} == {f"optimizer={arm}" for arm in SHIFTS}
    assert verdicts["optimizer=sgd"] == "worse"


def test_lightning_runs_without_hydra(tmp_path):
    for row in benchmark(seeds=3).itertuples():
        folder = tmp_path / f"{row.arm}_seed{row.seed}" / "version_0"
        folder.mkdir(parents=True)
        (folder / "hparams.yaml").write_text("dim: 64\n")
        (folder / "metrics.csv").write_text(f"epoch,step,val_loss\n0,9,{row.value}\n")
    assert of(tmp_path, baseline="adamw")["sgd"] == "worse"
    for file in tmp_path.glob("*/version_0/hparams.yaml"):
        arm, seed = file.parts[-3].split("_seed")
        file.write_text(f"optimizer:\n  name: {arm}\n  lr: 0.1\nseed: {seed}\n")
    assert of(tmp_path, baseline="optimizer.name=adamw")["optimizer.name=sgd"] == "worse"


def test_exports_of_wandb(tmp_path):
    rows = [*benchmark(seeds=3).itertuples()]
    shown = pd.DataFrame(  # of the table of runs
        {"Name": f"{row.arm}-seed{row.seed}", "State": "finished", "Notes": "-", "Runtime": "61",
         "lr": 0.1, "optimizer": row.arm, "seed": row.seed, "val/loss": row.value}
        for row in rows
    )  # fmt: skip

    def exported(frame):
        frame.to_csv(tmp_path / "export.csv", index=False)
        return tmp_path / "export.csv"

    def verdicts(frame):
        return of(exported(frame), baseline="adamw", metric="val/loss")

    assert verdicts(shown)["sgd"] == "worse"
    crashed = shown.assign(State=["crashed", *shown.State[1:]])
    crashed.loc[0, "val/loss"] = np.nan
    assert {*verdicts(crashed).values()} == {"baseline", "excluded"}
    again = pd.concat([crashed, crashed[:1], shown[:1]])  # twice crashed, then finished
    for named in (again, again.assign(arm=again.optimizer)):
        assert verdicts(named)["sgd"] == "worse"
    crashed["lr"] = "high"  # the one column of numbers is the metric, which the crashed run lacks
    alone = read_results(exported(crashed.drop(columns=["Runtime"])), None)
    assert alone.values[-1].metric == "val/loss"

    file = exported(shown.assign(Name=[f"sunny-sky-{n}" for n in range(len(rows))]))
    with pytest.raises(UserError, match=r"every run has another Name; add --arm COLUMN"):
        read_results(file, "val/loss")
    named = read_results(file, "val/loss", ["optimizer"])
    assert {value.arm for value in named.values} == {*SHIFTS}

    pd.DataFrame(  # of wandb.Api().runs, as the manual of W&B writes it
        {"summary": {"_step": 9, "val": {"loss": row.value}, "bad": float("nan")},
         "config": {"seed": row.seed}, "name": row.arm}
        for row in rows
    ).to_csv(file := tmp_path / "project.csv")  # fmt: skip
    found = of(file, baseline="adamw", metric="val.loss", better="lower")
    assert found["muon"] == "better"


def test_results_of_lm_eval(tmp_path):
    for row in benchmark(seeds=3).itertuples():
        model = f"EleutherAI__{row.arm}-seed{row.seed}"
        (tmp_path / model).mkdir()
        content = {
            "results": {
                "arc_easy": {"alias": "arc_easy", "acc,none": row.value / 10,
                             "acc_stderr,none": 0.01, "acc_norm,none": 0.5},
                "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.1},
            },
            "higher_is_better": {"arc_easy": {"acc": True, "acc_norm": True}},
            "config": {
                "model": "hf",
                "model_args": f"pretrained=EleutherAI/{row.arm}-seed{row.seed},dtype=float32",
                "random_seed": 0, "numpy_seed": 1234,
            },
        }  # fmt: skip
        name = "results_2025-11-01T10-00-00.123456.json"
        (tmp_path / model / name).write_text(json.dumps(content))
    baseline = "pretrained=EleutherAI/adamw,dtype=float32"
    names = {value.metric for value in read_results(tmp_path).values}
    assert names == {"arc_easy/acc", "arc_easy/acc_norm", "gsm8k/exact_match,strict-match"}
    verdicts = of(tmp_path, baseline=baseline, metric="arc_easy/acc")
    assert verdicts["pretrained=EleutherAI/sgd,dtype=float32"] == "better"
    with pytest.raises(UserError, match=r"several metrics .*gsm8k/exact_match,strict-match"):
        of(tmp_path, baseline=baseline)


HEAD = "arm,seed,value\n"
TABLE = f"{HEAD}a,0,1\na,1,2\nb,0,3\nb,1,4\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TABLE.replace("arm", "arms"), "", r"no column arm .*did you mean 'arms'"),
        (TABLE.replace("value", "loss"), "--metric los", r"no column los; did you mean 'loss'"),
        (TABLE.replace("\n", ",1\n").replace("value,1", "loss,acc"), "", r"several metrics \(loss"),
        (TABLE, "--baseline c", r"--baseline: unknown arm c \(there: a and b\)"),
        (f"{HEAD}a,0,1\nb,0,2\n", "--metric loss", r"has only one seed, 0"),
        (f"{HEAD}a,0,1\na,1,1\n", "--metric loss", r"has only one arm, a"),
        (TABLE.replace(",2", ",nan"), "", r"line 3: value is nan \(arm a, seed 1\)"),
        (TABLE.replace(",2", ","), "", r"line 3: value is not a number: ''"),
        (TABLE.replace(",2", ",x").replace("value", "y"), "", r"line 3: y is not a number: 'x'"),
        (TABLE.replace("a,1", "a,0"), "", r"line 3: arm a has seed 0 twice \(also .* line 2\)"),
        (TABLE.replace("a,1", "a,.5"), "", r"line 3: seed is not an integer: .5"),
        (TABLE.replace("a,1", "a,"), "", r"line 3: has no seed"),
        (TABLE.replace("a,1,2", "a,1"), "", r"line 3: has 2 cells, and line 1 has 3"),
        (TABLE.replace("value", "seed"), "", r"has a column twice"),
        (TABLE, "", r"value: its name does not tell which is better: add --better lower"),
        (TABLE, "--metric loss --allow sed", r"did you mean 'seeds'"),
        (TABLE, "--arm mode", r"no column mode .*\(there: arm, seed and value\)"),
        ("", "", r"it is empty"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, text, options, message):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path / "x.csv", "--baseline", "a", *options.split())
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert re.search(message, err), err
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"neither metrics\.csv .* nor results_\*\.json"):
        read_results(tmp_path)
    (tmp_path / "results_x.json").write_text("[]")
    with pytest.raises(UserError, match=r"results_x\.json: is not a file of results of lm-eval"):
        read_results(tmp_path)
    (tmp_path / "plan.json").touch()
    with pytest.raises(UserError, match=r"is a study: python -m ablate\.report"):
        read_results(tmp_path)
    with pytest.raises(UserError, match=r"no such file"):
        read_results(tmp_path / "nothing.csv")
