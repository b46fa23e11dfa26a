"""Composition: who wins, what can be chosen, and that every choice composes."""

import os
from pathlib import Path

import pytest
from hydra.types import RunMode
from make_model import CONF, KERNEL_NEEDS, options
from omegaconf import OmegaConf

from ablate.config.composition import compose
from ablate.config.facts import LABELLED, PREFERENCES
from ablate.config.keys import option_content
from ablate.config.stated import stated
from ablate.config.tree import config_dir, open_tree
from ablate.study.plan.cells import Composer
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.layout import lay_out
from ablate.study.plan.request import parse_request


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


# What an option cannot be composed without.
NEEDS = {f"data={name}": needs for name in options("data") if (needs := reader(name))} | {
    "data=text": ["data.path=FILE"],
    "data=image_folder": ["data.root=DIR", "model=vit"],
    "data=recordings": ["data.root=DIR", "model=transformer"],
    "task=speech": ["model=transformer", "data=speech"],
    "data=recall": ["task=recall"],
    "task=recall": ["data=recall"],
    "task=classification": ["model=vit"],
    **{f"model.gate={name}": ["model=resnet"] for name in options("model.gate")},
    **{f"model.cell={name}": ["model=rnn_lm"] for name in options("model.cell")},
    **{f"model.decoder={name}": ["model=rnn_seq2seq"] for name in options("model.decoder")},
    "pos_enc=learned_2d": ["model=vit"],
    "pos_enc=relative_2d": ["model=vit"],
    "pos_enc=sinusoidal_2d": ["model=vit"],
    "data=parallel": ["data.source=FILE", "data.target=FILE", "model=transformer"],
    "model.attention=none": ["model=rnn_seq2seq"],
    "task=masked_lm": ["model=bert"],
    **{f"task={name}": ["data=preferences"] for name in ("reward", "dpo", "rlhf")},
    "task=seq2seq": ["model=transformer"],
    **{f"model.window={name}": ["model=rnn_seq2seq"] for name in options("model.window")},
    "model.embedding=onehot": ["model.tie_embeddings=false", "model.dim=16"],
    "task=node_classification": ["model=gat"],
    "model.mask=neighbours": ["model=gat"],
    "model.mask=source": ["model=gpt_seq2seq"],
    **{f"kernel={name}": needs for name, needs in KERNEL_NEEDS.items()},
    "optimizer=schedule_free": ["schedule=constant"],
    "task=captioning": ["model=captioner"],
    "task=segmentation": ["model=sam"],
    "data=mask_folder": ["data.root=DIR", "model=sam"],
    **{f"model.points={name}": ["model=sam"] for name in options("model.points")},
    "data=digit_strings": ["model=captioner"],
    "task=diffusion": ["model=dit"],
    "task=autoencoding": ["model=autoencoder"],
    **{f"task.noise={name}": ["model=dit"] for name in options("task.noise")},
    **{f"model.condition={name}": ["model=dit"] for name in options("model.condition")},
    "task=forecasting": ["model=rnn_forecaster"],
    "sweep=reward_models": ["init_from=null", "data.writer=null"],
    "sweep=rlhf": ["init_from=null", "data.writer=null", "task.reward=null"],
    **{
        f"model.cross_attention={name}": ["model=transformer"]
        for name in options("model.cross_attention")
    },
}


def every_option() -> list[str]:
    with open_tree() as tree:
        return [f"{group}={option}" for group in tree.groups for option in tree.options(group)]


@pytest.mark.slow
@pytest.mark.parametrize("override", every_option())
def test_every_option_of_every_group_composes(override: str) -> None:
    group, option = override.split("=")
    cfg = compose(override, *NEEDS.get(override, []))
    assert cfg.choices[group] == option


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=gpt", "model.attention=additive", "pos_enc=learned", "model.attention.hidden=8"],
        ["+trainer.profiler=simple", "seed=3", "hydra.run.dir=here", "debug=fast"],
        ["model={depth:1,dim:32}", "hydra/job_logging=none", "model.dim=64"],
        ["sweep=normalizers", "study.seeds=[1,2]", "++notes.mine=1"],
    ],
)
def test_what_was_composed_before_is_composed_the_same(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    option = tmp_path / "optimizer" / "own.yaml"
    option.parent.mkdir()
    for lr in (0.5, 0.25):
        option.write_text(f"_target_: torch.optim.SGD\n_partial_: true\nlr: {lr}\n")
        os.utime(option, ns=(0, int(lr * 1e9)))
        assert compose("optimizer=own", config_dir=tmp_path).optimizer.lr == lr


def test_a_model_brings_its_own_parts_and_the_command_line_wins() -> None:
    vit = compose("model=vit")
    assert (vit.choices.data, vit.choices.task) == ("digits", "classification")
    assert vit.choices["model.mask"] == "none"
    for order in (["data=mnist", "model=vit"], ["model=vit", "data=mnist"]):
        assert compose(*order).choices.data == "mnist"
    assert compose("model=vit", "trainer.max_epochs=3").trainer.max_epochs == 3


def test_an_experiment_wins_over_the_model_and_loses_to_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /model: vit\n  - override /data: mnist\n"
        "  - override /model.attention: dot\n"
        "seed: 7\nmodel:\n  depth: 2\n"
    )
    cfg = compose("experiment=mine", config_dir=tmp_path)
    chosen = [cfg.choices[group] for group in ("model", "data", "model.attention")]
    assert chosen == ["vit", "mnist", "dot"]
    assert (cfg.seed, cfg.model.depth) == (7, 2)
    cfg = compose("experiment=mine", "data=digits", "model.depth=3", "seed=1", config_dir=tmp_path)
    assert (cfg.choices.data, cfg.model.depth, cfg.seed) == ("digits", 3, 1)


def test_a_folder_of_ones_own_adds_options_to_every_group(tmp_path: Path) -> None:
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
SWEEPS = [*options("sweep"), *(f"claims/{p.stem}" for p in (CONF / "sweep/claims").glob("*.yaml"))]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SOME else pytest.mark.slow) for n in sorted(SWEEPS)],
)
def test_every_sweep_composes_every_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The run that one of them starts from is trained first: test_transfer.py.
    monkeypatch.setattr("ablate.study.plan.layout.check_start", lambda cfg: None)
    with open_tree() as tree:
        command = tree.load([f"sweep={name}"])
        assert command.hydra.mode.name == "MULTIRUN"
        assert command.study.name == name
        asked = parse_request(command, [f"sweep={name}"], tree.loader)
        layout = lay_out(asked, Composer(tree.loader, command, asked.fixed))
        assert len(layout.arms) > 1
        assert layout.baseline.arm.is_baseline
        assert not layout.invalid
        names = [composed.name for composed in layout.arms]
        parse_claims(asked.node["claims"], names, layout.baseline.name)
