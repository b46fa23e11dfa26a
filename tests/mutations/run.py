"""Breaks the source in one place at a time, as a person might, and says which test notices.

    python tests/mutations/run.py                       # all of them
    python tests/mutations/run.py kernel "wrong axis"   # an area, and those with these words
    python tests/mutations/run.py study --tests all     # by the whole default suite

A mutation is a table of AREA.toml, named by what is broken: `old`, which `file` has exactly once,
becomes `new` in a copy of the project, and one of `tests` (tests/test_NAME.py) has to fail there,
and to pass without it. A survivor is a hole in the tests, or changes nothing that anyone could see.
What was found stays in outputs/mutations.json for as long as the mutation, its file and its tests.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "outputs" / "mutations.json"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "outputs", "__pycache__", ".*_cache", "dist")
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
        text = (root / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has its old text {times} times, not once")
        if missing := [test for test in self.tests if not (root / test).is_file()]:
            raise ValueError(f"{self.name}: there is no {', '.join(missing)}")
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
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for name, it in tomllib.loads(path.read_text()).items():
            tests = tuple(f"tests/test_{test}.py" for test in it["tests"])
            found.append(Mutation(path.stem, name, it["file"], it["old"], it["new"], tests))
    return found


def chosen(words: list[str]) -> list[Mutation]:
    every = mutations()
    areas = dict.fromkeys(m.area for m in every)
    of = {w: [m for m in every if (m.area == w if w in areas else w in m.name)] for w in words}
    if missing := [word for word, some in of.items() if not some]:
        raise SystemExit(f"{missing[0]}: in no mutation's name, nor an area ({', '.join(areas)})")
    return [m for m in every if not words or any(m in some for some in of.values())]


def failures(copy: Path, *arguments: str) -> list[str]:
    """The tests that fail in the copy."""
    cache, log = copy / ".pytest_cache", copy / ".pytest.log"
    shutil.rmtree(cache, ignore_errors=True)
    data = os.environ.get("ABLATE_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
    with log.open("w") as out:
        pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments],
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy / "src"), "ABLATE_SHARED_DATA": data},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            code = pytest.wait(LIMIT)
        except subprocess.TimeoutExpired:
            return [f"no end within {LIMIT} s"]
        finally:  # at Ctrl-C, too
            with suppress(ProcessLookupError):
                os.killpg(pytest.pid, signal.SIGKILL)
            pytest.wait()
    failed = cache / "v/cache/lastfailed"
    if code and not failed.exists():
        raise SystemExit(f"pytest ended with {code}:\n{log.read_text()[-2000:]}")
    return list(json.loads(failed.read_text())) if code else []


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
            by = failures(copy, "-x", *tests)
            file.write_text(sound)
            found[key] = {"by": by, "seconds": round(time.monotonic() - start), "sound": False}
            keep(found)
        by, seconds = found[key]["by"], found[key]["seconds"]
        what = f"caught by {by[0]}" if by else "SURVIVED"
        name = f"{mutation.area}: {mutation.name}"
        print(f"{number}/{len(some)} {name}: {what} ({seconds} s)", flush=True)
    new = [found[key] for key in some if not found[key]["sound"]]
    tests = sorted({test for it in new for test in it["by"] if test.startswith("tests/")})
    red = failures(copy, "-n", "0", *tests) if tests else []
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
