"""A language model of a run in lm-evaluation-harness.

Gao et al., "The language model evaluation harness", https://zenodo.org/records/12608602.
"""

import csv
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ablate.decode.sample import sample
from ablate.errors import UserError, shortened, suggest
from ablate.machine.terminal.bar import bar
from ablate.model.base import LanguageModel
from ablate.run_files import ITEMS, read_text, write_csv
from ablate.run_files.harness import scores
from ablate.task import Task
from ablate.training.load import load

Scored = tuple[float, bool]
Request = tuple[Any, list[int], list[int]]
MOST = 256  # tokens to generate, unless a task sets another number


@register_model("ablate")
class Harness(TemplateLM):
    """A text, or a continuation of nothing, follows the tokenizer's end of a document, or a line
    break if it has none. Of a context the last tokens are read that fit into the model's length,
    together with those that are generated.

    run: the folder of a run, or its task with the best weights. allow: as of `load`. batch_size:
    sequences at once, of one length. UserError for a model of something else.
    """

    def __init__(
        self,
        run: str | Path | Task,
        *,
        allow: Collection[str] = (),
        batch_size: Any = 1,
        device: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        task = run if isinstance(run, Task) else load(run, allow=allow).task
        model, data = task.model, task.data
        if not isinstance(model, LanguageModel) or not hasattr(data, "tokenizer"):
            raise UserError("lm-evaluation-harness needs a language model of text")
        if not str(batch_size).isdecimal():
            raise UserError(f"--batch_size {batch_size}: must be a number")
        self._device = torch.device(device or "cpu")
        self.model, self.batch_size = model.to(self._device), int(batch_size)
        self.tokens = data.tokenizer
        self.longest = model.length or data.seq_len

    @property
    def eot_token_id(self) -> int:
        end = self.tokens.end_id
        return int(self.tokens.encode("\n")[0] if end is None else end)

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        return list(self.tokens.encode(string))

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = False, **_: Any
    ) -> list[Scored]:
        found: dict[int, Scored] = {}
        alike = defaultdict(list)  # by length, so that nothing is padded
        for number, (_text, context, continuation) in enumerate(requests):
            if len(continuation) > self.longest:
                raise UserError(
                    f"a continuation of {len(continuation)} tokens is longer than the"
                    f" {self.longest} that the model reads at once"
                )
            tokens = [*context, *continuation][-self.longest - 1 :]
            alike[len(tokens)].append((number, tokens, len(continuation)))
        with bar("scoring", total=len(requests)) as shown:
            for same in alike.values():
                for first in range(0, len(same), self.batch_size):
                    found |= self._scores(batch := same[first : first + self.batch_size])
                    shown.update(len(batch))
        return [found[number] for number in range(len(requests))]

    @torch.no_grad()
    def _scores(self, batch: Sequence[tuple[int, list[int], int]]) -> dict[int, Scored]:
        tokens = torch.tensor([each for _, each, _ in batch], device=self._device)
        logs = self.model(tokens[:, :-1]).float().log_softmax(-1)
        found = {}
        for row, (number, _, count) in enumerate(batch):
            ours, wanted = logs[row, -count:], tokens[row, -count:]
            score = ours.gather(1, wanted[:, None]).sum()
            found[number] = float(score), bool((ours.argmax(1) == wanted).all())
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        found = []
        for request in requests:
            windows = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.eot_token_id, self.longest, 1
            )
            asked = [("", *make_disjoint_window(window)) for window in windows]
            scores = self._loglikelihood_tokens(asked, disable_tqdm=disable_tqdm)
            found.append(sum(score for score, _ in scores))
        return found

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        found = []
        with bar("generating", total=len(requests)) as shown:
            for number, request in enumerate(requests):
                context, settings = request.args
                found.append(self._generated(context, settings, number))
                shown.update()
        return found

    def _generated(self, context: str, settings: dict[str, Any], seed: int) -> str:
        until, most = settings.get("until") or [], settings.get("max_gen_toks", MOST)
        stops = [until] if isinstance(until, str) else until
        # As lm-evaluation-harness, if the model reads more than it is to write.
        room = self.longest - most if self.longest > most else self.longest
        read = self.tok_encode(context)[-room:] or [self.eot_token_id]
        prompt = torch.tensor([read], device=self._device)
        written: list[int] = []
        for token in sample(
            self.model,
            prompt,
            tokens=most,
            temperature=settings.get("temperature", 1.0) if settings.get("do_sample") else 0.0,
            rng=torch.Generator(self._device).manual_seed(seed),
        ):
            if int(token) == self.tokens.end_id:
                break
            written.append(int(token))
            text = self.tokens.decode(written)
            if ends := [text.index(stop) for stop in stops if stop in text]:
                return text[: min(ends)]
        return self.tokens.decode(written)


@cache
def metrics_of(names: tuple[str, ...]) -> list[str]:
    """Read the data of tasks and return their metrics, TASK/METRIC or TASK/METRIC,FILTER; a group
    has those of its tasks. Raises UserError for a name that is neither a task, nor a YAML file of
    one, and for a task without its data."""
    for name in names:
        if name not in tasks().all_tasks and not Path(name).is_file():
            near = suggest(name, tasks().all_tasks)
            raise UserError(f"{name} is neither a task of lm-evaluation-harness nor a file{near}")
    try:
        loaded = tasks().load([*names])
    except Exception as error:  # of any code of the task
        line = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{', '.join(names)} cannot be read: {shortened(line, 200)}") from error
    of_tasks = {
        name: [
            metric if each.name == "none" else f"{metric},{each.name}"
            for each in task._filters
            for metric in task.aggregation()
        ]
        for name, task in loaded["tasks"].items()
    }
    every = [*dict.fromkeys(metric for metrics in of_tasks.values() for metric in metrics)]
    of_groups = dict.fromkeys(loaded["groups"], every)
    return [f"{name}/{metric}" for name, of in (of_tasks | of_groups).items() for metric in of]


@cache
def tasks() -> TaskManager:
    """All tasks that are installed."""
    return TaskManager()


def measured_on(task: Task, names: Sequence[str], prefix: str, folder: Path) -> dict[str, float]:
    """Every metric of tasks, PREFIX/TASK/METRIC; those of each item are added to the folder's
    items.csv."""
    own = next(task.parameters()).device
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Harness(task, batch_size=task.data.batch_size, device=device)
    found = simple_evaluate(model, tasks=[*names], task_manager=tasks(), bootstrap_iters=0)
    task.to(own)  # which the figures of the run use
    assert found is not None  # as in every process but the first
    values, rows = {}, []
    for name, metric, full, value in scores(found["results"]):
        if not isinstance(value, int | float):
            continue
        values[f"{prefix}/{full}"] = float(value)
        wanted = full.removeprefix(f"{name}/{metric}").removeprefix(",") or "none"
        rows += [
            (f"{prefix}/{full}", item["doc_id"], item[metric])
            for item in found["samples"].get(name, ())
            if item["filter"] == wanted and isinstance(item.get(metric), int | float)
        ]
    add_items(folder, prefix, rows)
    return values


def add_items(folder: Path, prefix: str, rows: Sequence[tuple[str, int, float]]) -> None:
    """Replace the rows of `prefix` in items.csv: metric, item, value."""
    path = folder / ITEMS
    known = [*csv.reader(StringIO(read_text(path)))][1:] if path.exists() else []
    others = (row for row in known if not row[0].startswith(f"{prefix}/"))
    write_csv(path, [["metric", "item", "value"], *others, *rows])
