"""The design matrix of a study, and the effects that its cells cannot distinguish.

Sum-to-zero coding, so that a main effect is an average over the options of all other factors. A
term is a factor or a pair of factors. If cells are left out, the columns of a term may depend on
those of earlier ones; it is then taken as zero.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np

Factors = Mapping[str, Sequence[str]]
Term = tuple[str, ...]
TIMES = " × "  # noqa: RUF001 - the sign of an interaction
EXACTLY = 1e-9  # entries of design matrices are small integers


def varied(cells: Sequence[Mapping[str, str]], baseline: Mapping[str, str]) -> Factors:
    """Return the factors that vary in these cells, with their options, the baseline's own first.

    An option that was left out everywhere cannot be estimated.
    """
    factors = {
        factor: list(dict.fromkeys([first, *(cell[factor] for cell in cells)]))
        for factor, first in baseline.items()
    }
    return {factor: options for factor, options in factors.items() if len(options) > 1}


def inestimable(cells: Sequence[Mapping[str, str]], factors: Factors) -> list[str]:
    """Describe the effects that these cells, of a factorial design without some, do not show."""
    rows = [tuple(cell[factor] for factor in factors) for cell in cells]
    return taken_as_zero(design_matrix(rows, factors)[2])


def taken_as_zero(terms: Sequence[Term]) -> list[str]:
    return [
        f"{TIMES.join(term)} cannot be told apart from other effects, since cells are missing, and"
        " is taken as zero"
        for term in terms
    ]


def design_matrix(
    cells: Sequence[Term], factors: Factors
) -> tuple[np.ndarray, dict[Term, slice], list[Term]]:
    """Return the design matrix, the columns of each term, and the terms without any."""
    position = {factor: i for i, factor in enumerate(factors)}
    coded = {
        factor: _sum_to_zero([cell[position[factor]] for cell in cells], factors[factor])
        for factor in factors
    }
    design = np.ones((len(cells), 1))
    terms: list[Term] = [(factor,) for factor in factors] + list(combinations(factors, 2))
    columns_of: dict[Term, slice] = {}
    lost: list[Term] = []
    for term in terms:
        columns = coded[term[0]]
        if len(term) == 2:
            pairs = product(coded[term[0]].T, coded[term[1]].T)
            columns = np.array([a * b for a, b in pairs]).T.reshape(len(cells), -1)
        beyond = columns - design @ np.linalg.lstsq(design, columns, rcond=None)[0]
        if np.linalg.matrix_rank(beyond, tol=EXACTLY) == columns.shape[1]:
            columns_of[term] = slice(design.shape[1], design.shape[1] + columns.shape[1])
            design = np.hstack([design, columns])
        else:
            lost.append(term)
    return design, columns_of, lost


def _sum_to_zero(values: Sequence, levels: Sequence) -> np.ndarray:
    """Make a column for each level but the first: 1 at that level, -1 at the first, 0 elsewhere."""
    columns = [[(v == level) - (v == levels[0]) for level in levels[1:]] for v in values]
    return np.array(columns, dtype=float).reshape(len(values), len(levels) - 1)
