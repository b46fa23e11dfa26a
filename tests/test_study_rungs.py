"""study.ladder: sizes of a model with the recipes of published rules, as blocks of a study."""

import re

import pytest
from make_sweep import asked, tiny_for, write_sweep
from refusals import refused

from ablate.config.composition import compose
from ablate.errors import UserError
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.ladder import OLMO, Given, Shape, as_blocks, completep, mup, nanochat, olmo

pytest_plugins = ["command_line"]

GIVEN = Given(Shape(128, 4, 4), 1024, 20, lr=0.02, weight_decay=0.28)

# (dim, depth, heads): batch in tokens, rate, steps. From WSDSChinchillaRunConfigurator
# (chinchilla_multiple=1) of allenai/OLMo-core at fa6c5014, executed with num_params=12 depth dim^2;
# the shapes are those of TransformerConfig.olmo3_14M to olmo3_13B.
OLMO_CORE = {
    (128, 4, 8): (12310, 0.012124264117034956, 1278),
    (256, 4, 8): (31020, 0.0076378077877687104, 2028),
    (384, 8, 8): (84552, 0.004626272605082737, 3348),
    (512, 12, 8): (162593, 0.0033361198384027563, 4643),
    (768, 12, 12): (279184, 0.002545935929256237, 6084),
    (1024, 16, 16): (496327, 0.0019094519469421778, 8113),
    (1280, 16, 16): (668316, 0.001645515805376459, 9414),
    (1536, 16, 16): (852229, 0.0014571845594239334, 10631),
    (2048, 16, 16): (1250667, 0.001202879350857599, 12878),
    (3328, 16, 16): (2389348, 0.0008702682900967693, 17800),
    (4096, 32, 32): (5002666, 0.0006014396754287996, 25756),
    (5120, 40, 40): (7816666, 0.00048115174034303967, 32195),
}
# (dim, depth, heads): batch in tokens, steps, rates of Muon and of the output map, weight decay.
# From lines 241 to 300 of scripts/base_train.py and setup_optimizer of nanochat/gpt.py in
# karpathy/nanochat at 92d63d4e, executed with 20 tokens for each of 12 depth dim^2 parameters.
NANOCHAT = {
    (128, 1, 1): (65536, 60, 0.007071067811865476, 0.00692820323027551, 42.7658181261624),
    (128, 2, 1): (65536, 120, 0.007071067811865476, 0.00692820323027551, 21.3829090630812),
    (256, 4, 2): (131072, 480, 0.01, 0.0069282032302755096, 3.7800000000000002),
    (384, 6, 3): (262144, 810, 0.014142135623730952, 0.008000000000000002, 1.5839191898578666),
    (512, 8, 4): (262144, 1920, 0.014142135623730952, 0.00692820323027551, 0.6682159082212875),
    (640, 10, 5): (524288, 1875, 0.02, 0.008763560920082658, 0.48384000000000005),
    (768, 12, 6): (524288, 3240, 0.02, 0.008, 0.28),
    (1024, 16, 8): (524288, 7680, 0.02, 0.0069282032302755096, 0.11812500000000001),
    (1280, 20, 10): (1048576, 7500, 0.028284271247461905, 0.00876356092008266, 0.0855316362523248),
    (1664, 26, 13): (
        1048576, 16477, 0.028284271247461905, 0.007686151382644183, 0.03893110434789476
    ),
}  # fmt: skip


def exactly(value):
    return pytest.approx(value, rel=1e-9)


def test_olmo_gives_the_values_of_its_reference():
    assert {(each.dim, each.depth, each.heads) for each in OLMO} == {*OLMO_CORE}
    for shape, (batch, lr, steps) in OLMO_CORE.items():
        rung = olmo(Shape(*shape).parameters, GIVEN)
        assert (rung.shape, rung.batch) == (Shape(*shape), batch)
        assert rung.keys["optimizer.lr"] == exactly(lr)
        assert round(rung.tokens / rung.batch) == steps
        assert rung.keys["schedule.warmup"] == 1 / 20


def test_nanochat_gives_the_values_of_its_reference():
    for shape, (batch, steps, muon, adam, decay) in NANOCHAT.items():
        size = Shape(*shape).parameters
        rung = nanochat(size, Given(GIVEN.shape, 1, 20, 0.02, 0.28, by_role=True))
        assert (rung.shape, rung.batch, rung.tokens) == (Shape(*shape), batch, batch * steps)
        assert rung.keys["optimizer.lr"] == exactly(muon)
        assert rung.keys["optimizer.weight_decay"] == exactly(decay)
        of_adam = nanochat(size, Given(GIVEN.shape, 1, 20, 0.008, 0.01)).keys["optimizer.lr"]
        assert of_adam == exactly(adam)


def test_mup_changes_only_the_width():
    for size in (2e5, 1e6, 1e8):
        rung = mup(size, GIVEN)
        assert (rung.shape.depth, rung.shape.dim // rung.shape.heads) == (4, 32)
        assert rung.shape.parameters == pytest.approx(size, rel=0.25)
        assert rung.batch == GIVEN.batch
        assert rung.keys == {"model.base_dim": 128, "model.base_heads": 4}


def test_completep_changes_width_and_depth_in_one_proportion():
    assert completep(GIVEN.shape.parameters, GIVEN).shape == GIVEN.shape
    for size in (1e6, 1e7, 1e8):
        rung = completep(size, GIVEN)
        assert rung.shape.dim == 32 * rung.shape.heads == 32 * rung.shape.depth
        assert rung.shape.parameters == pytest.approx(size, rel=0.5)
        assert rung.tokens == 20 * rung.shape.parameters
        depth = {"model.base_depth": 4, "model.init_depth_scale": False}
        assert rung.keys == {"model.base_dim": 128, "model.base_heads": 4, **depth}


@pytest.mark.parametrize("size", [2e4, 7e4, 4e5, 3e6, 1e7, 3e7, 1.24e8, 2e9])
def test_a_size_between_published_models_is_met(size):
    shape = olmo(size, GIVEN).shape
    assert shape.parameters == pytest.approx(size, rel=0.1)
    assert shape.dim % (2 * shape.heads) == 0


LADDER = "{ladder: %s, factors: {pos_enc: [none, learned]}}"
OWN = ("model.dim", "model.depth", "model.heads", "optimizer.lr", "trainer.max_steps")


def blocks_of(folder, ladder, *typed, left_out=OWN, study=LADDER):
    request, composer = asked(folder, study % ladder, *typed, left_out=left_out)
    return Blocks.of(as_blocks(request, lambda: composer(())))


def test_typed_values_take_the_place_of_the_rules(tmp_path):
    blocks = blocks_of(tmp_path, "{sizes: [20K, 80k]}", "optimizer.lr=1", left_out=OWN[:3])
    assert blocks.names == ("20K", "80k")
    keys = {text.partition("=")[0] for text in blocks.options["20K"]}
    assert {"model.dim", "optimizer.weight_decay", "schedule.decay"} <= keys
    assert keys.isdisjoint({"optimizer.lr", "trainer.max_steps", "data.batch_size"})  # typed
    steps = {}
    for batch in (2, 8):  # as many tokens with any batch
        own = blocks_of(tmp_path, "{sizes: [20K, 80K]}", f"data.batch_size={batch}", left_out=OWN)
        values = dict(text.split("=", 1) for text in own.options["20K"])
        assert "data.batch_size" not in values
        steps[batch] = int(values["trainer.max_steps"])
    assert steps[2] == pytest.approx(4 * steps[8], abs=4)
    with refused("study.ladder: optimizer.lr=None: must be a positive number"):
        blocks_of(tmp_path, "{sizes: [20K, 80K]}", "optimizer.lr=null")
    blocks = blocks_of(tmp_path, "{sizes: [20K, 80K]}", "schedule=cosine")
    assert not any(text.startswith("schedule") for text in blocks.options["20K"])


@pytest.mark.ci
@pytest.mark.parametrize("rules", ["mup", "completep"])
def test_rungs_of_transferred_rates_can_be_composed_with_muon(tmp_path, rules):
    blocks = blocks_of(tmp_path, f"{{sizes: [20K, 3M], rules: {rules}}}", left_out=OWN)
    for overrides in blocks.options.values():
        cfg = compose("optimizer=muon", *overrides)
        assert cfg.model.base_dim != cfg.model.dim


@pytest.mark.ci
@pytest.mark.parametrize(
    ("ladder", "typed", "says"),
    [
        ("{sizes: [20K, 80K], rules: omlo}", (), "study.ladder.rules=omlo: .* mean '?olmo"),
        ("{sizes: [20K, 80K], ratio: 3}", (), "study.ladder.ratio"),
        ("{sizes: [20K, 80k2]}", (), "size 80k2: must be a number with K, M or B"),
        ("{sizes: [0M, 1M]}", (), "size 0M: must be"),
        ("{sizes: [20K]}", (), "two blocks at least"),
        ("{sizes: [20K, 80K], tokens_per_parameter: 0}", (), "tokens_per_parameter=0: must be"),
        ("{sizes: [20K, 80K], rules: nanochat}", (), "20K and 80K are the same model"),
        ("{sizes: [20K, 20K]}", (), "the same model"),
        ("{rules: mup}", (), "ladder.rules=mup has no effect without study.ladder.sizes"),
        ("{sizes: [20K, 80K]}", ("model.dim=8",), "sets model.dim; leave"),
        ("{sizes: [20K, 80K]}", ("model=rnn_lm",), "model=rnn_lm has no model.heads"),
    ],
)
def test_a_wrong_ladder_is_one_line(tmp_path, ladder, typed, says):
    with pytest.raises(UserError) as error:
        blocks_of(tmp_path, ladder, *typed)
    assert re.search(says, str(error.value)), error.value


def test_keys_of_a_ladder_are_no_factors_and_it_has_no_other_blocks(tmp_path):
    changed = "{ladder: %s, factors: {optimizer.lr: [0.1, 0.2]}}"
    with pytest.raises(UserError, match=r"study\.ladder: optimizer\.lr is changed by study\.fac"):
        blocks_of(tmp_path, "{sizes: [20K, 80K]}", study=changed)
    both = "{ladder: %s, blocks: {data.seq_len: [8, 16]}, factors: {pos_enc: [none]}}"
    with pytest.raises(UserError, match=r"each size is a block; leave one out"):
        blocks_of(tmp_path, "{sizes: [20K, 80K]}", study=both, left_out=(*OWN, "data.seq_len"))


@pytest.mark.ci
def test_a_ladder_is_planned_and_run(ablate_command, runs, tmp_path):
    study = "{ladder: {sizes: [5K, 20K], tokens_per_parameter: 4}, factors: {pos_enc: [none]}}"
    argv = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path, *OWN[:4]),
            "hydra/launcher=basic"]  # fmt: skip
    code, _, err = ablate_command(*argv)
    assert code == 0, err
    assert [cfg.model.depth for cfg, _ in runs] == [4] * 4
    assert [cfg.model.dim for cfg, _ in runs] == [10, 10, 20, 20]
    out = ablate_command(*argv, "study.dry_run=true")[1]
    assert "Ladder by the rules of olmo" in out
    assert [line.count("  9 s") for line in out.splitlines() if "20K" in line] == [0, 1, 0, 0], out
