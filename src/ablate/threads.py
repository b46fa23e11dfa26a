"""Limits the spin count of OpenMP's threads.

GNU's libgomp, which torch's Linux wheels include, spins about 300,000 iterations in a waiting
thread before it sleeps. On a machine with other work, threads then spin while the one they wait for
has no core. On a quiet machine 10,000 iterations are as fast, and 0 take half as long again
(benchmarks/busy.py, docs/benchmarks.md).
"""

import os
import sys

SPIN = "10000"


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT, which torch reads at import, unless the user set a wait policy.

    Nothing is set after torch was imported: it would affect child processes alone.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = SPIN
