"""Claims of a study: how they are said, when they hold, when they were made; frames of it all."""

import json
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from make_study import ADDITIVE, BASE, arm, make_study, scores, shifted

import ablate
from ablate import report as command_line
from ablate.errors import RunFailed, UserError
from ablate.study.analysis.claims import settle
from ablate.study.analysis.collect import collect
from ablate.study.plan.claims import parse_claims, recorded
from ablate.study.report import write
from ablate.study.report.rows import assemble

ARMS = ("baseline", "a", "b", "c")
METRICS = {"val/loss/1": 1, "val/loss/2": 2, "val/loss/4": 4}


def claim(**keys):
    return {"says": "It is so.", "arm": "a", "is": "worse", **keys}


def settled(claims, values, *, seeds=5, mode="min"):
    """values: by arm, or a function of arm and metric."""

    def read(term):
        of = values(term.arm, term.metric) if callable(values) else values[term.arm or "baseline"]
        return dict(enumerate(of))

    parsed = parse_claims(claims, ARMS, "baseline")
    return settle(parsed, read, seeds=lambda claim: range(seeds), mode=mode)


def verdicts(claims, values, **options):
    return [one.verdict for one in settled(claims, values, **options)]


FLAT = np.array([1.0, 1.2, 0.9, 1.1, 1.05])
NOISE = np.array([0.01, -0.012, 0.004, 0.009, -0.006])
VALUES = {"baseline": FLAT, "a": FLAT + 0.5 + NOISE, "b": FLAT + 0.1 - NOISE, "c": FLAT + NOISE / 9}


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ({"is": "worse"}, "confirmed"),
        ({"is": "higher"}, "confirmed"),
        ({"is": "better"}, "refuted"),
        ({"is": "better", "mode": "max"}, "confirmed"),
        ({"is": "lower"}, "refuted"),
        ({"is": "worse", "by": 0.4}, "confirmed"),
        ({"is": "worse", "by": 0.6}, "refuted"),
        ({"is": "worse", "by": 0.5}, "undecided"),
        ({"is": "better", "metric": "cost/throughput"}, "confirmed"),
        ({"is": "worse", "metric": "cost/seconds"}, "confirmed"),
        ({"is": "better", "metric": "test/accuracy"}, "confirmed"),
        ({"arm": "b", "than": "a", "is": "better", "by": 0.3}, "confirmed"),
        ({"arm": "c", "is": "worse"}, "undecided"),
        ({"arm": "c", "is": "equivalent", "within": 0.02}, "confirmed"),
        ({"arm": "b", "is": "equivalent", "within": 0.02}, "refuted"),
        ({"arm": "b", "is": "equivalent", "within": 0.1}, "undecided"),
        ({"arm": "c", "than": 1.05, "is": "equivalent", "within": 0.2}, "confirmed"),
        ({"arm": "c", "than": 2, "is": "equivalent", "within": 0.2}, "refuted"),
        ({"than": 1.0, "by": 0.3}, "confirmed"),
        ({"than": 1.0, "is": "better"}, "refuted"),
        ({"than": 1.0, "is": "better", "mode": "max", "by": 0.3}, "confirmed"),
        ({"than": 3.0, "is": "better", "by": 1.0}, "confirmed"),
        ({"more_than": {"arm": "b"}}, "confirmed"),
        ({"arm": "b", "more_than": {"arm": "a", "than": "c"}}, "refuted"),
    ],
)
def test_a_claim_is_confirmed_or_refuted_beyond_what_counts(keys, verdict):
    assert verdicts([claim(**keys)], VALUES) == [verdict]


def test_a_trend_is_the_slope_over_places():
    """1 a place for arm a, none for the baseline; the least-squares line of three places."""

    def values(arm, metric):
        place = METRICS[str(metric)]
        return FLAT + (place if arm == "a" else 0) + NOISE * place**2

    higher = claim(**{"is": "higher"}, by=0.9, rising_over=METRICS)
    alone = {**higher, "than": "nothing"}
    for said, verdict in (
        (higher, "confirmed"),
        ({**higher, "by": 1.1}, "refuted"),
        (alone, "confirmed"),
        ({**alone, "arm": "b", "is": "lower"}, "refuted"),
    ):
        assert verdicts([said], values) == [verdict]
    (one,) = settled([claim(rising_over=METRICS)], values)
    gaps = [values("a", m) - values(None, m) for m in METRICS]
    assert one.effect == pytest.approx(np.polyfit([*METRICS.values()], gaps, 1)[0].mean())


def test_holm_runs_over_the_claims_of_a_study():
    """p = 0.02 confirms one claim alone, and none of four."""
    d = np.array([1.0, 2.0, 3.0]) * 0.1 + 0.2  # t = 6.93 of three: p = 0.0202
    values = {"baseline": FLAT[:3], "a": FLAT[:3] + d}
    assert verdicts([claim()], values, seeds=3) == ["confirmed"]
    assert verdicts([claim(says=f"{n}") for n in range(4)], values, seeds=3) == ["undecided"] * 4


SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "uniform": lambda rng, size: rng.uniform(-1, 1, size),
    "heavy": lambda rng, size: rng.standard_t(2, size),
    "skewed": lambda rng, size: rng.exponential(size=size),
    "coin": lambda rng, size: rng.integers(0, 2, size).astype(float),
}
QUICK = {("normal", 3), ("coin", 5), ("skewed", 8)}


@pytest.mark.parametrize(
    ("shape", "seeds"),
    [
        pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow])
        for case in product(SHAPES, (3, 5, 8))
    ],
)
@pytest.mark.parametrize(
    ("keys", "shift"),
    [
        pytest.param({"is": "worse"}, 0.0, id="directed"),
        pytest.param({"is": "worse", "by": 0.7}, 0.7, id="by"),
        pytest.param({"is": "equivalent", "within": 0.7}, 0.7, id="equivalent"),
        pytest.param({"more_than": {"arm": "b"}}, 0.0, id="interaction"),
        pytest.param({"rising_over": METRICS}, 0.0, id="trend"),
    ],
)
def test_false_confirmations_and_refutations_stay_at_the_level(keys, shift, seeds, shape):
    """Where nothing, or exactly what counts, is there: of four claims of a study, on arms whose
    runs share the noise of a seed."""
    rng, wrong = np.random.default_rng(seeds), 0
    said = [claim(**keys)] * 2 + [claim(**{**keys, "arm": "c"})] * 2
    for _ in range(150):
        shared = 3 * rng.normal(size=seeds)
        noise = {
            place: shared + SHAPES[shape](rng, (seeds,)) + shift * (place[0] in ("a", "c"))
            for place in product(ARMS, (None, *METRICS))
        }
        values = lambda arm, metric, noise=noise: noise[arm or "baseline", metric]  # noqa: E731
        wrong += "confirmed" in verdicts(said, values, seeds=seeds)
    # Of 150 studies at 5 %, 7.5 are expected at most; 17 with a probability of 0.001.
    assert wrong <= 16


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (claim(arm="d"), r"study\.claims\[0\]: there is no arm d"),
        (claim(arm="baseline"), "compares baseline with itself"),
        (claim(**{"is": "wrose"}), "is=wrose: must be better, .*did you mean 'worse'"),
        (claim(than="a"), "compares a with itself"),
        (claim(by=-1), "by=-1: must be above 0"),
        (claim(by=True), "by=True: must be a number"),
        (claim(within=0.1), "is=equivalent needs within"),
        (claim(**{"is": "equivalent"}), "is=equivalent needs within"),
        (claim(**{"is": "equivalent"}, within=0.1, by=0.1), "has no by"),
        (claim(whithin=1), "no key whithin; .*did you mean 'within'"),
        ({"says": "x"}, "needs arm, a text"),
        (claim(rising_over={"val/x": 1}), "at least two"),
        (claim(rising_over={"val/x": 1, "val/y": 1}), "all places are the same"),
        (claim(rising_over={"val/x": 1, "val/y": 2}, metric="val/loss"), "stands alone"),
        (claim(more_than={"arms": "b"}), "more_than must be"),
        (claim(than="nothing"), "than=nothing needs rising_over"),
        (claim(than=2, rising_over=METRICS), "than=2 stands alone"),
        (claim(more_than={"arm": "b", "than": 1}), "more_than: than must be an arm"),
        (claim(than=True), "there is no arm True"),
    ],
)
def test_what_is_no_claim_is_refused_in_one_line(node, says):
    with pytest.raises(UserError, match=says):
        parse_claims([node], ARMS, "baseline")


def test_claims_made_when_runs_exist_are_marked_for_ever():
    def marks(plan):
        return {e["claim"]["says"]: (e["after"], e["dropped"]) for e in plan}

    first, second, third = (claim(says=f"{n}.") for n in range(3))
    plan = recorded([first, second], None, begun=False)
    assert marks(plan) == dict.fromkeys(["0.", "1."], (False, False))
    plan = recorded([first, third], plan, begun=True)
    assert marks(plan) == {"0.": (False, False), "1.": (False, True), "2.": (True, False)}
    made = {e["claim"]["says"]: e["made"] for e in plan}
    plan = recorded([third, second, {**first, "by": 0.1}], plan, begun=True)
    kept = [e for e in plan if not e["dropped"]]
    assert marks(kept) == {"2.": (True, False), "1.": (False, False), "0.": (True, False)}
    assert all(e["made"] == made[e["claim"]["says"]] for e in plan if "by" not in e["claim"])
    numbered = claim(rising_over={64: 0, 256: 1})  # blocks, which are texts in plan.json
    plan = recorded([numbered], None, begun=False)
    plan = recorded([numbered], json.loads(json.dumps(plan)), begun=True)
    assert [(e["after"], e["dropped"]) for e in plan] == [(False, False)]


def with_claims(study, *claims, after=False):
    plan = json.loads((study / "plan.json").read_text())
    made = {"made": "2026-11-25T12:00:00+00:00", "after": after, "dropped": False}
    plan["claims"] = [{"claim": node, **made} for node in claims]
    (study / "plan.json").write_text(json.dumps(plan))
    return study


def test_the_report_judges_claims_and_says_what_it_cannot_judge(tmp_path):
    study = with_claims(
        scores(tmp_path),
        claim(arm=ADDITIVE, by=0.05, source="Somebody 2020, table 1"),
        claim(arm="model.attention=general"),
        claim(arm=ADDITIVE, **{"is": "better"}),
    )
    found = assemble(collect(study)).claims
    verdicts = ["confirmed", "not tested", "refuted"]
    assert [entry.verdict for entry in found] == verdicts
    assert found[0].sentence == "It is so (Somebody 2020, table 1)"
    assert "claimed to be more than 0.05" in found[0].evidence
    assert "seed 3 failed" in found[1].evidence
    write(study)
    for kind in ("html", "md"):
        text = (study / f"report.{kind}").read_text()
        assert [told for told in ("Somebody 2020", *verdicts[1:]) if told not in text] == []
    told = json.loads((study / "report.json").read_text())
    assert [c["verdict"] for c in told["claims"]] == verdicts
    assert told["arms"][2]["values"] == {str(n): v for n, v in enumerate(shifted(0.1))}
    assert told["arms"][2]["difference"] == pytest.approx(0.1, abs=0.002)
    (entry,) = assemble(collect(with_claims(study, claim(arm=ADDITIVE), after=True))).claims
    assert entry.evidence.endswith("made after the first run")


def test_a_study_is_its_report_in_frames(tmp_path):
    """And reading writes nothing."""
    folder = with_claims(scores(tmp_path), claim(arm=ADDITIVE, by=0.05))
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
    assert set(study.curves.arm) >= {study.baseline, ADDITIVE}
    assert f"{ADDITIVE}: worse by" in repr(study)
    assert "confirmed: It is so" in repr(study)
    assert "worse" in study._repr_html_()
    assert sorted(path.name for path in folder.iterdir()) == before
    with pytest.raises(UserError, match="is not a study's folder"):
        ablate.load_study(tmp_path)


def test_check_ends_with_1_where_a_claim_is_refuted(tmp_path, monkeypatch):
    arms = {"baseline": arm(BASE), ADDITIVE: arm(shifted(0.1))}
    study = make_study(tmp_path / "scores", arms)
    monkeypatch.setattr("sys.argv", ["report", str(study), "--check"])
    with pytest.raises(UserError, match="has no claims"):
        command_line.main()
    with_claims(study, claim(arm=ADDITIVE))
    command_line.main()
    with_claims(study, claim(arm=ADDITIVE, **{"is": "better"}))
    with pytest.raises(RunFailed, match="refuted: It is so"):
        command_line.main()


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
        claim(arm="c", than="b", more_than={"arm": "a"}),
        claim(arm="c", than="b"),
        claim(arm="c"),
        claim(arm="a", than="b"),
    )
    found = [entry.verdict for entry in assemble(collect(study)).claims]
    assert found == ["confirmed", "confirmed", "not tested", "not tested"]


BROKEN = """# @package _global_
defaults:
  - override /pos_enc: none
study:
  factors: {pos_enc: [alibi, flipped]}
  seeds: 5
  claims:
    - {says: Scores that fall with the distance are better, arm: pos_enc=alibi, is: better}
    - {says: Scores that grow with it are too, arm: pos_enc=flipped, is: better}
model: {dim: 32, depth: 1, heads: 4}
data: {seq_len: 64, batch_size: 8, val_fraction: 0.02}
optimizer: {lr: 5e-3}
schedule: {warmup: 10}
trainer: {max_steps: 150, val_check_interval: 150}
"""
FLIPPED = """from ablate.pos_enc.alibi import Alibi

class Flipped(Alibi):
    def penalty(self, q, distance):
        return -super().penalty(q, distance)
"""


@pytest.mark.slow
def test_a_claim_about_a_broken_part_is_refuted(tmp_path):
    """The sign of q k alone would do nothing: training finds the negative of a map as easily."""
    for name, text in {
        "flipped.py": FLIPPED,
        "own/pos_enc/flipped.yaml": "_target_: flipped.Flipped\n_partial_: true\n",
        "own/sweep/broken.yaml": BROKEN,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    line = [sys.executable, "-m", "ablate", "--config-dir", "own", "sweep=broken", "logger=none"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = assemble(collect(tmp_path / "outputs/broken")).claims
    assert [entry.verdict for entry in found] == ["confirmed", "refuted"]
    check = [sys.executable, "-m", "ablate.report", "outputs/broken", "--check"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True).returncode == 1
