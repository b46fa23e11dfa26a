"""No import goes against the order of folders in CONTRIBUTING.md; what the pages name is there."""

import ast
import csv
import re
import shlex
import subprocess
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from conftest import AREAS, areas
from make_systems import REMOVED
from omegaconf import OmegaConf

import ablate
from ablate import generate
from ablate.cli.command import Arguments
from ablate.config.composition import compose
from ablate.config.overrides import ALIASES, parse_all
from ablate.config.tree import config_file, config_files, open_tree
from ablate.errors import UserError
from ablate.machine.version import PACKAGE
from ablate.study.plan.cells import Composer
from ablate.study.plan.claims import parse_claims
from ablate.study.plan.layout import lay_out
from ablate.study.plan.request import parse_request

FILES = {
    ".".join(("ablate", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in PACKAGE.rglob("*.py")
}
# What makes the data for its fingerprint.
UPWARDS = {
    ("ablate.config.composition", "ablate.data"),
    ("ablate.config.make", "ablate.data"),
}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}: a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else node.module


def folder(module: str) -> str:
    return module.removeprefix("ablate.").partition(".")[0]


@cache
def arrows() -> set[tuple[str, str]]:
    return {(file, other) for file in FILES for other in imported(FILES[file]) if other in FILES}


@pytest.mark.ci
def test_no_import_goes_up() -> None:
    tree = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    folders = re.findall(r"^      (\w+)/ ", tree, re.MULTILINE)
    assert sorted(folders) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    place = {folder: number for number, folder in enumerate(folders)}
    between = [(a, b) for a, b in arrows() if {folder(a), folder(b)} <= place.keys()]
    assert {(a, b) for a, b in between if place[folder(b)] < place[folder(a)]} == UPWARDS


def test_no_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for file, other in arrows():
        # Python imports the packages around a module before it.
        around = {".".join(other.split(".")[:depth]) for depth in range(2, other.count(".") + 1)}
        outer = {package for package in around if not f"{file}.".startswith(f"{package}.")}
        graph.setdefault(file, set()).update({other} | outer)
    TopologicalSorter(graph).prepare()  # CycleError names the circle


# What README.md and CONTRIBUTING.md promise about files and commands is there


ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
MADE = ("options", "systems")  # folders of docs/, by the site
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in ROOT.glob("docs/**/*.md") if page.parent.name not in MADE),
    *sorted(ROOT.glob("src/ablate/systems/*/README.md")),
]
PROMISES = "".join(page.read_text() for page in PAGES)
PROMISES = PROMISES.replace("\\\n", "")  # a command of several lines
# A command after "$ " shows what it answers, which may be a refusal.
STARTED = r"(?<!\$ )(?:python|torchrun[^`\n]*?) -m ablate "
COMMANDS = re.findall(rf"{STARTED}(?!-)([^`\n#|]*)", PROMISES)


@contextmanager
def unless_removed() -> Iterator[None]:
    """A command may name an option of a system that was removed."""
    try:
        yield
    except UserError as error:
        if not REMOVED or not any("no such option" in str(line) for line in error.args):
            raise


def test_ci_runs_the_two_lines_of_the_start():
    start = README.split("## Quick start\n")[1].split("\n## ")[0]
    lines = ["pip install -e . && python -m ablate", "pip install -e '.[dev]' && pytest"]
    assert re.findall(r"^    (.*)$", start, re.MULTILINE) == lines
    steps = (ROOT / ".ci" / "run").read_text()
    assert steps.index('bash -c "$(readme 1)"') < steps.index('bash -c "$(readme 2)"')
    function = steps[steps.index("readme() {") : steps.index('echo "ci: the newest')]
    script = ["bash", "-c", f"{function}readme 1; readme 2"]
    assert subprocess.check_output(script, cwd=ROOT, text=True).splitlines() == lines


def test_the_site_is_published_as_ci_builds_it():
    """And as README.md and docs/conf.py have it."""
    site = yaml.safe_load((ROOT / ".github/workflows/site.yml").read_text())
    steps, deploy = site["jobs"]["build"]["steps"], site["jobs"]["deploy"]
    (line,) = [step["run"] for step in steps if "sphinx-build" in step.get("run", "")]
    assert line.startswith("sphinx-build -q -W ")
    assert line.replace("outputs/site", '"$work/site"') in (ROOT / ".ci/run").read_text()
    assert line in README
    assert line in (ROOT / "docs/conf.py").read_text()
    (upload,) = [step for step in steps if "upload-pages-artifact@" in step.get("uses", "")]
    assert upload["with"]["path"] == line.split()[-1]
    assert deploy["needs"] == "build"
    assert "/deploy-pages@" in deploy["steps"][-1]["uses"]
    assert {"pages": "write", "id-token": "write"}.items() <= site["permissions"].items()


def test_every_name_in_the_readmes_table_can_be_typed():
    table = README.split("## Components and options")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| `([\w.]+)` \| (`.*) \|$", table, re.MULTILINE)
    assert len(rows) > 8
    for group, cell in rows:
        for option in re.findall(r"`(\w+)`", cell):
            assert REMOVED or config_file(f"{group}/{option}.yaml").exists(), (group, option)
    default = compose()
    for key in re.findall(r"`(model\.\w+)[`=]", table):
        assert OmegaConf.select(default, ALIASES.get(key, key), default=REMOVED) != REMOVED, key


def test_every_paper_has_its_command_and_its_verdicts():
    page = (ROOT / "docs/how-to/reproduce-a-paper.md").read_text()
    with (ROOT / "docs/results/claims.csv").open() as file:
        verdicts = Counter((row["study"], row["verdict"]) for row in csv.DictReader(file))
    for paper in config_files("sweep/papers/*.yaml"):
        row = rf"sweep=(papers/{paper.stem})\b.*\| (\d+) / (\d+) / (\d+) \|$"
        found = re.search(row, page, re.MULTILINE)
        assert found, paper.stem
        study, *counts = found.groups()
        kinds = ("confirmed", "undecided", "refuted")
        assert [int(count) for count in counts] == [verdicts[study, kind] for kind in kinds], study


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.ci), 12])
def test_every_command_composes(tmp_path, every):
    file = tmp_path / "FILE"
    file.write_text("text")
    assert len(COMMANDS) > 10
    for overrides in sorted({c.removesuffix("...").strip() for c in COMMANDS})[::every]:
        words = shlex.split(overrides.replace("FILE", str(file)).replace("DIR", str(tmp_path)))
        if not any(word.startswith("--") for word in words):
            with unless_removed():
                compose(*words)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.ci), 3])
def test_every_command_of_several_runs_is_planned(every):
    lines = {line.strip() for line in re.findall(rf"{STARTED}-m ([^`\n#|]*)", PROMISES)}
    # Of sweep files, which tests/test_plan.py plans, those with another study.
    lines |= {line.strip() for line in COMMANDS if re.search(r"sweep=.* \"?study\.[fmtab]", line)}
    plans = [words for line in sorted(lines) if "optuna" not in (words := shlex.split(line))[0]]
    assert len(plans) > 8
    for words in plans[::every]:
        with unless_removed():
            assert len(planned(*words).arms) > 1, words


def planned(*words, config_dir=None):
    tree = open_tree(config_dir)
    fixed = [o.input_line for o in parse_all([*words]) if not o.is_sweep_override()]
    command = tree.load(fixed)
    request = parse_request(command, [*words], tree)
    return lay_out(request, Composer(tree, command, request.fixed))


@pytest.mark.ci
def test_every_block_of_yaml_is_valid(tmp_path):
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PROMISES, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    for text in blocks:
        found = yaml.safe_load(text)
        study = found.get("study") if isinstance(found, dict) else {"claims": found}
        if text.startswith("# @package _global_") or (study and "claims" not in study):
            if "factors" not in study:  # some keys of a study
                found["study"] = study | {"factors": {"model.attention": ["additive", "dot"]}}
                found["defaults"] = [{"override /model": "rnn_seq2seq"}]
            text = f"# @package _global_\n{yaml.safe_dump(found, sort_keys=False)}"
            write(tmp_path / "sweep/page.yaml", text)
            assert len(planned("sweep=page", config_dir=tmp_path).arms) > 1
        elif study:
            uses = [use for claim in study["claims"] for use in (claim, claim.get("more_than", {}))]
            arms = {
                str(use[key]) for use in uses for key in ("arm", "than", "versus") if key in use
            }
            assert len(parse_claims(study["claims"], arms, "baseline")) == len(study["claims"])
        else:
            pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
            write(tmp_path / "hydra/launcher/page.yaml", text)
            tree = open_tree(tmp_path)
            assert tree.load(["hydra/launcher=page"]).hydra.launcher.partition == "gpu"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_every_block_of_python_names_what_is_there():
    blocks = re.findall(r"^```python\n(.*?)^```$", PROMISES, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    for text in blocks:
        compile(text, "a page", "exec")
        assert set(re.findall(r"\bablate\.(\w+)\(", text)) <= set(ablate.__all__)


VARIABLE = re.compile(r"\b(?:ABLATE|WANDB)_[A-Z][A-Z_]+\b")
FLAGS = (ROOT / "docs/reference/cli.md").read_text().split("## Flags")[1]


def require_explained(parser: ArgumentParser) -> None:
    for action in parser._actions:
        assert action.help, (parser.prog, action.dest)
        for flag in set(action.option_strings) - {"-h", "--help"}:
            assert re.search(rf"`{flag}[` ]", FLAGS), (parser.prog, flag)


class Parsed(Exception):
    """The arguments of a command were understood."""


def test_every_other_command_is_parsed(monkeypatch):
    """And every argument is explained, in docs/reference/cli.md too; cut commands are left out."""

    def parse(self, *_):
        ArgumentParser.parse_intermixed_args(self)
        require_explained(self)
        raise Parsed

    monkeypatch.setattr(Arguments, "parse_args", parse)
    monkeypatch.setattr(Arguments, "parse_intermixed_args", parse)
    pattern = r"(?:python -m ablate\.|`ablate )(\w+)((?: (?!`)[^`\n#|]*)?)`?"
    commands = set(re.findall(pattern, PROMISES))
    whole = [one for one in commands if one[1].strip() and one[1].count('"') % 2 == 0]
    assert len(whole) > 25
    for name, words in whole:
        monkeypatch.setattr("sys.argv", ["ablate", *shlex.split(words)])
        if name not in ("generate", "lm_eval") and (name != "diff" or len(shlex.split(words)) > 1):
            with pytest.raises(Parsed):
                import_module(f"ablate.{name}").main()


def test_every_way_to_generate_is_parsed():
    """By the options of one kind of model; each is explained, in docs/reference/cli.md, too."""
    parsers = [generate.parser_of(kind) for kind in generate.families().values()]
    for parser in parsers:
        require_explained(parser)
    typed = set(re.findall(r"python -m ablate\.generate RUN_DIR([^`\n#|]*)", PROMISES))
    assert len(typed) > 5
    for words in map(shlex.split, typed - {" --allow my --seed 1"}):
        assert REMOVED or any(not parser.parse_known_args(words)[1] for parser in parsers), words


def test_every_environment_variable_is_in_the_reference():
    page = (ROOT / "docs/reference/environment-variables.md").read_text()
    read = {name for f in PACKAGE.rglob("*.py") for name in VARIABLE.findall(f.read_text())}
    assert len(read) > 3
    assert [name for name in read if f"`{name}`" not in page] == []


OWN = re.compile(rf"ablate\b|{'|'.join(file.stem for file in ROOT.glob('benchmarks/*.py'))}$")


def test_every_name_that_docs_and_benchmarks_import_is_there():
    """They run by themselves, long after a name has changed."""
    missing = []
    for path in [*ROOT.glob("docs/*.py"), *ROOT.glob("benchmarks/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and OWN.match(node.module or ""):
                module = import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if not hasattr(module, name) and f"{node.module}.{name}" not in FILES:
                        missing.append(f"{path.name}: {node.module}.{name}")
    assert missing == []


def test_every_link_to_a_file_leads_somewhere():
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / link if link else page
            if not REMOVED.intersection(Path(link).parts):
                assert target.exists(), (page, link)
                assert not anchor or anchor in anchors(target), (page, link, anchor)


def anchors(page: Path) -> set[str]:
    """Those of its headings, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_path_in_contributing_is_there():
    for path in re.findall(r"`((?:conf|src|tests|docs|sweeps|benchmarks)/[^` ]*)`", CONTRIBUTING):
        if "NAME" not in path:
            assert any(ROOT.glob(path.rstrip("/"))), path
    tree = CONTRIBUTING.split("## Code layout")[1].split("\n## ")[0]
    for path in re.findall(r"^    (\w+/)", tree, re.MULTILINE):
        assert (ROOT / path).is_dir(), path
    for path in re.findall(r"^      ([\w.]+(?:\.py|/))", tree, re.MULTILINE):
        assert (ROOT / "src" / "ablate" / path).exists(), path


def test_every_test_file_has_an_area_that_contributing_names():
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert len(areas(path)) == 1, path.name
    for area in AREAS:
        assert f"-m {area}`" in CONTRIBUTING, area
