"""Names in other tools of keys and options that have another name here."""

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from ablate.config.tree import config_file, header
from ablate.errors import suggest

RESUME = "the same command resumes a run; init_from=RUN_DIR starts from its weights"
# Names of keys in other tools -> the equivalents here.
KEYS = {
    **dict.fromkeys(("learning_rate", "learningrate"), "optimizer.lr"),
    **dict.fromkeys(("bs", "batchsize"), "data.batch_size"),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs"), "trainer.max_epochs"),
    **dict.fromkeys(("steps", "num_steps", "iterations", "max_iters"), "trainer.max_steps"),
    **dict.fromkeys(("n_head", "n_heads", "num_heads", "nhead"), "model.heads"),
    **dict.fromkeys(("n_layer", "n_layers", "num_layers", "layers"), "model.depth"),
    **dict.fromkeys(("d_model", "hidden_size", "embed_dim", "n_embd", "hidden_dim"), "model.dim"),
    **dict.fromkeys(("context_length", "block_size", "max_length"), "data.seq_len"),
    **dict.fromkeys(("amp", "fp16", "bf16"), "trainer.precision"),
    "tags": "logger.tags",
}
# The same for names without an equivalent key.
OTHERWISE = {
    **dict.fromkeys(("ckpt_path", "checkpoint", "resume", "resume_from"), RESUME),
    **dict.fromkeys(("device", "gpu", "gpus", "cuda"), "trainer=gpu or trainer=cpu"),
    **dict.fromkeys(("wandb", "use_wandb"), "logger=wandb or logger=none"),
    "seeds": "study.seeds=N of a study; seed=N of a run",
    "hparams_search": "-m hydra/sweeper=optuna",
    "early_stopping": "callbacks=early_stopping",
    **dict.fromkeys(("print_config", "extras"), "--cfg job prints the composition"),
    "task_name": "study.name=NAME, whose runs are in OUTPUT_DIR/NAME; hydra.run.dir=DIR of one run",
}
OFF = ("off", "no", "false", "null", "None", "disabled")
OPTIONS = {
    ("logger", "csv"): "every run writes metrics.csv, with logger=none too",
    ("model.attention", "flash"): "an implementation of every score: kernel=auto or kernel=sdpa",
}


def key_hint(typed: str, value: str, known: Collection[str], groups: Iterable[str]) -> str:
    """The replacement for an unknown key with a name of other tools, or of a group elsewhere;
    "" if nothing is known. known: the keys of the composition."""
    leaf = typed.rpartition(".")[2]
    for name in (leaf, typed.partition(".")[0]):
        if name in OTHERWISE:
            return OTHERWISE[name]
    names = [group for group in groups if leaf == group.rpartition(".")[2] and group != typed]
    if (key := KEYS.get(leaf)) is not None:  # a transformer has model.encoder.depth
        names += [key] if key in known else _alike(key, known) or [key]
    return _question(f"{name}={value}" for name in names[:3])


def same_name(typed: str, value: str, known: Iterable[str]) -> str:
    """The keys of a composition that end as an unknown key does; "" if there is none."""
    return _question(f"{key}={value}" for key in _alike(typed, known))


def _alike(typed: str, known: Iterable[str]) -> list[str]:
    leaf = typed.rpartition(".")[2]
    keys = [key for key in known if key.rpartition(".")[2] == leaf]
    shortest = min((key.count(".") for key in keys), default=0)
    return [key for key in keys if key.count(".") == shortest]


def option_hint(group: str, typed: str, options: Sequence[str], groups: Sequence[str]) -> str:
    """The replacement for an unknown option: one whose comment has the word, or the same name
    in another group."""
    if (group, typed) in OPTIONS:
        return OPTIONS[group, typed]
    if len(typed) < 2:
        return ""  # would be found in a formula
    if typed in OFF and "none" in options:
        return _question([f"{group}=none"])
    if alike := get_close_matches(typed.lower(), options, n=1, cutoff=0.8):
        return f"did you mean '{alike[0]}'?"
    word = re.compile(rf"(?<![a-z0-9]){re.escape(typed)}(?![a-z0-9])", re.IGNORECASE)
    files = {name: config_file(f"{group}/{name}.yaml") for name in options}
    commented = {name: header(file.read_text()) for name, file in files.items() if file.is_file()}
    named = [name for name, comment in commented.items() if word.search(comment)]
    if 0 < len(named) <= 3:
        return _question(f"{group}={name}" for name in named)
    if near := suggest(typed, options):
        return near.removeprefix("; ")
    elsewhere = [other for other in groups if config_file(f"{other}/{typed}.yaml").is_file()]
    return _question(f"{other}={typed}" for other in elsewhere[:3] if typed != "none")


def _question(texts: Iterable[str]) -> str:
    text = " or ".join(texts)
    return f"did you mean {text}?" if text else ""
