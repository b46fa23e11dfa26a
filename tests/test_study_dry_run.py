"""study.dry_run=true: the plan on the screen, and nothing on the disk."""

import pytest
from make_sweep import tiny_for, write_sweep
from tiny import overrides

from ablate import compose
from ablate.study.plan.budget import budgets

pytest_plugins = ["command_line"]

WHAT = """{factors: {model.depth: [2], again: {x: [model.depth=2]}, model.ffn_dim: [64],
    model.heads: [3], many: {x: [model.ffn=relu, model.norm=post, model.norm_type=rms,
    model.norm_eps=0.01, model.bias=false, model.init_std=0.01]}}, on_invalid: skip, seeds: 3}"""


def rows(out):
    """Arm -> the cells of its row, each a list of lines."""
    found = {}
    for line in out.splitlines():
        if line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            row = found.setdefault(cells[0] or list(found)[-1], [[] for _ in cells])
            for lines, cell in zip(row, cells, strict=True):
                lines += [cell] if cell else []
    return found


def test_the_plan_is_printed_and_nothing_runs(ablate_command, runs, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tiny = tiny_for(WHAT, tmp_path)
    code, out, err = ablate_command(*write_sweep(tmp_path, WHAT), *tiny, "study.dry_run=true")
    assert (code, err, runs) == (0, "", [])
    assert not (tmp_path / "outputs").exists()
    for words in ("0 finished, 12 to do", "They are compared by val/loss (min).", "0/3"):
        assert words in " ".join(out.split())
    found = rows(out)
    assert [*found] == ["baseline", "model.depth=2", "again=x", "model.ffn_dim=64", "many=x"]
    for line in [
        "again=x: the same runs as model.depth=2",
        "model.ffn_dim=64: no effect: its model is the baseline's",
        "many=x: model.norm=post (baseline pre), model.norm_eps=0.01 (baseline 1e-05),"
        " model.bias=false (baseline true), model.init_std=0.01 (baseline null) and 2 more",
    ]:
        assert line in out.splitlines()
    assert not [line for line in out.splitlines() if line.startswith("model.depth=2:")]
    (left_out,) = [line for line in out.splitlines() if line.startswith("left out:")]
    assert left_out == "left out: model.heads=3: model.heads=3 does not divide model.dim=16"
    configs = {"baseline": compose(*tiny), "model.depth=2": compose(*tiny, "model.depth=2")}
    costs, _ = budgets(configs, baseline="baseline")
    for name, cost in costs.items():
        assert found[name][1:3] == [[f"{cost.parameters:,}"], [f"{cost.flops_per_step:.3g}"]]
    assert found["model.ffn_dim=64"][1:] == found["baseline"][1:]
    assert found["model.depth=2"][1:] == found["again=x"][1:] != found["baseline"][1:]


def test_the_plan_leaves_out_what_study_only_does(ablate_command, tmp_path):
    plan = "{factors: {model.depth: [2, 3]}, seeds: 3}"
    argv = [*write_sweep(tmp_path, plan), *tiny_for(plan, tmp_path), "study.dry_run=true"]
    _, out, _ = ablate_command(*argv, "study.only=[model.depth=3]")
    assert "6 runs in" in out
    assert {arm: cells[-1] for arm, cells in rows(out).items()} == {
        "baseline": ["0/3"], "model.depth=2": ["left out"], "model.depth=3": ["0/3"],
    }  # fmt: skip
    code, _, err = ablate_command(*argv, "study.only=[model.depth=4]")
    assert (code, "study.only: there is no arm model.depth=4" in err) == (2, True)


FRACTION = """{design: fractional, factors: {model.norm: [post], pos_enc: [none],
    width: {wide: [model.ffn_dim=24]}}}"""


@pytest.mark.slow
def test_a_fraction_from_the_plan_to_the_report(ablate_command, runs, tmp_path):
    argv = [*write_sweep(tmp_path, FRACTION), *overrides(tmp_path), "hydra/launcher=basic"]
    _, out, _ = ablate_command(*argv, "study.dry_run=true")
    assert "4 of 8 cells, resolution 3: no main effect is aliased with another." in out
    assert "width is aliased with model.norm × pos_enc." in out  # noqa: RUF001
    _, out, _ = ablate_command(*argv, "study.dry_run=true", "study.resolution=4")
    assert "8 of 8 cells" in out
    assert "is aliased" not in out
    assert ablate_command(*argv)[0] == 0
    found = [(cfg.model.norm, cfg.choices.pos_enc, cfg.model.ffn_dim) for cfg, _ in runs]
    pre, post = [("pre", "learned", None), ("pre", "none", 24)], [("post", "learned", 24)]
    assert found == [*pre, *post, ("post", "none", None)]
