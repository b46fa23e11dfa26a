"""Figures as SVG inside the page, with its colors, tooltips and highlighting."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), darkened for contrast on white; the baseline is nearly black.
COLORS = ("#0072b2", "#d55e00", "#00916a", "#b85c9e", "#b58900", "#2f9fd8", "#7a5195")
BASE, REST, SOFT, RULE, BACK = "#1b1f24", "#b9c0c8", "#57606a", "#d5dae0", "#ffffff"
VERDICTS = {"better": "#0060a8", "worse": "#b34700", "equivalent": "#00735c"} | dict.fromkeys(
    ("inconclusive", "too_few_seeds"), "#57606a"
)
# The page has other values of these in the dark.
THEME = {color: f"var(--c{number})" for number, color in enumerate(COLORS, 1)} | {
    VERDICTS["better"]: "var(--better)",
    VERDICTS["worse"]: "var(--worse)",
    VERDICTS["equivalent"]: "var(--same)",
    BASE: "var(--ink)",
    REST: "var(--rest)",
    SOFT: "var(--soft)",
    RULE: "var(--rule)",
    BACK: "var(--back)",
}
PIXELS = 4 / 3  # of CSS in a point
LEAST = 0.7  # a chart shrinks to this scale before it scrolls, so that it can be read
UNFIT = "[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]"  # for XML


def color_of(kind: str) -> str:
    """Return the color of classes that end in base, rest, c1, c2, ..."""
    last = kind.split()[-1]
    return {"base": BASE, "rest": REST}.get(last) or COLORS[int(last[1:]) - 1]


class Mark(NamedTuple):
    """Additions of the page to an artist: classes, the last of which sets the color; the arm to
    highlight while the mouse is over it; its tooltip, and those of its single markers."""

    kind: str = ""
    arm: str | None = None
    tip: str | None = None
    tips: Sequence[str] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure, and the marks of its artists by their gid."""

    figure: "Figure"
    marks: dict[str, Mark] = field(default_factory=dict)

    def mark(self, artist: "Artist", mark: Mark) -> None:
        artist.set_gid(gid := f"artist{len(self.marks)}")
        self.marks[gid] = mark

    def plot(self, axes: "Axes", x: Any, y: Any, style: str, mark: Mark, **looks: Any) -> None:
        """Plot in the color of the mark, and mark the line."""
        (line,) = axes.plot(x, y, style, color=color_of(mark.kind), **looks)
        self.mark(line, mark)


def inline(drawing: Drawing, name: str) -> list[Markup]:
    """Return an <svg> of each axes, described by its label, so that they can flow on the page.

    Call it after the figure was saved, which makes its layout. name: of the figure; it begins the
    ids of clips and markers, which must differ within a page.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure, file = drawing.figure, StringIO()
    figure.dpi = 72  # so that pixels are points, the unit of the SVG
    for index, axes in enumerate(figure.axes):
        axes.set_gid(f"axes{index}")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        FigureCanvasSVG(figure).print_svg(file)
    root = ElementTree.fromstring(re.sub(UNFIT, "\ufffd", file.getvalue()))
    for element in root.iter():
        _adapt(element, drawing)
    by_id = {element.get("id"): element for element in root.iter("g")}
    elements = []
    for index, axes in enumerate(figure.axes):
        box = axes.get_tightbbox()
        assert box is not None
        box = box.padded(2)  # the page's letters are other ones
        wide = box.width * PIXELS
        sides = (box.x0, figure.bbox.height - box.y1, box.width, box.height)
        attributes = {
            "class": "chart",
            "viewBox": " ".join(f"{side:.1f}" for side in sides),
            "role": "group",  # an image has no parts that can be reached
            "aria-label": str(axes.get_label()),
            "style": f"width: {wide:.0f}px; min-width: {LEAST * wide:.0f}px",
        }
        elements.append(ElementTree.Element("svg", attributes))
        elements[-1].append(by_id[f"axes{index}"])
    elements[0].extend(root.findall("defs")[-1:])  # the clips of all
    for element in (child for svg in elements for child in svg.iter("g")):
        element.attrib.pop("id", None)
    return [Markup(ElementTree.tostring(svg, encoding="unicode")) for svg in elements]


def _adapt(element: ElementTree.Element, drawing: Drawing) -> None:
    """Shorten an element, color it by the page's theme, and add the additions of its artist."""
    element.tag = element.tag.rpartition("}")[2]
    element.text = (element.text or "").strip() or None
    element.tail = None
    for key, value in list(element.attrib.items()):
        if key.endswith("}href"):  # of xlink, which HTML does not need
            element.attrib["href"] = element.attrib.pop(key)
        elif key == "style":
            style = re.sub(r"font-family: [^;]*(; )?", "", value)  # the page has its own
            style = re.sub(r"font: ([\d.]+px) [^;]*", r"font-size: \1", style)  # matplotlib < 3.11
            colored = re.sub(r"#[0-9a-f]{6}", lambda match: THEME.get(match[0], match[0]), style)
            element.set(key, colored)
        elif value.startswith("rotate(-0 "):
            del element.attrib[key]
        elif key in ("d", "x", "y", "transform"):
            element.set(key, re.sub(r"(\.\d\d)\d+", r"\1", " ".join(value.split())))
    mark = drawing.marks.get(element.get("id", ""), Mark())
    for key, attribute in (("class", mark.kind), ("data-arm", mark.arm), ("data-tip", mark.tip)):
        if attribute:
            element.set(key, attribute)
    dots = [child for child in element.iter() if child.tag.endswith("use")] if mark.tips else []
    for dot, tip in zip(dots, mark.tips, strict=True):
        dot.set("data-tip", tip)
