"""Designs: counts and cells by hand, and what a fraction confuses."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from ablate.study.plan import design
from ablate.study.plan.design import Factor
from ablate.study.plan.fraction import fraction


def factor(name, *options):
    return Factor(name, {option: (f"{name}={option}",) for option in options})


SCORE = factor("model.attention", "scaled_dot", "dot", "additive")
POS = factor("pos_enc", "learned", "none")
POST = ("model.norm=post", "schedule.warmup=9")
NORM = Factor("norm", {"pre": ("model.norm=pre",), "post": POST})
ALL = (SCORE, POS, NORM)
OWN = {"model.attention": "scaled_dot", "pos_enc": "learned", "norm": "pre"}


def rows(kind, *factors):
    own = {factor.name: OWN[factor.name] for factor in factors}
    found = list(design.rows(kind, factors, own, resolution=3))
    if kind != "fractional":
        assert len(found) == design.count(kind, factors, own)
    assert found[0] == own, "the baseline is the first"
    assert len({tuple(row.items()) for row in found}) == len(found), "no cell twice"
    return found


def changes(kind, *factors):
    return [{k: v for k, v in row.items() if v != OWN[k]} for row in rows(kind, *factors)]


def test_one_factor_and_leave_one_out():
    singles = [{}, {"model.attention": "dot"}, {"model.attention": "additive"}]
    assert changes("one_factor", *ALL) == [*singles, {"pos_enc": "none"}, {"norm": "post"}]
    assert changes("leave_one_out", POS, NORM) == [{}, {"pos_enc": "none"}, {"norm": "post"}]
    with refused("leave_one_out: model.attention has 2 options"):
        rows("leave_one_out", *ALL)


def test_pairs_and_factorial():
    assert changes("pairs", *ALL) == [
        *changes("one_factor", *ALL),
        {"model.attention": "dot", "pos_enc": "none"},
        {"model.attention": "additive", "pos_enc": "none"},
        {"model.attention": "dot", "norm": "post"},
        {"model.attention": "additive", "norm": "post"},
        {"pos_enc": "none", "norm": "post"},
    ]
    assert len(rows("factorial", *ALL)) == 3 * 2 * 2
    one, other = {"norm": "post"}, {"pos_enc": "none"}
    assert changes("factorial", POS, NORM) == [{}, one, other, other | one]


def test_fractional():
    """C = AB: half of the eight cells."""
    third = Factor("c", {"true": (), "false": ("model.residual=false",)})
    own = {"pos_enc": "learned", "norm": "pre", "c": "true"}
    found = design.rows("fractional", [POS, NORM, third], own, resolution=3)
    assert [tuple(row.values()) for row in found] == [
        ("learned", "pre", "true"),
        ("learned", "post", "false"),
        ("none", "pre", "false"),
        ("none", "post", "true"),
    ]
    with refused("design=factorial"):
        rows("fractional", *ALL)


def test_a_quarter_of_five_factors_by_hand():
    """D = AB and E = AC: of two changes in A and B neither shows in D, and so on."""
    assert fraction(5, 3) == [(a, b, c, a ^ b, a ^ c) for a, b, c in product((0, 1), repeat=3)]


# Factors, resolution -> cells, from the table of Box and Hunter (1961); also NIST's handbook,
# section 5.3.3.4.7.
TABLE = {
    (3, 3): 4, (4, 4): 8, (5, 3): 8, (5, 5): 16, (6, 3): 8, (6, 4): 16, (7, 3): 8, (7, 4): 16,
    (7, 7): 64, (8, 4): 16, (8, 5): 64, (9, 3): 16, (10, 4): 32, (11, 5): 128, (15, 3): 16,
}  # fmt: skip


@pytest.mark.parametrize(("asked", "cells"), TABLE.items())
def test_fractions_are_as_small_as_the_tables(asked, cells):
    assert len(fraction(*asked)) == cells


@given(st.integers(1, 8), st.integers(3, 5))
def test_a_fraction_confuses_no_effects_below_its_resolution(factors, least):
    """The product of fewer than `least` columns is never constant: no word is shorter."""
    cells = fraction(factors, least)
    assert cells[0] == (0,) * factors
    assert len(set(cells)) == len(cells)
    for chosen in product((0, 1), repeat=factors):
        if 0 < sum(chosen) < least:
            signs = {sum(c * k for c, k in zip(cell, chosen, strict=True)) % 2 for cell in cells}
            assert signs == {0, 1}, chosen


def arm(row, factors=ALL, own=OWN, *, all_set=False):
    return design.arm(row, factors, own, all_set=all_set, named=False)


def test_arms_set_what_they_change_and_say_so():
    row = {"model.attention": "dot", "pos_enc": "learned", "norm": "post"}
    made, base = arm(row), arm(OWN)
    assert made.name == "model.attention=dot norm=post"
    assert made.changes == {"model.attention": "dot", "norm": "post"}
    assert made.overrides == ("model.attention=dot", "model.norm=post", "schedule.warmup=9")
    assert {*arm(row, all_set=True).overrides} == {*made.overrides, "pos_enc=learned"}
    assert (base.name, base.is_baseline, base.overrides) == ("baseline", True, ())


def test_two_factors_that_set_one_key_cannot_be_combined():
    warmup = Factor("warmup", {"on": (), "off": ("schedule.warmup=0",)})
    both, own = [NORM, warmup], {"norm": "pre", "warmup": "on"}
    for row in design.rows("one_factor", both, own, resolution=3):
        arm(row, both, own)
    with refused("norm and warmup both set schedule.warmup"):
        arm({"norm": "post", "warmup": "off"}, both, own)


def test_excluded_cells_have_all_of_an_entry():
    entry = {"pos_enc": "none", "norm": "post"}
    found = [row for row in rows("factorial", POS, NORM) if design.excluded_by(row, [entry])]
    assert found == [entry]
    assert len([r for r in rows("factorial", *ALL) if design.excluded_by(r, [entry])]) == 3
