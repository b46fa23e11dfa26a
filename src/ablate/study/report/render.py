"""Fill the templates of the page, of Markdown and of the LaTeX table. Every text is escaped unless
it is Markup."""

import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ablate.machine.terminal.say import printable
from ablate.study.numbers import MINUS, NOTHING
from ablate.study.report.figures import BEYOND
from ablate.study.report.sentences import VERDICT_WORDS

Texts = Mapping[str, Any]  # of content.py
TEMPLATES = Path(__file__).parent / "templates"
LONG = 14  # letters from which a word may be broken
# Numbers of quotes and grave accents, which ligatures and babel's languages take for others.
TEX = {
    '"': r"\char34{}", "`": r"{}\char96{}", "|": r"\textbar{}",
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", MINUS: "$-$", "±": r"$\pm$",
    NOTHING: r"\textendash{}", "→": r"$\rightarrow$", "…": r"\ldots{}", "\u00d7": r"$\times$",
    "≥": r"$\geq$", "≤": r"$\leq$",
}  # fmt: skip
# Letters and signs that LaTeX prints in every document.
PLAIN = re.compile(
    "[ -~À-ÏÑ-ÝßŁłŒœà-ïñ-ýÿĆćČčĎďĚěĞğİıŃńŇňŐőŘřŚśŞşŠšŤťŮůŰűŹźŻżŽž\u2014\u2018\u2019\u201c\u201d]"
)
# Any other character if the document can print it; else its code point.
UNICODE = r"""
\makeatletter
\DeclareRobustCommand\unicodechar[2]{\ifdefined\Umathchar#1\else\def\@tempa{OT1}%
  \ifx\@tempa\f@encoding#2\else\ifcsname u8:\detokenize{#1}\endcsname#1\else#2\fi\fi\fi}
\makeatother
"""
FIGURES = {"forest": "difference from the baseline", "curves": "learning curves"}


def page(texts: Texts, **parts: Any) -> str:
    """report.html, one self-contained file. parts: the charts, pictures and samples of the runs."""
    style, script = (
        Markup((TEMPLATES / f"report.{kind}").read_text(encoding="utf-8")) for kind in ("css", "js")
    )
    parts |= {"style": style, "script": script, "policy": _policy(style, script)}
    return _fill("report.html", escape, texts, latex=latex(texts), **parts)


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy under which nothing is requested, and no script or style
    sheet counts but these two. Attributes `style` remain: charts need them."""
    sheet, code = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; script-src 'sha256-{code}'; style-src 'sha256-{sheet}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def markdown(texts: Texts, figures: Mapping[str, str] | None = None) -> str:
    """report.md, for GitHub. figures: files next to it and their descriptions, to be shown with the
    caption of the curves; None shows neither."""
    text = _fill("report.md", _markdown, texts, figures=figures)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def latex(texts: Texts) -> str:
    """table.tex, with the width of an article's text. Its first column wraps; verdicts are a word
    each, since the other columns have their evidence."""
    first, rest = _fill("table.tex", tex, texts).split("\n", 1)
    return first + (UNICODE if r"\unicodechar" in rest else "\n") + rest


def _fill(name: str, escaped: Callable[[str], str], texts: Texts, **more: Any) -> str:
    return _environment(escaped).get_template(f"{name}.jinja").render(**texts, **more)


@cache
def _environment(escaped: Callable[[str], str]) -> Environment:
    """escaped: makes a text harmless in this format."""

    def finalize(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escaped(str(value)))

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # results of macros are Markup
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals |= {"beyond": BEYOND, "nothing": NOTHING, "verdict_words": VERDICT_WORDS}
    made.filters |= {
        "breakable": breakable,
        "breakable_name": lambda name: Markup("=<wbr>").join(map(breakable, name.split("="))),
        "breakable_tex": breakable_tex,
        "cells": cells,
        "comment": lambda line: Markup(" ".join(line.split())),
        "fenced": fenced,
        "label": lambda name: Markup(re.sub(r"[^a-zA-Z0-9:]", "-", name)),
        "sortable": lambda value: "" if value is None else repr(value),
    }
    return made


def breakable(words: str) -> Markup:
    """Let a long name break between its parts rather than inside one."""
    part = Markup("<span>{}</span>")
    lines = (
        Markup(" ").join(part.format(w) if len(w) >= LONG else escape(w) for w in line.split())
        for line in words.splitlines()
    )
    return Markup("\n").join(lines)


def _markdown(words: str) -> str:
    """Escape a text, so that it stays in its cell and is not read as markup."""
    return " ".join(re.sub(r"[\\|*_<`\[~$]", r"\\\g<0>", words).split())


def cells(row: Collection[str]) -> Markup:
    """A row of a table of Markdown."""
    return Markup(" | ".join(_markdown(cell.replace("\n", "; ")) for cell in row))


def fenced(lines: Sequence[str]) -> Markup:
    """Show lines as they are, between fences that are longer than any in them."""
    words = "\n".join(lines)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", words)), 3)
    return Markup(f"{fence}\n{words}\n{fence}")


def tex(words: str) -> str:
    """Escape every character that TeX takes for a command, part of a ligature or an error."""
    line = " ".join(printable(unicodedata.normalize("NFC", words)).split())
    escaped = "".join(
        TEX.get(c, c) if c in TEX or PLAIN.match(c) else rf"\unicodechar{{{c}}}{{U+{ord(c):04X}}}"
        for c in line
    )
    return re.sub(r"([-',])(?=\1)", r"\1{}", escaped)


def breakable_tex(name: str) -> Markup:
    """Let a name break after its separators; [ and * at its start would be arguments of \\\\ and
    \\midrule."""
    name = re.sub(r"[=.,/]|\\_", r"\g<0>\\allowbreak{}", tex(name))
    return Markup(re.sub(r"^[*\[]", r"{\g<0>}", name))
