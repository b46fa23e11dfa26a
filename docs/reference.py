"""Write a reference page per config group: conf/, docstrings, formulas.md and side-effects.md.

Called by conf.py when the site is built: a page for each group in docs/options/, which git ignores.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

from ablate.cli.help import docstring_of, header, keys_text, meanings, option_files
from ablate.config.tree import Tree, open_tree

HERE = Path(__file__).parent
SYSTEMS = sorted(HERE.parent.glob("src/ablate/systems/*/README.md"))
ROW = re.compile(r"^\| (.*) \|$", re.MULTILINE)
# Groups whose options are complete commands, each with a comment.
FILES = ("sweep", "experiment", "debug")


def write(folder: Path) -> None:
    """Write a page for each group, and index.md, which lists them."""
    folder.mkdir(exist_ok=True)
    tree = open_tree(None)
    pages = {group: page(group, tree) for group in (*tree.groups, "hydra/launcher")}
    for group, text in pages.items():
        (folder / f"{name(group)}.md").write_text(text)
    lines = [f"- [`{group}`]({name(group)}.md): {about(group)}" for group in pages]
    contents = "\n".join(["```{toctree}", ":hidden:", *map(name, pages), "```"])
    head = "# Options\n\nSelect an option of a config group on the command line: GROUP=OPTION."
    (folder / "index.md").write_text("\n\n".join([head, "\n".join(lines), contents, ""]))


def write_systems(folder: Path) -> None:
    """Write the page of each system with its links changed, and index.md, which lists them."""
    folder.mkdir(exist_ok=True)
    pages = {page.parent.name: page.read_text() for page in SYSTEMS}
    for name, text in pages.items():
        text = text.replace("](../../../../docs/", "](../").replace("](../../../../", "](../../")
        (folder / f"{name}.md").write_text(text)
    head = "# Systems\n\nComplete models, each with data, task, figures and studies in one folder."
    contents = "\n".join(["```{toctree}", *pages, "```"])
    (folder / "index.md").write_text("\n\n".join([head, contents, ""]))


def link_systems(app: object, page: str, source: list[str]) -> None:
    """Links to the README.md of a system lead to its page."""
    link = r"\]\([./]*/src/ablate/systems/(\w+)/README\.md"
    source[0] = re.sub(link, r"](/systems/\1.md", source[0])


def name(group: str) -> str:
    return group.replace("/", "_")


def about(group: str) -> str:
    module = f"ablate.{group.removeprefix('hydra/')}"
    return meanings().get(group) or first_sentence(docstring_of(f"{module}.X"))


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()), maxsplit=1)[0]


def page(group: str, tree: Tree) -> str:
    files = dict(option_files([group], tree))
    parts = [f"# {group}", about(group)]
    for key, text in files.items():
        option = key.partition("=")[2]
        parts += [f"## {option}", header(text) + "."]
        target = re.search(r"^ *_target_: (\S+)$", text, re.MULTILINE)
        if target:
            parts += [*formulas(target[1]), docstring_of(target[1])]
        if (changes := also(group).get(option)) and changes != "none":
            parts.append(f"Side effects: {changes}.")
        body = dedent(keys_text(key, tree).partition("\n")[2])
        body = body.removeprefix(f"# {header(text)}").strip("\n")
        if group in FILES:
            parts.append(f"`python -m ablate {key}`")
        parts.append(f"```yaml\n{body}\n```")
    return "\n\n".join(filter(None, parts)) + "\n"


def formulas(target: str) -> Iterator[str]:
    """Yield the formulas of an option's module, from formulas.md or the page of its system."""
    module = target.rpartition(".")[0]
    pages = {"reference/formulas": (HERE / "reference" / "formulas.md").read_text()}
    pages |= {f"systems/{page.parent.name}": page.read_text() for page in SYSTEMS}
    for page, text in pages.items():
        for row in ROW.findall(text):
            cells = re.split(r" (?<!\\)\| ", row)
            if len(cells) > 3 and cells[3].startswith(f"[{module}]"):
                example = f"[Example](../{page}.md)"
                yield f"**Formula** ({cells[0]}): {cells[1]}. {cells[2]}. {example}"


def also(group: str) -> dict[str, str]:
    """Side effects of the options of a group, from the tables of side-effects.md and of systems."""
    found: dict[str, str] = {}
    current: list[str] = []
    pages = (HERE / "reference" / "side-effects.md", *SYSTEMS)
    for line in "\n".join(page.read_text() for page in pages).splitlines():
        if line.startswith("`"):
            current = re.findall(r"`([\w.]+)`", line.partition(". ")[0])
        elif line.startswith("## "):
            current = []
        elif (row := re.match(r"\| `([\w]+)` \| (.*) \|$", line)) and group in current:
            found[row[1]] = row[2]
    return found
