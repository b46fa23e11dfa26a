"""A study in Python: its frames are what the report says, and reading writes nothing."""

import pytest
from make_study import ADDITIVE, BASE, scores, shifted
from test_study_claims import claim, with_claims

import ablate
from ablate.errors import UserError


def test_a_study_is_its_report_in_frames(tmp_path):
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
    text = repr(study)
    assert f"{ADDITIVE}: worse by" in text
    assert "confirmed: It is so" in text
    assert "worse" in study._repr_html_()
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a study's folder"):
        ablate.load_study(tmp_path)
