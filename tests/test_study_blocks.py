"""study.blocks: the same arms on several data sets or at several sizes, paired within each."""

import json
import shutil
from contextlib import nullcontext
from itertools import product
from math import inf, log
from types import SimpleNamespace

import pytest
from make_study import BASE, arm, make_study
from make_sweep import tiny_for, write_sweep
from refusals import refusal

from ablate import load_study
from ablate.errors import UserError
from ablate.study.analysis.collect import SeedInBlock, collect
from ablate.study.analysis.judged_claims import judged_claims
from ablate.study.analysis.ladder import ladder, needed
from ablate.study.analysis.rows import assemble
from ablate.study.launch.live import Names
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.planfile import refuse_other_blocks, write_together
from ablate.study.publish import summaries
from ablate.study.report import write
from ablate.study.report.tables import blocks as blocks_tables
from ablate.study.report.terminal import show

pytest_plugins = ["command_line", "make_study"]

ROTARY = "pos_enc=rotary"
SIZES = {"16": 1.0, "32": 2.0, "64": 4.0, "128": 8.0, "256": 16.0}  # training FLOPs


def blocks(root, gains, *, data=None, claims=(), lacking=(), sd=None):
    """An arm that is `gains` better by block; the baseline loses 0.2 nats per doubling."""
    made = Blocks("model.dim", dict.fromkeys(gains, ()))
    parts = []
    for name, gain in gains.items():
        size = SIZES[name]
        values = BASE if sd is None else [2.0 + sd * (-1) ** n for n in range(4)]
        base = [value - 0.2 * log(size, 2) for value in values]
        noisy = [v - gain + 0.001 * (-1) ** n for n, v in enumerate(base)]
        part = make_study(root / made.folder(name), {"baseline": arm(base), ROTARY: arm(noisy)})
        plan = json.loads((part / "plan.json").read_text())
        for each in plan["arms"]:
            each |= {"flops_per_step": int(1000 * size), "steps": 10}
        plan["baseline"]["data"] = {"0": (data or {}).get(name, "same")}
        if name in lacking:
            plan["arms"].pop()
            plan["cells"] = [cell for cell in plan["cells"] if cell["arm"] != ROTARY]
            plan["illegal"] = [{"arm": ROTARY, "reason": "no value of it is finished"}]
        (part / "plan.json").write_text(json.dumps(plan))
        parts.append(part)
    request = SimpleNamespace(name=root.name, node={"claims": [*claims]})
    write_together(root, request, made, parts)
    return root


def test_arms_are_paired_within_block_and_seed(tmp_path):
    """Unpaired, 0.05 nats over blocks 0.4 nats apart would be lost; equal runs add no evidence."""
    found = load_study(blocks(tmp_path / "both", {"16": 0.05, "64": 0.05}))
    own = found.runs[found.runs["arm"] == ROTARY]
    assert {*zip(own["model.dim"], own["seed"], strict=True)} == {
        *product((16, 64), range(len(BASE)))
    }
    arm = found.arms.loc[ROTARY]
    assert (arm.verdict, arm.n) == ("better", len(BASE))
    assert arm.difference == pytest.approx(-0.05, abs=1e-3)
    of_blocks = [part["arms"][1] for part in found.report["blocks"].values()]
    assert {each["verdict"] for each in of_blocks} == {"better"}
    assert found.report["arms"][1]["p"] == pytest.approx(of_blocks[0]["p"])
    assert found.report["arms"][1]["interval"] == pytest.approx(of_blocks[0]["interval"])


def test_each_run_is_sent_with_its_own_difference(tmp_path):
    """Not with that of the means over the blocks; their runs have the same ids here."""
    report = assemble(collect(blocks(tmp_path / "both", {"16": 0.3, "64": 0.1})))
    (difference,) = summaries(report)[
        report.study.runs_of(ROTARY)[SeedInBlock(0, "64")].run_id
    ].values()
    assert difference == pytest.approx(-0.1, abs=0.002)


@pytest.mark.usefixtures("no_pdf")
def test_blocks_may_disagree(tmp_path, capsys):
    root = blocks(tmp_path / "both", {"16": 0.3, "64": -0.3})
    found = load_study(root).report
    verdicts = [part["arms"][1]["verdict"] for part in (found, *found["blocks"].values())]
    assert verdicts == ["inconclusive", "better", "worse"]
    show(written := write(root))
    assert "over all" in capsys.readouterr().out
    page = written.files[0].read_text()
    assert "By model.dim" in page
    assert 'href="model.dim=64/report.html"' in page
    markdown = (root / "report.md").read_text()
    assert "-0.300, better | +0.300, worse |" in markdown.replace("\N{MINUS SIGN}", "-")


def test_another_baseline_is_that_of_every_block(tmp_path):
    study = collect(blocks(tmp_path / "both", {"16": 0.3, "64": -0.3})).rebased(ROTARY)
    by_block, *_ = blocks_tables(assemble(study))
    ((arm, *words),) = by_block.rows
    assert arm == "baseline"
    assert [word.partition(", ")[2] for word in words] == ["worse", "better", "no difference shown"]


def test_an_arm_that_one_block_lacks_is_left_out_of_all_and_said(tmp_path):
    """As one that could not be tuned there; a claim about it is not tested."""
    claims = [{"statement": "It is so.", "arm": ROTARY, "direction": "better"}]
    claims += [
        {"statement": "It is so there.", "block": "16", "arm": ROTARY, "direction": "better"}
    ]
    root = blocks(tmp_path / "both", {"16": 0.3, "64": 0.3}, claims=claims, lacking=["64"])
    report = assemble(collect(root))
    assert [row.arm.name for row in report.rows] == ["baseline"]
    entry, there = report.claims
    assert (entry.verdict, there.verdict) == ("not tested", "confirmed")
    assert entry.evidence == f"{ROTARY} was left out: no value of it is finished"
    assert [row.kind for row in report.blocks["16"].rows] == ["baseline", "better"]


def test_a_seed_without_a_run_in_one_block_is_compared_in_none(tmp_path):
    root = blocks(tmp_path / "both", {"16": 0.3, "64": 0.3})
    (part,) = root.glob("*64")
    cells = json.loads((part / "plan.json").read_text())["cells"]
    (lost,) = (cell for cell in cells if (cell["arm"], cell["seed"]) == (ROTARY, 1))
    shutil.rmtree(part / lost["folder"])
    found = collect(root).by_seed(ROTARY, "val/loss")
    assert found.keys() == {*range(len(BASE))} - {1}


def test_claims_are_about_all_blocks_or_one_or_a_trend(tmp_path):
    """The arm is 0.2 better on average, 0.1 in the second block, 0.1 less per doubling."""
    rising = {"16": 0, "64": 2}
    nodes = [
        {"direction": "better", "min_effect": 0.05},
        {"direction": "better", "min_effect": 0.15, "block": "64"},
        {"direction": "worse", "rising_over": rising},
        {"direction": "worse", "min_effect": 0.11, "rising_over": rising},
    ]
    claims = [{"statement": f"{n}.", "arm": ROTARY, **node} for n, node in enumerate(nodes)]
    root = blocks(tmp_path / "both", {"16": 0.3, "64": 0.1}, claims=claims)
    told = judged_claims(collect(root))[0]
    assert [entry.verdict for entry in told] == ["confirmed", "refuted"] * 2
    assert all(f"{len(BASE)} seeds" in entry.evidence for entry in told)


def test_a_ladder_has_slopes_and_speed_ups(tmp_path):
    """A gain of 0.2 nats is one doubling of the baseline's compute; other data make no ladder."""
    study = collect(blocks(tmp_path / "up", {"64": 0.2, "16": 0.2, "32": 0.1}))
    found = ladder(study, "val/loss", "min")
    assert list(found.compute) == ["16", "32", "64"]
    (climb,) = found.climbs
    assert climb.slope == pytest.approx(0.0, abs=1e-6)
    times = {name: each.factor for name, each in climb.speedups.items()}
    assert times == pytest.approx({"16": 2, "32": 2**0.5, "64": 2}, rel=1e-3)
    assert [each.extrapolated for each in climb.speedups.values()] == [False, False, True]
    data = {"16": "here", "64": "there"}
    study = collect(blocks(tmp_path / "both", {"16": 0.2, "64": 0.2}, data=data))
    assert ladder(study, "val/loss", "min") is None


@pytest.mark.ci
@pytest.mark.usefixtures("no_pdf")
def test_five_rungs_predict_the_last_and_tell_the_trend(tmp_path):
    """Also by wall clock: the arm's steps take 1.1 times as long."""
    gains = {name: 0.1 + 0.05 * n for n, name in enumerate(SIZES)}
    root = blocks(tmp_path / "up", gains)
    for path in root.glob(f"*/{ROTARY}*/result.json"):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"train_seconds": 1.1 * content["train_seconds"]}))
    found = ladder(collect(root), "val/loss", "min")
    (climb,) = found.climbs
    for each in climb.speedups.values():
        assert each.clock == pytest.approx(each.factor / 1.1)
        if each.clock_interval:
            assert each.clock_interval.low < each.clock < each.clock_interval.high
    assert found.predicted == pytest.approx(found.means["256"], abs=0.05)
    assert 0 < found.misfit < 0.01
    page = write(root).files[0].read_text()
    for words in ("With size, the speed-up of ", "By wall clock",
                  "The law of the smaller sizes predicts", "Loss by compute"):  # fmt: skip
        assert words in page
    assert (root / "figures/ladder.png").exists()
    assert not (root / "figures/cost.png").exists()
    for path in root.glob("*=256/*/result.json"):
        path.unlink()  # the largest has not run
    waiting = ladder(collect(root), "val/loss", "min")
    assert (waiting.climbs, waiting.predicted) == ((), found.predicted)


def test_claims_about_effective_compute(tmp_path):
    """A gain of 0.2 nats is one doubling of the baseline's compute at every size."""
    of = {"arm": ROTARY, "statement": "It is so."}
    at, trend = of | {"metric": "effective_compute"}, of | {"metric": "effective_compute_growth"}
    nodes = [
        at | {"block": "64", "versus": 1.5, "direction": "higher"},
        at | {"block": "16", "versus": 3, "direction": "higher"},
        trend | {"versus": 0.1, "direction": "lower"},
    ]
    root = blocks(tmp_path / "up", dict.fromkeys(SIZES, 0.2), claims=nodes, sd=0.01)
    report = assemble(collect(root))
    assert [entry.verdict for entry in report.claims] == ["confirmed", "refuted", "confirmed"]
    first = report.claims[0].settled
    assert first.effect == pytest.approx(0.5, abs=0.1)
    assert first.interval.low < first.effect < first.interval.high
    (climb,) = ladder(collect(root), "val/loss", "min").climbs
    assert climb.growth == pytest.approx(0.0, abs=0.05)
    assert "samples" not in load_study(root).report["ladder"]["climbs"][0]
    other = assemble(collect(root).rebased(ROTARY))  # claims are of the planned baseline
    assert [entry.verdict for entry in other.claims] == [e.verdict for e in report.claims]
    for path in root.glob(f"*=32/{ROTARY}*/result.json"):
        path.unlink()
    assert {each.verdict for each in assemble(collect(root)).claims} == {"not tested"}


@pytest.mark.ci
@pytest.mark.usefixtures("no_pdf")
def test_a_loss_below_the_floor_of_the_law_has_no_bound_and_is_reported(tmp_path):
    """At one size the speed-up is unlimited, of several there is no trend."""
    claim = {"arm": ROTARY, "statement": "It is so.", "metric": "effective_compute_growth"}
    claims = [claim | {"versus": 0, "direction": "lower"}]
    *small, last = SIZES
    root = blocks(tmp_path / "one", dict.fromkeys(small, 0.2) | {last: 1e3}, claims=claims, sd=0.01)
    (climb,) = ladder(collect(root), "val/loss", "min").climbs
    assert climb.speedups[last].factor == climb.growth == climb.growth_interval.high == inf
    assert [entry.verdict for entry in assemble(collect(root)).claims] == ["refuted"]
    at = claim | {"metric": "effective_compute", "block": last, "versus": 2, "direction": "higher"}
    root = blocks(tmp_path / "all", dict.fromkeys(SIZES, 1e3), claims=[*claims, at], sd=0.01)
    (climb,) = ladder(collect(root), "val/loss", "min").climbs
    assert (climb.growth, climb.speedups[last].factor) == (None, inf)
    assert climb.speedups[last].clock == inf
    settled = [entry.settled for entry in assemble(collect(root)).claims]
    assert [each.verdict for each in settled] == ["not tested", "confirmed"]
    assert settled[0].why.startswith("its losses are below the floor of the scaling law")
    page = write(root).files[0].read_text()
    assert "inf times" in page
    assert "inf (95 % inf to inf)" in page
    assert "From the scaling law of the baseline" in page
    assert "nan" not in page.replace("nano", "")
    (climb,) = load_study(root).report["ladder"]["climbs"]
    assert climb["growth_interval"] == {"low": None, "high": None}
    assert climb["growth"] is None


def test_runs_of_all_blocks_are_named_by_block(tmp_path):
    """The status of a study: the sizes of an arm take different times."""
    root = blocks(tmp_path / "s", {"16": 0.1, "32": 0.1})
    names = Names.of(root)
    assert set(names.arms.values()) == {f"{a} {b}" for a in ("baseline", ROTARY) for b in (16, 32)}
    assert names.flops[f"{ROTARY} 32"] == 2 * names.flops[f"{ROTARY} 16"]
    assert all(label.endswith((", 16", ", 32")) for label in names.labels.values())


NO_LADDER = [
    ({"block": "16", "versus": 1}, ["16", "32", "64"], "needs 4 sizes"),
    ({"block": "16"}, [*SIZES], "needs versus, a number"),
    ({"versus": 1}, [*SIZES], "needs block, a size"),
    ({"block": "16", "versus": 1, "arm": "baseline"}, [*SIZES], "needs arm, another than the"),
    ({"block": "16", "versus": 1, "min_effect": 1}, [*SIZES], "combined with min_effect"),
    ({"block": "16", "versus": 0, "metric": "effective_compute_growth"}, [*SIZES], "leave block"),
]


@pytest.mark.parametrize(("node", "sizes", "says"), NO_LADDER)
def test_a_claim_that_a_ladder_cannot_decide_is_one_line(node, sizes, says):
    claim = {"statement": "So.", "arm": ROTARY, "direction": "higher"}
    with pytest.raises(UserError, match=says):
        parse_claims([claim | {"metric": "effective_compute"} | node], [ROTARY], "baseline", sizes)


def test_a_baseline_that_hardly_improves_needs_any_compute():
    assert needed(0.9, [1e12, 4e12], [0.100, 0.101], "max").factor == inf


def test_what_the_baseline_would_need():
    """Exact on a loss that falls with the logarithm of compute, and on accuracies that rise."""
    compute = [1.0, 4.0, 16.0]
    for sign, mode in ((1, "min"), (-1, "max")):
        values = [sign * (3 - 0.1 * log(c)) for c in (*compute, 2.0, 8.0, 64.0, 0.5)]
        found = [needed(value, compute, values[:3], mode) for value in values[3:]]
        assert [one.factor for one in found] == pytest.approx([2.0, 8.0, 64.0, 0.5])
        assert [one.extrapolated for one in found] == [False, False, True, True]
    assert needed(2.0, compute, [3.0, 3.1, 2.9], "min") is None


@pytest.mark.ci
def test_every_block_is_planned_and_run(ablate_command, runs, tmp_path):
    study = "{blocks: {data.seq_len: [16, 8]}, factors: {pos_enc: [none, learned]}, seeds: 2}"
    argv = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path), "hydra/launcher=basic"]
    code, _, err = ablate_command(*argv)
    assert code == 0, err
    found = [(cfg.seed, cfg.data.seq_len, cfg.choices.pos_enc) for cfg, _ in runs]
    assert found == [*product((0, 1), (16, 8), ("learned", "none"))]
    root = tmp_path / "outputs/mine"
    assert {folder.parent.name for _, folder in runs} == {"data.seq_len=16", "data.seq_len=8"}
    cells = json.loads((root / "plan.json").read_text())["cells"]
    assert {cell["folder"] for cell in cells} == {str(f.relative_to(root)) for _, f in runs}
    of_blocks = {(cell["block"], cell["seed"]) for cell in cells}
    assert of_blocks == {*product(("16", "8"), (0, 1))}
    assert [len(part.runs) for part in collect(root).blocks.values()] == [4, 4]
    runs.clear()
    assert ablate_command(*argv)[0] == 0
    assert runs == []  # all of them are finished
    says = "belongs to a study with the blocks data.seq_len=16,8; choose"
    refusal(ablate_command(*argv, "study.blocks=null", "data.seq_len=16"), says)
    for names, refused in (("32", True), ("8,16", True), ("16,8,32", False)):
        other = Blocks("data.seq_len", dict.fromkeys(names.split(","), ()))
        with pytest.raises(UserError, match=says) if refused else nullcontext():
            refuse_other_blocks(root, other)


# One trunk for several budgets

WSD = ("schedule=wsd", "schedule.warmup=2", "trainer.max_steps=10")
TOO_SHORT = "warm-up in steps shares all before the decay"


def planned(ablate_command, folder, blocks, *typed):
    study = f"{{blocks: {blocks}, seeds: 1, factors: {{pos_enc: [none]}}}}"
    left = ("trainer.max_steps", "schedule.warmup")
    argv = [*write_sweep(folder, study), *tiny_for(study, folder, *left), *WSD, *typed]
    return ablate_command(*argv, "study.dry_run=true")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("blocks", "typed", "lines"),
    [
        ("{tokens: [1x, 2x, 4x]}", (), ["for their length (4)", "92 steps", "of 140 (34% fewer)"]),
        ("{trainer.max_steps: [10, 20]}", (), ["but for their length (2)", "44 steps", "of 60"]),
        ("{tokens: [1x, 2x]}", ("schedule=cosine",), [TOO_SHORT]),
        (
            "{tokens: [1x, 2x]}",
            ("schedule.warmup=0.1",),
            [TOO_SHORT, "from step 0 (2)", "after step 0 of 10"],
        ),
        ("{tokens: [1x, 2x]}", ("schedule=constant",), ["42 steps are trained instead of 60"]),
        ("{tokens: [0.5x, 2x]}", ("schedule.decay=8",), ["8 steps, more than the training of 5"]),
        ("{tokens: [1x, 2x]}", ("task._target_=teller.Teller",), ["teller.Teller may depend"]),
        ("{tokens: [1x, 2x]}", ("trainer.max_steps=1k",), ['max_steps="1k": must be an']),
        ("{tokens: [1x, 3]}", (), ["tokens: 3: must be a number with x, such as 2x"]),
        ("{model.dim: [16, 32]}", (), []),
    ],
)
def test_the_plan_shows_the_steps_that_budgets_share(
    ablate_command, tmp_path, blocks, typed, lines
):
    code, out, err = planned(ablate_command, tmp_path, blocks, *typed)
    assert all(line in out + err for line in lines), out + err
    assert ("shorter run" in out) == (code == 0 and bool(lines))
