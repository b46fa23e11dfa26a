"""Claims of a study: how they are said, when they hold, when they were made; frames of it all."""

import json
from itertools import product
from runpy import run_path

import numpy as np
import pytest
from make_study import ADDITIVE, BASE, arm, change, make_study, scores, shifted
from make_sweep import tiny_for, write_sweep
from refusals import refused

import ablate
from ablate import report as command_line
from ablate.errors import RunFailed
from ablate.machine.version import PACKAGE
from ablate.study.analysis.claims import settle
from ablate.study.analysis.collect import collect
from ablate.study.analysis.judged_claims import AFTER
from ablate.study.analysis.noise import Noise
from ablate.study.analysis.rows import assemble
from ablate.study.plan.claims import Term, parse_claims, recorded

pytest_plugins = ["command_line", "make_study"]

ARMS = ("baseline", "a", "b", "c")
METRICS = {"val/loss/1": 1, "val/loss/2": 2, "val/loss/4": 4}


def claim(way="worse", **keys):
    return {"statement": "It is so.", "arm": "a", "direction": way, **keys}


def settled(claims, values, *, seeds=5):
    """values: by arm, or a function of arm and metric."""

    def read(term):
        of = values(term.arm, term.metric) if callable(values) else values[term.arm or "baseline"]
        return dict(enumerate(of))

    def noise(metric, block):
        arms = {arm: read(Term(arm, metric, 1.0)) for arm in ARMS[1:]}
        return Noise.of({"baseline": read(Term(None, metric, 1.0)), **arms}, "baseline")

    parsed = parse_claims(claims, ARMS, "baseline")
    return settle(parsed, read, noise, seeds=lambda claim: range(seeds), mode="min")


def verdicts(claims, values, **options):
    return [one.verdict for one in settled(claims, values, **options)]


FLAT = np.array([1.0, 1.2, 0.9, 1.1, 1.05])
NOISE = np.array([0.01, -0.012, 0.004, 0.009, -0.006])
VALUES = {"baseline": FLAT, "a": FLAT + 0.5 + NOISE, "b": FLAT + 0.1 - NOISE, "c": FLAT + NOISE / 9}


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        (claim("worse"), "confirmed"),
        (claim("better"), "refuted"),
        (claim("lower"), "refuted"),
        (claim("better", mode="max"), "confirmed"),
        (claim("better", metric="cost/throughput"), "confirmed"),
        (claim(min_effect=0.4), "confirmed"),
        (claim(min_effect=0.6), "refuted"),
        (claim(min_effect=0.5), "undecided"),
        (claim("better", arm="b", versus="a", min_effect=0.3), "confirmed"),
        (claim(arm="c"), "undecided"),
        (claim("equivalent", arm="c", margin=0.02), "confirmed"),
        (claim("equivalent", arm="b", margin=0.02), "refuted"),
        (claim("equivalent", arm="b", margin=0.1), "undecided"),
        (claim("equivalent", arm="c", versus=1.05, margin=0.2), "confirmed"),
        (claim("equivalent", arm="c", versus=2, margin=0.2), "refuted"),
        (claim(versus=1.0, min_effect=0.3), "confirmed"),
        (claim("better", versus=3.0, min_effect=1.0), "confirmed"),
        (claim(more_than={"arm": "b"}), "confirmed"),
        (claim(arm="b", more_than={"arm": "a", "versus": "c"}), "refuted"),
    ],
)
def test_a_claim_is_confirmed_or_refuted_beyond_what_counts(said, verdict):
    assert verdicts([said], VALUES) == [verdict]


def test_a_trend_is_the_slope_over_places():
    """1 a place for arm a, none for the baseline; the least-squares line of three places."""

    def values(arm, metric):
        place = METRICS[str(metric)]
        return FLAT + (place if arm == "a" else 0) + NOISE * place**2

    higher = claim("higher", min_effect=0.9, rising_over=METRICS)
    alone = {**higher, "arm": "b", "direction": "lower", "versus": "nothing"}
    found = [*verdicts([higher], values), *verdicts([alone], values)]
    assert found == ["confirmed", "refuted"]
    (one,) = settled([claim(rising_over=METRICS)], values)
    gaps = [values("a", m) - values(None, m) for m in METRICS]
    assert one.effect == pytest.approx(np.polyfit([*METRICS.values()], gaps, 1)[0].mean())


def test_holm_runs_over_the_claims_of_a_study():
    """p = 0.02 confirms a single claim, and none of four."""
    d = np.array([1.0, 2.0, 3.0]) * 0.1 + 0.2  # t = 6.93 of three: p = 0.0202
    values = {"baseline": FLAT[:3], "a": FLAT[:3] + d, "b": [], "c": []}
    assert verdicts([claim()], values, seeds=3) == ["confirmed"]
    four = [claim(statement=f"{n}") for n in range(4)]
    assert verdicts(four, values, seeds=3) == ["undecided"] * 4


SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "heavy": lambda rng, size: rng.standard_t(2, size),
    "skewed": lambda rng, size: rng.exponential(size=size),
    "coin": lambda rng, size: rng.integers(0, 2, size).astype(float),
}
# By what is claimed, and what is there.
CLAIMED = {
    "directed": (claim(), 0.0),
    "by": (claim(min_effect=0.7), 0.7),
    "equivalent": (claim("equivalent", margin=0.7), 0.7),
    "interaction": (claim(more_than={"arm": "b"}), 0.0),
    "trend": (claim(rising_over=METRICS), 0.0),
}
QUICK = [("by", "coin", 5), ("equivalent", "normal", 3), ("interaction", "skewed", 8)]


@pytest.mark.parametrize(
    ("kind", "shape", "seeds"),
    [
        pytest.param(*case, marks=pytest.mark.ci if case in QUICK else pytest.mark.slow)
        for case in product(CLAIMED, SHAPES, (3, 5, 8))
    ],
)
def test_false_confirmations_and_refutations_stay_at_the_level(kind, shape, seeds):
    """Of four claims at their boundary, on arms whose runs share the noise of a seed."""
    rng, wrong = np.random.default_rng(seeds), 0
    said, shift = CLAIMED[kind]
    four = [said] * 2 + [{**said, "arm": "c"}] * 2
    for _ in range(150):
        shared = 3 * rng.normal(size=seeds)
        noise = {
            place: shared + SHAPES[shape](rng, (seeds,)) + shift * (place[0] in ("a", "c"))
            for place in product(ARMS, (None, *METRICS))
        }
        values = lambda arm, metric, noise=noise: noise[arm or "baseline", metric]  # noqa: E731
        wrong += "confirmed" in verdicts(four, values, seeds=seeds)
    # Of 150 studies at 5 %, 7.5 are expected at most; 17 with a probability of 0.001.
    assert wrong <= 16


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (claim(arm="d"), "study.claims[0]: unknown arm d"),
        (claim(versus="a"), "compares a with itself"),
        (claim("wrose"), "did you mean 'worse'"),
        (claim(min_effect=-1), "min_effect=-1: must be above 0"),
        (claim(min_effect=True), "min_effect=True: must be a number"),
        (claim(metric=3), "metric=3: must be a string"),
        (claim("better", mode="lower"), "mode=lower: must be min or max"),
        (claim(margin=0.1), "direction=equivalent requires `margin`"),
        (claim("equivalent", margin=0.1, min_effect=0.1), "takes `margin` instead of"),
        (claim(margn=1), "did you mean 'margin'"),
        ({"statement": "x"}, "needs arm, a string"),
        (claim(rising_over={"val/x": 1}), "at least two"),
        (claim(rising_over={"val/x": 1, "val/y": 1}), "all x values are the same"),
        (claim(rising_over={"val/x": 1, "val/y": 2}, metric="val/loss"), "cannot be combined with"),
        (claim(more_than={"arms": "b"}), "more_than must be"),
        (claim(versus="nothing"), "versus=nothing requires rising_over"),
        (claim(versus=2, rising_over=METRICS), "versus=2 cannot be combined"),
        (claim(more_than={"arm": "b", "versus": 1}), "more_than: versus must be an arm"),
    ],
)
def test_what_is_no_claim_is_refused_in_one_line(node, says):
    with refused(says):
        parse_claims([node], ARMS, "baseline")


def test_claims_made_when_runs_exist_are_marked_permanently():
    def marks(plan):
        return {e["claim"]["statement"]: (e["after"], e["dropped"]) for e in plan}

    first, second, third = (claim(statement=f"{n}.") for n in range(3))
    plan = recorded([first, second], (), begun=False)
    assert marks(plan) == dict.fromkeys(["0.", "1."], (False, False))
    plan = recorded([first, third], plan, begun=True)
    assert marks(plan) == {"0.": (False, False), "1.": (False, True), "2.": (True, False)}
    made = {e["claim"]["statement"]: e["made"] for e in plan}
    plan = recorded([third, second, {**first, "min_effect": 0.1}], plan, begun=True)
    kept = [e for e in plan if not e["dropped"]]
    assert marks(kept) == {"2.": (True, False), "1.": (False, False), "0.": (True, False)}
    assert all(
        e["made"] == made[e["claim"]["statement"]] for e in plan if "min_effect" not in e["claim"]
    )
    numbered = claim(rising_over={64: 0, 256: 1})  # blocks, which are strings in plan.json
    plan = recorded([numbered], (), begun=False)
    plan = recorded([numbered], json.loads(json.dumps(plan)), begun=True)
    assert [(e["after"], e["dropped"]) for e in plan] == [(False, False)]


@pytest.mark.ci
def test_claims_of_a_sweep_are_fixed_with_its_plan(ablate_command, seen, tmp_path):
    arms = ("pos_enc=alibi", "pos_enc=none")
    claims = [claim("better", arm=arm, statement=f"{arm} is better.") for arm in arms]
    study = f"{{factors: {{pos_enc: [alibi, none]}}, seeds: 3, claims: {json.dumps(claims)}}}"
    worse = {"alibi": -0.5, "learned": 0.0, "none": 0.5}
    seen["measure"] = lambda cfg: cfg.seed + worse[cfg.choices.pos_enc] * (1 + cfg.seed / 50)
    argv = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path), "hydra/launcher=basic"]
    code, out, err = ablate_command(*argv)
    assert (code, err) == (0, "")
    assert "claim: pos_enc=alibi is better." in out
    found = assemble(collect(tmp_path / "outputs/mine"), allow=["data", "code"]).claims
    assert [entry.verdict for entry in found] == ["confirmed", "refuted"]
    assert AFTER not in found[0].evidence


def with_claims(study, *claims, after=False):
    made = {"made": "2026-11-25T12:00:00+00:00", "after": after, "dropped": False}
    change(study / "plan.json", claims=[{"claim": node, **made} for node in claims])
    return study


def test_a_row_of_docs_has_the_metric_and_the_unit_of_its_claim(tmp_path):
    script = run_path(str(PACKAGE.parents[1] / "benchmarks" / "claims.py"))
    arms = {"baseline": arm(BASE), "a": arm(shifted(0.5), {"a": "b"})}
    rising = {"val/loss": 0, "val/loss/2": 1}
    study = make_study(tmp_path / "s", arms, sweep="mixers")
    with_claims(study, claim(min_effect=0.1), claim(rising_over=rising))
    first, second = script["rows"](collect(study))
    found = [first[key] for key in ("study", "verdict", "measure", "unit", "expected")]
    assert found == ["mixers", "confirmed", "val/loss", "nats", "> 0.1"]
    assert float(first["low"]) <= float(first["effect"]) <= float(first["high"])
    assert (second["measure"], second["verdict"]) == ("val/loss/2 minus val/loss", "not tested")
    slope = script["measure"]({"rising_over": {64: 0, 256: 1, 1024: 2}}, "cost/memory")
    places = "block 64: 0, block 256: 1, block 1024: 2"
    assert slope == (f"cost/memory, slope over x = {places}", "bytes per unit of x")


def test_a_claim_may_be_about_an_arm_that_sees_what_it_predicts(tmp_path):
    """Which is not compared in the table."""
    arms = {"baseline": arm(BASE), "a": arm(shifted(-0.3), {"a": "b"}, caution="label leakage")}
    study = with_claims(make_study(tmp_path / "s", arms), claim("better", arm="a"))
    report = assemble(collect(study))
    assert [row.kind for row in report.others] == ["excluded"]
    assert [entry.verdict for entry in report.claims] == ["confirmed"]


@pytest.mark.ci
@pytest.mark.usefixtures("no_pdf")
def test_the_report_judges_claims_and_says_what_it_cannot_judge(tmp_path, monkeypatch):
    """--check ends with 1 where one is refuted, and with 2 where there are none."""
    study = scores(tmp_path)
    monkeypatch.setattr("sys.argv", ["report", str(study), "--check"])
    with refused("has no claims"):
        command_line.main()
    with_claims(
        study,
        claim(arm=ADDITIVE, min_effect=0.05, source="Somebody 2020, table 1"),
        claim(arm="model.attention=general"),
        claim("better", arm=ADDITIVE),
    )
    found = assemble(collect(study)).claims
    verdicts = ["confirmed", "not tested", "refuted"]
    assert [entry.verdict for entry in found] == verdicts
    assert found[0].sentence == "It is so (Somebody 2020, table 1)"
    assert "claimed to exceed 0.05" in found[0].evidence
    assert "seed 3 failed" in found[1].evidence
    with refused("refuted: It is so", by=RunFailed):
        command_line.main()
    for kind in ("html", "md"):
        text = (study / f"report.{kind}").read_text()
        assert [told for told in ("Somebody 2020", *verdicts[1:]) if told not in text] == []
    told = json.loads((study / "report.json").read_text())
    assert [c["verdict"] for c in told["claims"]] == verdicts
    assert told["claims"][0]["scale"] == "810 k parameters, 410 k tokens"
    assert "confirmed at 810 k parameters, 410 k tokens" in (study / "report.md").read_text()
    assert told["arms"][2]["values"] == {str(n): v for n, v in enumerate(shifted(0.1))}
    assert told["arms"][2]["difference"] == pytest.approx(0.1, abs=0.002)
    with_claims(study, claim(arm=ADDITIVE), after=True)
    (entry,) = assemble(collect(study)).claims
    assert entry.evidence.endswith("post hoc")
    command_line.main()


def test_a_study_is_its_report_in_frames(tmp_path):
    """And reading writes nothing."""
    folder = with_claims(scores(tmp_path), claim(arm=ADDITIVE, min_effect=0.05))
    before = sorted(path.name for path in folder.iterdir())
    study = ablate.load_study(folder)
    runs = study.runs
    assert len(runs) == 20
    assert runs[runs.arm == ADDITIVE]["val/loss"].tolist() == shifted(0.1)
    assert runs[runs.state != "finished"]["val/loss"].isna().all()
    assert (runs[runs.state == "finished"]["cost/seconds"] > 0).all()
    assert study.arms.loc[study.baseline, "mean"] == pytest.approx(sum(BASE) / 5)
    row = study.arms.loc[ADDITIVE]
    assert row.verdict == "worse"
    assert row.low < row.difference < row.high
    assert study.verdicts[ADDITIVE].startswith("worse by 0.1")
    assert study.claims.loc["It is so.", "verdict"] == "confirmed"
    assert {"arm", "seed", "step", "val/loss"} <= {*study.curves.columns}
    for frame in (runs, study.curves, study.arms.reset_index(names="arm")):
        options = dict(zip(frame.arm, frame["model.attention"], strict=True))
        assert (options["baseline"], options[ADDITIVE]) == ("scaled_dot", "additive")
    assert study.runs.columns[2] == study.curves.columns[2] == "model.attention"
    assert f"{ADDITIVE}: worse by" in repr(study)
    assert "confirmed: It is so" in repr(study)
    assert "worse" in study._repr_html_()
    assert sorted(path.name for path in folder.iterdir()) == before
    with refused("is not a study's folder"):
        ablate.load_study(tmp_path)


def test_differences_within_a_budget_may_be_compared(tmp_path):
    """An interaction of arms in two budgets, not a difference across them."""
    small = {"steps": 100, "tokens": 1024}
    arms = {
        "baseline": arm(BASE),
        "a": arm(shifted(0.1), changes={"model.x": "a"}),
        "b": arm(shifted(0.5), changes={"model.x": "b"}, **small),
        "c": arm(shifted(0.8), changes={"model.x": "c"}, **small),
    }
    study = with_claims(
        make_study(tmp_path / "s", arms),
        claim(arm="c", versus="b", more_than={"arm": "a"}),
        claim(arm="c", versus="b"),
        claim(arm="c"),
        claim(arm="a", versus="b"),
    )
    found = [entry.verdict for entry in assemble(collect(study)).claims]
    assert found == ["confirmed", "confirmed", "not tested", "not tested"]
