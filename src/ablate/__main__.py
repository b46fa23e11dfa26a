"""The command line: `python -m ablate GROUP=OPTION KEY=VALUE ...`, also installed as `ablate`.

Exit codes: 0 finished, 1 failed, 2 refused (a person's mistake, one line), 130 interrupted.
"""

import gc
import sys
from argparse import Namespace
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser

from ablate import folder, mistakes
from ablate.errors import RunFailed, UserError, unwrap
from ablate.job import failures, full_error, job, report
from ablate.tree import config_dir, open_tree


def main() -> NoReturn:
    # Nothing of what is imported is garbage, and looking for it is a fifth of a start.
    gc.disable()
    try:
        sys.exit(_command(_arguments()))
    except KeyboardInterrupt:
        print("ablate: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sys.exit(report(error))
    finally:
        gc.enable()


def _arguments() -> Namespace:
    """Hydra's own flags, read here once before Hydra reads them, so that mistakes are one line.

    They may stand between the overrides, which Hydra wants together: sys.argv gets that order.
    """
    parser = get_args_parser()
    parser.error = _refuse_flag  # type: ignore[method-assign]
    args = parser.parse_intermixed_args()
    flags = [word for word in sys.argv[1:] if word not in args.overrides]
    sys.argv[1:] = [*args.overrides, *flags]
    return args


def _refuse_flag(message: str) -> NoReturn:
    raise UserError(f"{message}; see python -m ablate --help")


def _command(args: Namespace) -> int:
    if args.help:
        from ablate.help import help_text

        print(help_text(args.config_dir, args.overrides))
        return 0
    if not args.shell_completion:
        with open_tree(args.config_dir) as tree:
            mistakes.refuse_unread(args.overrides, tree)
    start = hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="config")
    try:
        with full_error("1"):
            start(job)()
    except OSError as error:
        if isinstance(error, mistakes.COMPOSING):
            raise _explained(error, args) from error
        line = f"output_dir: cannot write there ({error}); choose another folder"
        raise UserError(line) from error
    except mistakes.COMPOSING as error:
        raise _explained(error, args) from error
    except (RunFailed, UserError) as error:
        raise _summary(error) from error
    return 0


def _explained(error: Exception, args: Namespace) -> Exception:
    if unwrap(error) is not None or not isinstance(_origin(error), mistakes.COMPOSING):
        return error
    folder.remove_made()
    with open_tree(args.config_dir, args.config_name or "config") as tree:
        return mistakes.explain(error, args.overrides, tree, many=args.multirun)


def _origin(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _origin(error.__cause__)


def _summary(error: RunFailed | UserError) -> Exception:
    """All runs of a sweep that went wrong, in one line; the error itself for a single run."""
    if len(failures) < 2:
        return error
    runs: dict[str, list[str]] = {}
    for overrides, failed in failures:
        runs.setdefault(str(failed), []).append(overrides)
    lines = [
        f"{line} ({len(names)} runs)" if len(names) > 1 else f"[{names[0]}] {line}"
        for line, names in runs.items()
    ]
    kind = RunFailed if any(isinstance(e, RunFailed) for _, e in failures) else UserError
    return kind(f"{len(failures)} runs went wrong: {'; '.join(lines)}")


if __name__ == "__main__":
    main()
