"""--help: the options, the command syntax, and the folders of results; --help WORD: the groups,
options and keys whose name, comment or docstring has a word.

All lists of options are read from the config folders, including the user's.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import fill
from typing import NamedTuple

from ablate.config.overrides import ALIASES
from ablate.config.parts import OURS
from ablate.config.schema import rule_of
from ablate.config.synonyms import option_hint
from ablate.config.tree import Tree, config_file, header, open_tree
from ablate.errors import UserError, suggest
from ablate.machine.version import PACKAGE

WIDTH = 100
# A key of a YAML file with its comment, or a choice in a defaults list.
LINE = re.compile(
    r"^( *)(?:- (?:override )?/?)?([\w./]+): *([^#\n]*?)(?: +# *(.*))?$", re.MULTILINE
)
# Groups whose options set keys of other groups.
SETS = ("experiment", "sweep", "debug")
BLOCKS, OF_BLOCKS = "models of blocks", "ablate.model.gpt.GPT"  # _block.yaml, one of them

HEAD = """\
ablate: which part of an attention model makes the difference?

  python -m ablate [GROUP=OPTION ...] [KEY=VALUE ...]     trains one model and measures it
  python -m ablate --help GROUP                           describes the options of a group
  python -m ablate --help GROUP=OPTION  or KEY            shows the keys of an option, or one key
  python -m ablate --help WORD                            finds options and keys, as in --help RoPE
"""

TAIL = """
Numbers: model.heads= model.depth= model.dim= model.dropout= data.seq_len= data.batch_size=
  optimizer.lr= schedule.warmup= trainer.max_steps= trainer.devices= seed= and all others that
  --cfg job prints. An invalid name or value is rejected with one line that lists the valid ones.

Examples
  python -m ablate                                             a small GPT on English, in minutes
  python -m ablate model.attention=additive pos_enc=rotary     other components
  python -m ablate data=text data.path=FILE trainer.max_steps=5000
  python -m ablate -m model.attention=additive,dot,uniform seed=0,1,2     nine runs, and a report
  python -m ablate sweep=attention_scores study.dry_run=true     the plan of a study

Results
  OUTPUT_DIR/STUDY/RUN_ID/, which is outputs/runs/... unless output_dir= or study.name= is set:
  result.json, config.yaml, metrics.csv, checkpoints/, figures/. The id is a hash of what can change
  the result: the same command finds its folder again, and resumes where it was stopped.

Other commands (each has --help; python -m ablate evaluate RUN_DIR is the same)
  python -m ablate.evaluate RUN_DIR data.seq_len=32            on other data or lengths
  python -m ablate.generate RUN_DIR --prompt "..."             text
  python -m ablate.show RUN_DIR                                attention maps
  python -m ablate.export RUN_DIR OUT                          for Hugging Face transformers
  python -m ablate.diff "model.attention=dot" "model.attention=cosine"    compares two configs
  python -m ablate.coordinates model.dim=64,128,256 model.base_dim=64     coordinate check of muP
  python -m ablate.report STUDY_DIR                            the report again, or --status
  python -m ablate.prepare SOURCE... --to DIR                  token shards of text, for data=tokens
  python -m ablate.lm_eval RUN_DIR --tasks NAMES               by lm-evaluation-harness
  python -m ablate.judge results.csv --baseline ARM            verdicts on results of other programs

Flags: -m (every combination of the values after commas), --cfg job (print the composition),
  --config-dir DIR (your own options in addition: DIR/GROUP/OPTION.yaml), --hydra-help (all)."""


def help_text(user_folder: str | None, words: list[str]) -> str:
    """Return the whole page, or the options of the named groups and the matches of other words."""
    tree, words = open_tree(user_folder), [ALIASES.get(word, word) for word in words]
    named = [word for word in words if word in tree.groups]
    described = option_files(named, tree)
    texts = [f"{option}\n{indented(header(text))}" for option, text in described]
    whole = {word: keys_text(word, tree) for word in words if word not in named}
    texts += filter(None, whole.values())
    if searched := [word for word, text in whole.items() if not text and "=" not in word]:
        texts.append(search_text(searched, tree))
    return "\n".join(texts or [HEAD, *_axes(tree), *_switches(), TAIL])


def _axes(tree: Tree) -> Iterator[str]:
    """Yield a line for every group: the model and its parts, then the order of config.yaml."""
    meaning = meanings()
    order = ["model", *(g for g in tree.groups if "." in g), *(g for g in meaning if g != "model")]
    rest = [g for g in tree.groups if g not in order]
    chosen = tree.load().hydra.runtime.choices
    yield "Components: GROUP=OPTION (*: default)"
    for group in [*order, *rest]:
        every = tree.options(group)
        options = [f"{o}*" if o == chosen.get(group) else o for o in every if "/" not in o]
        folders = dict.fromkeys(option.partition("/")[0] for option in every if "/" in option)
        options += [f"{folder}/..." for folder in folders]
        yield _entry(group, ", ".join(options), meaning.get(group, ""))


def _switches() -> Iterator[str]:
    """Yield a line for every key of a model, or of one of its parts, whose default is a word."""
    yield "\nSwitches: KEY=VALUE (default)"
    shown: dict[str, str] = {}
    for _, key, value, comment in _every_key(open_tree()):
        word = value.isidentifier() and value not in ("true", "false", "null")
        if key.startswith("model.") and word and comment and "_target_" not in key:
            shown[key] = max(shown.get(key, ""), _entry(key, value, comment), key=len)
    yield from shown.values()


def _entry(name: str, options: str, meaning: str) -> str:
    text = f"{options}   ({meaning})" if meaning else options
    return fill(text, WIDTH, initial_indent=f"  {name + '=':<23}", subsequent_indent=" " * 25)


class HelpEntry(NamedTuple):
    name: str  # GROUP=OPTION, or the dotted path of a key
    comment: str
    docstring: str = ""
    options: str = ""  # of a group, or which have a key; not searched

    def matches(self, words: list[str]) -> bool:
        """Whether every word begins a word of the entry, in any case."""
        text = f"{self.name} {self.comment} {self.docstring}".replace("_", " ")
        return all(re.search(rf"(?<![a-z0-9]){re.escape(w)}", text, re.IGNORECASE) for w in words)


def search_text(words: list[str], tree: Tree) -> str:
    """The matching groups, options and keys. Raises UserError if nothing matches."""
    searched = [part for word in words for part in word.replace("_", " ").split()]
    every = [*_groups(tree), *_options(tree), *_keys(tree)]
    if not (entries := [entry for entry in every if entry.matches(searched)]):
        names = {part for entry in every for part in re.split("[=./]", entry.name)}
        raise UserError(
            f"--help {' '.join(words)}: no option or key has it in its name, comment or docstring"
            f"{suggest(words[0], names)}"
        )
    texts: dict[str, list[str]] = {}
    for entry in entries:  # keys of one name together
        texts.setdefault(entry.name, []).extend(_shown(entry, searched))
    return "\n".join("\n".join([name, *lines]) for name, lines in texts.items())


def keys_text(word: str, tree: Tree) -> str:
    """The keys of an option, GROUP=OPTION, or of a node of config.yaml such as study, or a key by
    its dotted path, with values and comments; "" if it is none of them. Raises UserError for an
    unknown option."""
    config = config_file("config.yaml").read_text()
    if "=" not in word:
        node = re.search(rf"^{re.escape(word)}:.*\n(?: +.*\n)+", config, re.MULTILINE)
        return node[0].rstrip() if node else _key_text(word, tree)
    group, _, option = word.partition("=")
    if group not in groups_of(tree):
        return ""
    text = dict(option_files(groups_of(tree), tree)).get(word)
    if text is None:
        allowed = tree.options(group)
        near = option_hint(group, option, allowed, tree.groups)
        raise UserError(
            f"--help {word}: no such option; allowed: {', '.join(allowed)}{near and f'; {near}'}"
        )
    if "- /_block@model" in text:
        text += "\n# of every model with blocks, model.KEY\n"
        text += config_file("_block.yaml").read_text().partition("\n")[2]
    lines = (line for line in text.splitlines() if "@package" not in line)
    return "\n".join([word, *(f"  {line}".rstrip() for line in lines)])


def _key_text(word: str, tree: Tree) -> str:
    """A key with its valid values, its comments with the values in its own options, and its values
    in other options; "" if there is none."""
    own: dict[str, dict[str, list[str]]] = {}  # comment -> value -> options
    others: dict[str, list[str]] = {}  # value -> options
    rules: dict[str, list[str]] = {}  # valid values -> options
    for option, prefix, text in _files(tree):
        group = option.partition("=")[0]
        node = prefix.removesuffix(".") or group
        for name, value, comment in _in_file(text, prefix):
            if name == word and (prefix or comment or "=" not in option):
                own.setdefault(comment, {}).setdefault(value or "a node", []).append(option)
                if rule := rule_of(word, _target(text) or OF_BLOCKS, node):
                    rules.setdefault(str(rule), []).append(option)
            elif name == word and group not in SETS:
                others.setdefault(value, []).append(option)
    if not own:
        return ""
    lines = [
        f"must be {rule}" + (f" ({', '.join(options)})" if len(rules) > 1 else "")
        for rule, options in rules.items()
    ]
    for comment, values in own.items():
        lines += [comment] if comment else []
        lines.append("= " + ", ".join(f"{v} ({', '.join(names)})" for v, names in values.items()))
    lines += [f"set to {value} by {', '.join(names)}" for value, names in others.items()]
    return "\n".join([word, *map(indented, lines)])


def meanings() -> dict[str, str]:
    """The comment of each group in the defaults list of config.yaml."""
    text = config_file("config.yaml").read_text()
    return dict(re.findall(r"^  - (\w+): \S+ +# (.*)$", text, re.MULTILINE))


def _shown(entry: HelpEntry, words: list[str]) -> list[str]:
    lines = [f"{entry.comment}{entry.options}"]
    if not entry._replace(docstring="").matches(words):
        sentences = re.split(r"(?<=[.;])\s+|\n\n", entry.docstring)
        lines += [text for text in sentences if HelpEntry("", text).matches(words[:1])][:1]
    return [*filter(None, map(indented, lines))]


def indented(text: str) -> str:
    return fill(text.strip(), WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)


def _groups(tree: Tree) -> Iterator[HelpEntry]:
    meaning = meanings()
    for group in groups_of(tree):
        options = ", ".join(tree.options(group))
        comment = meaning.get(group, "")
        yield HelpEntry(f"{group}=", comment, options=f": {options}" if comment else options)


def _options(tree: Tree) -> Iterator[HelpEntry]:
    for option, text in option_files(groups_of(tree), tree):
        yield HelpEntry(option, header(text), docstring_of(_target(text)))


def _target(text: str) -> str:
    """The first class that a file names; "" if it names none."""
    target = re.search(r"^ *_target_: (\S+)$", text, re.MULTILINE)
    return target[1] if target else ""


def _keys(tree: Tree) -> Iterator[HelpEntry]:
    having: dict[tuple[str, str], list[str]] = {}  # key and comment -> options
    for option, name, _, comment in _every_key(tree):
        if comment:
            having.setdefault((name, comment), []).append(option)
    comments = Counter(name for name, _ in having)
    for (name, comment), options in having.items():
        of = f" ({', '.join(options)})" if comments[name] > 1 else ""
        yield HelpEntry(name, comment, options=of)


def _files(tree: Tree) -> Iterator[tuple[str, str, str]]:
    """Every file with keys: its description, the prefix of its keys, and its text."""
    yield "config.yaml", "", config_file("config.yaml").read_text()
    yield BLOCKS, "model.", config_file("_block.yaml").read_text()
    for option, text in option_files(groups_of(tree), tree):
        group = option.partition("=")[0].replace("/", ".")
        yield option, "" if "@package _global_" in text else f"{group}.", text


def _every_key(tree: Tree) -> Iterator[tuple[str, str, str, str]]:
    """Every key by its dotted path, with its value and comment, after the file that has it."""
    for option, prefix, text in _files(tree):
        for key in _in_file(text, prefix):
            yield option, *key


def _in_file(text: str, prefix: str) -> Iterator[tuple[str, str, str]]:
    """The keys of a file by their dotted path, with their values and comments."""
    outer: list[tuple[int, str]] = []  # indentation and name of the nodes around a line
    for indent, name, value, comment in LINE.findall(text):
        while outer and outer[-1][0] >= len(indent):
            outer.pop()
        outer.append((len(indent), name))
        path = [node for _, node in outer]
        if path[0] != "defaults":
            yield prefix + ".".join(path), value, comment


def groups_of(tree: Tree) -> tuple[str, ...]:
    return (*tree.groups, *tree.hydra_groups)


def option_files(groups: Iterable[str], tree: Tree) -> Iterator[tuple[str, str]]:
    """Every option of the groups as GROUP=OPTION, with the text of its file; none of Hydra's."""
    for group in groups:
        for option in tree.options(group):
            file = tree.repository.file(f"{group}/{option}")
            if file.is_absolute():
                yield f"{group}={option}", file.read_text(encoding="utf-8", errors="replace")


def docstring_of(target: str) -> str:
    """The docstrings of a built-in class and of its module, without an import; "" of others."""
    module, _, name = target.rpartition(".")
    place = PACKAGE.parent / module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not target.startswith(OURS) or not file.is_file():
        return ""
    tree = ast.parse(file.read_text())
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return "\n".join(
        [*(ast.get_docstring(node) or "" for node in classes), ast.get_docstring(tree) or ""]
    )
