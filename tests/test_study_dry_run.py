"""study.dry_run=true: the plan on the screen, and nothing on the disk."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from make_sweep import tiny_for, write_sweep
from omegaconf import DictConfig
from tiny import overrides

from ablate.study.preview import span
from ablate.study.report import write

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]
Runs = list[tuple[DictConfig, Path]]
STUDY = """{factors: {model.attention: [dot, uniform], model.dim: [24],
    model.drop_path: {same: [model.drop_path=0.0, model.norm_eps=1.0e-5], x: [model.bias=false]}},
    seeds: 3, illegal: skip}"""


@pytest.mark.parametrize("columns", [60, 120])
def test_the_plan_is_printed_and_nothing_runs(
    columns: int,
    ablate_command: Command,
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    argv = [*write_sweep(tmp_path, STUDY), *tiny_for(STUDY, tmp_path)]
    code, out, err = ablate_command(*argv, "study.dry_run=true")
    assert (code, err, runs) == (0, "", [])
    assert not (tmp_path / "outputs").exists()
    flat = " ".join(out.split())
    assert "5 arms, 3 seeds, 15 runs" in flat
    assert "0 finished, 15 to do" in flat
    assert "val/loss (min)" in flat
    table = [line for line in out.splitlines() if line.startswith(("┃", "│"))]
    assert max(map(len, table)) <= columns
    assert "0/3" in out


def test_what_is_done_counts(ablate_command: Command, runs: Runs, tmp_path: Path) -> None:
    argv = [*write_sweep(tmp_path, STUDY), *tiny_for(STUDY, tmp_path), "hydra/launcher=basic"]
    assert ablate_command(*argv, "study.seeds=1")[0] == 0
    for folder in (tmp_path / "outputs" / "mine").glob("*/result.json"):
        result = json.loads(folder.read_text())
        cost = {"wall_seconds": 90.0, "train_seconds": 80.0, "flops_per_step": 5, "steps": 12}
        folder.write_text(json.dumps(result | cost | {"arm": "baseline"}))
    _, out, _ = ablate_command(*argv, "study.dry_run=true")
    flat = " ".join(out.split())
    assert "5 finished, 10 to do, about" in flat
    assert "1/3" in out
    assert "90 s" in out
    assert len(runs) == 5


FRACTION = """{design: fractional, factors: {model.norm: [post], pos_enc: [none],
    width: {wide: [model.ffn_dim=24]}}}"""


def test_a_fraction_from_the_plan_to_the_report(
    ablate_command: Command, runs: Runs, tmp_path: Path
) -> None:
    argv = [*write_sweep(tmp_path, FRACTION), *overrides(tmp_path), "hydra/launcher=basic"]
    _, out, _ = ablate_command(*argv, "study.dry_run=true")
    assert "4 of 8 cells, resolution 3: no main effect is confused with another." in out
    assert "width cannot be told from model.norm × pos_enc." in out  # noqa: RUF001
    _, out, _ = ablate_command(*argv, "study.dry_run=true", "study.resolution=4")
    assert "8 of 8 cells" in out
    assert "cannot be told" not in out

    assert ablate_command(*argv)[0] == 0
    found = [(cfg.model.norm, cfg.choices.pos_enc, cfg.model.ffn_dim) for cfg, _ in runs]
    learned, none = "learned", "none"
    assert found == [("pre", learned, None), ("pre", none, 24), ("post", learned, 24),
                     ("post", none, None)]  # fmt: skip
    for number, (_, folder) in enumerate(runs):
        result = json.loads((folder / "result.json").read_text())
        metric = {"metric": {"name": "val/loss", "mode": "min"}, "metrics": {"val/loss": number}}
        (folder / "result.json").write_text(json.dumps(result | metric))
    write(runs[0][1].parent)
    text = (runs[0][1].parent / "report.md").read_text()
    assert "Design: fractional: 4 of 8 cells, resolution 3" in text
    assert "- model.norm: no difference shown between pre and post (post worse by 2" in text
    assert "it from model.norm × pos\\_enc." in text  # noqa: RUF001


def test_lengths_of_time() -> None:
    assert [span(s) for s in (42, 600, 7200, 10**6)] == ["42 s", "10 min", "2.0 h", "11.6 days"]
