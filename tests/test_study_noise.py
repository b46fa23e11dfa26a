"""noise.json: written by reports, read by plans, and used by verdicts and claims."""

import json
from runpy import run_path

import numpy as np
import pytest
from make_study import ADDITIVE, BASE, arm, make_study
from refusals import refusal, refused
from scipy import stats
from statsmodels.formula.api import ols
from test_study_stats import LEVEL, assert_within, layout, study
from tiny import overrides

from ablate.machine.version import PACKAGE
from ablate.run_files.records import read_plan
from ablate.study.analysis import known, power
from ablate.study.analysis.collect import collect
from ablate.study.analysis.compare import compare
from ablate.study.analysis.noise import Noise, Part
from ablate.study.analysis.rows import assemble
from ablate.study.report.to_json import to_json

pytest_plugins = ["command_line"]

METRIC = "val/loss"


def noise_of(report):
    return known.content(report.study.plan, report.noises)


def noise_file(**content):
    """The content of noise.json, of three arms with five seeds, each part replaceable."""
    usual = {"version": "1", "study": "before", "recipe": {}, "data": {}, "arms": 3, "seeds": 5}
    return usual | {"metrics": {METRIC: {"sd": 0.01, "df": 8}}} | content


def assumed(sd, df):
    files = [noise_file(metrics={METRIC: {"sd": sd, "df": df}})]
    return {"noise": {"files": files, "after": False}}


# The file


def test_a_report_writes_the_residual_of_arms_and_seeds_and_the_recipe(tmp_path):
    y = np.array(BASE) + 0.01 * np.random.default_rng(0).normal(size=(3, 5))
    arms = dict(zip(("baseline", ADDITIVE, "pos_enc=none"), map(arm, y.tolist()), strict=True))
    folder = make_study(tmp_path / "scores", arms, also=["val/perplexity"])
    found = noise_of(assemble(collect(folder)))
    fit = ols("y ~ C(arm) + C(seed)", layout(y)).fit()
    assert found["metrics"][METRIC] == {"sd": pytest.approx(fit.mse_resid**0.5), "df": 8}
    assert [*found["metrics"]] == [METRIC, "val/perplexity"]
    assert (found["study"], found["arms"], found["seeds"]) == ("scores", 3, 5)
    assert found["recipe"]["data"] == "pydoc"
    assert found["recipe"]["optimizer.lr"] == 0.002
    assert found["recipe"]["parameters"] == arms["baseline"].parameters
    assert known.noise_file_error(found) is None


def test_one_seed_has_no_noise_and_a_diverging_arm_is_left_out_of_it(tmp_path):
    one = make_study(tmp_path / "one", {"baseline": arm(BASE[:1]), ADDITIVE: arm(BASE[1:2])})
    assert noise_of(assemble(collect(one))) is None
    y = np.random.default_rng(0).normal(size=(6, 5))
    y[3] *= 100
    usual = Noise.of(study(y), "0").usual
    assert usual == Noise.of(study(np.delete(y, 3, 0)), "0").usual
    assert usual.df == 16
    y[3] /= 100
    assert Noise.of(study(y), "0").usual.df == 20


def test_files_are_pooled_by_degrees_of_freedom():
    files = [noise_file(metrics={METRIC: {"sd": sd, "df": df}}) for sd, df in ((1, 10), (2, 30))]
    both = known.pooled([*files, noise_file(metrics={"other": {"sd": 9, "df": 9}})], METRIC)
    assert both == Part(pytest.approx((1 * 10 + 4 * 30) / 40), 40)
    assert known.pooled(files, "val/accuracy") is None


# The plan


@pytest.fixture
def ran(ablate_command, tmp_path, monkeypatch):
    """The folder of a study with a noise.json, and what runs another one of the same recipe."""

    monkeypatch.setenv("COLUMNS", "300")

    def command(*more, name="next", seeds=2):
        tiny = overrides(tmp_path, f"study.name={name}", f"study.seeds={seeds}", *more)
        return ablate_command("-m", *tiny, "pos_enc=learned,rotary,none", "hydra/launcher=basic")

    assert command(name="first", seeds=1)[0] == 0
    folder = tmp_path / "outputs" / "first"
    noise = Noise.of(study(np.random.default_rng(1).normal(size=(4, 6))), "0")
    found = known.content(read_plan(folder), {METRIC: noise})
    (folder / known.NOISE).write_text(json.dumps(found))
    return folder, command


@pytest.mark.ci
def test_the_plan_says_which_effect_it_shows_and_how_many_seeds_show_another(ran, tmp_path):
    folder, command = ran
    part = known.pooled([json.loads((folder / known.NOISE).read_text())], METRIC)
    shown = power.smallest_effect(2, 2, part.df) * part.variance**0.5
    needed = power.seeds_for(1.5 / part.variance**0.5, 2, part.df)
    for dry in ("study.dry_run=true", "study.dry_run=false"):
        _, out, _ = command(f"study.noise={folder}", "study.effect=1.5", dry)
        assert f"With 2 seeds an effect of {shown:.2g} on val/loss is shown with a prob" in out
        assert f"An effect of 1.5 needs {needed} seeds." in out
    plan = read_plan(tmp_path / "outputs" / "next")
    (file,) = known.files(plan)
    path = folder / known.NOISE
    assert file == {"file": str(path)} | json.loads(path.read_text())
    assert not plan["noise"]["after"]
    _, out, _ = command("study.dry_run=true", seeds=3)
    assert f"effect of {power.smallest_effect(2, 3):.2g} standard deviations of the noise" in out
    _, out, _ = command("study.dry_run=true")
    assert "2 seeds: a verdict needs 3, or 2 with study.noise=FILE." in out


@pytest.mark.ci
def test_a_noise_that_is_chosen_after_the_first_run_is_marked(ran, tmp_path):
    folder, command = ran
    assert command()[0] == 0
    for _ in range(2):
        assert command(f"study.noise={folder}/noise.json")[0] == 0
        assert read_plan(tmp_path / "outputs" / "next")["noise"]["after"]
    report = assemble(collect(tmp_path / "outputs" / "next"))
    assert "study.noise was set, or changed, after the first run." in report.remarks


@pytest.mark.ci
def test_a_pattern_leaves_out_the_studys_own_file(ran, tmp_path):
    folder, command = ran
    own = tmp_path / "outputs" / "next"
    pattern = f"study.noise={tmp_path}/outputs/*/noise.json"
    assert command(pattern)[0] == 0
    (own / known.NOISE).write_text((folder / known.NOISE).read_text())
    assert command(pattern)[0] == 0
    assert [file["study"] for file in known.files(read_plan(own))] == ["first"]
    refusal(command(f"study.noise={own}"), "is of this study itself")


RECIPE = {"data": "text", "model.dim": 16, "steps": 12, "parameters": 3776, "training_flops": 10**7}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"recipe": RECIPE | {"steps": 24}}, "is of another recipe: steps=24 there and 12 here"),
        ({"recipe": RECIPE | {"data": "pydoc"}}, "recipe: data=pydoc there and text here"),
        ({"recipe": RECIPE | {"parameters": 4500}}, "parameters=4500 there and 3776 here"),
        ({"recipe": {"data": "text"}}, "model.dim=None there and 16 here"),
        ({"data": {"0": "other"}}, "fingerprint of the data other there and 417c here"),
        ({"metrics": {"val/bleu": {"sd": 1, "df": 2}}}, "no noise of val/loss (there: val/bleu)"),
        ({"metrics": {METRIC: {"sd": 0, "df": 2}}}, "val/loss: sd and df must be above 0"),
        ({"metrics": None}, "is not the noise of a study: metrics is not a mapping"),
    ],
)
def test_a_file_of_another_recipe_and_what_is_no_noise_is_refused(tmp_path, content, says):
    file = tmp_path / known.NOISE

    def read(**content):
        file.write_text(json.dumps(noise_file(**{"recipe": RECIPE, **content})))
        here = {"recipe": RECIPE, "data": {"0": "417c", "1": "417c"}, "metric": METRIC}
        return known.read(str(file), **here, folder=tmp_path / "next")

    assert len(read(recipe=RECIPE | {"parameters": 3900}, data={"1": "417c", "2": "5"})) == 1
    with refused("study.noise: ", str(file), says):
        read(**content)


@pytest.mark.ci
def test_the_command_refuses_noise_that_it_cannot_use(ran, tmp_path):
    folder, command = ran
    blocks = "study.blocks={optimizer.lr: [0.1, 0.2]}"
    for typed, says in [
        (["trainer.max_steps=24"], "is of another recipe: steps=12 there and 24 here"),
        (["study.noise=outputs/frist/noise.json"], "file not found: outputs/frist/noise.json"),
        (["study.noise=[]"], "study.noise=[]: must be"),
        (["study.noise=null", "study.effect=0.1"], "study.effect=0.1: needs study.noise=FILE"),
        ([blocks], "study.noise with study.blocks"),
    ]:
        refusal(command(f"study.noise={folder}", *typed), says)
    (folder / known.NOISE).write_text("{")
    refusal(command(f"study.noise={folder}"), "noise.json cannot be read")
    assert not (tmp_path / "outputs" / "next").exists()


def test_a_plan_with_a_noise_that_is_none_is_refused(tmp_path):
    folder = make_study(tmp_path / "s", {"baseline": arm(BASE)}, **assumed(-1.0, 8))
    with refused("plan.json cannot be used: noise: metrics.val/loss: sd and df must be above 0"):
        collect(folder)


def test_the_page_on_seeds_has_the_tables_of_the_test_in_use():
    script = run_path(str(PACKAGE.parents[1] / "benchmarks" / "verdicts.py"))
    page = (PACKAGE.parents[1] / "docs" / "how-to" / "choose-seeds-and-steps.md").read_text()
    assert all(table in page for table in script["seeds_tables"]())


# Verdicts


def two_seeds(folder, sd, **plan):
    """A study whose additive arm is far worse than the baseline, over two seeds."""
    arms = {
        "baseline": arm([1.5, 1.52]),
        ADDITIVE: arm([1.71, 1.725]),
        "pos_enc=none": arm([1.498, 1.524]),
    }
    claims = [{"claim": {"statement": "Additive is worse.", "arm": ADDITIVE, "direction": "worse"},
               "made": "", "after": False, "dropped": False}]  # fmt: skip
    return assemble(collect(make_study(folder, arms, claims=claims, **assumed(sd, 20), **plan)))


def test_two_seeds_suffice_with_known_noise_unless_the_studys_own_differs(tmp_path):
    report = two_seeds(tmp_path / "agrees", 0.01)
    kinds = {row.arm.name: row.kind for row in report.others}
    assert kinds == {ADDITIVE: "worse", "pos_enc=none": "inconclusive"}
    assert [entry.verdict for entry in report.claims] == ["confirmed"]
    (line,) = report.warnings
    assert "agrees with the noise assumed, 0.01 (20 degrees of freedom), (F test" in line
    (noise,) = to_json(report)["noise"].values()
    assert (noise["assumed"], noise["assumed_used"]) == ({"sd": 0.01, "df": 20}, True)
    report = two_seeds(tmp_path / "differs", 0.0001)
    assert {row.kind for row in report.others} == {"too_few_seeds"}
    assert [entry.verdict for entry in report.claims] == ["undecided"]
    assert "differs from the noise assumed" in report.warnings[0]
    assert "verdicts do not use the noise assumed" in report.warnings[0]


def test_from_three_seeds_on_known_noise_changes_no_verdict():
    y, known_noise = np.random.default_rng(3).normal(size=(3, 3)), Part(1.0, 40)
    assert Noise.of(study(y), "0", known_noise).agreement > LEVEL
    with_it, without = (
        compare(study(y), baseline="0", mode="min", known=known) for known in (known_noise, None)
    )
    assert with_it.arms == without.arms
    assert "verdicts of 3 or more seeds use that of this study only" in with_it.warnings[0]
    assert power.smallest_effect(3, 3, 40) == power.smallest_effect(3, 3)
    assert [power.seeds_for(4.0, 1, df) for df in (0, 40)] == [4, 2]


def test_whether_the_noise_differs_is_an_f_test_of_the_residuals_alone():
    y = np.random.default_rng(2).normal(size=(4, 3))
    noise = Noise.of(study(y), "0", Part(2.0, 18))
    ratio = noise.found.variance / 2.0
    sides = stats.f.cdf(ratio, noise.found.df, 18), stats.f.sf(ratio, noise.found.df, 18)
    assert noise.agreement == pytest.approx(2 * min(sides))
    moved = y + np.array([0, 1, -5, 30])[:, None] + np.arange(3)
    assert Noise.of(study(moved), "0", Part(2.0, 18)).agreement == pytest.approx(noise.agreement)
    agreements = [Noise.of(study(y), "0", Part(v, 18)).agreement for v in (1e-4, 1.0, 1e4)]
    assert agreements[0] < LEVEL < agreements[1] > LEVEL > agreements[2]


def two_seed_studies(studies, arms=10, known_df=20, effect=0.0, ratio=1.0):
    """Studies with two seeds and known noise, of a residual of 1, in which an arm is shown to
    differ; only the first arm has an effect. ratio: of the noise of the runs to the known one."""
    rng, found = np.random.default_rng([arms, known_df]), 0
    for _ in range(studies):
        y = rng.normal(size=(arms + 1, 2)) * ratio + rng.normal(size=2)
        y[1] += effect
        part = Part(rng.chisquare(known_df) / known_df, known_df)
        compared = compare(study(y), baseline="0", mode="min", known=part).arms
        shown = [each.tests.differs for each in compared]
        found += shown[0] if effect else any(shown)
    return found


@pytest.mark.ci
def test_two_seeds_with_known_noise_keep_the_level_and_show_large_effects():
    """The effect: three standard deviations of one run, with a residual of 0.71 of it."""
    assert_within(two_seed_studies(150), 150, LEVEL)
    assert two_seed_studies(100, effect=3 / 0.71) >= 60


@pytest.mark.slow
@pytest.mark.parametrize(("arms", "known_df"), [(1, 10), (5, 8), (10, 20), (10, 200)])
def test_two_seeds_with_known_noise_keep_the_level(arms, known_df):
    assert_within(two_seed_studies(2000, arms, known_df), 2000, LEVEL)
