"""What arms cost, which of them change nothing, and the widths that make them cost the same."""

import json

import pytest
import torch
from make_sweep import tiny_for, write_sweep
from refusals import refused
from tiny import overrides, pairs, write_text

import ablate
from ablate.pos_enc.t5 import T5
from ablate.study.plan.budget import budgets
from ablate.study.plan.match import match, require_width
from ablate.training import same_model
from ablate.training.build import build, build_data, count_flops
from ablate.training.record import count_parameters
from ablate.training.same_model import DataSets, SameModel, on_meta

pytest_plugins = ["command_line"]
WITH_COUNTS = True  # tests/conftest.py
BAD = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"  # it shows when the model is made


def composed(base, *arms):
    """Arm name (its overrides) -> config, with the baseline."""
    return {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}


@pytest.mark.ci
def test_counts_are_those_of_a_run(tmp_path):
    configs = composed(overrides(tmp_path), "model.attention=additive", "trainer.max_steps=5")
    torch.manual_seed(3)
    before = torch.get_rng_state()
    measured, refused = budgets(configs, baseline="baseline", sets=DataSets())
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


# A baseline; arms that do not change it, and arms that do.
WITHOUT_EFFECT = {
    "gpt": (
        overrides,
        "model.ffn_dim=64; kernel=reference; model.mask=window model.mask.size=16",
        """model.dropout=0.2; model.norm_eps=0.01; model.attention=dot; model.init_std=0.01;
        model.mask=window model.mask.size=15; optimizer.lr=0.01; data.seq_len=8;
        task.label_smoothing=0.1""",
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
    "rnn_seq2seq": (
        pairs,
        "model.window=local_m model.window.size=9",
        "model.window=local_m model.window.size=1; model.dropout=0.5",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("kind", WITHOUT_EFFECT)
def test_no_effect_is_said_of_the_same_model_alone(tmp_path, kind):
    base, *kinds = WITHOUT_EFFECT[kind]
    without, effects = ([" ".join(arm.split()) for arm in arms.split(";")] for arms in kinds)
    measured, refused = budgets(
        composed(base(tmp_path), *without, *effects), baseline="baseline", sets=DataSets()
    )
    assert not refused
    assert [arm for arm, found in measured.items() if found.no_effect] == without


@pytest.mark.ci
def test_a_part_that_starts_at_zero_has_an_effect(tmp_path, monkeypatch):
    """Two buckets of T5's bias are told apart by their values, which here are zero at first."""
    monkeypatch.setattr(T5, "reset_parameters", lambda self: torch.nn.init.zeros_(self.table))
    base = overrides(tmp_path, "pos_enc=t5", "pos_enc.buckets=6")
    configs = composed(base, "pos_enc.max_distance=9")
    inputs = torch.zeros(1, 16, dtype=torch.long)
    outputs = [build(cfg).eval()(inputs) for cfg in configs.values()]
    assert torch.equal(*outputs)
    measured, _ = budgets(configs, baseline="baseline", sets=DataSets())
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
    configs = composed(overrides(tmp_path), BAD, "model.norm=post", "model.norm=none")
    real = same_model.model_on_meta

    def broken(cfg, *arguments):
        if cfg.model.norm == "none":
            raise ZeroDivisionError("one\ntwo")
        return real(cfg, *arguments)

    monkeypatch.setattr(same_model, "model_on_meta", broken)
    measured, refused = budgets(configs, baseline="baseline", sets=DataSets())
    assert list(measured) == ["baseline", "model.norm=post"]
    assert "pos_enc.max_distance=4" in refused.pop(BAD)
    assert refused == {"model.norm=none": "ZeroDivisionError: one two"}
    measured, refused = budgets(configs, baseline=BAD, sets=DataSets())
    assert BAD in refused
    assert measured["model.norm=post"].no_effect is None


OWN = """
import torch
from ablate.model.ffn.gelu import GELU
class Drawn(GELU):
    def __init__(self, dim, **more):
        super().__init__(dim, **more)
        self.extra = self.made(dim)
    def made(self, dim):
        return torch.nn.Linear(dim, dim)  # with torch's reset_parameters
    def forward(self, x, *more):
        return super().forward(x, *more) + self.extra(x)
class Undrawn(Drawn):
    def made(self, dim):
        self.scale = torch.nn.Parameter(torch.ones(dim))
        return super().made(dim)
class Wrong(Drawn):
    def forward(self, x, *more):
        return super().forward(x, *more) if x.is_meta else x + torch.ones(3, 5)
class Halting(Drawn):
    def made(self, dim):
        linear = super().made(dim)
        linear.reset_parameters = lambda: 1 // 0
        return linear
"""


@pytest.mark.ci
def test_what_a_run_would_refuse_before_its_first_step_is_refused(tmp_path, monkeypatch):
    (tmp_path / "parts_of_mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = "model.ffn._target_=parts_of_mine."
    arms = {
        f"{own}Drawn": None,
        f"{own}Undrawn": "belongs to no module with reset_parameters()",
        f"{own}Wrong": "RuntimeError: The size of tensor a",
        f"{own}Halting": "ZeroDivisionError",
        "schedule.warmup=13": "schedule.warmup=13",
        "callbacks=early_stopping callbacks.early_stopping.monitor=val/los": "mean 'val/loss'?",
        "+callbacks.mine._target_=torch.nn.Linear": "cannot be instantiated",
        "evaluate={long:{}}": "evaluate.long: must be a name",
    }
    by_epoch = ("trainer.max_steps=-1", "trainer.max_epochs=1", "data.batch_size=64")
    base = overrides(tmp_path, *by_epoch, "trainer.val_check_interval=2")
    measured, refused = budgets(composed(base, *arms), baseline="baseline", sets=DataSets())
    assert [*measured] == ["baseline", f"{own}Drawn"], refused
    assert {arm: said for arm, said in arms.items() if said and said not in refused[arm]} == {}


@pytest.mark.slow
def test_large_models_are_counted_and_not_judged(tmp_path, monkeypatch):
    large = ("model.dim=16384", "model.depth=4")
    configs = composed(overrides(tmp_path, *large), "model.residual=false", "model.norm=post")
    for name in ("build_checked", "initialized"):  # would take tens of gigabytes
        monkeypatch.setattr(same_model, name, None)
    measured, refused = budgets(configs, baseline="baseline", sets=DataSets())
    assert not refused
    assert measured["baseline"].parameters > 10_000_000_000
    assert measured["model.residual=false"].no_effect is None
    assert measured["model.norm=post"].no_effect is False


# study.match

ATTENTION, NO_FFN = "model.attention=uniform", "model.ffn=none"


def solved(base, *arms, budget="parameters", by="model.ffn_dim"):
    return match(composed(base, *arms), baseline="baseline", budget=budget, by=by, sets=DataSets())


def cost(base, *typed, budget="parameters"):
    """As a run counts it."""
    cfg = ablate.compose(*base, *typed)
    if budget == "parameters":
        return count_parameters(build(cfg))["total"]
    task = on_meta(cfg, build_data(cfg))
    return count_flops(cfg, task, task.model)


@pytest.mark.ci
@pytest.mark.parametrize("budget", ["parameters", pytest.param("flops", marks=pytest.mark.slow)])
def test_the_nearest_width_is_set(tmp_path, budget):
    """Against every width there is: the cost is too low or too high, the nearest above or below."""
    base = overrides(tmp_path, "model.dim=32")
    target = cost(base, budget=budget)
    arms = [ATTENTION, "model.ffn=geglu model.depth=2", *["pos_enc=none"] * (budget != "flops")]
    matches = solved(base, *arms, budget=budget)
    assert [*matches] == arms
    for arm, width in matches.items():
        own = [*base, *arm.split()]
        after = cost(own, f"model.ffn_dim={width}", budget=budget)
        assert abs(after / target - 1) <= 0.02 < abs(cost(own, budget=budget) / target - 1)
        for near in range(width - 2, width + 3):
            other = cost(own, f"model.ffn_dim={near}", budget=budget)
            assert abs(other - target) >= abs(after - target)


def test_what_needs_no_width_or_cannot_be_built_is_left_alone(tmp_path):
    arms = ("model.ffn=swiglu", "model.norm=post", "model.attention=additive", BAD)
    assert solved(overrides(tmp_path, "model.depth=2", "model.dim=32"), *arms) == {}


@pytest.mark.ci
def test_widths_that_do_not_fit_are_passed_over(tmp_path):
    """dim is a multiple of 3 heads, each of an even width for the rotation."""
    base = overrides(tmp_path, "model.heads=3", "model.dim=192", "pos_enc=rotary")
    width = solved(base, NO_FFN, by="model.dim")[NO_FFN]
    assert (width > 192, width % 6) == (True, 0)
    assert cost(base, NO_FFN, f"model.dim={width}") == pytest.approx(cost(base), rel=0.02)


@pytest.mark.parametrize(
    ("arm", "by", "parts"),
    [
        (NO_FFN, "model.ffn_dim", [f"'{NO_FFN}' (", "in it: model.ffn_dim=1 has no effect with"]),
        # The second arm has a width, but not a number of heads, that makes it match.
        pytest.param(
            NO_FFN,
            "model.heads",
            ["model.heads has no influence on it", f"'{ATTENTION}'"],
            marks=pytest.mark.ci,
        ),
        ("model.ffn_dim=99", "model.ffn_dim", ["it sets study.match_by=model.ffn_dim itself"]),
        ("model.depth=40", "model.ffn_dim", ["closest: model.ffn_dim=1 with ", " above"]),
    ],
)
def test_what_cannot_be_matched_is_refused(tmp_path, arm, by, parts):
    with refused(*parts):
        solved(overrides(tmp_path), arm, ATTENTION, by=by)


def test_only_a_whole_number_of_the_model_can_be_matched_by(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    for by in ("model.fn_dim", "optimizer.lr", "model.dropout", "data.seq_len"):
        with refused(f"match_by={by}: must be an integer ", "model.ffn_dim"):
            require_width(by, [cfg], matched=True)
    require_width("model.ffn_dim", [cfg], matched=True)
    with refused("study.match_by=model.dim has no effect without"):
        require_width("model.dim", [cfg], matched=False)


@pytest.mark.ci
def test_what_was_solved_is_what_runs_and_what_the_plan_says(ablate_command, runs, tmp_path):
    study = """{factors: {model.tie_embeddings: [false], model.bias: [false]},
        match: parameters, seeds: 2}"""
    argv = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path), "hydra/launcher=basic"]
    code, out, err = ablate_command(*argv)
    assert (code, err) == (0, "")
    base, untied, bare = json.loads((tmp_path / "outputs/mine/plan.json").read_text())["arms"]
    assert base["set"] == {}
    for arm, ran in ((untied, (1, 4)), (bare, (2, 5))):
        (width,) = arm["set"].values()
        assert [runs[n][0].model.ffn_dim for n in ran] == [width] * 2
        assert arm["parameters"] == pytest.approx(base["parameters"], rel=0.02)
        assert f"ablate: {arm['name']}: study.match=parameters sets model.ffn_dim={width}" in out
    assert {runs[n][0].model.ffn_dim for n in (0, 3)} == {None}
