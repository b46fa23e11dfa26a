"""Invalid combinations of keys, each with a remedy, and of the kinds that model, task and data
state; the conflicts of a component are in its class."""

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ablate.config.keys import targets
from ablate.config.layers import compositions
from ablate.config.overrides import value_text
from ablate.config.parts import OURS, Unreadable, class_attributes
from ablate.config.schema import classes_in
from ablate.config.view import CompositionView


@dataclass(frozen=True)
class Conflict:
    """An invalid combination. A class lists its own as its attribute `conflicts`.

    `says` names the overrides; {model.heads} is replaced by a value, {:model.kinds} by a class
    attribute in words, {:name} by a fact.
    without_effect: the parts go together, but one has nothing to act on; if layers differ, this
    must be so in all of them.
    """

    when: Callable[[CompositionView], bool]
    says: str
    without_effect: bool = False

    def applies(self, view: CompositionView) -> bool:
        try:
            return self.when(view)
        except Unreadable:
            return False

    def line(self, view: CompositionView) -> str:
        return re.sub(r"\{(:?)([\w.]+)\}", lambda m: _filled(m[1], m[2], view), self.says)


def _filled(fact: str, path: str, view: CompositionView) -> str:
    """The value of a key, or the name of a part; after a colon a fact, or an attribute in words."""
    if fact:
        group, _, attribute = path.rpartition(".")
        return view.in_words(group, attribute) if group else str(getattr(view, attribute))
    value = view(path)
    return view.name(path) if isinstance(value, dict) else value_text(value)


def conflicts(cfg: Mapping[str, Any], wrong: Container[str] = ()) -> Iterator[str]:
    """Yield a line for every conflict of a composition; if layers differ, of any of them.

    Of the rules against keys without effect, those that apply in every layer. wrong: keys with
    values that are not allowed.
    """
    kinds = compositions(cfg) or [(0, cfg)]
    views = {layer: CompositionView(values, wrong) for layer, values in kinds}
    stated: dict[Conflict, list[int]] = {}  # with their layers
    for layer, view in views.items():
        for conflict in dict.fromkeys([*CONFLICTS, *_conflicts_of_parts(view.values)]):
            stated.setdefault(conflict, []).append(layer)
    for conflict, layers in stated.items():
        applies = [layer for layer in layers if conflict.applies(views[layer])]
        if applies and (len(applies) == len(views) or not conflict.without_effect):
            where = f"block {applies[0]}: " if len(applies) < len(views) else ""
            yield where + conflict.line(views[applies[0]])


def _conflicts_of_parts(values: Mapping[str, Any]) -> Iterator[Conflict]:
    for path, target in targets(values).items():
        # torch's optimizers and the like refuse nothing, and asking them would import torch.
        if target.startswith(OURS) or target not in classes_in(path):
            yield from conflicts_of(target)


@cache
def conflicts_of(target: str) -> tuple[Conflict, ...]:
    """The conflicts of a class and its bases."""
    return tuple(
        conflict for stated in class_attributes(target, "conflicts") for conflict in stated
    )


FLOAT8 = "fp8-mixed"  # of trainer.precision
FLOAT8_SIZES = 16  # a product in float8 needs multiples of it
TOO_LONG = (
    "schedule.warmup={warmup} is longer than the training of {steps} steps; use"
    " schedule.warmup=auto, 0, or a share of the training such as 0.1"
)


def too_long(warmup: object, steps: int) -> bool:
    """Whether a warm-up is longer than the training; that of a custom schedule may be anything."""
    return isinstance(warmup, int | float) and 0 < steps < warmup


CONFLICTS = [
    # model, task and data
    Conflict(
        lambda c: c.read_as not in c.attribute("model", "kinds"),
        "model={model} reads {:model.kinds}, and data={data} is {:data.kind}{:instead}",
    ),
    Conflict(
        lambda c: c.kind not in c.attribute("task", "kinds"),
        "task={task} needs {:task.kinds}, and data={data} is {:data.kind}",
    ),
    Conflict(
        lambda c: c.attribute("task", "output") not in c.attribute("model", "outputs"),
        "task={task} needs a model of {:task.output}, and model={model} is one of {:model.outputs}"
        "{:other_pairs}",
    ),
    # blocks
    Conflict(
        lambda c: c("model.dim") % c("model.heads") != 0,
        "model.heads={model.heads} does not divide model.dim={model.dim}",
    ),
    Conflict(
        lambda c: c("model.init_depth_scale") == "zero" and not c("model.residual"),
        "model.init_depth_scale=zero with model.residual=false: every output is zero, and nothing"
        " is learned; use model.init_depth_scale=true",
    ),
    Conflict(
        lambda c: c("model.drop_path") > 0 and not c("model.residual"),
        "model.drop_path={model.drop_path} drops whole sublayers and needs model.residual=true",
    ),
    Conflict(
        lambda c: (
            c("model.share_layers")
            and all(c.get(f"model.{node}depth", 1) == 1 for node in ("", "encoder.", "decoder."))
        ),
        "model.share_layers=true has no effect on a single block",
    ),
    Conflict(
        lambda c: c("model.activation_checkpointing") and c("model.freeze") == "encoder",
        "model.activation_checkpointing={model.activation_checkpointing} has no effect with"
        " model.freeze=encoder, whose blocks keep nothing for a gradient; set"
        " model.activation_checkpointing=false",
    ),
    # training
    Conflict(
        lambda c: c("optimizer.nesterov") and c("optimizer.momentum") == 0,
        "optimizer.nesterov=true needs optimizer.momentum above 0",
    ),
    Conflict(
        lambda c: c("trainer.max_steps") == -1 and c("trainer.max_epochs") is None,
        "trainer.max_steps=-1 and trainer.max_epochs=null set no length of training; set one",
    ),
    Conflict(
        # For training by epochs, training/trainer.py checks this once they are steps.
        lambda c: too_long(c("schedule.warmup"), c("trainer.max_steps")),
        TOO_LONG.format(warmup="{schedule.warmup}", steps="{trainer.max_steps}"),
    ),
    Conflict(
        lambda c: (
            c("trainer.val_check_interval") is not None
            and c("trainer.check_val_every_n_epoch") is not None
        ),
        "trainer.val_check_interval={trainer.val_check_interval} counts batches and"
        " trainer.check_val_every_n_epoch={trainer.check_val_every_n_epoch} epochs; set one null,"
        " such as trainer.check_val_every_n_epoch=null",
    ),
    Conflict(
        lambda c: c("trainer.accelerator") == "cpu" and c.get("trainer.sync_batchnorm", False),
        "trainer.sync_batchnorm=true needs GPUs, not trainer.accelerator=cpu",
    ),
    Conflict(
        lambda c: c("trainer.strategy") == "fsdp" and c.processes == 1,
        "trainer.strategy=fsdp splits a model over several processes; set trainer.devices, or"
        " trainer.strategy=auto",
    ),
    Conflict(
        lambda c: c("trainer.strategy") == "fsdp" and c.get("trainer.sync_batchnorm", False),
        "trainer.sync_batchnorm=true is not supported with trainer.strategy=fsdp; use trainer=ddp",
    ),
    Conflict(
        lambda c: (
            c("trainer.strategy") == "fsdp"
            and c("trainer.precision") in ("16-mixed", FLOAT8, "64-true")
        ),
        "trainer.precision={trainer.precision} is not supported with trainer.strategy=fsdp; use"
        " bf16-mixed or 32-true",
    ),
    Conflict(
        lambda c: c("trainer.shards") is not None and c("trainer.strategy") != "fsdp",
        "trainer.shards={trainer.shards} has no effect with trainer.strategy={trainer.strategy},"
        " which splits no parameters; use trainer=fsdp, or trainer.shards=null",
    ),
    Conflict(
        lambda c: (
            c("trainer.shards") is not None
            and c.processes < math.inf
            and c.processes % c("trainer.shards") != 0
        ),
        "trainer.shards={trainer.shards} does not divide the number of processes,"
        " trainer.devices={trainer.devices} times trainer.num_nodes={trainer.num_nodes}",
    ),
    Conflict(
        lambda c: c("compile") and c("trainer.strategy").startswith("fsdp"),
        "compile=true compiles whole models, which trainer.strategy={trainer.strategy} shards;"
        " use trainer=ddp or compile=false",
    ),
    Conflict(
        lambda c: c("trainer.precision") == FLOAT8 and c.get("model.dim", 1) % FLOAT8_SIZES != 0,
        f"trainer.precision={FLOAT8} needs a model whose width, model.dim, is a multiple of"
        f" {FLOAT8_SIZES}; use bf16-mixed",
    ),
    Conflict(
        lambda c: c("trainer.accelerator") == "cpu" and c("trainer.precision").startswith("16"),
        "trainer.precision={trainer.precision} needs a GPU; on a CPU use bf16-mixed or 32-true",
    ),
    Conflict(
        lambda c: (
            c("init_from") is not None and c.get("model.pretrained", None) not in (None, False)
        ),
        "init_from={init_from} and model.pretrained={model.pretrained} both set the initial"
        " weights; leave one out",
    ),
    Conflict(
        lambda c: c("init_optimizer") and c("init_from") is None,
        "init_optimizer=true goes on with the optimizer of another run; set init_from=RUN_DIR",
    ),
    Conflict(
        lambda c: c("init_optimizer") and c("trainer.strategy") == "fsdp",
        "init_optimizer=true needs the optimizer whole, and here processes share it; use"
        " trainer=ddp",
    ),
]
