"""Learning rates against the published formulas."""

from math import cos, pi
from pathlib import Path

import pytest

from ablate.config.composition import compose
from ablate.errors import UserError
from ablate.schedule import warmup_steps
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


SCHEDULES = {schedule.__name__: schedule for schedule in (cosine, linear, constant, noam)}


@pytest.mark.parametrize(
    ("name", "warmup", "total", "steps"),
    [
        *(("cosine", share, total, steps) for share, total, steps in [(0, 10, 0), (7, 10, 7)]),
        *(("noam", share, 10, steps) for share, steps in [(0.1, 1), (0.999, 10)]),
        *(("linear", share, 400, steps) for share, steps in [(0.375, 150), (0.1, 40)]),
        *(("constant", 0.1, 3, 1), ("constant", "auto", 60, 0)),
        # By default as usual, which gives way to a short training.
        *((name, "auto", 10_000, usual) for name, usual in [("cosine", 100), ("noam", 400)]),
        *(("linear", "auto", total, steps) for total, steps in [(200, 100), (198, 99), (5, 2)]),
        ("cosine", "auto", 1, 0),
    ],
)
def test_a_warm_up_counts_in_steps_or_is_a_share_or_is_usual(name, warmup, total, steps):
    assert warmup_steps(name, warmup, total) == steps
    floor = {"floor": 0.1} if name in ("cosine", "linear") else {}
    for step in range(min(total, 500)):
        given = SCHEDULES[name](step, total, warmup=steps, **floor)
        assert SCHEDULES[name](step, total, warmup=warmup, **floor) == given


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
