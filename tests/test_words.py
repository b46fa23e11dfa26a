"""Words that pages, options, messages and docstrings avoid, since the field has others: their
counts may only fall (lists, states for "says"; requires for "asks"; unknown X for "there is no
X")."""

import ast
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SYSTEMS = ROOT / "src/ablate/systems"


def pages() -> Iterator[str]:
    made = ("options", "systems")  # folders of docs/, by the site
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    return (f.read_text() for f in files if f.parent.name not in made)


def options() -> Iterator[str]:
    """The comments of options and sweeps."""
    for folder in ("conf", "sweeps", "src"):
        for file in sorted((ROOT / folder).rglob("*.yaml")):
            yield from re.findall(r"(?:^|\s)#(.*)", file.read_text())


def messages() -> Iterator[str]:
    """The strings of the source, except docstrings."""
    for tree in map(ast.parse, sources()):
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield "" if id(node) in docs else node.value


def docstrings() -> Iterator[str]:
    """And the comments of the source."""
    for text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""
        lines = iter(text.splitlines(keepends=True))
        tokens = tokenize.generate_tokens(lambda lines=lines: next(lines, ""))
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)


def sources() -> Iterator[str]:
    return (file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))


PLACES = (pages, options, messages, docstrings)
BRITISH = (
    r"\w*(?:colour|neighbour|behaviour|favour|artefact|licence|modell|labell|misspelt)\w*"
    r"|cent(?:re|red|res)"
    r"|\w*(?:initial|normal|optim|recogn|token|minim|random|regular|summar)is[ei]\w*"
)
NOWHERE = (
    r"whatever|gives?|, too|anew|once more|likewise|whole numbers?|in spite of|strangers?|somebody"
    r"|(?:FLOPs|bytes|words|samples|pixels|seconds) a \w+|one that goes|one that went|first model"
    r"|(?:more|fewer) (?:maps|parameters) than|(?:maps|parameters) (?:more|fewer)|in turns"
    r"|mend(?:s|ed)?|by heart|for ever|(?:your|person's) word"
)
# How many matches each place has at most.
ALLOWED = {
    r"says?|said": (3, 0, 0, 3),
    r"stands?": (0, 1, 1, 3),
    r"beside": (0, 0, 1, 0),
    r"what": (6, 11, 1, 4),
    r"alone": (1, 1, 0, 5),
    r"of (?:your|one's|its|their) own|own parts?|of ours": (1, 0, 0, 2),
    r"(?:is|are) no(?! longer| more)": (1, 0, 0, 5),
    r"there (?:is|are) no|is not there": (1, 0, 0, 5),
    r"holds?|held": (2, 1, 0, 5),
    r"asks?": (0, 0, 4, 0),
    r"where": (7, 2, 3, 8),
    r"apart": (0, 0, 2, 6),
    r"(?:be|quote|is) a text": (0, 0, 0, 2),
    r"(?<!standard )deviation": (2, 0, 2, 1),
    r"wide": (6, 1, 1, 2),
    r"drawn|the draw": (7, 0, 6, 20),
    r"(?:of|by|to|in) which": (1, 0, 1, 1),
    r"(?:is|are) made|made (?:of|from)": (1, 0, 0, 8),
    r"tries|(?:a|one|last|each) try": (1, 0, 0, 1),
    r"refus(?:e|es|ed|al)": (0, 0, 0, 3),
    NOWHERE: (0, 0, 0, 0),
    BRITISH: (0, 0, 0, 0),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_words_of_no_field_become_no_more(place: Callable[[], Iterator[str]]) -> None:
    texts, number = "\n".join(place()), PLACES.index(place)
    more, fewer = {}, {}
    for pattern, allowed in ALLOWED.items():
        count = len(re.findall(rf"\b(?:{pattern})\b", texts, re.IGNORECASE))
        if count != allowed[number]:
            (more if count > allowed[number] else fewer)[pattern] = (count, allowed[number])
    if fewer:
        warnings.warn(f"lower the numbers of {place.__name__} to {fewer}", stacklevel=1)
    assert not more, f"{place.__name__} (found, allowed): {more}"
