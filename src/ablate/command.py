"""What the commands beside training share: one line for a mistake, and the exit codes."""

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import NoReturn

from ablate.errors import UserError
from ablate.job import report


class Arguments(ArgumentParser):
    """Refuses like everything else here: by a UserError, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def command(main: Callable[[], None]) -> NoReturn:
    """Run a command's `main` and exit: 0 done, 1 failed, 2 refused, 130 interrupted."""
    try:
        main()
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning turns Ctrl-C into an exit with 1.
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        print("ablate: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        sys.exit(report(error))
    sys.exit(0)
