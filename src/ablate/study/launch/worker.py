"""The process of a run that a launcher starts: `python -m ablate.study.launch.worker RUN_DIR
SHA256 [SHARED]`.

It trains the configuration in planned.json, whose hash is that of the arguments: the folder may be
untrusted, and building a configuration executes code. SHARED: JSON of the steps that it shares with
other runs.
"""

import json
import sys
import time
from pathlib import Path

from hydra.core.utils import configure_log
from omegaconf import OmegaConf

from ablate.cli.command import exit_codes
from ablate.cli.job import process_seconds
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.machine.memory import freeze_imports
from ablate.run_files import PLANNED, read_text
from ablate.study.plan.planned_run import seal


def main() -> None:
    with exit_codes():
        began = time.perf_counter() - process_seconds()
        run_dir, expected = Path(sys.argv[1]), sys.argv[2]
        composition = read(run_dir / PLANNED, expected)
        from ablate.cli.summary import show_result
        from ablate.training.train import folder_of, on_first_process, train
        from ablate.training.trunk import SharedSteps

        shared = SharedSteps(**json.loads(sys.argv[3])) if sys.argv[3:] else None
        freeze_imports()
        with folder_of(composition, run_dir):
            result = train(composition, run_dir, began, shared)
            on_first_process(show_result)(result, run_dir, composition.cfg)


def read(file: Path, expected: str) -> Composition:
    """Read the file of a run. Raises UserError unless its hash is `expected`."""
    if seal(text := read_text(file)) != expected:
        raise UserError(f"{file} was changed after its run was planned; start the study again")
    content = json.loads(text)
    if content["logging"]:
        configure_log(
            OmegaConf.create(content["logging"]["job_logging"]), content["logging"]["verbose"]
        )
    return Composition(
        OmegaConf.create(content["config"]),
        planned_id=content["run_id"],
        arguments=content["arguments"],
    )


if __name__ == "__main__":
    main()
