"""Learning rates against the published formulas."""

from math import cos, pi
from pathlib import Path

import pytest

from ablate.config.composition import compose
from ablate.errors import UserError
from ablate.schedule import AUTO_STEPS, warmup_steps
from ablate.schedule.constant import constant
from ablate.schedule.cosine import cosine
from ablate.schedule.linear import linear
from ablate.schedule.noam import noam
from ablate.schedule.wsd import wsd
from ablate.training.build import build_data
from ablate.training.trainer import make_trainer


def test_cosine_is_nanogpts():
    """nanoGPT's get_lr: warm-up (it + 1) / (warm-up + 1), then a cosine from 1e-3 to 1e-4."""
    peak, low, warmup, total = 1e-3, 1e-4, 100, 2000

    def nanogpt(it):
        if it < warmup:
            return peak * (it + 1) / (warmup + 1)
        ratio = (it - warmup) / (total - warmup)
        return low + 0.5 * (1 + cos(pi * ratio)) * (peak - low)

    for step in (0, 50, 99, 100, 101, 1000, 1999, 2000):
        ours = peak * cosine(step, total, warmup=warmup, floor=0.1)
        assert ours == pytest.approx(nanogpt(step), rel=1e-12)


def test_noam_is_vaswanis_equation_3():
    dim, warmup = 512, 4000
    peak = dim**-0.5 * warmup**-0.5
    for step in (0, 100, 3999, 4000, 50_000):
        n = step + 1
        paper = dim**-0.5 * min(n**-0.5, n * warmup**-1.5)
        assert peak * noam(step, 100_000, warmup=warmup) == pytest.approx(paper, rel=1e-12)


def test_linear_and_constant_by_hand():
    values = [linear(step, 10, warmup=2, floor=0.2) for step in (0, 1, 2, 6, 10)]
    assert values == pytest.approx([1 / 3, 2 / 3, 1.0, 0.6, 0.2])
    assert [constant(step, 10, warmup=1) for step in (0, 1, 9)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("warmup", "total", "steps"),
    [(0, 10, 0), (7, 10, 7), (0.1, 300, 30), (0.375, 400, 150), (0.1, 3, 1), (0.999, 10, 10)],
)
def test_a_warm_up_counts_in_steps_or_is_a_share_of_the_training(warmup, total, steps):
    for schedule in AUTO_STEPS:
        assert warmup_steps(schedule, warmup, total) == steps


@pytest.mark.parametrize(("schedule", "usual"), [("cosine", 100), ("linear", 100), ("noam", 400)])
def test_auto_is_as_usual_and_gives_way_to_a_short_training(schedule, usual):
    assert warmup_steps(schedule, "auto", 10_000) == usual
    assert warmup_steps(schedule, "auto", 2 * usual) == usual
    assert warmup_steps(schedule, "auto", 2 * usual - 2) == usual - 1
    assert warmup_steps(schedule, "auto", 5) == 2
    assert warmup_steps(schedule, "auto", 1) == 0


@pytest.mark.parametrize("schedule", [cosine, linear, constant, noam])
def test_a_share_and_auto_are_the_steps_that_they_stand_for(schedule):
    floor = {} if schedule in (constant, noam) else {"floor": 0.1}
    auto = warmup_steps(schedule.__name__, "auto", 60)
    assert auto == (0 if schedule is constant else 30)
    for step in range(61):
        assert schedule(step, 60, warmup=0.25, **floor) == schedule(step, 60, warmup=15, **floor)
        given = schedule(step, 60, warmup=auto, **floor)
        assert schedule(step, 60, warmup="auto", **floor) == given


def told(capsys, *more):
    cfg = compose("model=rnn_forecaster", "trainer.val_check_interval=null", *more)
    data = build_data(cfg)
    make_trainer(cfg.trainer, cfg.schedule, Path("nowhere"), data, [])
    return [line for line in capsys.readouterr().out.splitlines() if "warm-up" in line]


def test_a_run_says_where_the_default_warm_up_gave_way(capsys):
    line = "ablate: warm-up: 2 of 5 steps (schedule.warmup=auto)"
    assert told(capsys, "trainer.max_steps=5") == [line]
    assert told(capsys) == []
    assert told(capsys, "trainer.max_steps=5", "schedule.warmup=2") == []
    assert told(capsys, "trainer.max_steps=5", "schedule=constant", "schedule.warmup=auto") == []


def test_a_number_longer_than_the_training_is_refused_with_the_way_out(capsys):
    line = r"schedule\.warmup=6 is longer than the training of 5 steps; use schedule\.warmup=auto"
    with pytest.raises(UserError, match=line):
        compose("trainer.max_steps=5", "schedule.warmup=6")
    assert compose("trainer.max_steps=5", "schedule.warmup=5").schedule.warmup == 5
    # Where the training counts in epochs, once the data is read.
    epochs = ("trainer.max_steps=-1", "trainer.max_epochs=1")
    with pytest.raises(UserError, match=r"schedule\.warmup=600 is longer than the training of \d"):
        told(capsys, *epochs, "schedule.warmup=600")


@pytest.mark.parametrize(("shape", "falling"), [("linear", 0.5), ("sqrt", 1 - 0.5**0.5)])
def test_wsd_is_stable_and_then_falls(shape, falling):
    def rate(step, **keys):
        return wsd(step, 100, warmup=10, shape=shape, **keys)

    assert rate(0, decay=20, floor=0.0) == pytest.approx(1 / 11)
    assert {rate(step, decay=20, floor=0.0) for step in (10, 50, 80)} == {1.0}
    assert rate(90, decay=20, floor=0.0) == pytest.approx(falling)
    assert rate(90, decay=0.2, floor=0.1) == pytest.approx(0.1 + 0.9 * falling)
    assert rate(100, decay=20, floor=0.1) == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"schedule\.decay=95 are 10 and 95 steps"):
        rate(0, decay=95, floor=0.0)
