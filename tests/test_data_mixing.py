"""Mixtures: shares at every length, and examples that depend on the seed and their number only."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from make_data import make, ready
from omegaconf import OmegaConf
from refusals import refused
from test_data_pieces import prose
from test_prepare import as_lines, corpus

import ablate
from ablate.config.composition import Composition
from ablate.config.keys import option_content
from ablate.config.make import make as made
from ablate.config.tree import config_file
from ablate.data.documents import Corpus
from ablate.data.mixing import Mixed, before, ordered
from ablate.data.preparation import prepare
from ablate.training.build import build_data

WEIGHTS = {"web": 0.7, "code": 0.2, "books": 0.1}
COUNTS = {"web": 1000, "code": 300, "books": 50}


def mixed(phases=None, counts=None):
    return Mixed(counts or COUNTS, phases or {0: WEIGHTS}, 8, batches=100, seed=3)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.01),
    st.integers(0, 10**9),
    st.integers(0, 50),
)
def test_a_source_has_its_share_of_any_number_of_examples(weights, first, more):
    shares = np.array(weights) / sum(weights)
    low, high = before(shares, first), before(shares, first + more)
    assert low.sum() == first
    assert high.sum() == first + more
    assert (abs(low - shares * first) <= len(shares) / 2 + 1).all()
    one_by_one = [before(shares, first + n) for n in range(more + 1)]
    source = ordered(shares, low, high).source
    steps = [np.flatnonzero(b - a).tolist() for a, b in pairwise(one_by_one)]
    assert steps == [[s] for s in source]


def test_shares_are_kept_within_a_thousandth():
    order = mixed()
    for step in (1000, 2000, 50_000):
        source = order.examples(0, step * 8).source
        assert np.bincount(source) / len(source) == pytest.approx([0.7, 0.2, 0.1], abs=0.001)


def test_an_exchanged_source_leaves_the_order_of_the_others():
    here, there = mixed(), mixed({0: {"web": 0.7, "wiki": 0.2, "books": 0.1}},
                                {"web": 1000, "wiki": 77, "books": 50})  # fmt: skip

    def of(order, name):
        first = int(order.firsts[[*order.counts].index(name)])
        drawn = torch.cat([order.of_epoch(2)(n) for n in range(40)]) - first
        return drawn[(drawn >= 0) & (drawn < order.counts[name])].tolist()

    for name in ("web", "books"):
        assert of(here, name) == of(there, name)


def test_a_phase_continues_the_sources_with_other_shares():
    plain, order = mixed(), mixed({0: WEIGHTS, 30: {"books": 1}, 40: WEIGHTS})
    every = order.examples(0, 60 * 8)
    assert (every.source[30 * 8 : 40 * 8] == 2).all()
    for n in range(3):
        assert every.number[every.source == n].tolist() == [*range(sum(every.source == n))]
    assert plain.examples(0, 30 * 8).source.tolist() == every.source[: 30 * 8].tolist()
    middle = order.examples(25 * 8 + 3, 44 * 8 + 5)
    for whole, part in zip(every, middle, strict=True):
        assert whole[25 * 8 + 3 : 44 * 8 + 5].tolist() == part.tolist()


# data=mixture

SMALL = {"seq_len": 8, "batch_size": 8}
WEB_FIRST = {"web": 3, "code": 1}


@pytest.fixture
def sources(tmp_path):
    """Shards of three corpora with one tokenizer."""
    for name, seed in (("web", 1), ("code", 2), ("wiki", 3)):
        (tmp_path / f"{name}.txt").write_text(prose(seed, words=300 * seed))
        (tmp_path / "val.txt").write_text(prose(9, words=60))
        made = Corpus([tmp_path / f"{name}.txt"], val_files=[tmp_path / "val.txt"])
        prepare(made, tmp_path / name, tokenizer="byte")
    return {name: str(tmp_path / name) for name in ("web", "code", "wiki")}


def mixture(sources, names="web code", **changes):
    root = {name: sources[name] for name in names.split()}
    weights = {name: 1 + 2 * (n == 0) for n, name in enumerate(root)}
    return ready("mixture", **SMALL | {"root": root, "weights": weights} | changes)


def drawn(data, steps=30):
    data.train_batches = steps
    return list(data.train_dataloader())


def test_other_sources_are_measured_whole(sources, tmp_path):
    root = {name: str(tmp_path / f"only-{name}") for name in ("web", "code")}
    for name, folder in root.items():
        prepare(Corpus([tmp_path / f"{name}.txt"]), Path(folder), tokenizer="byte")
    weights = {"web": 1, "code": 1}
    for fraction in (None, 0.1):
        other = make("mixture", **SMALL | {"root": root, "weights": weights}, val_fraction=fraction)
        other.whole = True
        other.setup()
        size = sum((tmp_path / f"{name}.txt").stat().st_size for name in root)
        assert len(other.tokens["val"]) >= size


def test_only_sources_without_a_validation_split_are_divided(sources, tmp_path):
    prepare(Corpus([tmp_path / "code.txt"]), tmp_path / "all", tokenizer="byte")
    both = mixture(sources | {"all": str(tmp_path / "all")}, "web all", val_fraction=0.1)
    given, divided = both.parts.values()
    assert given.fingerprint() == mixture(sources, "web").parts["web"].fingerprint()
    assert len(divided.tokens["val"]) == pytest.approx(len(divided.tokens["train"]) / 9, abs=1)
    with refused("has a validation split; set data.val_fraction=null"):
        mixture(sources, val_fraction=0.1)


def test_batches_have_their_shares_and_the_windows_of_their_sources(sources):
    data = mixture(sources, phases={20: {"code": 1}})
    batches = drawn(data)
    shares = [batch["source"].float().mean().item() for batch in batches]
    assert sum(shares[:20]) / 20 == pytest.approx(0.25, abs=0.01)
    assert shares[20:] == [1] * 10
    texts = [bytes(part.tokens["train"].arrays()[0].tolist()) for part in data.parts.values()]
    for batch in batches[::7]:
        for row, source in zip(batch["targets"], batch["source"], strict=True):
            assert bytes(row.tolist()) in texts[source]
    tokens = [len(part.tokens["train"]) - 1 for part in data.parts.values()]
    counts = [120, 40 + 80]
    expected = [count * 8 / size for count, size in zip(counts, tokens, strict=True)]
    assert list(data.epochs(30).values()) == pytest.approx(expected)
    assert "web 0." in data.amount()


def test_an_exchanged_data_set_leaves_the_windows_of_the_others(sources):
    one, other = (mixture(sources, names) for names in ("web code", "web wiki"))
    rows = [
        [row.tolist() for batch in drawn(data) for row in batch["tokens"][batch["source"] == 0]]
        for data in (one, other)
    ]
    assert rows[0] == rows[1]
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.ci
def test_a_run_reports_the_loss_of_each_source_and_their_mean(sources, tmp_path):
    small = "data.seq_len=8 data.batch_size=4 model.dim=16 model.depth=1 model.heads=2"
    steps = "trainer.max_steps=2 trainer.val_check_interval=2 schedule.warmup=1 logger=none"
    root = f"data.root={{web: {sources['web']}, code: {sources['code']}}}"
    weights = ["data.weights={web: 3, code: 1}", "data.phases={1: {code: 1}}"]
    keys = [root, *weights, f"output_dir={tmp_path}"]
    cfg = ablate.compose("data=mixture", *small.split(), *steps.split(), *keys)
    result = ablate.run(cfg)
    metrics = result["metrics"]
    parts = [metrics["val/loss/web"], metrics["val/loss/code"]]
    assert metrics["val/loss"] == pytest.approx(sum(parts) / 2)
    assert metrics["val/bits_per_byte/web"] > 0
    assert result["epochs"].keys() == {"web", "code"}
    planned = cfg.copy()  # in the file of a planned run, JSON, keys are strings
    OmegaConf.update(planned, "data.phases", {"1": {"code": 1}}, merge=False)
    assert Composition(planned).id == Composition(cfg).id == result["run_id"]
    assert build_data(planned).phases == build_data(cfg).phases == {0: WEB_FIRST, 1: {"code": 1}}
    assert result["metric"]["value"] == metrics["val/loss"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"weights": {"wbe": 1}},
            "data.weights: wbe is not a source of data.root (web, code, wiki)",
        ),
        ({"weights": {"web": -1}}, "data.weights.web=-1: must be"),
        ({"phases": {5: {"web": 0}}}, "data.phases.5: needs a weight above 0"),
        ({"phases": {5: 0.5}}, "data.phases={5:0.5}: must be {STEP: "),
        ({"root": {}, "weights": {}}, "data.root={}: must name at least one source"),
        ({"phases": {"x": {"web": 1}}}, "data.phases={x:{web:1}}: must be {STEP: "),
    ],
)
def test_a_mistake_is_one_line(changes, line, sources):
    keys = {"root": sources, "weights": {"web": 1}} | SMALL | changes
    content = option_content(config_file("data/mixture.yaml"))[0]
    with refused(line):
        made(OmegaConf.merge(content, keys), seed=0)


def test_sources_have_one_tokenizer(sources, tmp_path):
    prepare(corpus(as_lines(tmp_path)), tmp_path / "other", tokenizer="char")
    with refused("the tokens of other are of another tokenizer than those of web"):
        mixture(sources | {"other": str(tmp_path / "other")}, "web other")
