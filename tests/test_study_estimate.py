"""Seconds of planned runs from finished ones."""

import pytest

from ablate.study.launch.estimate import Done, done, left, seconds

RESULT = {
    "status": "finished",
    "arm": "baseline",
    "wall_seconds": 12.0,
    "train_seconds": 10.0,
    "flops_per_step": 5,
    "steps": 20,
}


def test_only_finished_runs_are_read():
    assert done(RESULT) == Done("baseline", wall_seconds=12.0, train_seconds=10.0, flops=100.0)
    running = {"status": "running", "arm": "baseline", "flops_per_step": 5}
    assert done(running) is None


def test_as_the_arms_own_runs_took():
    finished = [Done("a", wall, 1.0, 10.0) for wall in (30.0, 10.0, 11.0)]
    assert seconds("a", 999.0, [*finished, Done("b", 500.0, 1.0, 1.0)]) == 11.0


def test_by_flops_from_other_arms():
    finished = [Done("a", 12.0, 10.0, 100.0), Done("b", 43.0, 40.0, 400.0)]
    assert seconds("c", 200.0, finished) == pytest.approx(20.0 + 2.5)
    assert seconds("c", 200.0, [Done("a", 9.0, 8.0, 0.0)]) is None
    assert seconds("c", 200.0, []) is None


@pytest.mark.parametrize(
    ("runs", "slots", "expected"),
    [
        ([], 2, 0.0),
        ([5.0], 4, 5.0),
        ([1.0, 2.0, 3.0], 1, 6.0),
        ([4.0, 1.0, 1.0, 1.0], 2, 4.0),  # the short ones share a slot
        ([1.0, 1.0, 4.0], 2, 5.0),  # the long one waits
        ([1.0, None], 2, None),
    ],
)
def test_what_is_left_with_slots(runs, slots, expected):
    assert left(runs, slots) == expected
