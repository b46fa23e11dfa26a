"""Limits the spin count of OpenMP's threads.

GNU's libgomp, which torch's Linux wheels include, spins about 300,000 iterations in a waiting
thread before it sleeps. On a machine with other work, threads then spin while the one they wait for
has no core: training next to one busy program takes more than 50 times as long, and with 10,000
iterations 3 times. 1,000 lose least over quiet and busy machines together (benchmarks/busy.py,
docs/results/benchmarks.md).
"""

import os
import sys

SPIN = "1000"


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT, which torch reads at import, unless the user set a wait policy.

    Nothing is set after torch was imported: it would only affect child processes.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = SPIN
