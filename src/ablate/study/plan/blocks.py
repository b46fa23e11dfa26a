"""study.blocks: the whole study once in each block, such as a data set or a size of the model.

    study:
      blocks: {data: [pydoc, shakespeare]}     # or NAME: {BLOCK: [overrides]}, as a factor has them
    blocks: {tokens: [1x, 2x, 4x]}           # multiples of trainer.max_steps

A block is a study in its own folder, with its own baseline, tuning and report. The study over
all of them compares means over the blocks, seed by seed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from omegaconf import DictConfig

from ablate.config.overrides import merged
from ablate.errors import UserError
from ablate.study.plan.layout import Layout
from ablate.study.plan.request import StudyRequest, read_factor


def with_budgets(request: StudyRequest, baseline: Callable[[], DictConfig]) -> StudyRequest:
    """The request with the steps of study.blocks: {tokens: [1x, 2x]}. baseline: composes it. Raises
    UserError."""
    multiples = (request.node["blocks"] or {}).get("tokens")
    if not isinstance(multiples, list):
        return request
    trainer = baseline().trainer
    if trainer.max_steps == -1:
        raise UserError("study.blocks: tokens: multiples of trainer.max_steps, which is not set")
    steps = {}
    for text in map(str, multiples):
        if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)x", text)) or not float(found[1]):
            raise UserError(f"study.blocks: tokens: {text}: must be a number with x, such as 2x")
        steps[text] = [f"trainer.max_steps={max(1, round(float(found[1]) * trainer.max_steps))}"]
    return replace(request, node={**request.node, "blocks": {"tokens": steps}})


@dataclass(frozen=True)
class Blocks:
    """factor: the key or name after study.blocks; options: block -> its overrides. Empty, and
    false, of a study without blocks."""

    factor: str = ""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, request: StudyRequest) -> "Blocks":
        """Parse study.blocks. Raises UserError."""
        node = request.node["blocks"]
        if not node:
            return cls()
        if len(node) > 1:
            raise UserError(
                f"study.blocks: has {', '.join(map(str, node))}; use one name, whose blocks may"
                " set several keys: NAME: {BLOCK: [KEY=VALUE, ...]}"
            )
        name, options = next(iter(node.items()))
        factor = read_factor(str(name), options, "study.blocks")
        if len(factor.options) < 2:
            raise UserError(f"study.blocks: {name}: needs two blocks at least")
        where = "study.ladder" if request.node["ladder"]["sizes"] else "study.blocks"
        for other in request.factors:
            if both := sorted(factor.keys & other.keys):
                raise UserError(
                    f"{where}: {both[0]} is changed by study.factors: {other.name}, too"
                )
        blocks = cls(factor.name, factor.options)
        folders = [blocks.folder(block) for block in blocks.names]
        if twice := [name for number, name in enumerate(folders) if name in folders[:number]]:
            raise UserError(f"study.blocks: two blocks would share the folder {twice[0]}")
        return blocks

    def __bool__(self) -> bool:
        return bool(self.options)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.options)

    def folder(self, block: str) -> str:
        return re.sub(r"[^A-Za-z0-9.=_+-]", "_", f"{self.factor}={block}")

    def requests(self, request: StudyRequest) -> Iterator[tuple[str, StudyRequest]]:
        """The folder and the request of each block; without blocks "" and the request itself."""
        if not self:
            yield "", request
        for block, overrides in self.options.items():
            node = {**request.node, "claims": []}
            yield (
                self.folder(block),
                replace(request, fixed=merged(request.fixed, overrides), node=node),
            )

    def require_alike(self, layouts: Mapping[str, Layout]) -> None:
        """Raise UserError unless every block has the same arms and seeds."""
        first = next(iter(layouts.values()))
        names = {composed.name for layout in layouts.values() for composed in layout.arms}
        for block, layout in layouts.items():
            if missing := sorted(names - {composed.name for composed in layout.arms}):
                reason = layout.invalid.get(missing[0], "it is another baseline there")
                raise UserError(
                    f"study.blocks: {block} lacks the arm {missing[0]} ({reason}); every block"
                    " needs the same arms: leave it out with study.exclude"
                )
            assert layout.seeds == first.seeds
