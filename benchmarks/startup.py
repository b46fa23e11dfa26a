"""Seconds until the command line answers, and until the first training step is done:
python benchmarks/startup.py

The first step is done when the run's folder holds progress.json. Beside the commands stand
`python -c pass` and the imports that no training does without, measured in the same turn.
"""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tables import head, row
from turns import in_turns, seconds

from ablate.run_files import PROGRESS

ANSWERS = {
    "python -c pass": ["-c", "pass"],
    "python -m ablate --help": ["-m", "ablate", "--help"],
    "python -m ablate --cfg job": ["-m", "ablate", "--cfg", "job"],
    "a misspelled option": ["-m", "ablate", "model.attention=aditive"],
    "import torch": ["-c", "import torch"],
    "import lightning.pytorch": ["-c", "import lightning.pytorch"],
}
# Until the first step is done; what comes after it is killed.
TRAINED = ["", "logger=none", "logger=none model=vit", "logger=none model=rnn_seq2seq"]
SHORT = "logger=none trainer.max_steps=20 schedule.warmup=0 model.depth=1 output_dir={}"
ROUNDS = 7


def answer(arguments: list[str]) -> None:
    subprocess.run([sys.executable, *arguments], capture_output=True)


def stepped(arguments: list[str], folder: Path) -> float:
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "ablate", *arguments, f"output_dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not list(folder.glob(f"runs/*/{PROGRESS}")):
        if process.poll() is not None:
            sys.exit(f"{arguments}: ended with {process.returncode} before it trained")
        time.sleep(0.005)
    took = time.perf_counter() - start
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return took


def main() -> None:
    scratch = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "ablate", *SHORT.format(scratch).split()], check=True)
    (run_dir,) = scratch.glob("runs/*")
    generate = ["-m", "ablate.generate", str(run_dir), "--tokens", "1"]
    answers = {**ANSWERS, "python -m ablate.generate RUN_DIR --tokens 1": generate}
    ways = {name: partial(seconds, partial(answer, typed)) for name, typed in answers.items()}
    ways |= {
        f"python -m ablate {more}, first step": partial(stepped, more.split(), scratch / "stepped")
        for more in TRAINED
    }
    found = in_turns(ways, ROUNDS)
    shutil.rmtree(scratch)
    print(head("command", f"median of {ROUNDS}, seconds", "fastest"))
    for name, times in found.items():
        print(row(name, f"{statistics.median(times):.2f}", f"{min(times):.2f}"))


if __name__ == "__main__":
    main()
