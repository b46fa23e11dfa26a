"""What a captioner writes for pictures: files, or one of the validation split."""

from typing import Any

from ablate.errors import UserError
from ablate.show import validation_example
from ablate.task.captioning import Captioning
from ablate.training.load import Run
from ablate.translate import set_search, write_best


def write_captions(run: Run, task: Captioning, given: dict[str, Any]) -> None:
    """For what --image or --index names a line for each hypothesis, its score after a tab."""
    if ("image" in given) == ("index" in given):
        raise UserError("give --image FILE, or --index N of the validation split")
    set_search(task, given)
    if "image" in given:
        read = task.read(given["image"])
    else:
        read = validation_example(run, given["index"])["images"]
    for line in write_best(run, task, given, list(read), read):
        print(line)
