"""Composition: from overrides to one checked configuration."""

import os
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from ablate.config import public, run_id
from ablate.config.check import check
from ablate.config.layers import expand, folders
from ablate.config.override_errors import COMPOSITION_ERRORS, explain, refuse_unread
from ablate.config.tree import config_dir as config_dir
from ablate.config.tree import open_tree

OmegaConf.register_new_resolver("run_folder", run_id.resolve, replace=True)
OmegaConf.register_new_resolver("oc.env", public.from_environment, replace=True)
# A sweep file always starts several runs.
OmegaConf.register_new_resolver(
    "study_mode", lambda sweep: None if sweep is None else "MULTIRUN", replace=True
)
# Unlike ${oc.env:}, an empty variable counts as one that is not set, and its value is written down.
OmegaConf.register_new_resolver(
    "environment", lambda name, default=None: os.environ.get(name) or default, replace=True
)


def compose(*overrides: str, config_dir: str | Path | None = None) -> DictConfig:
    """Compose and check the configuration that the command line would run with these overrides.

    `config_dir` adds a user's own options to every group. The node `choices` holds the option of
    every config group. Raises UserError.
    """
    with open_tree(config_dir) as tree:
        refuse_unread(overrides, tree)
        try:
            cfg = tree.load(overrides)
        except COMPOSITION_ERRORS as error:
            raise explain(error, overrides, tree, many=False) from error
    complete(cfg, cfg.hydra.runtime)
    with open_dict(cfg):
        del cfg["hydra"]
    check(cfg)
    return cfg


def complete(cfg: DictConfig, runtime: DictConfig) -> None:
    """Store the option of every group in the node `choices`, and expand the values by layer.

    runtime: `hydra.runtime`. Hydra's own groups are left out, and those that an option brings in:
    the sizes of debug=fast.
    """
    with open_dict(cfg):
        cfg.choices = {g: o for g, o in runtime.choices.items() if "/" not in g and "@" not in g}
    expand(cfg, folders(runtime))
