"""Composition: who wins, what can be chosen, and that every choice composes."""

import os

import pytest
from hydra.types import RunMode
from make_model import CONF, KERNEL_NEEDS, options
from omegaconf import OmegaConf
from refusals import refused

from ablate.config.composition import compose
from ablate.config.facts import LABELLED, PREFERENCES
from ablate.config.keys import option_content
from ablate.config.stated import stated
from ablate.config.tree import config_dir, open_tree
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.cells import Composer
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.layout import lay_out
from ablate.study.plan.request import parse_request
from ablate.training.build import build


def reader(data: str) -> list[str]:
    """The model that reads this data, but for the default one; the task that its classes need."""
    target = option_content(CONF / "data" / f"{data}.yaml")[0]["_target_"]
    kind = str(stated(target, "kind"))
    readers = [name for name in options("model") if kind in kinds_of(name)]
    task = {LABELLED: ["task=classification"], PREFERENCES: ["task=dpo"]}.get(kind, [])
    return task if "gpt" in readers else [f"model={readers[-1]}"]


def kinds_of(model: str) -> tuple[str, ...]:
    target = option_content(CONF / "model" / f"{model}.yaml")[0]["_target_"]
    kinds: tuple[str, ...] = stated(target, "kinds")
    return kinds


# The model that has the options of a group.
OWNERS = {
    "model.gate": "resnet",
    "model.cell": "rnn_lm",
    "model.decoder": "rnn_seq2seq",
    "model.window": "rnn_seq2seq",
    "model.points": "sam",
    "task.noise": "dit",
    "model.condition": "dit",
    "model.cross_attention": "transformer",
}
# What an option cannot be composed without.
NEEDS = (
    {f"data={name}": needs for name in options("data") if (needs := reader(name))}
    | {f"{group}={o}": [f"model={OWNERS[group]}"] for group in OWNERS for o in options(group)}
    | {f"kernel={name}": needs for name, needs in KERNEL_NEEDS.items()}
    | {f"task={name}": ["data=preferences"] for name in ("reward", "dpo", "rlhf")}
    | {f"pos_enc={name}_2d": ["model=vit"] for name in ("learned", "relative", "sinusoidal")}
    | {
        "data=text": ["data.path=FILE"],
        "logger=lightning": ["logger.instance={_target_: lightning.pytorch.loggers.CSVLogger}"],
        "data=image_folder": ["data.root=DIR", "model=vit"],
        "data=mask_folder": ["data.root=DIR", "model=sam"],
        "data=recordings": ["data.root=DIR", "model=transformer"],
        "data=parallel": ["data.source=FILE", "data.target=FILE", "model=transformer"],
        "data=digit_strings": ["model=captioner"],
        "data=recall": ["task=recall"],
        "task=recall": ["data=recall"],
        "task=speech": ["model=transformer", "data=speech"],
        "task=classification": ["model=vit"],
        "task=masked_lm": ["model=bert"],
        "task=seq2seq": ["model=transformer"],
        "task=node_classification": ["model=gat"],
        "task=captioning": ["model=captioner"],
        "task=segmentation": ["model=sam"],
        "task=diffusion": ["model=dit"],
        "task=autoencoding": ["model=autoencoder"],
        "task=forecasting": ["model=rnn_forecaster"],
        "model.attention=none": ["model=rnn_seq2seq"],
        "model.embedding=onehot": ["model.tie_embeddings=false", "model.dim=16"],
        "model.mask=neighbours": ["model=gat"],
        "model.mask=source": ["model=gpt_seq2seq"],
        "optimizer=schedule_free": ["schedule=constant"],
        "sweep=reward_models": ["init_from=null", "data.writer=null"],
        "sweep=rlhf": ["init_from=null", "data.writer=null", "task.reward=null"],
    }
)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=gpt", "model.attention=additive", "pos_enc=learned", "model.attention.hidden=8"],
        ["+trainer.benchmark=true", "seed=3", "hydra.run.dir=here", "debug=fast"],
        ["model={depth:1,dim:32}", "hydra/job_logging=none", "model.dim=64"],
        ["sweep=normalizers", "study.seeds=[1,2]", "++notes.mine=1"],
    ],
)
def test_what_was_composed_before_is_composed_the_same(overrides, monkeypatch):
    with open_tree() as tree:
        whole = tree.loader.load_configuration("config", overrides, RunMode.RUN, from_shell=False)
        whole.hydra.job.override_dirname = ""
        tree.load(overrides)
        monkeypatch.setattr(type(tree.loader), "load_configuration", None)  # and not by Hydra
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


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("model=vit", "data=digits task=classification model.mask=none"),
        ("data=mnist model=vit", "data=mnist"),
        ("model=vit data=mnist trainer.max_epochs=3", "data=mnist trainer.max_epochs=3"),
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


def test_a_folder_of_ones_own_adds_options_to_every_group(tmp_path):
    with open_tree() as tree:
        first = {group: tree.options(group)[0] for group in tree.groups}
    for group, option in first.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "own.yaml").write_text(
            (config_dir() / group / f"{option}.yaml").read_text()
        )
    with open_tree(tmp_path) as tree:
        assert all("own" in tree.options(group) for group in first)
        cfg = tree.load(["model.attention=own", "pos_enc=own", "optimizer=own"])
    assert cfg.hydra.runtime.choices["model.attention"] == "own"
    expected = OmegaConf.load(config_dir() / "optimizer" / f"{first['optimizer']}.yaml")
    assert cfg.optimizer == expected


# The others are slow tests.
SOME = ("attention_scores", "embeddings", "normalizers", "rlhf", "speech", "claims/parts")
SWEEPS = sorted(
    str(p.relative_to(CONF / "sweep").with_suffix("")) for p in (CONF / "sweep").rglob("*.yaml")
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SOME else pytest.mark.slow) for n in SWEEPS],
)
def test_every_sweep_composes_every_run(name, monkeypatch):
    # The run that one of them starts from is trained first: test_transfer.py.
    monkeypatch.setattr("ablate.study.plan.layout.check_start", lambda cfg: None)
    with open_tree() as tree:
        command = tree.load([f"sweep={name}"])
        assert command.hydra.mode.name == "MULTIRUN"
        assert command.study.name == name
        asked = parse_request(command, [f"sweep={name}"], tree.loader)
        blocks = Blocks.of(asked)
        for _, block in blocks.requests(asked):
            layout = lay_out(block, Composer(tree.loader, command, block.fixed))
            assert len(layout.arms) > 1
            assert layout.baseline.arm.is_baseline
            assert not layout.invalid
            names = [composed.name for composed in layout.arms]
            parse_claims(asked.node["claims"], names, layout.baseline.name, blocks.names)


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ("model.dpeth=3", "no key model.dpeth"),
        ("pos_enc=rop", "pos_enc=rop: no such option"),
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
        ("model=vit debug=fast trainer.check_val_every_n_epoch=1", (None, 1)),
        ("model=vit sweep=local_attention trainer.val_check_interval=7", (7, None)),
    ],
)
def test_when_to_validate_is_what_was_typed(typed, expected):
    """A default of the other kind was refused beside it, which nobody had typed."""
    trainer = compose(*typed.split()).trainer
    assert (trainer.val_check_interval, trainer.check_val_every_n_epoch) == expected
