"""The options of an axis that a model, or a machine without a GPU, can be trained with at all.

An axis that is not here takes every option, alone; which pairs are refused, the parts and
config/conflicts.py say. Which data and tasks a model has follows from what their classes state.
"""

from contextlib import suppress
from typing import Any

from make_axes import MODELS
from make_model import kernels, options, part, scores
from make_rules import rules_of_options
from make_systems import systems

from ablate.config.parts import Unreadable, class_attribute
from ablate.config.rules import OneOf

Only = dict[str, list[Any]]


def of_data(model: str) -> Only:
    """Its data sets, tasks and tokenizers."""

    def state(group: str, option: str, attribute: str) -> Any:
        target = rules_of_options()[f"{group}/{option}.yaml"][f"{group}._target_"][0]
        return class_attribute(str(target), attribute)

    def read_as(name: str) -> Any:
        with suppress(Unreadable):
            return state("data", name, "read_as")
        return state("data", name, "kind")

    kinds, outputs = (state("model", model, name) for name in ("kinds", "outputs"))
    both = [
        (name, task)
        for name in options("data")
        for task in options("task")
        if read_as(name) in kinds
        and state("data", name, "kind") in state("task", task, "kinds")
        and state("task", task, "output") in outputs
    ]
    data, tasks = ([*dict.fromkeys(names)] for names in zip(*both, strict=True))
    rules = (rules_of_options()[f"data/{name}.yaml"].get("data.tokenizer") for name in data)
    names = [rule for _, found in filter(None, rules) for rule in getattr(found, "rules", [found])]
    tokenizers = {name for rule in names if isinstance(rule, OneOf) for name in rule.options}
    return {"data": data, "task": tasks} | ({"data.tokenizer": [*tokenizers]} if tokenizers else {})


def but(group: str, *names: str) -> list[str]:
    return [name for name in options(group) if name not in names]


ALONG_EDGES = [
    name for name in options("model.mask") if "edges" in part("model.mask", name).func.needs
]
IN_2D = [name for name in options("pos_enc") if name.endswith("_2d")]
DISTANCES = ["rotary", "alibi", "relative", "t5"]  # what says a distance has none to an image
HERE: Only = {
    "trainer": ["cpu", "ddp"],
    "trainer.precision": ["32-true", "bf16-mixed", "bf16-true", "64-true"],
}
NO_POSITIONS: Only = {"pos_enc": ["none"]}
WITHOUT_ATTENTION = NO_POSITIONS | {"kernel": ["auto"]}
KERNELS: Only = {"kernel": kernels()}  # some need a GPU; none works along edges without a graph
BLOCKS: Only = KERNELS | {
    "model.mask": but("model.mask", *ALONG_EDGES, "source"),
    "model.attention": scores(),
}
ALONG = BLOCKS | {"pos_enc": but("pos_enc", *IN_2D)}
PADDED: Only = {"model.norm_type": but("model.norm_type", "batch")}  # which would count padding
ONE_WAY = [  # which an encoder is not
    name for name in options("model.mixer") if part("model.mixer", name).func.traits.causal
]
OWN: dict[str, Only] = {
    **dict.fromkeys(("gpt", "bert"), ALONG),
    "vit": BLOCKS,
    **dict.fromkeys(("timm", "rnn_lm"), WITHOUT_ATTENTION),
    **dict.fromkeys(("rnn_seq2seq",), KERNELS | NO_POSITIONS),
    "resnet": WITHOUT_ATTENTION | {"model.norm_type": ["layer", "batch"]},
    "transformer": ALONG | PADDED | {"model.mixer": but("model.mixer", *ONE_WAY)},
    "gpt_seq2seq": ALONG
    | PADDED
    | {"model.mask": but("model.mask", *ALONG_EDGES), "model.mixer": but("model.mixer", "fixed")},
    **{model: only for system in systems() for model, only in system.accepted().items()},
}
ONLY: dict[str, Only] = {model: HERE | of_data(model) | OWN[model] for model in MODELS}
