"""A sweep's file of one's own, and what the command line makes of it, without running anything."""

from pathlib import Path

import yaml
from tiny import overrides

from ablate.config.tree import open_tree
from ablate.study.plan.cells import Composer
from ablate.study.plan.layout import Layout, lay_out
from ablate.study.plan.request import StudyRequest, parse_request


def write_sweep(folder: Path, study: str, *, body: str = "", name: str = "mine") -> list[str]:
    """The arguments that choose a sweep with this node `study` (YAML), in a folder of its name."""
    place = folder / "own" / "sweep"
    place.mkdir(parents=True, exist_ok=True)
    node = yaml.dump({"study": yaml.safe_load(study)}, sort_keys=False)
    (place / f"{name}.yaml").write_text(f"# @package _global_\n# Mine.\n{body}\n{node}")
    return ["--config-dir", str(folder / "own"), f"sweep={name}", f"study.name={name}"]


def tiny_for(study: str, folder: Path, *left_out: str) -> list[str]:
    """The tiny overrides, without the keys that the study itself sets."""
    keys = [(text.partition("=")[0], text) for text in overrides(folder)]
    return [
        text
        for key, text in keys
        if f"{key}:" not in study and f"{key}=" not in study and key not in left_out
    ]


def asked(
    folder: Path, study: str, *typed: str, body: str = "", left_out: tuple[str, ...] = ()
) -> tuple[StudyRequest, Composer]:
    """The question of a sweep on the tiny text, and what composes its arms."""
    _, own, sweep, _ = write_sweep(folder, study, body=body)
    argv = [sweep, *tiny_for(study, folder, *left_out), *typed]
    tree = open_tree(own)
    command = tree.load(argv)
    question = parse_request(command, argv, tree)
    return question, Composer(tree, command, question.fixed)


def laid_out(folder: Path, study: str, *typed: str, body: str = "") -> Layout:
    return lay_out(*asked(folder, study, *typed, body=body))
