"""Paragraphs of Python's documentation with their chapters: labeled texts without a download.

`pydoc_data.topics` (see ablate.data.pydoc) comes from labeled sections of the chapters below,
files of Doc/reference and Doc/library in Python's sources. Topics contain each other, so a
paragraph is taken once; one that occurs in two chapters is left out.
"""

import re

from ablate.data.pydoc import topics

CHAPTERS: dict[str, str] = {
    "lexical_analysis": "floating id-classes identifiers imaginary integers numbers strings",
    "datamodel": "attribute-access callable-types context-managers customization numeric-types"
    " objects sequence-types specialnames types",
    "execution_model": "dynamic-features exceptions execmodel naming",
    "expressions": "atom-identifiers atom-literals attribute-references await binary bitwise"
    " booleans calls comparisons conversions dict exprlists in lambda lists operator-summary power"
    " shifting slicings subscriptions unary",
    "simple_statements": "assert assignment augassign break continue del global import nonlocal"
    " pass raise return yield",
    "compound_statements": "async class compound else for function if try while with",
    "builtin_types": "bltin-code-objects bltin-ellipsis-object bltin-null-object"
    " bltin-type-objects specialattrs string-methods truth typesfunctions typesmapping"
    " typesmethods typesmodules typesseq typesseq-mutable",
    "format_strings": "formatstrings",
    "debugger": "debugger",
}
SHORTEST = 60  # characters: shorter paragraphs are headings and lines of grammar


def paragraphs() -> tuple[list[str], list[str]]:
    """Paragraphs in the order of their chapters, and the chapter of each."""
    texts = topics()
    chapters: dict[str, set[str]] = {}
    for chapter, names in CHAPTERS.items():
        for name in names.split():
            for paragraph in _paragraphs(texts.get(name, "")):
                chapters.setdefault(paragraph, set()).add(chapter)
    clear = {paragraph: next(iter(of)) for paragraph, of in chapters.items() if len(of) == 1}
    return list(clear), list(clear.values())


def _paragraphs(text: str) -> list[str]:
    """Paragraphs without the indentation of their lines, which depends on the quoting topic."""
    parts = (re.sub(r"\n[ \t]*", "\n", part).strip() for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if len(part) >= SHORTEST]
