"""Mistakes people make: each is one line on stderr that helps, exit code 2, and nothing is left."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from make_rules import rules_of_keys
from make_systems import REMOVED
from refusals import refusal, refused

from ablate.config import override_errors, synonyms
from ablate.config.composition import compose
from ablate.config.overrides import parse
from ablate.config.schema import VALUES
from ablate.config.tree import open_tree
from ablate.errors import SCREEN, UserError, one_line

pytest_plugins = ["command_line"]

Command = Callable[..., tuple[int, str, str]]

# A command line, and what its one line of refusal holds, with " | " between the parts.
MISTAKES = {
    # names
    "modle=gpt": "no key or group modle | did you mean 'model'?",
    "model=gtp": "model=gtp: no such option (did you mean 'gpt'?); allowed: | bert, ",
    "model.norm_type=my.norm.DyT": "allowed: batch, dyt, layer, rms"
    " | write `_target_: my.norm.DyT` to DIR/model.norm_type/NAME.yaml",
    "model.head=4": "no key model.head (model=gpt; did you mean 'model.heads'?)",
    "model.kv_head=2": "no key model.kv_head (model=gpt; did you mean 'model.kv_heads'?)",
    "model.kv_heads=2 model.mixer=delta": "no key model.mixer.kv_heads (model.mixer=delta; it is a"
    " key of model.mixer=attention); allowed: model.mixer.short_conv",
    "model.kv_heads=2 model=rnn_lm": "no key model.mixer (model=rnn_lm); allowed: model.cell, ",
    "model.layers.kv_heads=[1,2] model.mixer=gla": "model.layers.kv_heads: gla has no key kv_heads",
    "optimizer.lr.x=3": "optimizer.lr is one value and has no keys",
    "+model.head=4": "no key model.head (model=gpt; did you mean 'model.heads'?); allowed: ",
    "+data.root._target_=true": "data.root._target_=true: must be the path of a class",
    "hydra/launcher=slrum": "no such option (did you mean 'slurm'?); allowed: basic",
    "hydra.swep.dir=x": "no key hydra.swep | did you mean 'hydra.sweep.dir'?",
    "model=timm model.heads=2": "no key model.heads (model=timm; it is a key of model=bert, ",
    "model=GPT": "did you mean 'gpt'?",
    "sweep=claims/part": "did you mean 'claims/parts'?",
    "model=transformer model.encoder_depth=1": "did you mean 'model.encoder.depth'?",
    "model=transformer model.depth=1": "mean model.encoder.depth=1 or model.decoder.depth=1?",
    "model=transformer model.n_layer=1": "mean model.encoder.depth=1 or model.decoder.depth=1?",
    "model=transformer model.encoder=3": "model.encoder=3: is not a value; set model.encoder.depth",
    "model=gpt model.cross_attention=additive": "model=gpt has no model.cross_att",
    "model.layers=2": "model.layers=2: is not a value (did you mean model.depth=2?); set ",
    # names of other tools
    "lr=1e-3": "no key or group lr (did you mean optimizer.lr=1e-3?); allowed: ",
    "device=cuda": "trainer=gpu or trainer=cpu",
    "model.pos_enc=rotary": "did you mean pos_enc=rotary?",
    "+trainer.max_time=1": "no key trainer.max_time: would cut training or evaluation short",
    "trainer.limit_val_batches=3": "no key trainer.limit_val_batches: | trainer.val_examples=N",
    "logger.mode=disabled": "must be auto, online or offline; logger=none logs nothing",
    # options of other names
    "pos_enc=rope": "did you mean pos_enc=rotary?",
    "model.attention=flex": "did you mean kernel=flex?",
    "logger=off": "did you mean logger=none?",
    "logger=csv": "every run writes metrics.csv",
    "model.attention=a": "no such option; allowed: ",
    # spaces
    "model.attention = additive": "write model.attention=additive",
    "model.heads= 4": "write model.heads=4",
    "model.heads =4": "write model.heads=4",
    "-m model.attention=additive, dot": "write model.attention=additive,dot",
    "model.normalizer softmax": "'model.normalizer softmax': write model.normalizer=softmax",
    "data.path=my file.txt": """quote a string: "data.path='A TEXT'\"""",
    # values
    "model.heads=four": "model.heads=four: must be an integer of at least 1",
    "model.heads='4'": 'model.heads="4": must be an integer',
    "model.norm=prenorm": "must be pre, post, sandwich, output or none | did you mean 'pre'?",
    "data=text": "data.path is missing; write data.path=VALUE",
    "data=parallel data.source=a data.max_lenght=9": "no key data.max_lenght (data=parallel; ",
    "seed=${nothing}": "seed: Interpolation key 'nothing' not found",
    "seed=${oc.env:NO_SUCH}": "seed: Environment variable 'NO_SUCH' not found",
    "model.layers.norm_eps=${oc.env:NO_SUCH}": "model.layers.norm_eps: Environment variable",
    "model.bias={1:2}": "model.bias={1:2}: must be true or false",
    # what builds a part
    "schedule._target_=1e0": "schedule._target_=1.0: must be module.Class",
    "model.mask._target_=ablate.model.vit.ViT": "must be module.Class: a class of model.mask",
    "++model.mask._partial_=0": "model.mask._partial_=0: must be true",
    "trainer=[]": "'trainer=[]': write trainer=OPTION, one of cpu, ",
    # how it is written
    "-m sweep=mixers,ladder": "'sweep=mixers,ladder' names several studies: run one command per",
    "model/attention=dot": "'model/attention=dot': write model.attention=dot",
    "+model.attention=dot": "write model.attention=dot, without a sign",
    "~logger": "nothing can be removed; write logger=OPTION, one of lightning, many, none, ",
    "~model.heads": "nothing can be removed; set another value",
    "model=transformer model.cross_attention=null": "no such option; allowed: | , same, ",
    "model.attention:dot": "'model.attention:dot': write model.attention=dot",
    "data.path='a": "cannot read 'data.path='a': a quote is not closed; write KEY=VALUE",
    "seed=int(a)": "cannot read 'seed=int(a)': invalid literal for int()",
    "[": "cannot read '[' | write KEY=VALUE",
    "vit": "unknown command 'vit' | overrides are KEY=VALUE",
    "model=gpt,vit": "'model=gpt,vit' names several values: add -m to run each",
    "--modle": "unrecognized arguments: --modle | --help",
    "--cfg everything": "--cfg | 'job' | --help",
    "--config-dir /nowhere": "--config-dir /nowhere: directory not found",
    "--config-name nothing": "nothing",
    "-m optimizer.lr=1,2 optimizer.lr=3,4": "'optimizer.lr=1,2' and 'optimizer.lr=3,4' both set",
    "-m model.attention=dot,cosine model.attention=dot": "both set model.attention",
    "-m optimizer={lr:1},{lr:2} optimizer.lr=3": "both set optimizer.lr",
    "-m seed=0,1 seed=2": "both set seed; set all its values in one override",
    "-m optimizer.lr=range(3,1)": "'optimizer.lr=range(3,1)' names no value",
    "-m model=sort(range(3,1))": "names no value",
    "model=interval(0,1)": "names no value",
    "-m model=glob(zz*)": "'model=glob(zz*)' names no value",
    "hydra.run.dir=D seed=${oc.env:NO_SUCH}": "seed: Environment variable",
    "hydra.run.dir=D study.name=${oc.env:NO_SUCH}": "study.name: Environment variable",
    "hydra.run.dir=D model.layers.norm_eps=${oc.env:NO_SUCH}": "norm_eps: Environment variable",
    "hydra.job.env_copy=[X]": "hydra.job.env_copy=[X]: Hydra cannot use it (KeyError",
    # several at once
    "model=gtp model.hed=3 pos_enc=rotery": "model=gtp | model.hed | pos_enc=rotery",
    "-m model=gpt,gtp,vti": "did you mean 'gpt'? | did you mean 'vit'?",
}


def words(typed: str) -> list[str]:
    return typed.split(" ")


# The others are composed as from Python, which takes a tenth of the time.
OF_THE_COMMAND = [one for one in MISTAKES if re.match(r"vit|hydra.job|--?\w", one)]
COMPOSED = [one for one in MISTAKES if one not in OF_THE_COMMAND]


def parts(typed: str) -> list[str]:
    return MISTAKES[typed].split(" | ")


@pytest.mark.parametrize("typed", COMPOSED)
def test_a_mistake_is_refused(typed: str) -> None:
    with refused(*parts(typed)):
        compose(*words(typed))


@pytest.mark.parametrize("typed", [*COMPOSED[:1], *COMPOSED[-2:], *OF_THE_COMMAND])
def test_a_mistake_is_one_line(typed: str, ablate_command: Command, tmp_path: Path) -> None:
    refusal(ended := ablate_command(*words(typed)), *parts(typed))
    assert "train" not in ended[1]
    assert not (tmp_path / "outputs").exists()


def test_a_long_message_is_two_lines_of_a_screen(ablate_command: Command) -> None:
    """Of each mistake the beginning and the end are left; Python gets all of it."""
    typed = ["model.head=4", "modle=vit", "model.ffn=swigul", "sed=1", "pos_enc=rotery"]
    _, _, err = ablate_command(*typed)
    assert len(err) <= len("ablate: \n") + SCREEN
    assert "no key model.head (model=gpt; did you mean 'model.heads'?)" in err
    assert err.endswith("; and 1 more\n")
    with refused() as caught:
        compose(*typed)
    assert len(str(caught.value)) > 2 * SCREEN
    assert one_line(UserError("a", "b")) == "a; b"


ALIASES = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7))
# The group of a file mine.yaml in --config-dir, its content, and what is said of it.
OWN = [
    ("model", "# Mine.\nmodel: [\n", "mine.yaml: line 3: "),
    ("model", "3", "mine.yaml: must have lines KEY: VALUE, and is 3"),
    ("model", "[a, b]", "mine.yaml: must have lines KEY: VALUE, and is a list"),
    ("model", "defaults: 3", "mine.yaml: Invalid defaults list"),
    ("model", "defaults: [mine]", "mine.yaml: its defaults list leads back to it"),
    ("model", "defaults: [../model/mine]", "mine.yaml: an entry of the defaults list contain"),
    ("model", "defaults: [/model: ../model/mine]", "mine.yaml: an entry of the defaults list"),
    ("model", "a: &a [*a]", "mine.yaml: line 1: *a is in itself"),
    ("model", "a: &a {b: &c [*a, *c]}", "mine.yaml: line 1: *a is in itself"),
    ("model", f"a: {'[' * 200}{']' * 200}", "mine.yaml: line 1: more than 50 nodes deep"),
    ("model", f"a: {'{a: ' * 3000}{'}' * 3000}", "mine.yaml: line 1: more than 50 nodes deep"),
    ("model", f"a0: &a0 1\n{ALIASES}", "more than 20 aliases"),
    ("experiment", "defaults: [/experiment@x: mine]", "mine.yaml: its defaults list"),
    ("experiment", "defaults:\n  - 1: null", "an entry of the defaults list is not `- OPTION`"),
    ("experiment", "output_dir: 2024_05", "202405: must be a text; in a file write"),
    ("experiment", "study: 3", "mine.yaml: study: 3 is not a mapping"),
    ("experiment", "hydra: null", "mine.yaml: hydra: null is not a mapping"),
    ("experiment", "model: null", "mine.yaml: model: null is not a mapping"),
    ("experiment", "model: {hedas: 3}", "'model.heads'?"),
    ("experiment", "model: {ffn: relu}",
     "mine.yaml: model.ffn: relu is not a mapping; | `- override /model.ffn: relu`"),
    ("experiment", "model: {kv_heads: 2, mixer: null}", "mine.yaml: model.mixer: null is not"),
    ("experiment", "model: {mixer: null, kv_heads: 2}", "mine.yaml: model.mixer: null is not"),
    ("sweep", "hydra: {mode: MULTIRUN, sweeper: {params: {pos_enc: 'none,alibbi'}}}",
     "pos_enc=alibbi: no such option"),
    ("sweep", "hydra: {mode: MULTIRUN, sweeper: {params: 3}}",
     "hydra.sweeper.params=3: must be {KEY: VALUES, ...}"),
]  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize(("group", "content", "part"), OWN)
def test_a_mistake_in_a_file_of_ones_own(group, content, part, ablate_command, tmp_path):
    head = "" if group == "model" else "# @package _global_\n# Mine.\n"
    (tmp_path / "own" / group).mkdir(parents=True)
    (tmp_path / "own" / group / "mine.yaml").write_text(head + content)
    code, _, err = ablate_command("--config-dir", str(tmp_path / "own"), f"{group}=mine")
    assert (code, "Traceback" in err) == (2, False)
    assert err.splitlines()[-1].startswith("ablate: ")
    assert [said for said in part.split(" | ") if said not in err] == [], err


def test_an_option_of_layers_that_cannot_be_read_is_named(tmp_path):
    for name, content in (("three", "3"), ("itself", "defaults: [itself]"), ("tab", "x:\n\ty: 1")):
        file = tmp_path / "model.ffn" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
        with refused(f"{file}: "):
            compose(f"model.layers.ffn=[gelu,{name}]", config_dir=tmp_path)


def test_links_that_lead_nowhere_or_back_disturb_no_option(tmp_path):
    folder = tmp_path / "model.ffn"
    folder.mkdir()
    links = {"lost.yaml": "nothing", "loop.yaml": "loop.yaml", "up": "..", "a": "."}
    for link, to in links.items():
        (folder / link).symlink_to(to)
    assert compose("model.ffn=relu", config_dir=tmp_path).choices["model.ffn"] == "relu"


@pytest.mark.ci
def test_every_choice_that_a_message_names_can_be_typed() -> None:
    """GROUP=OPTION and KEY=null, in any text of the package."""
    folder = Path(override_errors.__file__).parents[1]
    trees = [ast.parse(path.read_text()) for path in folder.rglob("*.py")]
    nodes = [node for top in trees for node in ast.walk(top) if isinstance(node, ast.Constant)]
    texts = " ".join(node.value for node in nodes if isinstance(node.value, str))
    named = set(re.findall(r"(?<![\w.])([a-z_.]+)=(\w+)", texts))
    tree = open_tree()
    choices = {(group, option) for group, option in named if group in tree.groups}
    unknown = {
        f"{group}={option}" for group, option in choices if option not in tree.options(group)
    }
    assert REMOVED or unknown == set()  # a system may name an option of another
    assert {("model.attention", "none"), ("pos_enc", "none")} <= choices
    nulls, rules = {key for key, value in named if value == "null"}, rules_of_keys()
    wrong = [key for key in nulls & rules.keys() if not any(r.allows(None) for r in rules[key])]
    assert wrong == []
    assert "data.vocab_size" in nulls
    assert set(synonyms.KEYS.values()) <= rules.keys() | VALUES.keys() | {"logger.tags"}


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("init_from=outputs/x/model.attention=dot-1f", "outputs/x/model.attention=dot-1f"),
        ("data.path=~/my.txt", "~/my.txt"),
    ],
)
def test_a_path_needs_no_quotes(typed: str, value: str) -> None:
    """A run's folder has the name of its arm, with a sign that Hydra's grammar keeps for itself."""
    assert str(parse(typed).value()) == value
    tree = open_tree()
    override_errors.refuse_unread([typed], tree)


@pytest.mark.parametrize("value", ["2024_05", "007", "1e3", "-1.5E+3", ".5", "nan", "inf", "true"])
def test_where_a_text_is_meant_a_number_is_one(value: str) -> None:
    for key in ("study.name", "output_dir", "logger.project", "data.path", "init_from"):
        assert parse(f"{key}={value}").value() == value
    assert parse(f"logger.tags=[{value},a]").value() == [value, "a"]
    several = parse(f"data.path={value},a").sweep_string_iterator()
    assert [*several] == [f"'{value}'", "a"]
    cfg = compose(f"++study.name={value}", f"hydra.run.dir={value}", "init_from=null")
    assert (cfg.study.name, cfg.init_from) == (value, None)
    for key in ("model.heads", "model.ffn_dim", "optimizer.lr", "seed", "study.seeds"):
        assert parse(f"{key}=64").value() == 64


@pytest.mark.ci
def test_the_folder_has_the_name_that_was_typed(ablate_command: Command, tmp_path: Path) -> None:
    for typed in ((), ("-m", "seed=0,1", "hydra/launcher=basic")):
        assert ablate_command("study.name=2024_05", "logger=none", *typed)[0] == 0
        assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["2024_05"]


def test_spaces_inside_of_a_word() -> None:
    with refused("'model.heads = 4 pos_enc: none': write model.heads=4 pos_enc=none"):
        compose("model.heads = 4", "pos_enc: none")


def test_a_study_is_narrowed_and_widened_by_its_factors() -> None:
    typed = ("study.factors.model.attention=[dot,general]", "study.factors.model.heads=[1]")
    for names in ("[baseline,model.attention=dot]", "[baseline, 'model.attention=dot']"):
        only = compose(f"study.arms={names}").study.arms
        assert only == ["baseline", "model.attention=dot"]
    factors = compose("sweep=attention_scores", *typed).study.factors
    assert factors["model.attention"] == ["dot", "general"]
    assert factors["model.heads"] == [1]
    assert compose("sweep=mixers", "study.tune.optimizer.lr=[1e-3]").study.tune == {
        "optimizer.lr": [0.001]
    }


@pytest.mark.parametrize(
    "typed", ["study.factors.model.mixer=[none]", "study.factors={model.mixer: [none]}"]
)
def test_the_command_reads_factors_of_a_sweep_file(typed: str) -> None:
    override_errors.refuse_swept(["sweep=mixers", typed], open_tree())
