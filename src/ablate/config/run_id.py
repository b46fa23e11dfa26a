"""The id of a run: a hash of everything that can change its result.

The same work always has the same id, however its config was written: a run that is started again
finds its folder, and a study sees which of its runs are done.
"""

import json
import re
from collections.abc import Callable, Mapping
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ablate.config.keys import FILES, keys_of, targets, to_dict
from ablate.config.layers import of_layers
from ablate.config.make import make
from ablate.config.parts import OURS, class_attributes
from ablate.config.rules import HUGGING_FACE
from ablate.config.schema import replace_run_folders
from ablate.errors import RunFailed, UserError, unwrap
from ablate.run_files import LAST, CorruptFile, best_weights, open_file, refuse_links

# Keys that cannot change a result: of locations, logging, the speed of reading data, and the
# tensors kept for the backward pass.
EXCLUDED = (
    "checkpoint_every",
    "checkpoint_keep",
    "evaluate",
    "choices",
    "hydra",
    "logger",
    "output_dir",
    "run_dir",
    "study",
    "sweep",
    *(f"data.{key}" for key in FILES),
    "data.sha256",
    "data.workers",
    "model.activation_checkpointing",
    "task.loss_chunk",
    "trainer.log_every_n_steps",
)

# Files of models and tokenizers in the folder of one of Hugging Face.
OF_HUGGING_FACE = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin")
NO_DATA, NO_WEIGHTS = "no data", "no weights"
LONGEST_SLUG = 80  # characters of an arm's name in the name of a folder
NAMED = re.compile(r"(?:^|-)([0-9a-f]{12})$")  # the id at the end of a folder's name


class IdContent:
    """The content of the ids of a composition's runs, resolved once for all seeds.

    data: the resolved values of its data.
    """

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        values = to_dict(cfg)
        self.data = values["data"]
        counted = content(values)
        self._content, self._revisions = counted, revisions(counted)

    def run_id(self, seed: int, data: str) -> str:
        """Return 12 hexadecimal digits. data: the fingerprint of the data."""
        return digest(self._content | {"seed": seed}, data, self._revisions)

    def except_length(self, seed: int) -> str:
        """Return the content but for the length of the training, as text."""
        length = ("max_steps", "max_epochs")
        trainer = {k: v for k, v in self._content["trainer"].items() if k not in length}
        content = self._content | {"seed": seed, "trainer": trainer}
        return json.dumps([content, self.data, self._revisions], sort_keys=True)


def run_id(cfg: Mapping[str, Any], data: str) -> str:
    """Return 12 hexadecimal digits. data: its fingerprint."""
    return IdContent(cfg).run_id(cfg["seed"], data)


def folder_name(arm: str | None, run_id: str) -> str:
    """Return the name of a run's folder; in the arm's name, unsafe characters are replaced."""
    slug = re.sub(r"[^A-Za-z0-9.=_+-]", "_", arm or "")[:LONGEST_SLUG]
    return f"{slug}-{run_id}" if slug else run_id


def id_in(folder_name: str) -> str | None:
    """Return the id of the run that a folder was named after; None of another name."""
    match = NAMED.search(folder_name)
    return match[1] if match else None


def digest(content: dict[str, Any], fingerprint: str, revisions: dict[str, int]) -> str:
    counted = [content, fingerprint, revisions]
    return sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:12]


def weights(start: str, *, last: bool = False) -> str:
    """Return the hash of the weights to start from, of a run (with `last`, of its last state) or in
    a file; the run itself reports unreadable ones."""
    path = Path(str(start)).expanduser()
    refuse_links(path)
    best = path / "checkpoints" / LAST if last else best_weights(path)
    try:
        with open_file(path if path.is_file() else best) as file:
            return file_digest(file, sha256).hexdigest()
    except (OSError, CorruptFile):
        return NO_WEIGHTS


def content(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resolved values without the excluded keys, with equal numbers in one form."""
    content = counted_keys(to_dict(cfg))
    # The hash of the weights takes the place of their path.
    last = bool(content.get("init_optimizer"))
    replace_run_folders(content, lambda key, run: weights(run, last=last and key == "init_from"))
    for group, key in (("data", "tokenizer"), ("model", "pretrained")):
        if key in (node := content.get(group, {})):
            node[key] = _of_hugging_face(node[key])
    # A pattern counts as its values.
    if layers := of_layers(content):
        content["model"]["layers"] = {key: [layer[key] for layer in layers] for key in layers[0]}
    return content


def _of_hugging_face(name: Any) -> Any:
    """Return the hash of the files in a local folder, so that weights or a tokenizer that were
    trained again count as others; any other name as it is."""
    folder = Path(str(name).removeprefix(HUGGING_FACE))
    if not str(name).startswith(HUGGING_FACE) or not folder.is_dir():
        return name
    found = sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix in OF_HUGGING_FACE:
                with open_file(path) as file:
                    found.update(path.name.encode() + file_digest(file, sha256).digest())
    except (OSError, CorruptFile):  # the run reports it
        return name
    return found.hexdigest()


def counted_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without the excluded keys, with equal numbers in one form."""
    content: dict[str, Any] = _canonical({k: v for k, v in values.items() if k not in EXCLUDED})
    for path in EXCLUDED:
        node, _, leaf = path.rpartition(".")
        if isinstance(content.get(node), dict):
            content[node].pop(leaf, None)
    return content


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def revisions(content: Mapping[str, Any]) -> dict[str, int]:
    """The revision of every part of a config's plain content, those above 1: the same command then
    trains again, and does not answer with the result of the old code."""
    numbers = {path: revision(target) for path, target in targets(content).items()}
    return {path: number for path, number in numbers.items() if number > 1}


def revision(target: str) -> int:
    """The class attribute `revision`, raised with the numbers that a component computes, of a class
    and its bases; 1 for those of other packages that our options name."""
    if not target.startswith(OURS) and keys_of(target):
        return 1
    try:
        return 1 + sum(number - 1 for number in class_attributes(target, "revision"))
    except UserError:  # cannot be imported: nothing is trained
        return 1


def fingerprint(cfg: DictConfig) -> str:
    """Return the fingerprint of the data's content; NO_DATA if it cannot be read."""
    return fingerprint_or_no_data(lambda: str(make(cfg.data, seed=cfg.seed).fingerprint()))


def fingerprint_or_no_data(fingerprint: Callable[[], str]) -> str:
    """Return the fingerprint, or NO_DATA for data that cannot be read, which the run reports."""
    try:
        return fingerprint()
    except Exception as error:
        if isinstance(unwrap(error), UserError | RunFailed):
            return NO_DATA
        raise
