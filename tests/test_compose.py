"""Composition: who wins, what can be chosen, that every sweep composes, and that a run has one."""

import json
import os
from functools import partial
from unittest.mock import Mock, create_autospec

import pytest
from hydra.types import RunMode
from make_systems import list_of_systems
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError
from refusals import refused
from tiny import overrides

import ablate
from ablate.config import composition
from ablate.config.composition import Composition, compose
from ablate.config.overrides import quote_override
from ablate.config.tree import config_dir, config_dirs, config_file, open_tree
from ablate.data.text import TextData
from ablate.study.plan.blocks import Blocks, with_budgets
from ablate.study.plan.cells import Composer
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.design import arm_named
from ablate.study.plan.layout import lay_out
from ablate.study.plan.planned_run import Resolved
from ablate.study.plan.request import parse_request
from ablate.training.build import build

pytest_plugins = ["command_line"]


@pytest.mark.ci
@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=gpt", "model.attention=additive", "pos_enc=learned", "model.attention.hidden=8"],
        ["+trainer.benchmark=true", "seed=3", "hydra.run.dir=here", "debug=fast"],
        ["sweep=normalizers", "study.seeds=[1,2]", "++notes.mine=1"],
    ],
)
def test_what_was_composed_before_is_composed_the_same(overrides, monkeypatch):
    tree = open_tree()
    whole = tree.load_configuration("config", overrides, RunMode.RUN, from_shell=False)
    whole.hydra.job.override_dirname = ""
    tree.load(overrides)
    monkeypatch.setattr(type(tree), "load_configuration", None)  # and not by Hydra
    for _ in range(2):
        cfg = tree.load(overrides)
        cfg.hydra.job.override_dirname = ""
        assert cfg == whole
        assert list(cfg.hydra) == list(whole.hydra)
        cfg.seed = 99  # is nobody else's


def test_a_file_that_changes_is_read_again(tmp_path):
    option = tmp_path / "optimizer" / "own.yaml"
    option.parent.mkdir()
    for lr in (0.5, 0.25):
        option.write_text(f"_target_: torch.optim.SGD\n_partial_: true\nlr: {lr}\n")
        os.utime(option, ns=(0, int(lr * 1e9)))
        assert compose("optimizer=own", config_dir=tmp_path).optimizer.lr == lr


MINE = """# @package _global_
defaults: [override /model: vit, override /data: mnist, override /model.attention: dot]
seed: 7
model: {depth: 2}
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=vit", "data=digits task=classification model.mask=none"),
        ("experiment=mine", "model=vit data=mnist model.attention=dot seed=7 model.depth=2"),
        ("experiment=mine data=digits model.depth=3 seed=1", "data=digits seed=1 model.depth=3"),
    ],
)
def test_a_model_loses_to_an_experiment_and_both_to_the_command_line(typed, expected, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(MINE)
    cfg = compose(*typed.split(), config_dir=tmp_path)
    for key, value in (text.split("=") for text in expected.split()):
        assert str(cfg.choices.get(key, OmegaConf.select(cfg, key))) == value, key


SHORT = """# @package _global_
study:
  factors: {model.softcap: [2, 3], sink: {zero: [model.sink=zero]}}
  arms: [model.softcap=2]
model: {kv_heads: 1, mixer: {exclusive: true}, qk_norm: rms}
"""


def test_a_short_spelling_of_a_key_is_the_key_in_full(tmp_path):
    """In a file and on the command line, which wins in any spelling; in names of a study, too."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "short.yaml").write_text(SHORT)
    (tmp_path / "experiment" / "full.yaml").write_text(
        "# @package _global_\nmodel: {mixer: {kv_heads: 1, exclusive: true, qk_norm: rms}}\n"
    )
    for typed in ([], ["model.kv_heads=2"], ["model.mixer.kv_heads=2"]):
        short, full = (
            compose(f"experiment={name}", *typed, config_dir=tmp_path) for name in ("short", "full")
        )
        assert short.model == full.model
        assert short.model.mixer.kv_heads == len(typed) + 1
    factors = {"model.mixer.softcap": [2, 3], "sink": {"zero": ["model.mixer.sink=zero"]}}
    assert short.study.factors == factors
    assert short.study.arms == ["model.mixer.softcap=2"]
    for typed in ("++study.factors={model.sink:[zero]}", "study.factors.model.sink=[zero]"):
        assert quote_override(typed) == "++study.factors={model.mixer.sink:[zero]}"
    assert quote_override("study.name=model.sink") == "study.name=model.sink"
    for arm in ("model.sink=zero", "model.mixer.sink=zero"):
        assert arm_named("model.sink=zero", ["baseline", arm], "--baseline") == arm


def test_a_folder_of_ones_own_adds_options_to_every_group(tmp_path):
    tree = open_tree()
    first = {group: tree.options(group)[0] for group in tree.groups}
    for group, option in first.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "own.yaml").write_text(
            config_file(f"{group}/{option}.yaml").read_text()
        )
    tree = open_tree(tmp_path)
    assert all("own" in tree.options(group) for group in first)
    cfg = tree.load(["model.attention=own", "pos_enc=own", "optimizer=own"])
    assert cfg.hydra.runtime.choices["model.attention"] == "own"
    expected = OmegaConf.load(config_dir() / "optimizer" / f"{first['optimizer']}.yaml")
    assert cfg.optimizer == expected


# The others are slow tests.
SOME = {"attention_scores", "embeddings", "ladder", "normalizers", "claims/parts"}
SOME |= {*list_of_systems("SWEEPS")}
SWEEPS = sorted(
    str(path.relative_to(folder / "sweep").with_suffix(""))
    for folder in config_dirs()
    for path in (folder / "sweep").rglob("*.yaml")
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SOME else pytest.mark.slow) for n in SWEEPS],
)
def test_every_sweep_composes_every_run(name, monkeypatch):
    # The run that one of them starts from is trained first: test_transfer.py.
    monkeypatch.setattr("ablate.study.plan.layout.check_start", lambda cfg: None)
    tree = open_tree()
    command = tree.load([f"sweep={name}"])
    assert command.hydra.mode.name == "MULTIRUN"
    assert command.study.name == name
    asked = parse_request(command, [f"sweep={name}"], tree)
    asked = with_budgets(asked, partial(Composer(tree, command, asked.fixed), ()))
    blocks = Blocks.of(asked)
    for _, block in blocks.requests(asked):
        layout = lay_out(block, Composer(tree, command, block.fixed))
        assert len(layout.arms) > 1
        assert layout.baseline.arm.is_baseline
        assert not layout.invalid
        json.dumps(Resolved(layout.baseline.config).recorded(seed=0))
        names = [composed.name for composed in layout.arms]
        parse_claims(asked.node["claims"], names, layout.baseline.name, blocks.names)


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ("model.dpeth=3", "no key model.dpeth"),
        ("model.embedding=onehot model.tie_embeddings=false model.dim=4 model.heads=1", "needs a"),
    ],
)
def test_a_refusal_in_a_notebook_is_its_line_alone(typed, part, tmp_path):
    """A notebook prints the errors that an error is chained to, which were 8,000 letters."""
    (tmp_path / "t").write_text("abcdefghij" * 20)
    with refused(part) as caught:
        build(compose("data=text", f"data.path={tmp_path}/t", "data.seq_len=4", *typed.split()))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=vit", (None, 5)),
        ("model=vit trainer.val_check_interval=75", (75, None)),
        ("model=vit trainer.val_check_interval=null", (None, 5)),
        ("model=gpt trainer.check_val_every_n_epoch=1", (None, 1)),
        ("model=vit sweep=local_attention trainer.val_check_interval=7", (7, None)),
    ],
)
def test_when_to_validate_is_what_was_typed(typed, expected):
    """A default of the other kind was refused beside it, which nobody had typed."""
    trainer = compose(*typed.split()).trainer
    assert (trainer.val_check_interval, trainer.check_val_every_n_epoch) == expected


# One composition for the whole of a run: checked once, its data read once, never changed


@pytest.fixture
def calls(monkeypatch):
    """How often a composition was checked, and a data set read."""
    check = Mock(wraps=composition.check)
    read = create_autospec(TextData.__init__, side_effect=TextData.__init__)
    monkeypatch.setattr(composition, "check", check)
    monkeypatch.setattr(TextData, "__init__", read)
    return lambda: (check.call_count, read.call_count)


def test_a_command_checks_once(ablate_command, calls, tmp_path):
    assert ablate_command(*overrides(tmp_path))[0] == 0
    assert calls() == (1, 1)  # for the name of the folder; the run takes them over


def test_a_run_makes_its_data_once(tmp_path, calls):
    cfg = ablate.compose(*overrides(tmp_path))
    before, _ = calls()
    ablate.run(cfg)
    assert calls() == (before + 1, 1)


def test_a_composition_is_never_changed(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    made = Composition(cfg)
    before = made.id
    cfg.model.dim = 32
    assert (made.cfg.model.dim, made.id) == (16, before)
    with pytest.raises(ReadonlyConfigError):
        made.cfg.model.dim = 32


def test_the_python_interface_refuses_in_one_line_as_the_command_does():
    cfg = ablate.compose("model=vit")
    cfg.model.dim = 33
    for function, given, says in (
        (ablate.compose, ["model=vit"], "ablate.compose(['model=vit']): each"),
        (ablate.build, "model=vit", "ablate.build('model=vit'): takes the return value of ablate"),
        (ablate.run, "model=vit", "ablate.run('model=vit'): takes the return value of ablate"),
        (ablate.build, cfg, "model.heads=4 does not divide model.dim=33"),
    ):
        with refused(says):
            function(given)
