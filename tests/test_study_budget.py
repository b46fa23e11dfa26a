"""What arms cost, which of them change nothing, and study.match."""

import time

import pytest
import torch
from omegaconf import OmegaConf
from tiny import images, overrides, pairs, write_text

import ablate
from ablate.study.plan import budget
from ablate.study.plan.budget import DataSets, budgets
from ablate.training import same_model
from ablate.training.build import build
from ablate.training.record import count_parameters
from ablate.training.same_model import SameModel


def composed(base, *arms):
    """Arm name (its overrides) -> config, with the baseline."""
    return {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}


def test_counts_are_those_of_a_run(tmp_path):
    configs = composed(overrides(tmp_path), "model.attention=additive", "trainer.max_steps=5")
    measured, refused = budgets(configs, baseline="baseline")
    assert not refused
    assert list(measured) == list(configs)
    result = ablate.run(configs["model.attention=additive"])
    found = measured["model.attention=additive"]
    assert found.parameters == result["parameters"]["total"]
    assert found.flops_per_step == result["flops_per_step"]
    assert found.steps == result["steps"] == 12
    read = result["throughput"]["value"] * result["train_seconds"]  # as comparable.py has it
    assert read == pytest.approx(12 * 4 * 16)  # steps, windows, tokens
    assert measured["trainer.max_steps=5"].steps == 5
    assert measured["baseline"].no_effect is False


@pytest.mark.parametrize(
    ("base", "without", "effects"),
    [
        (
            overrides,
            ["model.ffn_dim=64", "kernel=reference", "model.mask=window model.mask.size=16"],
            [
                "model.dropout=0.2",
                "model.drop_path=0.1",
                "model.residual=false",
                "model.norm_eps=0.01",
                "model.mask=window model.mask.size=15",
                "model.attention=dot",
                "model.init_std=0.01",
                "pos_enc=sinusoidal",
                "optimizer=sgd",
                "optimizer.lr=0.01",
                "schedule.warmup=3",
                "trainer.max_steps=11",
                "data.seq_len=8",
                "task.label_smoothing=0.1",
            ],
        ),
        (images, ["model.stride=4"], ["model.pool=mean", "model.dropout=0.3", "model.norm=none"]),
        (
            pairs,
            ["model.window=local_m model.window.size=9"],
            ["model.window=local_m model.window.size=1", "model.dropout=0.5"],
        ),
        (lambda _: ["model=gat"], ["kernel=reference"], ["model.mask=none", "model.attention=dot"]),
    ],
    ids=["gpt", "vit", "rnn_seq2seq", "gat"],
)
def test_no_effect_is_said_of_the_same_model_alone(tmp_path, base, without, effects):
    configs = composed(base(tmp_path), *without, *effects)
    measured, refused = budgets(configs, baseline="baseline")
    assert not refused
    assert [arm for arm, found in measured.items() if found.no_effect] == without


def test_head_width_of_one_makes_scaled_and_plain_products_equal(tmp_path):
    configs = composed(overrides(tmp_path, "model.heads=16"), "model.attention=dot")
    measured, _ = budgets(configs, baseline="baseline")
    assert measured["model.attention=dot"].no_effect


def test_vectors_that_are_not_trained_are_no_arm_without_effect(tmp_path):
    """Nothing else tells it from one whose vectors begin the same."""
    base = overrides(tmp_path, "model.embedding=word2vec", "model.tie_embeddings=false")
    configs = composed(base, "model.embedding.freeze=true", "model.embedding.freeze=false")
    measured, refused = budgets(configs, baseline="baseline")
    assert not refused
    assert measured["model.embedding.freeze=true"].no_effect is False
    assert measured["model.embedding.freeze=false"].no_effect


def test_a_part_that_starts_at_zero_has_an_effect(tmp_path, monkeypatch):
    """Two buckets of T5's bias are told apart by their values, which here are zero at first."""
    from ablate.pos_enc.t5 import T5

    monkeypatch.setattr(T5, "reset_parameters", lambda self: torch.nn.init.zeros_(self.table))
    base = overrides(tmp_path, "pos_enc=t5", "pos_enc.buckets=6")
    configs = composed(base, "pos_enc.max_distance=9")
    inputs = torch.zeros(1, 16, dtype=torch.long)
    outputs = [build(cfg).eval()(inputs) for cfg in configs.values()]
    assert torch.equal(*outputs)
    measured, _ = budgets(configs, baseline="baseline")
    assert measured["pos_enc.max_distance=9"].no_effect is False


def test_what_cannot_change_a_result_is_no_change(tmp_path):
    base = overrides(tmp_path)
    other = write_text(tmp_path / "other.txt", words=700)
    changes = ("checkpoint_every=3 output_dir=x", "seed=1", f"data.path={other}")
    first, again, *others = composed(base, *changes).values()
    same = SameModel(first, DataSets())
    assert same(again, build(again))
    assert not any(same(cfg, build(cfg)) for cfg in others)


def test_data_is_read_once_where_arms_share_it(tmp_path, monkeypatch):
    read = []
    real = budget.build_data
    monkeypatch.setattr(budget, "build_data", lambda cfg: read.append(cfg.data) or real(cfg))
    configs = composed(overrides(tmp_path), "model.norm=post", "pos_enc=none", "data.seq_len=8")
    budgets(configs, baseline="baseline", sets=DataSets())
    assert len(read) == 2


def test_a_mistake_that_shows_when_the_model_is_made(tmp_path):
    """model.attention=location has a table for max_length positions, shorter than the text."""
    bad = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"
    configs = composed(overrides(tmp_path), bad, "model.norm=post")
    measured, refused = budgets(configs, baseline="baseline")
    assert list(measured) == ["baseline", "model.norm=post"]
    assert list(refused) == [bad]
    assert "pos_enc.max_distance=4" in refused[bad]
    measured, refused = budgets(configs, baseline=bad)
    assert list(refused) == [bad]
    assert measured["model.norm=post"].no_effect is None


def test_somebody_elses_part_that_raises(tmp_path, monkeypatch):
    configs = composed(overrides(tmp_path), "model.norm=post")
    real = same_model.make_model

    def broken(cfg, *arguments):
        if cfg.model.norm == "post":
            raise ZeroDivisionError("one\ntwo")
        return real(cfg, *arguments)

    monkeypatch.setattr(same_model, "make_model", broken)
    _, refused = budgets(configs, baseline="baseline")
    assert refused == {"model.norm=post": "ZeroDivisionError: one two"}


@pytest.mark.slow
def test_large_models_are_counted_and_not_judged(tmp_path, monkeypatch):
    large = ("model.dim=16384", "model.depth=4")
    configs = composed(overrides(tmp_path, *large), "model.residual=false", "model.norm=post")
    monkeypatch.setattr(budget, "_real", None)  # would take tens of gigabytes
    measured, refused = budgets(configs, baseline="baseline")
    assert not refused
    assert measured["baseline"].parameters > 10_000_000_000
    assert measured["model.residual=false"].no_effect is None
    assert measured["model.norm=post"].no_effect is False


def test_random_numbers_are_left_as_they_were(tmp_path):
    configs = composed(overrides(tmp_path), "model.dropout=0.1", "model.residual=false")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    budgets(configs, baseline="baseline")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_twenty_arms_take_seconds(tmp_path):
    base = ablate.compose("logger=none", f"output_dir={tmp_path}")
    configs = {"baseline": base}
    for number in range(20):
        cfg = base.copy()
        OmegaConf.update(cfg, "model.dropout", number / 40 + 0.01)
        configs[f"model.dropout={number}"] = cfg
    started = time.process_time()
    measured, _ = budgets(configs, baseline="baseline")
    assert time.process_time() - started < 20  # 3 s where nothing else runs
    assert not any(found.no_effect for found in measured.values())
    assert measured["baseline"].parameters == count_parameters(build(base))["total"]
