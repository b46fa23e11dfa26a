"""--help: the options, the command syntax, and the folders of results.

All lists of options are read from the config folders, including the user's.
"""

from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from omegaconf import DictConfig

from ablate.cli.search import (
    WIDTH,
    every_key,
    indented,
    keys_text,
    meanings,
    option_files,
    search_text,
)
from ablate.config.tree import Tree, config_dirs, header, open_tree

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
  python -m ablate.report STUDY_DIR                            the report again, or --status
  python -m ablate.judge results.csv --baseline ARM            verdicts on results of other programs

Flags: -m (every combination of the values after commas), --cfg job (print the composition),
  --config-dir DIR (your own options in addition: DIR/GROUP/OPTION.yaml), --hydra-help (all)."""


def help_text(user_folder: str | None, words: list[str]) -> str:
    """Return the whole page, or the options of the named groups and the matches of other words."""
    tree = open_tree(user_folder)
    folders = [*config_dirs(), *([Path(user_folder)] if user_folder else [])]
    named = [word for word in words if word in tree.groups]
    texts = [line for group in named for line in _options(group, tree, folders)]
    whole = {word: keys_text(word, tree, folders) for word in words if word not in named}
    texts += filter(None, whole.values())
    if searched := [word for word, text in whole.items() if not text and "=" not in word]:
        texts.append(search_text(searched, tree, folders))
    if texts:
        return "\n".join(texts)
    cfg = tree.load()
    return "\n".join([HEAD, *_axes(tree, cfg), *_switches(tree), TAIL])


def _axes(tree: Tree, cfg: DictConfig) -> Iterator[str]:
    """Yield a line for every group: the model and its parts, then the order of config.yaml."""
    meaning = meanings()
    order = ["model", *(g for g in tree.groups if "." in g), *(g for g in meaning if g != "model")]
    rest = [g for g in tree.groups if g not in order]
    chosen = cfg.hydra.runtime.choices
    yield "Components: GROUP=OPTION (*: default)"
    for group in [*order, *rest]:
        every = tree.options(group)
        options = [f"{o}*" if o == chosen.get(group) else o for o in every if "/" not in o]
        folders = dict.fromkeys(option.partition("/")[0] for option in every if "/" in option)
        options += [f"{folder}/..." for folder in folders]
        yield _entry(group, ", ".join(options), meaning.get(group, ""))


def _switches(tree: Tree) -> Iterator[str]:
    """Yield a line for every key of a model, or of one of its parts, whose default is a word."""
    yield "\nSwitches: KEY=VALUE (default)"
    shown: dict[str, str] = {}
    for key, value, comment in every_key(tree, [*config_dirs()]):
        word = value.isidentifier() and value not in ("true", "false", "null")
        if key.startswith("model.") and word and comment and "_target_" not in key:
            shown[key] = max(shown.get(key, ""), _entry(key, value, comment), key=len)
    yield from shown.values()


def _entry(name: str, options: str, meaning: str) -> str:
    text = f"{options}   ({meaning})" if meaning else options
    return fill(text, WIDTH, initial_indent=f"  {name + '=':<23}", subsequent_indent=" " * 25)


def _options(group: str, tree: Tree, folders: list[Path]) -> Iterator[str]:
    """Yield each option with the comment at the top of its file."""
    for option, text in option_files([group], tree, folders):
        yield option
        yield indented(header(text))
