"""Mistakes in a study: one line each, exit code 2, and no folder is left."""

from unittest.mock import Mock

import pytest
from make_sweep import tiny_for, write_sweep
from refusals import refusal, refused
from tiny import overrides

from ablate.config.overrides import parse_all
from ablate.config.tree import open_tree
from ablate.study.launch.running import refuse_unknown
from ablate.study.plan.blocks import Blocks
from ablate.study.plan.cells import Composer
from ablate.study.plan.layout import lay_out
from ablate.study.plan.request import parse_request

pytest_plugins = ["command_line"]

ONE = "{factors: {pos_enc: [none]}}"

# The node `study` of a sweep's file, what is typed beside it, and what the refusal holds.
MISTAKES = [
    # factors and options
    ("{factors: {model.atention: [dot]}}", "", ["no key model.atention", "'model.attention'?"]),
    ("{factors: {modle: [gpt]}}", "", ["no key or group modle", "did you mean 'model'?"]),
    ("{factors: {model.attention: [dto]}}", "", ["model.attention=dto: no such option", "'dot'?"]),
    ("{factors: {x: {y: [model]}}}", "", ["study.factors: x: y: cannot read 'model'"]),
    ("{factors: {x: {y: ['pos_enc=a,b']}}}", "", ["'pos_enc=a,b' names several values"]),
    ("{factors: {pos_enc: []}}", "", ["study.factors: pos_enc has no options"]),
    ("{factors: {pos_enc: [none, none]}}", "", ["pos_enc: has the option none twice"]),
    ("{factors: {pos_enc: [learned]}}", "", ["pos_enc has no option other than learned"]),
    ("{factors: {seed: [1, 2]}}", "", ["the seeds of a study are study.seeds"]),
    ("{factors: {output_dir: [a, b]}}", "", ["output_dir: changes no result"]),
    ("{factors: 3}", "", ["study.factors=3: must be {NAME: VALUE, ...}"]),
    (ONE, "study.tune=optimizer.lr", ["; write study.tune={optimizer.lr: [1e-3, 3e-3]}"]),
    (ONE, "study.seeds=0", ["study.seeds=0: must be ", "; write study.seeds=3"]),
    ("{factors: {start: {old: [init_from=nowhere]}}}", "", ["init_from=nowhere is not the folder"]),
    # the baseline
    ("{baseline: [model.norm=pots], factors: {pos_enc: [none]}}", "", ["baseline", "'post'?"]),
    ("{baseline: [model.heads=3], factors: {pos_enc: [none]}}", "", ["the baseline is invalid"]),
    ("{factors: {pos_enc: [none], model.norm: [post]}, exclude: [{pos_enc: learned}]}", "",
     ["the baseline is not among the cells that can", "by study.exclude: pos_enc=learned"]),
    # seeds
    ("{factors: {pos_enc: [none]}, seeds: [1, 2, 1]}", "", ["duplicate seed 1"]),
    (ONE, "seed=3", ["'seed=3': the seeds of a study are study.seeds; write study.seeds=[3]"]),
    (ONE, "seed=range(3)", ["the seeds of a study are study.seeds; write study.seeds=[0,1,2]"]),
    (ONE, "study.seeds=1,2", ["write study.seeds=[1,2]"]),
    # plans
    ("{factors: {recipe: {baseline: [model.norm=post], other: [model.norm=none]}}}", "",
     ["the option baseline has other values than the baseline"]),
    ("{factors: {pos_enc: [none]}, seeds: 300, blocks: {data.seq_len: [8, 16]}}", "",
     ["1,200 runs"]),
    ("{design: one_factor}", "", ["study.design=one_factor: values after commas are a factorial"]),
    ("{factors: {model.heads: [3]}, on_invalid: skip}", "", ["no arm is left to compare"]),
    ("{factors: {pos_enc: [none]}, seeds: 501}", "", ["1,002 runs", "study.confirm_large=true"]),
    ("{factors: {pos_enc: [none]}, exclude: [{pos_en: none}]}", "", ["no factor pos_en"]),
    ("{factors: {pos_enc: [none]}, exclude: [{pos_enc: nne}]}", "", ["no option nne", "'none'"]),
    ("{factors: {pos_enc: [none]}, exclude: [{}]}", "", ["would leave out every cell"]),
    ("{factors: {x: {y: [model.norm=post]}, pos_enc: [none]}, exclude: [{pos_enc: none, x: y}]}",
     "", ["study.exclude: pos_enc=none x=y: no cell of the design has these options"]),
    ("{factors: {pos_enc: [none]}, desing: pairs}", "", ["no key study.desing", "'study.design'?"]),
    # blocks
    ("{factors: {pos_enc: [none]}, blocks: {data.seq_len: [8]}}", "", ["two blocks at least"]),
    ("{factors: {pos_enc: [none]}, blocks: {data.seq_len: [8, 16], model.dim: [8, 16]}}", "",
     ["use one name"]),
    ("{factors: {pos_enc: [none]}, blocks: {pos_enc: [rotary, alibi]}}", "",
     ["study.blocks: pos_enc is changed by study.factors: pos_enc"]),
    ("{factors: {pos_enc: [none]}, blocks: {model.heads: [2, 3]}}", "", ["model.heads=3"]),
    ("{factors: {pos_enc: [none]}, blocks: {n: {a b: [model.dim=8], a_b: []}}}", "",
     ["two blocks would share the folder n=a_b"]),
    # what is typed beside it
    (ONE, "pos_enc=rotary", ["'pos_enc=rotary': the study changes it"]),
    (ONE, "study.rerun=finished", ["study.rerun=finished: must be missing, failed or all"]),
    (ONE, "model.norm=pre,post", ["'model.norm=pre,post' names several values in a study"]),
    (ONE, "+hydra.launcher.max_parallel_run=2", ["max_parallel_run: no such"]),
    (ONE, "~hydra.launcher.grace_period", ["hydra.launcher.grace_period is missing"]),
    (ONE, "hydra/launcher=mine", ["hydra.launcher.retires: no such", "'retries'?"]),
    # without a sweep's file
    ("", "pos_enc=none", ["nothing varies"]),
    ("", "seed=1,1", ["names 1 twice"]),
    ("", "seed=1,2 study.seeds=3", ["set one of them"]),
    ("", "optimizer.lr=interval(0,1)", ["has no separate values"]),
    ("", "pos_enc=glob(q*)", ["matches no option"]),
    # values are counted, and folders looked at, before they are made
    ("", "study.seeds=1000000000 pos_enc=none,learned", ["1,000,000,000 seeds, and at most"]),
    ("", "optimizer.lr=shuffle(range(0,1,1e-12))", ["names more than 10,000 values"]),
    ("", "model.heads=range(1,5,0)", ["the step of a range must not be 0"]),
    ("", "seed=0,1 study.name=/tmp/x", ["a folder inside of output_dir, without '..'"]),
]  # fmt: skip
# Those that planning leaves to the command; an empty node is none.
OF_THE_COMMAND = [
    ("{factors: {pos_enc: [none]}, metric: val/perplexty}", "", ["mean 'val/perplexity'?"]),
    ("{factors: {pos_enc: [none]}, extra_metrics: [val/los]}", "", ["extra_metrics=val/los"]),
    ("{factors: {pos_enc: [none]}, mode: max}", "", ["study.mode=max: of val/loss the best is"]),
    (ONE, "study.pack=8", ["no key study.pack: hydra.launcher.max_parallel_runs=N trains"]),
    (ONE, "hydra/launcher=joblib", ["no such option", "pip install hydra-joblib-launcher"]),
    (ONE, "hydra.mode=RUN", ["study.factors is a plan of several runs"]),
    ("", "study.seeds=3", ["study.seeds applies to multi-run studies only"]),
    ("", "hydra/launcher=slurm", ["hydra/launcher applies to multi-run studies only"]),
]  # fmt: skip


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A folder with all of them, whose files are parsed once."""
    folder = tmp_path_factory.mktemp("sweeps")
    own = folder / "own" / "hydra" / "launcher" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("defaults: [local]\nretires: 1\n")
    for number, (study, _, _) in enumerate(MISTAKES):
        write_sweep(folder, study or "{}", name=f"mistake_{number}")
    return folder


@pytest.mark.ci
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_is_found_in_planning(number, sweeps):
    study, typed, parts = MISTAKES[number]
    planned = [f"sweep=mistake_{number}", *tiny_for(study, sweeps)] if study else []
    argv = [*planned, *typed.split()]
    with refused(*parts):
        tree = open_tree(sweeps / "own")
        typed = parse_all(argv, tree)
        command = tree.load([one.input_line for one in typed if not one.is_sweep_override()])
        request = parse_request(command, argv, tree)
        refuse_unknown(command)
        for _, part in Blocks.of(request).requests(request):
            lay_out(part, Composer(tree, command, part.fixed))


@pytest.mark.ci
@pytest.mark.parametrize(("study", "typed", "parts"), [MISTAKES[0], *OF_THE_COMMAND])
def test_a_mistake_is_one_line(study, typed, parts, ablate_command, tmp_path):
    planned = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path)] if study else []
    refusal(ablate_command(*planned, *typed.split()), *parts)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.ci
def test_a_folder_of_another_study_or_of_other_data(ablate_command, runs, tmp_path):
    """Half of a study on other data than the other half would compare nothing."""
    argv = [*write_sweep(tmp_path, ONE), *overrides(tmp_path), "hydra/launcher=basic"]
    assert ablate_command(*argv)[0] == 0
    before = (plan := tmp_path / "outputs" / "mine" / "plan.json").read_text()
    said = ("model.dropout=0.1 there and 0.5 here", "study.name=", "outputs/mine --baseline ARM")
    refusal(ablate_command(*argv, "model.dropout=0.5"), *said)
    said = "outputs/mine belongs to a study without blocks; choose another study.name="
    refusal(ablate_command(*argv, "study.blocks.data.seq_len=[16,8]"), said)
    text = (tmp_path / "tiny.txt").rename(tmp_path / "moved.txt")
    moved = [one.replace("tiny.txt", "moved.txt") for one in argv]
    assert ablate_command(*moved, "study.dry_run=true")[0] == 0  # the same data elsewhere
    text.write_text(text.read_text() + " and more")
    said = "outputs/mine belongs to a study of other data: it has changed since"
    refusal(ablate_command(*moved), said)
    assert plan.read_text() == before
    assert len(runs) == 2


@pytest.mark.ci
def test_a_plan_that_cannot_be_read_or_written(ablate_command, tmp_path, monkeypatch):
    argv = [*write_sweep(tmp_path, ONE), *overrides(tmp_path)]
    outputs, plan = tmp_path / "outputs", tmp_path / "outputs/mine/plan.json"
    outputs.write_text("")
    refusal(ablate_command(*argv), "output_dir: cannot write")
    outputs.unlink()
    plan.parent.mkdir(parents=True)
    plan.write_text("{")
    refusal(ablate_command(*argv), "plan.json cannot be read")
    plan.unlink()
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("ablate.study.plan.planfile.write_json", full)
    refusal(ablate_command(*argv), "No space left on device")


def test_a_default_of_a_study_changes_no_single_run(ablate_command, runs, tmp_path):
    typed = ("study.dry_run=false", "study.seeds=1", "study.design=null", "study.exclude=[]")
    assert ablate_command(*overrides(tmp_path), *typed)[0] == 0
    assert len(runs) == 1


@pytest.mark.ci
def test_values_after_commas_are_a_factorial_design(ablate_command, runs, tmp_path):
    typed = [*overrides(tmp_path), "-m", "model.norm=pre,post", "pos_enc=none,learned"]
    assert ablate_command(*typed, "hydra/launcher=basic", "study.design=factorial")[0] == 0
    assert len({cfg.study.arm for cfg, _ in runs}) == 4
