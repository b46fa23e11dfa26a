"""Every formula on small numbers that were worked by hand, and the page that lists them."""

from pathlib import Path

import pytest
from formulas import FORMULAS, Formula, found, page
from make_model import options

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_the_code_comes_to_what_was_worked_by_hand(formula: Formula) -> None:
    assert found(formula) == pytest.approx([float(n) for n in formula.by_hand], abs=1e-6)


def test_the_page_is_what_these_formulas_make() -> None:
    assert (ROOT / "docs" / "formulas.md").read_text() == page()


def test_the_files_are_there_and_no_score_or_normalizer_is_left_out() -> None:
    modules = {formula.module for formula in FORMULAS}
    for module in modules:
        path = ROOT / "src" / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file(), module
    for group in ("model.attention", "model.normalizer"):
        for name in set(options(group)) - {"none"}:
            assert f"ablate.{group}.{name}" in modules
