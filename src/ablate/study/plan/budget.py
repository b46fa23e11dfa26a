"""The cost of each arm, and whether it changes the model at all, without any training.

Parameters and FLOPs are counted on torch's meta device: a model of any size takes no memory there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import lightning.pytorch as L
from omegaconf import DictConfig

from ablate.config.keys import to_dict
from ablate.errors import UserError
from ablate.task.measures import names_of_measures
from ablate.training.build import count_flops
from ablate.training.checkpoint import Sizes, sizes
from ablate.training.measure import conditions, harness_tasks
from ablate.training.no_effect import MADE_OF
from ablate.training.same_model import DataSets, SameModel, on_meta, parameters
from ablate.training.train import require_runnable
from ablate.training.trainer import length_of_training


@dataclass(frozen=True)
class Budget:
    """The cost of an arm. flops_per_step: as result.json counts them; steps: of the optimizer.

    no_effect: whether the arm has the baseline's model and changes nothing else; None: too large to
    be compared, or the baseline cannot be built.
    """

    parameters: int
    flops_per_step: int
    steps: int
    no_effect: bool | None
    checkpoints: Sizes

    @property
    def flops(self) -> int:
        """Of the whole training."""
        return self.flops_per_step * self.steps


def budgets(
    configs: Mapping[str, DictConfig], *, baseline: str, sets: DataSets
) -> tuple[dict[str, Budget], dict[str, str]]:
    """Return the budget of every arm (the baseline's first), and the error of each unbuildable arm.

    Some errors show only when a model is built for its data, such as a score's table that is
    shorter than the text, or that a run would make before its first step; external parts may raise
    anything.
    """
    measured: dict[str, Budget] = {}
    refused: dict[str, str] = {}
    flops: dict[str, int] = {}  # by the parts that they depend on
    same = SameModel(configs[baseline], sets)
    for arm in sorted(configs, key=lambda arm: arm != baseline):
        cfg = configs[arm]
        try:
            task = on_meta(cfg, sets(cfg))
            unknown = baseline in refused
            no_effect = None if unknown else arm != baseline and same(cfg, task.model)
            values = to_dict(cfg)
            counted = json.dumps([values["trainer"], *(values.get(node) for node in MADE_OF)])
            if counted not in flops:
                flops[counted] = count_flops(cfg, task, task.model)
            budget = Budget(
                parameters=parameters(task.model),
                flops_per_step=flops[counted],
                steps=length_of_training(values["trainer"], task.data)[0],
                no_effect=no_effect,
                checkpoints=sizes(task),
            )
            require_runnable(cfg, task)
            measured[arm] = budget
        except UserError as error:
            refused[arm] = str(error)
        except Exception as error:
            line = " ".join(str(error).split())
            refused[arm] = f"{type(error).__name__}: {line}".removesuffix(": ")
    return measured, refused


def measured(cfg: DictConfig, sets: DataSets) -> list[str]:
    """Return the names of the metrics of a finished run, without training one; none if the
    composition cannot be built, which `budgets` reports, or they cannot be known before."""
    try:
        data = sets(cfg)
        task = on_meta(cfg, data)
    except Exception:
        return []
    task.trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, barebones=True)
    splits = ["val", *(["test"] if data.has_test else [])]
    names = [f"{split}/{name}" for split in splits for name in names_of_measures(task, split)]
    found = [*names]
    for condition, changes in conditions(cfg).items():
        if tasks := harness_tasks(changes):
            from ablate.training.harness import metrics_of

            found += [f"{condition}/{name}" for name in metrics_of((*tasks,))]
        else:
            found += [f"{name}@{condition}" for name in names]
    return found
