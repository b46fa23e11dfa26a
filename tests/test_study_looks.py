"""study.seeds_up_to: levels of the looks, verdicts, seeds that are added, and reports."""

from runpy import run_path

import numpy as np
import pytest
from make_study import ADDITIVE, arm, make_study
from refusals import refusal
from scipy import stats
from test_study_stats import LEVEL, assert_within, study
from tiny import overrides

from ablate.machine.version import PACKAGE
from ablate.run_files.records import read_plan
from ablate.study.analysis import judged_claims, rows
from ablate.study.analysis.claims import settle
from ablate.study.analysis.collect import collect
from ablate.study.analysis.compare import compare
from ablate.study.analysis.looks import levels
from ablate.study.analysis.noise import Noise
from ablate.study.analysis.rows import assemble
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.request import looks
from ablate.study.report.to_json import to_json

pytest_plugins = ["command_line"]

LOOKS = (3, 4, 6)


def judged(y, seeds=None, **own):
    """seeds: how many each arm has."""
    y = y if seeds is None else [arm[:count] for arm, count in zip(y, seeds, strict=True)]
    return compare(study(y), baseline="0", mode="min", looks=LOOKS, **own)


def noisy(effects, seed=3):
    return np.random.default_rng(seed).normal(size=(len(effects), 6)) + np.c_[effects]


FOUR = noisy([0, 30, 0, 2.2])  # decided with 3 seeds, stopped with 3, decided with 6


# Levels


def test_looks_grow_to_the_last():
    assert looks(3, 12) == (3, 4, 6, 8, 12)
    assert looks(3, 4) == (3, 4)
    for first in (3, 4, 7):
        for last in range(first + 1, 60):
            found = looks(first, last)
            assert (found[0], found[-1], list(found)) == (first, last, sorted({*found}))


@pytest.mark.parametrize("level", [0.05, 0.005])
def test_a_hypothesis_without_effect_is_rejected_at_its_level(level):
    """Sums of normal differences, tested at every look."""
    at, studies = looks(3, 12), 200_000
    sums = np.random.default_rng(0).standard_normal((studies, 12)).cumsum(1)
    z = np.abs(sums[:, np.array(at) - 1]) / np.sqrt(at)
    bounds = stats.norm.isf(np.array(levels(level, at)) / 2)
    assert_within(int((z > bounds).any(1).sum()), studies, level)
    assert (z > bounds).any(1).mean() > 0.9 * level
    assert levels(level, (12,)) == pytest.approx((level,))


# Verdicts


def test_an_arm_keeps_the_verdict_of_the_look_that_decides_it():
    first = judged(FOUR, seeds=[3, 3, 3, 3])
    assert [each.look.outcome for each in first.arms] == ["decided", "stopped", "open"]
    later = judged(FOUR, seeds=[6, 6, 3, 6])  # more runs of a decided arm are not looked at
    assert [(each.n, each.look.number) for each in later.arms] == [(3, 1), (3, 1), (6, 3)]
    assert [later.arms[n].tests.p for n in (0, 1)] == [first.arms[n].tests.p for n in (0, 1)]
    assert "3 seeds, Holm p" in later.arms[0].verdict.words()
    assert "look 1 of 3" in later.arms[0].verdict.words()


def test_an_interval_leaves_out_zero_if_a_difference_is_shown():
    for seed in range(20):
        for each in judged(noisy([0, 1, 2, 4], seed=seed)).arms:
            outside = not each.interval.low <= 0 <= each.interval.high
            assert outside == each.tests.differs == (each.tests.p_holm <= LEVEL)


def test_holm_counts_arms_that_were_stopped_but_not_those_shown():
    third = judged(FOUR, seeds=[4, 3, 3, 4]).arms[2]
    assert third.look.number == 2
    assert third.tests.level == levels(LEVEL / 2, LOOKS)[1]


def test_an_equivalence_decides_too():
    y = noisy([0, 0.0]) * 0.01
    (each,) = judged(y, margin=1.0).arms
    assert (each.verdict.kind, each.look.outcome, each.n) == ("equivalent", "decided", 3)
    (each,) = judged(y).arms
    assert each.verdict.kind == "no difference shown"


def test_a_stopped_arm_needs_more_seeds_than_the_last_look():
    arms = [each for seed in range(10) for each in judged(noisy([0, 0, 1, 1, 2, 2], seed)).arms]
    needed = [e.verdict.seeds_needed for e in arms if e.look.outcome == "stopped"]
    assert min(filter(None, needed)) > LOOKS[-1]


def claimed(claims, y):
    values = study(y)
    names = [*values]
    parsed = parse_claims([{"statement": "s", **claim} for claim in claims], names, "0")

    def planned(claim):
        arms = [values[term.arm or "0"] for term in claim.terms]
        return [seed for seed in range(len(y[0])) if all(seed in own for own in arms)]

    return settle(
        parsed, lambda term: values[term.arm or "0"], lambda *of: Noise.of(values, "0"),
        seeds=planned, mode="min", looks=LOOKS,
    )  # fmt: skip


CLAIMS = (
    {"arm": "1", "direction": "worse", "min_effect": 10},
    {"arm": "1", "direction": "better"},
    {"arm": "2", "direction": "equivalent", "margin": 30},
    {"arm": "3", "direction": "worse"},
    {"arm": "3", "versus": "2", "direction": "worse", "more_than": {"arm": "2"}},
    {"arm": "1", "versus": "2", "direction": "worse", "min_effect": 31},
)


def test_claims_are_decided_at_looks_too():
    found = claimed(CLAIMS, FOUR)
    assert [(each.verdict, each.n, each.look.outcome) for each in found] == [
        ("confirmed", 4, "decided"),
        ("refuted", 4, "decided"),
        ("confirmed", 3, "decided"),
        ("confirmed", 6, "decided"),
        ("undecided", 6, "undecided"),
        ("undecided", 4, "stopped"),
    ]
    for each in found:
        if each.claim.margin is None:
            outside = not each.interval.low <= each.claim.min_effect <= each.interval.high
            assert outside == (each.verdict != "undecided") == (each.p <= LEVEL)


def test_holm_counts_claims_that_were_stopped_but_not_those_confirmed():
    """A single claim, and the one that is left of four."""
    one = {"arm": "3", "direction": "worse"}
    alone, among, beside_stopped = (
        claimed([one, *others * 3], FOUR)[0].p
        for others in ([], [CLAIMS[0]], [{"arm": "2", "direction": "worse"}])
    )
    assert among == pytest.approx(alone)
    assert alone < beside_stopped


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("shape", ["normal", "baseline 2 times as noisy"])
def test_claims_at_looks_keep_the_level(shape):
    simulate = run_path(str(PACKAGE.parents[1] / "benchmarks" / "looks.py"))["simulate_claims"]
    row = simulate(shape, 5, 12, 2000)
    assert_within(round(row["false"] * 2000), 2000, LEVEL)
    assert row["power"] > row["fixed_power"] - 0.08


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(
    "shape", ["normal", "baseline 2 times as noisy", "an arm 4 times as noisy"]
)
def test_looks_keep_the_level_and_need_fewer_runs(shape):
    simulate = run_path(str(PACKAGE.parents[1] / "benchmarks" / "looks.py"))["simulate"]
    row = simulate(shape, 5, 12, 2000)
    assert_within(round(row["false"] * 2000), 2000, LEVEL)
    assert row["runs"] < 0.7
    assert row["power_2"] > row["fixed_power_2"] - 0.04


# Reports


def report_of(folder, values, **plan):
    seeds = max(len(own) for own in values.values())
    looks_ = {"seeds": list(LOOKS), "after": False}
    made = make_study(folder, {name: arm(list(own)) for name, own in values.items()},
                      **{"looks": looks_, "seeds": list(range(seeds)), **plan})  # fmt: skip
    return assemble(collect(made))


def test_a_report_says_when_each_arm_and_each_claim_was_decided(tmp_path):
    y = FOUR * 0.01 + 1.5
    values = dict(zip(("baseline", ADDITIVE, "pos_enc=none", "pos_enc=alibi"), y, strict=True))
    claims = [
        {"claim": {"statement": name, "arm": name, "direction": "worse"},
         "made": "t", "after": False, "dropped": False}
        for name in (ADDITIVE, "pos_enc=none", "pos_enc=alibi")
    ]  # fmt: skip
    values[ADDITIVE], values["pos_enc=none"] = values[ADDITIVE][:3], values["pos_enc=none"][:3]
    report = report_of(tmp_path / "s", values, claims=claims)
    assert not report.objections
    (line,) = [line for line in report.remarks if "seeds_up_to" in line]
    assert line.startswith("Arms are tested at 3, 4 and 6 seeds (study.seeds_up_to);")
    assert line.endswith(
        "; stopped, as unlikely to be shown, with 3 seeds: pos_enc=none; decided with 3 seeds:"
        " attention=additive; decided with 6 seeds: pos_enc=alibi."
    )
    found = {each["name"]: each["look"] for each in to_json(report)["arms"]}
    assert to_json(report)["looks"] == list(LOOKS)
    assert found["baseline"] is None
    assert found[ADDITIVE]["outcome"] == "decided"
    assert found["pos_enc=none"] == {
        "number": 1, "of": 3, "seeds": 3, "last": 6, "outcome": "stopped",
    }  # fmt: skip
    short = {row.arm.name: row.short_verdict for row in report.others}
    assert short["pos_enc=none"] == "no difference shown (stopped at look 1 of 3)"
    found = to_json(report)["claims"]
    assert [each["look"]["outcome"] for each in found] == ["decided", "stopped", "decided"]
    assert [each["n"] for each in found] == [3, 3, 6]
    assert "stopped at look 1 of 3; 6 seeds are unlikely to decide it" in report.claims[1].evidence
    assert not report.going()[1]
    assemble(collect(tmp_path / "s").rebased("pos_enc=none"))
    first = {name: own[:3] for name, own in values.items()}
    short = report_of(tmp_path / "t", first, claims=claims)
    assert short.going() == (1, {(None, "pos_enc=alibi"), (None, "baseline")})


def test_a_planned_seed_that_failed_is_missing(tmp_path):
    y = noisy([0, 0.5, 3]) * 0.01 + 1.5
    values = {"baseline": y[0], ADDITIVE: [*y[1][:3], "failed: NaN"], "pos_enc=none": y[2][:4]}
    report = report_of(tmp_path / "s", values | {"baseline": y[0][:4]})
    (objection,) = report.objections
    assert (objection.arm, objection.rule, objection.reason) == (ADDITIVE, "seeds", "seed 3 failed")


def test_effects_of_crossed_factors_use_the_seeds_of_the_first_look(tmp_path):
    arms = ("baseline", "norm=post", "ffn=glu", "norm=post ffn=glu")
    values = {name: [*y[:3], *[9.0] * more] for name, y, more in zip(
        arms, noisy([0, 1, 2, 3]) * 0.01 + 1.5, (3, 0, 3, 0), strict=True)}  # fmt: skip
    crossed = {"design": "factorial", "own": {"norm": "pre", "ffn": "mlp"}}
    found = report_of(tmp_path / "s", values, **crossed).crossed
    first = {name: own[:3] for name, own in values.items()}
    expected = report_of(tmp_path / "t", first, **crossed).crossed
    assert found == expected
    assert len(found.effects) == 3


# The command


@pytest.fixture
def command(ablate_command, tmp_path, seen, monkeypatch):
    """Runs a study of three arms: one far worse, one alike, one undecided at first."""
    rules = rows.objections  # the runs of the stand-in record neither data nor code
    for module in (rows, judged_claims):
        monkeypatch.setattr(
            module, "objections", lambda *of: [each for each in rules(*of) if each.rule == "seeds"]
        )
    y = dict(zip(("learned", "none", "alibi", "rotary"), FOUR, strict=True))
    seen["measure"] = lambda cfg: float(y[cfg.choices.pos_enc][cfg.seed % 1000])

    def run(*more):
        tiny = overrides(tmp_path, "study.name=s", "study.seeds=3", "study.seeds_up_to=6", *more)
        arms = "pos_enc=learned,none,alibi,rotary"
        return ablate_command("-m", *tiny, arms, "hydra/launcher=basic")

    return run


def seeds_of(folder):
    plan = read_plan(folder)
    found = {}
    for cell in plan["cells"]:
        found.setdefault(cell["arm"].partition("=")[2], []).append(cell["seed"])
    return plan["seeds"], {name: len(seeds) for name, seeds in found.items()}


ALL = ([*range(6)], {"learned": 6, "none": 3, "alibi": 3, "rotary": 6})


@pytest.mark.ci
def test_undecided_arms_get_seeds_until_the_last_look(command, tmp_path, runs):
    _, out, _ = command("study.dry_run=true")
    assert "4 arms, 3 to 6 seeds (looks at 3, 4 and 6), 12 runs" in out
    assert command()[0] == 0
    assert len(runs) == 18
    assert seeds_of(tmp_path / "outputs" / "s") == ALL
    assert read_plan(tmp_path / "outputs" / "s")["looks"] == {"seeds": [3, 4, 6], "after": False}
    assert command()[0] == 0
    assert len(runs) == 18
    assert command("study.seeds_up_to=8")[0] == 0
    assert read_plan(tmp_path / "outputs" / "s")["looks"]["after"]


@pytest.mark.ci
def test_tuned_arms_get_seeds_too(command, tmp_path, runs):
    assert command("study.tune={optimizer.lr: [1e-3, 2e-3]}")[0] == 0
    assert len(runs) == 8 + 18
    plan = read_plan(tmp_path / "outputs" / "s")
    assert sorted(cell["kind"] for cell in plan["cells"]) == ["run"] * 18 + ["tune"] * 8


@pytest.mark.ci
def test_a_stopped_study_continues_at_its_look(command, tmp_path, runs, seen):
    measure = seen["measure"]

    def interrupted(cfg):
        if cfg.seed == 4:
            raise KeyboardInterrupt
        return measure(cfg)

    seen["measure"] = interrupted
    assert command()[0] not in (0, 2)
    first = len(runs)
    assert seeds_of(tmp_path / "outputs" / "s") == ALL
    seen["measure"] = measure
    assert command()[0] == 0
    assert seeds_of(tmp_path / "outputs" / "s") == ALL
    assert len(runs) - first == 4


# Undecided until the last look; the verdicts of both arms are not.
BETWEEN = (
    "study.claims=[{statement: s, arm: 'pos_enc=none', versus: 'pos_enc=alibi', direction: worse,"
    " min_effect: 29}]"
)


@pytest.mark.ci
def test_an_arm_gets_seeds_for_a_claim_that_is_open(command, tmp_path, runs):
    """A finished study continues with its runs, and is marked."""
    assert command("study.seeds_up_to=null", BETWEEN)[0] == 0
    assert len(runs) == 12
    assert command(BETWEEN)[0] == 0
    assert seeds_of(tmp_path / "outputs" / "s")[1] == dict.fromkeys(ALL[1], 6)
    assert len(runs) == 24
    plan = read_plan(tmp_path / "outputs" / "s")
    assert (plan["looks"]["after"], plan["claims"][0]["after"]) == (True, False)


@pytest.mark.ci
def test_only_the_block_of_an_open_claim_gets_seeds(command, tmp_path, runs):
    blocks = "study.blocks={optimizer.lr: [0.001, 0.002]}"
    assert command(blocks, BETWEEN.replace("versus", "block: 0.001, versus"))[0] == 0
    of_block = {"0.001": dict.fromkeys(ALL[1], 6), "0.002": ALL[1]}
    for block, counts in of_block.items():
        folder = tmp_path / "outputs" / "s" / f"optimizer.lr={block}"
        assert seeds_of(folder)[1] == counts
    assert len(runs) == 24 + 18
    (entry,) = assemble(collect(tmp_path / "outputs" / "s")).claims
    assert (entry.settled.n, entry.settled.look.outcome) == (6, "undecided")


@pytest.mark.ci
def test_all_runs_are_repeated_once_whatever_the_looks(command, tmp_path, runs):
    assert command()[0] == 0
    assert command("study.rerun=all")[0] == 0
    assert len(runs) == 2 * 18
    assert len([*(tmp_path / "outputs" / "s" / "old").iterdir()]) == 1


@pytest.mark.ci
def test_an_arm_that_fails_gets_no_more_seeds(command, tmp_path, fail, seen):
    measure = seen["measure"]
    seen["measure"] = lambda cfg: (
        float("nan") if cfg.choices.pos_enc == "rotary" and cfg.seed == 1 else measure(cfg)
    )
    command()
    assert seeds_of(tmp_path / "outputs" / "s")[1]["rotary"] == 3


@pytest.mark.ci
@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("study.seeds_up_to=3", "must be above study.seeds=3, the first look"),
        ("study.seeds=2", "study.seeds=2 must be at least 3, the fewest for a verdict"),
        ("study.seeds=[0,1,2]", "study.seeds must be a number, the seeds of the first look"),
        ("study.seeds_up_to=few", "study.seeds_up_to=few: must be"),
        ("study.arms=[none]", "study.seeds_up_to=6 with study.arms"),
    ],
)
def test_what_looks_exclude_is_refused(command, typed, says):
    refusal(command(typed), says)
