"""How the threads of torch wait for each other.

GNU's OpenMP, which torch's wheels for Linux bring, lets a thread that waits spin for about 300,000
turns before it sleeps. On a machine with other work the threads then spin while the one they wait
for has no core. On a quiet machine 10,000 turns are as quick, and 0 turns take half as long again
(benchmarks/busy.py, docs/benchmarks.md).
"""

import os
import sys

SPIN = "10000"


def wait_briefly() -> None:
    """Set GOMP_SPINCOUNT, which is read when torch is imported, unless a person chose how to wait.

    Where torch was imported before, nothing is set: it would change the processes that are started
    later, and not this one.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = SPIN
