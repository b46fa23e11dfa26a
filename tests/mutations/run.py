"""Breaks the source in one place at a time, as a person might, and says which test notices.

    python tests/mutations/run.py                       # all of them
    python tests/mutations/run.py kernel "wrong axis"   # an area, and those with these words
    python tests/mutations/run.py study --tests all     # by all that CI runs

A mutation is a table of AREA.toml, or of tests/systems/NAME/mutations.toml, named by what is
broken: `old`, which `file` has exactly once, becomes `new` in a copy of the project, and one of
`tests` (test_NAME.py) has to fail there, and to pass without it. A survivor is a hole in the tests,
or changes nothing that anyone could see.
What was found stays in outputs/mutations.json for as long as the mutation, its file and its tests.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import time
import tomllib
from contextlib import suppress
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "outputs" / "mutations.json"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "outputs", "__pycache__", ".*_cache", "dist")
RUN = "not slow or ci"  # what CI runs
LIMIT = 900  # seconds for the tests of a mutation


class Mutation(NamedTuple):
    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, root: Path = ROOT) -> str:
        """The file's text with the mutation; ValueError if it does not fit the source."""
        files = (self.file, *self.tests)
        if missing := [file for file in files if not (root / file).is_file()]:
            raise ValueError(f"{self.name}: there is no {', '.join(missing)}")
        text = (root / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has its old text {times} times, not once")
        broken = text.replace(self.old, self.new)
        try:
            compile(broken, self.file, "exec")
        except SyntaxError as error:
            raise ValueError(f"{self.name}: {self.file} is no Python any more: {error}") from error
        return broken

    def digest(self) -> str:
        """Of all that a result rests on."""
        files = [(ROOT / name).read_text() for name in (self.file, *self.tests)]
        return sha256(repr((self, files)).encode()).hexdigest()


def mutations() -> list[Mutation]:
    found = []
    folder = Path(__file__).parents[1]
    files = {path.stem: str(path.relative_to(ROOT)) for path in folder.rglob("test_*.py")}
    systems = sorted((ROOT / "src/ablate/systems").glob("*/"))
    of_systems = [folder / "systems" / system.name / "mutations.toml" for system in systems]
    of_systems = [path for path in of_systems if path.exists()]
    for path in [*sorted(Path(__file__).parent.glob("*.toml")), *of_systems]:
        area = "systems" if path in of_systems else path.stem
        for name, it in tomllib.loads(path.read_text()).items():
            tests = tuple(files.get(f"test_{test}", test) for test in it["tests"])
            found.append(Mutation(area, name, it["file"], it["old"], it["new"], tests))
    return found


def chosen(words: list[str]) -> list[Mutation]:
    every = mutations()
    areas = dict.fromkeys(m.area for m in every)
    of = {w: [m for m in every if (m.area == w if w in areas else w in m.name)] for w in words}
    if missing := [word for word, some in of.items() if not some]:
        raise SystemExit(f"{missing[0]}: in no mutation's name, nor an area ({', '.join(areas)})")
    return [m for m in every if not words or any(m in some for some in of.values())]


def failures(copy: Path, *arguments: str) -> list[str]:
    """The tests that fail in the copy, by pytest in a fork that need not import torch again."""
    cache, log = copy / ".pytest_cache", copy / ".pytest.log"
    shutil.rmtree(cache, ignore_errors=True)
    options = ["-o", f"cache_dir={cache}", *arguments]
    fork = get_context("fork").Process(target=run_pytest, args=(copy, log, options))
    fork.start()
    try:
        fork.join(LIMIT)
        ended = not fork.is_alive()
    finally:  # at Ctrl-C, too
        with suppress(ProcessLookupError):
            os.killpg(fork.pid or 0, signal.SIGKILL)
    failed = cache / "v/cache/lastfailed"
    if fork.exitcode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest ended with {fork.exitcode}:\n{log.read_text()[-2000:]}")
    if ended and failed.exists():
        return list(json.loads(failed.read_text()))
    said = f"pytest ended with {fork.exitcode}" if ended else f"no end within {LIMIT} s"
    return [] if fork.exitcode == 0 else [said]


def run_pytest(copy: Path, log: Path, options: list[str]) -> NoReturn:
    os.setsid()
    os.chdir(copy)
    with log.open("w") as out:
        for stream in (1, 2):
            os.dup2(out.fileno(), stream)
    data = ROOT.parent / "shared" / "data"
    os.environ.setdefault("ABLATE_SHARED_DATA", str(data))
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy / "src")
    code = int(pytest.main(options))
    sys.stdout.flush()
    os._exit(code)


def preload() -> None:
    """Import what most tests import, under the settings of tests/conftest.py."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if not importlib.import_module("torch").cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"
    for name in ("lightning.pytorch", "torchmetrics", "hydra", "statsmodels.api", "torch._dynamo"):
        importlib.import_module(name)


def keep(found: dict[str, Any]) -> None:
    FOUND.parent.mkdir(exist_ok=True)
    new = FOUND.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1))
    new.replace(FOUND)


def try_all(some: dict[str, Mutation], found: dict[str, Any], copy: Path, *, whole: bool) -> None:
    """Fill `found`. some: the mutations by the keys that they have there."""
    for number, (key, mutation) in enumerate(some.items(), 1):
        if key not in found:
            start, file = time.monotonic(), copy / mutation.file
            sound = file.read_text()
            file.write_text(mutation.applied(copy))
            tests = ["-n", "auto", "tests"] if whole else ["-n", "0", *mutation.tests]
            by = failures(copy, "-x", "-m", RUN, *tests)
            file.write_text(sound)
            found[key] = {"by": by, "seconds": round(time.monotonic() - start), "sound": False}
            keep(found)
        by, seconds = found[key]["by"], found[key]["seconds"]
        what = f"caught by {by[0]}" if by else "SURVIVED"
        name = f"{mutation.area}: {mutation.name}"
        print(f"{number}/{len(some)} {name}: {what} ({seconds} s)", flush=True)
    new = [found[key] for key in some if not found[key]["sound"]]
    tests = sorted({test for it in new for test in it["by"] if test.startswith("tests/")})
    red = failures(copy, "-n", "0", "-m", RUN, *tests) if tests else []
    for it in new:
        it["sound"] = not set(red) & set(it["by"])
    keep(found)


def report(some: dict[str, Mutation], found: dict[str, Any]) -> bool:
    """Print a table by area, then what is not shown to be caught; returns whether all is."""
    tried = {m: found[key] for key, m in some.items() if key in found}
    open_ = [m for m, it in tried.items() if not (it["by"] and it["sound"])]
    print(f"\n{'area':10}{'tried':>6}{'caught':>8}")
    for area in (*dict.fromkeys(m.area for m in tried), ""):
        own = [m for m in tried if area in (m.area, "")]
        caught = len(own) - len([m for m in open_ if m in own])
        print(f"{area or 'all':10}{len(own):6}{caught:8}")
    for m in open_:
        by = tried[m]["by"]
        said = f"{by[0]} fails, and was not seen to pass without it" if by else "survived"
        print(f"{m.area}: {m.name}: {said}")
    return not open_


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="AREA|NAME")
    parser.add_argument("--tests", choices=["listed", "all"], default="listed")
    parser.add_argument("--again", action="store_true", help="try also what has a result")
    args = parser.parse_args()
    some = {f"{args.tests} {m.digest()}": m for m in chosen(args.words)}
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    if args.again:
        found = {key: it for key, it in found.items() if key not in some}
    preload()
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)
        try:
            try_all(some, found, copy, whole=args.tests == "all")
        except ValueError as error:
            raise SystemExit(str(error)) from None
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here")
            report(some, found)
            return 130
    return 0 if report(some, found) else 1


if __name__ == "__main__":
    sys.exit(main())
