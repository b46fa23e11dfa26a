"""A composition as the conflict rules read it: values, options, and facts about the parts.

Reading a missing or invalid value raises Unreadable, and the rule that reads it does not apply.
"""

import math
import os
from collections.abc import Mapping
from typing import Any

from ablate.config.keys import MISSING, OURS, locate, plain
from ablate.config.schema import rule_of
from ablate.errors import UserError

# Class attributes of our parts: for each attribute the usual value, and the options with the other
# value. A test keeps both in step. They are repeated here so that a composition is checked without
# importing torch; external parts are imported.
STATED: dict[str, dict[str, tuple[bool, set[str]]]] = {
    "model.attention": {
        "query": (True, {"uniform", "none"}),
        "key": (True, {"location", "uniform", "none"}),
        "lowers": (True, {"additive", "gat", "gatv2", "none"}),
        "sums": (False, {"additive", "gat", "gatv2"}),
    },
    "model.normalizer": {"fused": (False, {"softmax"})},
    "model.window": {"weighs": (False, {"local_p"})},
    "pos_enc": {"compares": (False, {"rotary"})},
}
STATED["model.cross_attention"] = STATED["model.attention"]  # the same scores

TEXT, IMAGES, RECALL, PAIRS, SERIES, GRAPH = "text", "images", "recall", "pairs", "series", "graph"
LABELLED = "texts with classes"
CAPTIONS = "captions"  # of images
KINDS = {  # of data, by the module of its class
    "pydoc": TEXT,
    "text": TEXT,
    "text_files": LABELLED,
    "recall": RECALL,
    "parallel": PAIRS,
    "multi30k": PAIRS,
    "cmudict": PAIRS,
    "sequences": PAIRS,
    "dates": PAIRS,
    "digits": IMAGES,
    "mnist": IMAGES,
    "cifar": IMAGES,
    "image_folder": IMAGES,
    "series": SERIES,
    "karate": GRAPH,
    "planetoid": GRAPH,
    "digit_strings": CAPTIONS,
}
READERS = {  # a model for each
    TEXT: "gpt",
    LABELLED: "gpt",
    RECALL: "gpt",
    IMAGES: "vit",
    PAIRS: "transformer",
    SERIES: "rnn_forecaster",
    GRAPH: "gat",
    CAPTIONS: "captioner",
}
WORDS = {  # for kinds whose name says too little in a sentence
    IMAGES: "images",
    RECALL: "keys and values to recall",
    PAIRS: "pairs of texts",
    SERIES: "a series of numbers",
    GRAPH: "a graph",
    CAPTIONS: "images with captions",
}
# Whether source and target share their tokens, where that is fixed, by the module of the data.
JOINT = {"sequences": True, "dates": False, "cmudict": False}
SIDES = {"digits": 8, "mnist": 28, "cifar": 32}  # pixels


class Unreadable(Exception):
    """A value that a rule reads is missing or invalid in this composition."""


class Facts:
    """The values and facts of one composition."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self.values = plain(cfg)

    def __call__(self, path: str) -> Any:
        """The value of a key."""
        value: Any = self.values
        for name in path.split("."):
            if not isinstance(value, dict) or name not in value:
                raise Unreadable(path)
            value = value[name]
        rule = rule_of(path)
        if value == MISSING or (rule is not None and not rule.allows(value)):
            raise Unreadable(path)
        return value

    def get(self, path: str, default: Any) -> Any:
        try:
            return self(path)
        except Unreadable:
            return default

    def option(self, group: str) -> str:
        """The option name of one of our parts, from its module; the class path of another."""
        target = str(self(f"{group}._target_"))
        return target.split(".")[-2] if target.startswith(OURS) else target

    def name(self, group: str) -> str:
        """The value of GROUP=; unlike `option`, it tells apart options that share a module."""
        chosen = self.values.get("choices", {}).get(group)
        return str(chosen or self.option(group))

    def is_ours(self, group: str) -> bool:
        return str(self(f"{group}._target_")).startswith(OURS)

    def states(self, group: str, attribute: str) -> bool:
        """The value of a part's class attribute, such as whether a score reads the `query`."""
        if self.is_ours(group):
            usual, others = STATED[group][attribute]
            return usual != (self.option(group) in others)
        return bool(self._attribute(group, attribute))

    def _attribute(self, group: str, attribute: str) -> Any:
        part = locate(self(f"{group}._target_"))
        if not hasattr(part, attribute):
            raise Unreadable(attribute)
        return getattr(part, attribute)

    @property
    def kind(self) -> str:
        """The kind of the data, such as text. UserError if its class has no `kind`."""
        if self.is_ours("data") and self.option("data") in KINDS:
            return KINDS[self.option("data")]
        target = self("data._target_")
        kind = getattr(locate(target), "kind", None)
        if not isinstance(kind, str):
            raise UserError(
                f"data._target_={target}: does not say what it holds; give the class a `kind`, one"
                f" of {', '.join(sorted(set(KINDS.values())))}"
            )
        return kind

    @property
    def words(self) -> str:
        """The kind of the data in words, for a sentence."""
        return WORDS.get(self.kind, self.kind)

    @property
    def reader(self) -> str:
        """A model that reads this data."""
        return READERS.get(self.kind, "...")

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary."""
        if self.is_ours("data") and self.option("data") in JOINT:
            return JOINT[self.option("data")]
        return bool(self("data.joint"))

    @property
    def side(self) -> int:
        """Pixels along an image's side."""
        if self.is_ours("data") and self.option("data") in SIDES:
            return SIDES[self.option("data")]
        return int(self("data.size"))

    @property
    def stride(self) -> int:
        return int(self("model.stride") or self("model.patch"))

    @property
    def read_out(self) -> int:
        """Width of what the output map of a recurrent model reads: Bahdanau's maxout halves it."""
        dim = int(self("model.dim"))
        return dim // 2 if self.get("model.decoder", None) == "bahdanau" else dim

    @property
    def positions(self) -> int:
        """Tokens or values that the model reads at once in training."""
        if self.kind == SERIES:
            return int(self("data.window"))
        if self.option("model") != "vit":
            return int(self("data.seq_len"))
        return int(self.across**2 + (self("model.pool") == "class"))

    @property
    def across(self) -> int:
        """Patches along an image's side."""
        return int((self.side - self("model.patch")) // self.stride + 1)

    @property
    def interpreted(self) -> bool:
        """Whether Triton's kernels run in its interpreter on a CPU."""
        return os.environ.get("TRITON_INTERPRET") == "1"

    @property
    def several_processes(self) -> bool:
        """Whether several processes may train the model; "auto" can be any number of GPUs."""
        devices = self("trainer.devices")
        if devices == "auto":
            devices = 1 if self("trainer.accelerator") == "cpu" else math.inf
        per_node = devices if isinstance(devices, int | float) else len(devices)
        return bool(per_node * self("trainer.num_nodes") > 1)
