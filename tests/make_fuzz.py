"""Hostile inputs, made from the config tree: overrides, files of options and of data, commands."""

import gzip
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import strategies as st
from make_model import options
from make_systems import list_of_systems

from ablate.config.keys import flatten, option_content
from ablate.config.schema import VALUES
from ablate.config.tree import config_file, groups

words = str.split

Draw = Callable[[st.SearchStrategy[Any]], Any]

GROUPS = sorted(groups() - {"hydra"})
OPTIONS = [(group, option) for group in GROUPS for option in options(group)]
ROOT = [key for key in VALUES if key.startswith("study.") or "." not in key]
HYDRA = words("""mode run.dir sweep.dir sweep.subdir job.name job.chdir job.env_copy job.env_set
    job.config job_logging hydra_logging callbacks callbacks.folder launcher
    launcher.max_parallel_runs launcher.timeout sweeper sweeper.params output_subdir
    verbose help.template runtime.cwd""")

SIGNS = ["", "", "", "", "+", "++", "++", "~"]
TEXTS = words("""null true 0 -1 1e0 1e-320 1e400 nan inf -0.0 007 0x10 1_000 ??? [] {} {a:1} {1:2}
    {a:{b:1}} [[[]]] [1,{a:[]}] [null] ${model} ${nothing} ${seed} ${.} ${..heads} ${study_mode:}
    ${a:} ${ ${study_mode:x} ${oc.env:HOME} ${oc.env:NOT_SET} ${oc.decode:'['} ${oc.create:{a:1}}
    ${${seed}} ${hydra:runtime.cwd} ${optimizer} glob(*) glob([) choice() choice(1) range(1,0)
    range(0,1,1e-12) range(x) interval(0,1) int(x) str([]) sort(3,1) shuffle(1,2) tag(a,1) 1,2 a,b ,
    [ { ( ) ' " \\ . .. ../x ~ a.b a..b ablate.model.vit.ViT ablate.nothing.Nothing
    nothing.Nothing a:b = == 'a' "'" '"' '' $ % # ! & * | > @x hf: text gpt none auto pre
    2024-01-01 12:30:45
    1+2j --help -m""")
TEXTS += [" ", "a b", "\t", "\n", "\x00", "\x1b[31m", "ü", "\u202e", "é" * 300, "[" * 99]
USUAL = words("1 2 3 4 0.5 1e-3 true false null auto none [1,2] [0.5,0.9]")
BENT = ["{}"] * 60 + ["{}.y", "{}.0", "{}.", ".{}", "{}@x", "{}x", "/{}", "{}._target_"]
DATA = [  # that reads one file or two
    "data=text data.seq_len=4 data.path={}",
    "data=text data.seq_len=4 data.tokenizer=bpe data.path={}",
    *list_of_systems("FUZZED"),
    "model=transformer data=parallel data.source={} data.target={}",
]
HUGE = [2**31 - 1, 2**31, 2**24, 10**9, 10**6, 1e9, 1e300, 1e-300]
FLAGS = {
    "diff": ["--help"],
    "evaluate": ["--json"],
    "generate": words("""--prompt --tokens --temperature --top-k --top-p --seed --source --beam
        --n-best --length-penalty --show --input --image --index --steps"""),
    "report": ["--status", "--wandb", "--metric", "--mode", "--allow"],
    "show": ["--layer", "--head", "--text", "--source", "--index"],
    "": words("""--help -m --cfg --info --resolve --package --config-dir --config-name --hydra-help
        --version --experimental-rerun help"""),
}


def numbers(most: int) -> st.SearchStrategy[float]:
    huge = st.sampled_from([number for number in HUGE if number <= most])
    return st.integers(-3, 65) | st.floats() | st.integers(-most, most) | huge


def texts(most: int = 2**70) -> st.SearchStrategy[str]:
    """What stands after KEY=, with numbers up to `most`."""
    any_text = st.text(max_size=9).filter(lambda text: not text.startswith("/"))
    return st.sampled_from(TEXTS) | st.sampled_from(USUAL) | numbers(most).map(str) | any_text


def values() -> st.SearchStrategy[Any]:
    """What stands after `KEY: ` in a file."""
    leaf = st.sampled_from([None, True, False, "", *TEXTS]) | numbers(2**70)
    names = st.sampled_from(["a", "_target_", "_partial_", 1, True, "a.b", "a/b", ""])
    return st.recursive(leaf, lambda x: st.lists(x) | st.dictionaries(names, x), max_leaves=4)


def keys_in(group: str, option: str) -> list[str]:
    """The keys of an option, of the nodes in it, and of what builds it."""
    path = config_file(f"{group}/{option}.yaml")
    inside = [key for key in flatten(option_content(path)[0]) if key]
    leaves = [f"{group}.{key}" for key in (*inside, "_target_", "_partial_")]
    return [group, *leaves, *(leaf.rpartition(".")[0] for leaf in leaves)]


@st.composite
def keys(draw: Draw, group: str, option: str) -> str:
    """A key of the option, of the root or of Hydra, at times misspelled."""
    own, root = st.sampled_from(keys_in(group, option)), st.sampled_from(ROOT)
    hydras = st.sampled_from(HYDRA).map("hydra.{}".format)
    return str(draw(st.sampled_from(BENT)).format(draw(own | own | own | root | hydras)))


@st.composite
def overrides(draw: Draw, most: int = 2**70) -> list[str]:
    """An option, and one or two keys with hostile values."""
    group, option = draw(st.sampled_from(OPTIONS))
    chosen = [f"{group}={option}"] if draw(st.booleans()) else []
    one = st.tuples(st.sampled_from(SIGNS), keys(group, option), texts(most))
    given = draw(st.lists(one, min_size=1, max_size=2))
    return chosen + [f"{sign}{key}={text}" for sign, key, text in given]


@st.composite
def option_files(draw: Draw) -> tuple[str, str, bytes]:
    """An option of one's own: its group, its name and its file."""
    group, option = draw(st.sampled_from(OPTIONS))
    content = draw(st.dictionaries(st.sampled_from(keys_in(group, option)), values(), max_size=3))
    content = {key.removeprefix(f"{group}."): value for key, value in content.items()}
    if draw(st.booleans()):
        content["_target_"] = option_content(config_file(f"{group}/{option}.yaml"))[0].get(
            "_target_"
        )
    if draw(st.booleans()):
        content["defaults"] = draw(values() | st.just([option, "_self_"]))
    name = "own"
    if draw(st.booleans()):  # an experiment that sets the same
        content = {group: content, draw(st.sampled_from(ROOT)): draw(values())}
        group = "experiment"
    head = "# @package _global_\n" if group == "experiment" else ""
    raw = (head + yaml.safe_dump(content, allow_unicode=True)).encode(errors="replace")
    return group, name, draw(st.sampled_from([raw, raw, raw, raw[: len(raw) // 2]]) | st.binary())


def contents() -> st.SearchStrategy[bytes]:
    """The content of a data file."""
    cell = st.sampled_from(["", "1", "nan", "1e999", "a", '"', "-", "\x00", "ü", "1,5", "\ufeff"])
    rows = st.lists(st.lists(cell, max_size=4).map(",".join), max_size=60)
    lines = st.lists(st.sampled_from(["a cat", "", "a\tb", "\r", "le chat", "é"]), max_size=60)
    text = (rows.map(lambda x: ["a", *x]) | lines | lines.map(lambda x: x * 99)).map("\n".join)
    plain = st.binary() | text.map(str.encode) | text.map(lambda x: x.encode("utf-16"))
    packed = plain.map(gzip.compress)
    return plain | plain | packed | packed.map(lambda x: x[:-9]) | packed.map(lambda x: x[:9])


@st.composite
def command_lines(draw: Draw, folders: dict[str, str]) -> list[str]:
    """Any command, on a folder that is what it asks for, or on none; its flags with any value."""
    command = draw(st.sampled_from(sorted(FLAGS)))
    own = draw(overrides(most=65))
    words = {"": own, "diff": [" ".join(own), draw(texts())], "evaluate": own}.get(command, [])
    if command in folders:
        words = [draw(st.sampled_from([folders[command]] * 4 + [".", "nowhere", ""])), *words]
    for _ in range(draw(st.integers(0, 3))):
        words += [draw(st.sampled_from(FLAGS[command]))]
        words += [draw(texts(most=65))] * draw(st.booleans())
    return [command, *words] if command else words
