"""Results of tiny runs, which tests/test_pinned.py compares with pinned.json.

    PYTHONPATH=src python tests/pin.py                # pin what is new or has another id
    PYTHONPATH=src python tests/pin.py COMMAND ...    # these alone

A result that changed under the same id is not pinned: raise a revision first
(src/ablate/config/revision.py).
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as L
import make_axes
import pytest
import tiny
from lightning.pytorch.callbacks import Callback
from make_model import options
from make_rows import Gradients
from omegaconf import DictConfig
from torch import Tensor

import ablate
from ablate.config.keys import OURS, targets
from ablate.config.run_id import run_id
from ablate.errors import UserError
from ablate.training.build import build, build_data, make_task
from ablate.training.trainer import make_trainer

FILE = Path(__file__).parent / "pinned.json"
# Float64 except for the initial values, whose last bits depend on the processor.
CLOSE = 1e-5
BLOCKS = ["model.dim=12", "model.heads=2", "model.depth=2", "model.dropout=0.3"]
TEXT = ["data=text", "data.seq_len=16", "data.batch_size=4"]
SERIES = ["data.batch_size=8", "model.dim=12", "model.depth=2", "model.dropout=0.3"]
# timm's models are missing: their numbers are those of timm's version.
MODELS: dict[str, list[str]] = {
    "gpt": [*TEXT, *BLOCKS],
    "bert": [*TEXT, *BLOCKS],
    "vit": [*BLOCKS, "model.patch=4", "data.batch_size=8"],
    "transformer": [
        *tiny.PAIRS,
        *("model.dim=12", "model.heads=2", "model.dropout=0.3"),
        *("model.encoder.depth=1", "model.decoder.depth=1"),
    ],
    "transformer_forecaster": [*SERIES, "model.heads=2"],
    "rnn_lm": [*TEXT, "model.dim=12", "model.depth=2", "model.dropout=0.3"],
    "rnn_seq2seq": [*tiny.PAIRS, "model.dim=12", "model.depth=2", "model.dropout=0.3"],
    "rnn_forecaster": SERIES,
    "captioner": [*tiny.DIGITS, "model.dropout=0.3"],
    "sam": [*tiny.OBJECTS, "model.drop_path=0.3"],
    "resnet": ["model.dim=8", "data.batch_size=8"],
    "gat": ["model.dim=12", "model.heads=2"],
    "autoencoder": tiny.DIGITS,
    "dit": [*tiny.DIGITS, "model.heads=2", "model.depth=1", "model.dropout=0.3"],
}
# Each option of these groups in the first of the models that takes it.
NOT_PINNED = ("data", "task", "kernel", "trainer", "model.connection", "model.embedding")
GROUPS = [group for group in make_axes.GROUPS if group not in NOT_PINNED]
NEEDS = {
    "optimizer=schedule_free": "schedule=constant",
    "schedule=wsd": "schedule.decay=2",
    "model.mask=window": "model.mask.size=3",
    "model.mask=prefix": "model.mask.size=3",
    "model.window=local_m": "model.window.size=2",
    "model.window=local_p": "model.window.size=2",
}
OTHERS = (
    "model=gpt model.norm=post",
    "model=gpt model.norm=sandwich",
    "model=gpt model.norm=none",
    "model=gpt model.residual=false",
    "model=gpt model.drop_path=0.5",
    "model=gpt model.share_layers=true",
    "model=gpt model.tie_embeddings=false",
    "model=gpt task.label_smoothing=0.1",
    "model=gpt trainer.accumulate_grad_batches=2",
    "model=vit model.pool=mean",
    "model=vit task.mixup=0.5",
    "model=vit task.cutmix=1.0",
    "model=rnn_seq2seq model.input_feeding=true",
    "model=captioner model.normalizer=hard",
    "model=captioner task.doubly_stochastic=0.5",
    "model=sam model.exchange=one_way",
    "model=sam model.exchange=none",
)
STEPS = [
    *("trainer.max_epochs=null", "trainer.max_steps=4", "trainer.check_val_every_n_epoch=null"),
    *("trainer.val_check_interval=4", "trainer.log_every_n_steps=1", "schedule.warmup=1"),
    *("trainer.precision=64-true", "logger=none"),
]


def cases() -> Iterator[str]:
    """The commands whose results are pinned."""
    yield from (f"model={model}" for model in MODELS)
    yield from OTHERS
    for group in GROUPS:
        for option in options(group):
            chosen = f"{group}={option}"
            parts = " ".join([chosen, *([NEEDS[chosen]] if chosen in NEEDS else [])])
            commands = (f"model={model} {parts}" for model in MODELS)
            if command := next(filter(taken, commands), None):
                yield command


def taken(command: str) -> bool:
    try:
        compose(command, Path())
    except UserError:
        return False
    return True


def compose(command: str, folder: Path) -> DictConfig:
    model, *more = command.split()
    own = MODELS[model.removeprefix("model=")]
    if "data=text" in own:
        own = [*own, f"data.path={folder / 'text.txt'}"]
    overrides = [model, *STEPS, *own, *more, f"output_dir={folder}"]
    try:
        return ablate.compose(*overrides, "kernel=reference")
    except UserError:  # without attention there is nothing to compute by it
        return ablate.compose(*overrides)


class Losses(Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, *args: Any
    ) -> None:
        loss: Tensor = outputs["loss"]
        self.found.append(float(loss))


def measured(command: str, folder: Path) -> dict[str, Any]:
    """The id of a run of fixed data, the loss of every training batch, and every measure after, of
    two batches."""
    tiny.write_text(folder / "text.txt")
    cfg = compose(command, folder)
    data = build_data(cfg)
    task = make_task(cfg, data, build(cfg, data))
    losses = Losses()
    trainer = make_trainer(cfg.trainer, cfg.schedule, folder, data, [losses, Gradients()])
    trainer.limit_val_batches = 2
    trainer.fit(task, datamodule=data)
    after = {
        name: float(value)
        for name, value in trainer.callback_metrics.items()
        if name.startswith("val/")
    }
    return {"id": run_id(cfg, "x"), "loss": losses.found, **after}


def wrong(command: str, now: dict[str, Any], then: dict[str, Any]) -> str | None:
    """What is wrong with a result, in a sentence that says what to do; None if it is as pinned."""
    again = f"PYTHONPATH=src python tests/pin.py '{command}'"
    if now["id"] != then["id"]:
        return (
            f"{command}: has the id {now['id']}, and {then['id']} when it was pinned: a revision,"
            f" or the config, changed. If that is meant, pin it anew: {again}"
        )
    for key in sorted((now.keys() | then.keys()) - {"id"}):
        if now.get(key) != pytest.approx(then.get(key), rel=CLOSE, abs=CLOSE, nan_ok=True):
            parts = sorted({t for t in targets(compose(command, Path())) if t.startswith(OURS)})
            return (
                f"{command}: {key} is {now.get(key)}, and was {then.get(key)} under the same id, so"
                " that this command would answer with old results. If the change is meant, raise"
                " the revision of the part that changed (src/ablate/config/revision.py), one of"
                f" {', '.join(parts)}; then pin it anew: {again}"
            )
    return None


@cache
def pinned() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    before = pinned() if FILE.exists() else {}
    after, refused = {}, []
    for command in cases():
        if sys.argv[1:] and command not in sys.argv[1:]:
            found = before.get(command)
        else:
            with TemporaryDirectory() as folder:
                found = measured(command, Path(folder))
            print(command, found["loss"], flush=True)
            then = before.get(command, found)
            if found["id"] == then["id"]:
                refused += [line] if (line := wrong(command, found, then)) else []
                found = then
        if found is not None:
            after[command] = found
    lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in after.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    sys.exit("\n".join(refused) or 0)


if __name__ == "__main__":
    main()
