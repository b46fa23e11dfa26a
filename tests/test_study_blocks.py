"""study.blocks: the same arms on several data sets or at several sizes, paired within each."""

import json
from math import log
from types import SimpleNamespace

import pytest
from make_study import BASE, arm, make_study
from tiny import overrides

from ablate import load_study
from ablate.study.analysis.collect import collect
from ablate.study.analysis.ladder import ladder, needed
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.planfile import write_together
from ablate.study.report import write

pytest_plugins = ["command_line"]

ROTARY = "pos_enc=rotary"
HERE = "hydra/launcher=basic"
SIZES = {"16": 1.0, "32": 2.0, "64": 4.0}  # training FLOPs


def blocks(root, gains, **keys):
    """A study whose arm is `gains` better by block; the baseline loses 0.2 nats per doubling."""
    made = Blocks("model.dim", dict.fromkeys(gains, ()))
    parts = []
    for name, gain in gains.items():
        base = [value - 0.2 * log(SIZES.get(name, 1.0), 2) for value in BASE]
        noisy = [v - gain + 0.001 * (-1) ** n for n, v in enumerate(base)]
        arms = {"baseline": arm(base), ROTARY: arm(noisy)}
        part = make_study(root / made.folder(name), arms)
        plan = json.loads((part / "plan.json").read_text())
        for each in plan["arms"]:
            each |= {"flops_per_step": int(1000 * SIZES.get(name, 1.0)), "steps": 10}
        plan["baseline"]["data"] = keys.get("data", {}).get(name, {"0": "same"})
        (part / "plan.json").write_text(json.dumps(plan))
        parts.append(part)
    request = SimpleNamespace(name=root.name, node={"claims": keys.get("claims", [])})
    write_together(root, request, made, parts)
    return root


def test_arms_are_paired_within_block_and_seed(tmp_path):
    """0.05 nats over blocks that lie 0.4 nats apart: unpaired it would be lost."""
    root = blocks(tmp_path / "both", {"16": 0.05, "64": 0.05})
    found = load_study(root)
    assert found.arms.loc[ROTARY, "verdict"] == "better"
    assert found.arms.loc[ROTARY, "difference"] == pytest.approx(-0.05, abs=1e-3)
    assert found.arms.loc[ROTARY, "n"] == 2 * len(BASE)
    assert {part["arms"][1]["verdict"] for part in found.report["blocks"].values()} == {"better"}


def test_blocks_may_disagree(tmp_path):
    root = blocks(tmp_path / "both", {"16": 0.3, "64": -0.3})
    found = load_study(root).report
    assert found["arms"][1]["verdict"] == "open"
    assert [part["arms"][1]["verdict"] for part in found["blocks"].values()] == ["better", "worse"]
    page = write(root).files[0].read_text()
    assert "By model.dim" in page
    assert 'href="model.dim=64/report.html"' in page
    markdown = (root / "report.md").read_text()
    assert "-0.300, better | +0.300, worse |" in markdown.replace("\N{MINUS SIGN}", "-")


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ({"is": "better", "by": 0.05}, "confirmed"),  # 0.2 on average
        ({"is": "better", "by": 0.15, "block": "64"}, "refuted"),  # 0.1 there
        ({"is": "worse", "rising_over": {"16": 0, "64": 2}}, "confirmed"),  # 0.1 per doubling
        ({"is": "worse", "by": 0.11, "rising_over": {"16": 0, "64": 2}}, "refuted"),
    ],
)
def test_claims_are_about_all_blocks_or_one_or_a_trend(claim, verdict, tmp_path):
    said = {"says": "It is so.", "arm": ROTARY, **claim}
    root = blocks(tmp_path / "both", {"16": 0.3, "64": 0.1}, claims=[said])
    (entry,) = load_study(root).report["claims"]
    assert entry["verdict"] == verdict


def test_a_ladder_has_slopes_and_speed_ups(tmp_path):
    """A gain of 0.2 nats is one doubling of the baseline's compute, of which two rungs can tell."""
    found = ladder(
        collect(blocks(tmp_path / "up", {"64": 0.2, "16": 0.2, "32": 0.1})), "val/loss", "min"
    )
    assert found is not None
    assert list(found.compute) == ["16", "32", "64"]
    (climb,) = found.climbs
    assert climb.slope == pytest.approx(0.0, abs=1e-6)
    times = {name: each and each.factor for name, each in climb.speedups.items()}
    assert times == {
        "16": pytest.approx(2, rel=1e-3), "32": pytest.approx(2**0.5, rel=1e-3),
        "64": pytest.approx(2, rel=1e-3),
    }  # fmt: skip
    assert [each and each.extrapolated for each in climb.speedups.values()] == [False, False, True]


def test_other_data_make_no_ladder(tmp_path):
    data = {"16": {"0": "here"}, "64": {"0": "there"}}
    study = collect(blocks(tmp_path / "both", {"16": 0.2, "64": 0.2}, data=data))
    assert ladder(study, "val/loss", "min") is None


def test_what_the_baseline_would_need():
    """Exact on a loss that falls with the logarithm of compute, and on accuracies that rise."""
    compute = [1.0, 4.0, 16.0]
    loss = [3 - 0.1 * log(c) for c in compute]
    for c, beyond in ((2.0, False), (8.0, False), (64.0, True), (0.5, True)):
        for sign, mode in ((1, "min"), (-1, "max")):
            found = needed(sign * (3 - 0.1 * log(c)), compute, [sign * y for y in loss], mode)
            assert found is not None
            assert found.factor == pytest.approx(c)
            assert found.extrapolated is beyond
    assert needed(2.0, compute, [3.0, 3.1, 2.9], "min") is None


def test_every_block_is_planned_and_run(ablate_command, runs, tmp_path):
    study = """study:
  blocks: {data.seq_len: [16, 8]}
  factors: {pos_enc: [none, learned]}
  seeds: 2
"""
    own = tmp_path / "own/sweep"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(f"# @package _global_\n{study}")
    given = ["--config-dir", str(tmp_path / "own"), "sweep=mine"]
    tiny = [text for text in overrides(tmp_path) if "seq_len" not in text]
    code, _, err = ablate_command(*given, *tiny, HERE)
    assert code == 0, err
    found = [(cfg.seed, cfg.data.seq_len, cfg.choices.pos_enc) for cfg, _ in runs]
    assert found == [
        (seed, length, encoding)
        for seed in (0, 1) for length in (16, 8) for encoding in ("learned", "none")
    ]  # fmt: skip
    (root,) = (tmp_path / "outputs").iterdir()
    assert {folder.parent for _, folder in runs} == {
        root / "data.seq_len=16",
        root / "data.seq_len=8",
    }
    cells = json.loads((root / "plan.json").read_text())["cells"]
    assert {cell["folder"] for cell in cells} == {str(f.relative_to(root)) for _, f in runs}
    assert sorted({cell["seed"] for cell in cells}) == [1000, 1001, 2000, 2001]
    assert [len(part.runs) for part in collect(root).blocks.values()] == [4, 4]
    runs.clear()
    assert ablate_command(*given, *tiny, HERE)[0] == 0
    assert runs == []  # all of them are finished


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("{data.seq_len: [8]}", "needs two blocks at least"),
        ("{data.seq_len: [8, 16], model.dim: [8, 16]}", "give one name"),
        (
            "{pos_enc: [rotary, alibi]}",
            "study.blocks: pos_enc is changed by study.factors: pos_enc",
        ),
        ("{seed: [1, 2]}", "study.seeds"),
        ("{model.heads: [2, 3]}", "model.heads=3"),
        ("{data.seqlen: [8, 16]}", "did you mean 'data.seq_len'"),
    ],
)
def test_blocks_that_cannot_be_are_refused(node, words, ablate_command, runs, tmp_path):
    (tmp_path / "own/sweep").mkdir(parents=True)
    (tmp_path / "own/sweep/mine.yaml").write_text(
        f"# @package _global_\nstudy:\n  blocks: {node}\n  factors: {{pos_enc: [none, learned]}}\n"
    )
    tiny = [text for text in overrides(tmp_path) if "heads" not in text]
    argv = ["--config-dir", str(tmp_path / "own"), "sweep=mine", *tiny, HERE]
    code, _, err = ablate_command(*argv)
    assert (code, runs, err.count("\n")) == (2, [], 1)
    assert words in err
