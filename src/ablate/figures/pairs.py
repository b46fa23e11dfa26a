"""Attention maps of a sequence-to-sequence model: cross-attention, and self-attention per side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ablate.data.pairs import BOS, Pairs
from ablate.figures.maps import ALIGNMENT, Map
from ablate.figures.panels import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 0.15  # inches of a token: sentences are short
LONGEST = 36  # characters of a sentence above its panel
# By kind of map: the title, and the labels of the axes of queries and of keys.
WORDS = {
    "cross": (
        "Attention of the decoder to the source (cross-attention)",
        "query (target token being written)",
        "key (attended source token)",
    ),
    "encoder": (
        "Attention of the encoder to the source (self-attention)",
        "query (attending source token)",
        "key (attended source token)",
    ),
    "decoder": (
        "Attention of the decoder to earlier target tokens; gray: masked",
        "query (target token being written)",
        "key (attended target token)",
    ),
}


def pair_drawer(
    data: Pairs,
    examples: Sequence[dict[str, Any]],
    alignments: Sequence[Map],
    caption: str,
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: a panel for each head, or for each example if there is a single head.

    alignments: the map of each example, if there is a single head.
    caption: the source of the targets. If the data knows the alignment, it is outlined.
    """

    def panel(map_: Map, head: int, example: dict[str, Any], title: str) -> Panel:
        source, target = example["source_labels"], example["target_labels"]
        read = [data.target_tokenizer.label(BOS), *target[:-1]]
        queries, keys = {
            "cross": (target, source),
            "encoder": (source, source),
            "decoder": (target, read),
        }[map_.kind]
        return Panel(
            title, map_.weights[head - 1], queries, keys, map_.allowed, links(map_, example)
        )

    def links(map_: Map, example: dict[str, Any]) -> Sequence[tuple[range, range]]:
        known = map_.kind == "cross" and "index" in example
        return (data.alignment("val", int(example["index"])) if known else None) or ()

    def alignment(map_: Map, example: dict[str, Any]) -> Panel:
        text = data.source_tokenizer.decode(example["source"][0].tolist())
        return panel(map_, 1, example, text[:LONGEST] + "…" * (len(text) > LONGEST))

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        if map_.name == ALIGNMENT:
            panels = list(map(alignment, alignments, examples))
            where = ""
        else:
            panels = [panel(map_, head, examples[0], f"head {head}") for head in heads]
            where = f"layer {map_.layer} of {map_.layers}; "
        title, query, key = WORDS[map_.kind]
        outlined = "; outlined: its source" if any(p.outlined for p in panels) else ""
        title = f"{title}\n{where}{caption}{outlined}"
        return draw_panels(panels, title, query=query, key=key, cell=CELL)

    return figure
