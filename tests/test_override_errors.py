"""Mistakes people make: each is one line on stderr that helps, exit code 2, and nothing is left."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from make_rules import rules_of_keys

from ablate.config import override_errors
from ablate.config.composition import compose
from ablate.config.tree import open_tree
from ablate.errors import SCREEN, UserError, one_line

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]

# A command line, and what its one line of refusal holds.
MISTAKES = [
    # names
    ("modle=gpt", ["no key or group modle", "did you mean 'model'?"]),
    ("modle.heads=3", ["no key or group modle", "did you mean 'model'?"]),
    (
        "model=gtp",
        [
            "model=gtp: no such option; allowed: autoencoder, bert, captioner, dit, gat, ",
            "did you mean 'gpt'?",
        ],
    ),
    ("model.attention=aditive", ["allowed: additive, cosine", "did you mean 'additive'?"]),
    ("pos_enc=rotery", ["pos_enc=rotery: no such option", "did you mean 'rotary'?"]),
    ("model=null", ["model=null: no such option"]),
    (
        "model.norm_type=my.norm.DyT",
        ["allowed: batch, layer, rms; my.norm.DyT becomes an option by a file of --config-dir DIR"],
    ),
    ("experiment=nothing", ["experiment=nothing: no such option; allowed: ", "nanogpt_cpu"]),
    ("sweep=atention_scores", ["did you mean 'attention_scores'?"]),
    ("model.head=4", ["no key model.head (model=gpt)", "did you mean 'model.heads'?"]),
    ("model.attention.heads=3", ["no key model.attention.heads", "(model.attention=scaled_dot)"]),
    ("model={head: 3}", ["no key model.head ", "did you mean 'model.heads'?"]),
    ("optimizer.lr.x=3", ["optimizer.lr is one value and has no keys"]),
    ("+model.head=4", ["no key model.head;", "did you mean 'model.heads'?"]),
    ("++model.head=4", ["no key model.head", "did you mean 'model.heads'?"]),
    ("+sed=3", ["no key sed;", "did you mean 'seed'?"]),
    ("+data.root._target_=true", ["data.root._target_=true: must be the path of a class"]),
    ("data._target_=..", ["_target_=..: cannot be imported"]),
    ("hydra/launcher=slrum", ["hydra/launcher=slrum: no such option; allowed: basic"]),
    ("hydra/lancher=basic", ["no key or group hydra/lancher", "did you mean 'hydra/launcher'?"]),
    ("hydra.swep.dir=x", ["no key hydra.swep", "did you mean 'hydra.sweep'?"]),
    # values
    ("model.heads=four", ["model.heads=four: must be a whole number of at least 1"]),
    ("model.heads=0", ["model.heads=0: must be a whole number of at least 1"]),
    ("model.heads=4.0", ["model.heads=4.0: must be a whole number"]),
    ("model.heads=true", ["model.heads=true: must be a whole number"]),
    ("model.heads='4'", ['model.heads="4": must be a whole number']),
    ("model.heads=", ['model.heads="": must be a whole number']),
    ("model.dropout=2", ["model.dropout=2: must be a number of at least 0 and less than 1"]),
    ("model.residual=yes", ["model.residual=yes: must be true or false"]),
    ("model.norm=prenorm", ["must be pre, post, sandwich or none", "did you mean 'pre'?"]),
    ("trainer.devices=two", ["trainer.devices=two", "a whole number", "auto"]),
    ("optimizer.betas=0.9", ["optimizer.betas=0.9: must be a list [..] of 2 items"]),
    ("data=text", ["data.path is missing; write data.path=VALUE"]),
    ("seed=${nothing}", ["nothing"]),
    ("model.heads={a:1}", ["model.heads={a:1}: must be a whole number"]),
    ("model.bias={1:2}", ["model.bias={1:2}: must be true or false"]),
    ("optimizer.eps={}", ["optimizer.eps={}: must be a number"]),
    ("++trainer.max_steps.y=16", ["trainer.max_steps={y:16}: must be a whole number"]),
    ("optimizer.fused=${model}", ["optimizer.fused={", "must be true or false"]),
    ("optimizer.weight_decay=${run_folder:}", ["${run_folder:}", "optimizer.weight_decay"]),
    ("data.tokenizer=word", ["data.tokenizer=word: must be char, byte or bpe, or hf:"]),
    ("model=transformer data.tokenizer=byte data=multi30k", ["must be char, word or bpe"]),
    ("data.val_fraction=null", ["data.val_fraction=null: must be a number more than 0 and"]),
    ("data=text data.path=null", ["data.path=null: must be a text"]),
    ("model=timm model.args=3", ["model.args=3: must be {KEY: VALUE, ...}"]),
    # what builds a part
    ("schedule._target_=1e0", ["schedule._target_=1.0: must be module.Class"]),
    ("pos_enc._target_={a:{b:1}}", ["pos_enc._target_={", "must be module.Class"]),
    (
        "model.mask._target_=ablate.model.vit.ViT",
        ["must be module.Class, of an option of model.mask or of one's own"],
    ),
    ("++model.mask._partial_=0", ["model.mask._partial_=0: must be true"]),
    ("++model.mixer._partial_=false", ["model.mixer._partial_=false: must be true"]),
    ("trainer=[]", ["'trainer=[]': write trainer=OPTION, one of cpu, "]),
    # how it is written
    ("model/attention=dot", ["'model/attention=dot': write model.attention=dot"]),
    ("+model/attention=dot", ["write model.attention=dot"]),
    ("++model/attention=dot", ["write model.attention=dot"]),
    ("model.attention@x=dot", ["write model.attention=dot"]),
    ("+model.attention=dot", ["write model.attention=dot, without a sign"]),
    ("~logger", ["nothing can be removed; write logger=OPTION, one of none, tensorboard, wandb"]),
    ("model=transformer ~model.cross_attention", ["model.cross_attention=OPTION", ", same, "]),
    ("~model.heads", ["nothing can be removed; give another value"]),
    ("model=transformer model.cross_attention=null", ["no such option; allowed: ", ", same, "]),
    ("[", ["cannot read '['", "write KEY=VALUE"]),
    ("model.heads=[", ["cannot read 'model.heads=['"]),
    ("vit", ["'vit' is no command", "an override is KEY=VALUE"]),
    ("model=gpt,vit", ["'model=gpt,vit' names several values: add -m to run each"]),
    ("optimizer.betas=0.9,0.95", ["write optimizer.betas=[0.9,0.95] where a list is meant"]),
    ("--modle", ["unrecognized arguments: --modle", "--help"]),
    ("--cfg everything", ["--cfg", "'job'", "--help"]),
    ("-m --cfg job", ["Only one of"]),
    ("--config-dir /nowhere", ["--config-dir /nowhere: there is no such folder"]),
    ("--config-name nothing", ["nothing"]),
    ("hydra.job.env_copy=[X]", ["hydra.job.env_copy=[X]: Hydra cannot use it (KeyError"]),
    ("hydra/job_logging=disabled", ["hydra/job_logging=disabled: Hydra cannot use it"]),
    # parts
    ("model=timm model.attention=dot", ["model=timm has no model.attention"]),
    ("model=timm model.heads=2", ["no key model.heads (model=timm)"]),
    ("model.heads=3", ["model.heads=3 does not divide model.dim=128"]),
    # several at once
    ("model=gtp model.hed=3 pos_enc=rotery", ["model=gtp", "model.hed", "pos_enc=rotery"]),
    ("-m model=gpt,gtp,vti", ["did you mean 'gpt'?", "did you mean 'vit'?"]),
    ("-m model.head=2,4", ["did you mean 'model.heads'?"]),
]


def words(typed: str) -> list[str]:
    return [typed] if "{" in typed else typed.split(" ")


# The others are composed as from Python, which takes a tenth of the time.
OF_THE_COMMAND = [
    one
    for one in MISTAKES
    if one[0].startswith(("vit", "hydra/job", "hydra.job")) or "-" in {w[0] for w in words(one[0])}
]
COMPOSED = [one for one in MISTAKES if one not in OF_THE_COMMAND]


@pytest.mark.parametrize(("typed", "parts"), COMPOSED)
def test_a_mistake_is_refused(typed: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        compose(*words(typed))
    line = str(refused.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(("typed", "parts"), [*COMPOSED[:1], *COMPOSED[-2:], *OF_THE_COMMAND])
def test_a_mistake_is_one_line(
    typed: str, parts: list[str], ablate_command: Command, tmp_path: Path
) -> None:
    code, out, err = ablate_command(*words(typed))
    assert code == 2
    assert err.startswith("ablate: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    assert "train" not in out
    assert not (tmp_path / "outputs").exists()


def test_a_long_message_is_two_lines_of_a_screen(ablate_command: Command) -> None:
    """Of each mistake the beginning and the end are left; Python gets all of it."""
    typed = ["model.head=4", "modle=vit", "model.ffn=swigul", "sed=1", "pos_enc=rotery"]
    _, _, err = ablate_command(*typed)
    assert len(err) <= len("ablate: \n") + SCREEN
    assert "no key model.head (" in err
    assert "'model.heads'?" in err
    assert err.endswith("; and 1 more\n")
    with pytest.raises(UserError) as refused:
        compose(*typed)
    assert len(str(refused.value)) > 2 * SCREEN
    assert one_line(UserError("a", "b")) == "a; b"


def test_a_broken_file_of_ones_own_is_named(ablate_command: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "model").mkdir(parents=True)
    (tmp_path / "own" / "model" / "mine.yaml").write_text("# Mine.\nmodel: [\n")
    code, _, err = ablate_command("--config-dir", str(tmp_path / "own"), "model=mine")
    assert (code, err.count("\n")) == (2, 1)
    assert "mine.yaml" in err


def test_a_typo_in_an_experiment_of_ones_own(ablate_command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("# @package _global_\n# Mine.\nmodel:\n  hedas: 3\n")
    code, _, err = ablate_command("--config-dir", str(tmp_path / "own"), "experiment=mine")
    assert (code, err.count("\n")) == (2, 1)
    assert "did you mean 'model.heads'?" in err


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (
            "model:\n  ffn: relu\n",
            "model.ffn=relu: is an option, not a value; in a file write `- o",
        ),
        ("pos_enc: rotary\n", "`- override /pos_enc: rotary` in its defaults list"),
        ("defaults:\n  - 1: null\n", "a defaults list holds an entry that is not `- OPTION`"),
    ],
)
def test_an_option_that_a_file_gives_as_a_value(
    lines: str, part: str, ablate_command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(f"# @package _global_\n# Mine.\n{lines}")
    code, _, err = ablate_command("--config-dir", str(tmp_path / "own"), "experiment=mine")
    assert (code, err.count("\n")) == (2, 1)
    assert part in err


def test_a_typo_in_a_sweep_of_ones_own(ablate_command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "own" / "sweep"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        "      model.attention: dot,aditive\n"
    )
    code, _, err = ablate_command("--config-dir", str(tmp_path / "own"), "sweep=mine")
    assert code == 2
    assert err.splitlines()[-1].startswith("ablate: model.attention=aditive: no such option")
    assert "did you mean 'additive'?" in err


def test_options_of_ones_own_are_suggested_too(ablate_command: Command, tmp_path: Path) -> None:
    (tmp_path / "own" / "pos_enc").mkdir(parents=True)
    (tmp_path / "own" / "pos_enc" / "spiral.yaml").write_text("# Mine.\n_target_: mine.Spiral\n")
    own = ["--config-dir", str(tmp_path / "own")]
    assert "did you mean 'spiral'?" in ablate_command(*own, "pos_enc=spirla")[2]
    assert "spiral" not in ablate_command("pos_enc=spirla")[2]


def test_what_hydra_says_itself_is_kept_where_nothing_else_is_wrong() -> None:
    with open_tree() as tree:
        line = override_errors.explain(ValueError("two\nlines"), ["model=vit"], tree, many=False)
    assert str(line) == "two lines"


def test_unread_overrides_are_refused_before_composing() -> None:
    allowed = ["model=vit", "hydra/launcher=basic", "+trainer.max_time=1", "~hydra.x"]
    with open_tree() as tree:
        override_errors.refuse_unread(allowed, tree)
        with pytest.raises(UserError, match=r"a/b=c.*~seed"):
            override_errors.refuse_unread(["a/b=c", "~seed"], tree)


def test_every_choice_that_a_message_names_can_be_typed() -> None:
    """GROUP=OPTION and KEY=null, in any text of the package."""
    folder = Path(override_errors.__file__).parents[1]
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    nodes = [node for top in trees for node in ast.walk(top) if isinstance(node, ast.Constant)]
    texts = " ".join(node.value for node in nodes if isinstance(node.value, str))
    named = set(re.findall(r"(?<![\w.])([a-z_.]+)=(\w+)", texts))
    with open_tree() as tree:
        choices = {(group, option) for group, option in named if group in tree.groups}
        assert {f"{g}={o}" for g, o in choices if o not in tree.options(g)} == set()
    nulls = {key for key, value in named if value == "null"}
    rules = rules_of_keys()
    assert {
        key for key in nulls & rules.keys() if not any(r.allows(None) for r in rules[key])
    } == set()
    assert {("model.attention", "none"), ("pos_enc", "none")} <= choices
    assert "data.columns" in nulls
