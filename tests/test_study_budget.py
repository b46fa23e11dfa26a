"""What arms cost, and which of them change nothing."""

import pytest
import torch
from tiny import images, overrides, pairs, write_text

import ablate
from ablate.study.plan import budget
from ablate.study.plan.budget import DataSets, budgets
from ablate.training import same_model
from ablate.training.build import build
from ablate.training.same_model import SameModel


def composed(base, *arms):
    """Arm name (its overrides) -> config, with the baseline."""
    return {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}


def test_counts_are_those_of_a_run(tmp_path):
    configs = composed(overrides(tmp_path), "model.attention=additive", "trainer.max_steps=5")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    measured, refused = budgets(configs, baseline="baseline")
    assert torch.equal(before, torch.get_rng_state())
    assert (list(measured), refused) == (list(configs), {})
    result = ablate.run(configs["model.attention=additive"])
    found = measured["model.attention=additive"]
    assert found.parameters == result["parameters"]["total"]
    assert found.flops_per_step == result["flops_per_step"]
    assert found.steps == result["steps"] == 12
    read = result["throughput"]["value"] * result["train_seconds"]  # as comparable.py has it
    assert read == pytest.approx(12 * 4 * 16)  # steps, windows, tokens
    assert measured["trainer.max_steps=5"].steps == 5


GPT = """model.dropout=0.2; model.drop_path=0.1; model.norm_eps=0.01; model.attention=dot;
    model.mask=window model.mask.size=15; model.init_std=0.01; pos_enc=sinusoidal;
    optimizer.lr=0.01; schedule.warmup=3; trainer.max_steps=11; data.seq_len=8;
    task.label_smoothing=0.1"""
WINDOW = "model.window=local_m model.window.size="
# A baseline; arms that do not change it, and arms that do.
WITHOUT_EFFECT = {
    "gpt": (
        overrides,
        "model.ffn_dim=64; kernel=reference; model.mask=window model.mask.size=16",
        GPT,
    ),
    "of heads of one width": (
        lambda folder: overrides(folder, "model.heads=16"),
        "model.attention=dot",
        "model.attention=additive",
    ),
    # Nothing else tells an arm whose vectors are not trained from one whose vectors begin the same.
    "word2vec": (
        lambda folder: overrides(folder, "model.embedding=word2vec", "model.tie_embeddings=false"),
        "model.embedding.freeze=false",
        "model.embedding.freeze=true",
    ),
    "vit": (images, "model.stride=4", "model.pool=mean; model.dropout=0.3"),
    "rnn_seq2seq": (pairs, f"{WINDOW}9", f"{WINDOW}1; model.dropout=0.5"),
}


@pytest.mark.parametrize("kind", WITHOUT_EFFECT)
def test_no_effect_is_said_of_the_same_model_alone(tmp_path, kind):
    base, *kinds = WITHOUT_EFFECT[kind]
    without, effects = ([" ".join(arm.split()) for arm in arms.split(";")] for arms in kinds)
    measured, refused = budgets(composed(base(tmp_path), *without, *effects), baseline="baseline")
    assert not refused
    assert [arm for arm, found in measured.items() if found.no_effect] == without


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
    other = write_text(tmp_path / "other.txt", words=700)
    changes = ("checkpoint_every=3 output_dir=x", "seed=1", f"data.path={other}")
    first, again, *others = composed(overrides(tmp_path), *changes).values()
    same = SameModel(first, DataSets())
    assert same(again, build(again))
    assert not any(same(cfg, build(cfg)) for cfg in others)


def test_what_fails_when_the_model_is_made_is_refused(tmp_path, monkeypatch):
    """Ours and somebody else's: the line of the first, and the kind of the second."""
    bad = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"
    configs = composed(overrides(tmp_path), bad, "model.norm=post", "model.norm=none")
    real = same_model.make_model

    def broken(cfg, *arguments):
        if cfg.model.norm == "none":
            raise ZeroDivisionError("one\ntwo")
        return real(cfg, *arguments)

    monkeypatch.setattr(same_model, "make_model", broken)
    measured, refused = budgets(configs, baseline="baseline")
    assert list(measured) == ["baseline", "model.norm=post"]
    assert "pos_enc.max_distance=4" in refused.pop(bad)
    assert refused == {"model.norm=none": "ZeroDivisionError: one two"}
    measured, refused = budgets(configs, baseline=bad)
    assert bad in refused
    assert measured["model.norm=post"].no_effect is None


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
