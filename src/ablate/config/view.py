"""A composition as the conflict rules read it: values, options, and facts about the parts.

Reading a missing or wrong value raises Unreadable, and the rule that reads it does not apply.
"""

import math
from collections.abc import Callable, Container, Mapping
from typing import Any

from ablate.config.keys import MISSING, option_content, targets, to_dict
from ablate.config.overrides import value_text
from ablate.config.parts import OURS, Unreadable, class_attribute, locate
from ablate.config.rules import OneOf
from ablate.config.tree import config_files
from ablate.errors import UserError

TEXT, IMAGES, RECALL, PAIRS = "text", "images", "recall", "pairs"
LABELED = "texts with classes"
WORDS = {  # each kind in a sentence
    TEXT: "text",
    LABELED: LABELED,
    IMAGES: "images",
    RECALL: "keys and values to recall",
    PAIRS: "pairs of texts",
}


class CompositionView:
    """The values and facts of one composition. wrong: keys with values that are not allowed."""

    def __init__(self, cfg: Mapping[str, Any], wrong: Container[str] = ()) -> None:
        self.values, self._wrong = to_dict(cfg), wrong

    def __call__(self, path: str) -> Any:
        """The value of a key."""
        value: Any = self.values
        try:
            for name in path.split("."):
                value = value[name]
        except (KeyError, TypeError):
            raise Unreadable(path) from None
        if value == MISSING or path in self._wrong:
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

    def has(self, group: str) -> bool:
        """Whether the model, such as one with or without a decoder, has this part."""
        node, _, leaf = group.rpartition(".")
        return "_target_" in ((self.values.get(node) or {}).get(leaf) or ())

    def attribute(self, group: str, attribute: str) -> Any:
        """A component's statement about itself: the value of a class attribute."""
        return class_attribute(str(self(f"{group}._target_")), attribute)

    def declares(self, group: str, attribute: str) -> bool:
        """Whether a part states it about itself, such as that a score reads the `query`."""
        return bool(self.attribute(group, attribute))

    def trait(self, group: str, name: str) -> Any:
        """A fact about a model or a layer (`ModelTraits`, `LayerTraits`)."""
        return getattr(self.attribute(group, "traits"), name)

    @property
    def kind(self) -> str:
        """The kind of the data, such as text. UserError if its class does not state it."""
        target = str(self("data._target_"))
        try:
            return str(class_attribute(target, "kind"))
        except Unreadable as error:
            raise UserError(
                f"data._target_={target}: the class must define `kind`, such as"
                ' "text", and the `kinds` of the model and of the task must contain it'
            ) from error

    @property
    def read_as(self) -> str:
        """The kind of the data to a model."""
        try:
            return str(self.attribute("data", "read_as"))
        except Unreadable:
            return self.kind

    def in_words(self, group: str, attribute: str) -> str:
        """The value, or the values, of a class attribute in a sentence."""
        stated, words = self.attribute(group, attribute), WORDS if "kind" in attribute else {}
        names = [stated] if isinstance(stated, str) else stated
        return str(OneOf(tuple(words.get(name, name) for name in names)))

    @property
    def instead(self) -> str:
        """The built-in models that read this data, and the built-in data sets that the model
        reads."""
        kinds = self.attribute("model", "kinds")
        models = _options("model", "kinds", lambda stated: self.read_as in stated)
        data = _options("data", "kind", lambda stated: stated in kinds)
        return _use(model=models, data=data)

    @property
    def other_pairs(self) -> str:
        """The models with the task's required output, and the tasks for the model's outputs."""
        output, outputs = self.attribute("task", "output"), self.attribute("model", "outputs")
        models = _options("model", "outputs", lambda stated: output in stated)
        return _use(model=models, task=_options("task", "output", lambda stated: stated in outputs))

    @property
    def predicts_tokens(self) -> bool:
        """Whether the output map is one over tokens, which can be tied to their embeddings."""
        return self.attribute("task", "output") not in ("classes", "scores")

    @property
    def joint(self) -> bool:
        """Whether source and target share one vocabulary, by the data's class or its key."""
        return bool(self._fixed_or_chosen("joint", "data.joint"))

    @property
    def side(self) -> int:
        """Pixels along an image's side, by the data's class or its key."""
        return int(self._fixed_or_chosen("side", "data.size"))

    def _fixed_or_chosen(self, attribute: str, path: str) -> Any:
        try:
            return class_attribute(str(self("data._target_")), attribute)
        except Unreadable:
            return self(path)

    @property
    def stride(self) -> int:
        return int(self.get("model.stride", None) or self("model.patch"))

    @property
    def read_out(self) -> int:
        """Input width of the output map of a recurrent model: Bahdanau's maxout halves it."""
        dim = int(self("model.dim"))
        halved = self.has("model.decoder") and self.declares("model.decoder", "halves")
        return dim // 2 if halved else dim

    @property
    def positions(self) -> int:
        """Tokens or values that the model reads at once in training."""
        if not self.trait("model", "has_grid"):
            return int(self(f"data.{self.attribute('data', 'length_key')}"))
        return int(self.across**2 + (self.get("model.pool", None) == "class"))

    @property
    def across(self) -> int:
        """Patches along an image's side."""
        return int((self.side - self("model.patch")) // self.stride + 1)

    @property
    def unsupported(self) -> str:
        """The features of attention that components need and the kernel does not provide, each with
        the options that need it."""
        provides, names = (self.attribute("kernel", key) for key in ("provides", "features"))
        lines = []
        for path, target in targets(self.values).items():
            if path.startswith(("model", "pos_enc")):
                part, option = locate(target), f"{path}={self.name(path)}"
                by_key = {
                    feature: f"{option}, {key}={value_text(value)}"
                    for key, feature in getattr(part, "needs_if", {}).items()
                    if (value := self.get(key, None))
                }
                needs = dict.fromkeys(sorted(getattr(part, "needs", ())), option) | by_key
                lines += [f"{names[f]} ({why})" for f, why in needs.items() if f not in provides]
        return " and ".join(lines)

    @property
    def processes(self) -> float:
        """How many processes train the model; "auto" can be any number of GPUs, infinity."""
        devices = self("trainer.devices")
        if devices == "auto":
            devices = 1 if self("trainer.accelerator") == "cpu" else math.inf
        per_node = devices if isinstance(devices, int | float) else len(devices)
        return float(per_node * self("trainer.num_nodes"))


def _use(**options: list[str]) -> str:
    named = [f"{group}={OneOf(tuple(names))}" for group, names in options.items() if names]
    return f"; use {', or '.join(named)}" if named else ""


def _options(group: str, attribute: str, holds: Callable[[Any], bool]) -> list[str]:
    """The built-in options whose class states such a value of an attribute."""
    options = []
    for file in config_files(f"{group}/*.yaml"):
        target = option_content(file)[0].get("_target_")
        if target and holds(class_attribute(target, attribute)):
            options.append(file.stem)
    return options
