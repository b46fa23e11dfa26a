"""With Lightning: a run stopped anywhere and resumed sees the batches of one never stopped."""

from itertools import chain
from types import SimpleNamespace

import lightning.pytorch as lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from make_data import ready
from make_systems import rows_of_systems
from torch import nn

from ablate.errors import UserError

COUNTS = {"train_examples": 40, "val_examples": 13, "test_examples": 12, "batch_size": 8}
RECALL = COUNTS | {"pairs": [4]}


class Recorder(lightning.LightningModule):
    """A model of one parameter that writes down every batch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch):
        self.seen.append(batch["tokens"].sum(1).tolist())
        return self.weight * batch["tokens"].float().mean()

    def validation_step(self, batch):
        self.log("val", batch["tokens"].float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Save(Callback):
    """A checkpoint after every batch and after every validation."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, trainer, moment):
        batches = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        trainer.save_checkpoint(self.folder / f"{batches:02d}-{moment}.ckpt")

    def on_train_batch_end(self, trainer, *args):
        self.save(trainer, "batch")

    def on_validation_end(self, trainer, *args):
        self.save(trainer, "validation")


OFF = ["logger", "use_distributed_sampler"]
OFF += [f"enable_{name}" for name in ("checkpointing", "progress_bar", "model_summary")]


def train(*, steps, every, accumulate=1, checkpoint=None, save=None):
    """As a run trains: one Lightning epoch of as many batches as it takes."""
    model, data = Recorder(), ready("recall", **RECALL)
    data.train_batches = steps * accumulate
    trainer = lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=accumulate,
        val_check_interval=every,
        check_val_every_n_epoch=None,
        accelerator="cpu",
        devices=1,
        num_sanity_val_steps=0,
        callbacks=[Save(save)] if save else [],
        **dict.fromkeys(OFF, False),
    )
    trainer.fit(model, data, ckpt_path=checkpoint, weights_only=False)
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options", [{"steps": 13, "every": 5}, {"steps": 7, "every": 3, "accumulate": 2}], ids=str
)
def test_resuming_anywhere_sees_the_same_batches(tmp_path, options):
    """An epoch of the data has 5 batches."""
    whole = train(save=tmp_path, **options)
    assert len({str(batch) for batch in whole.seen}) == len(whole.seen)
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) > len(whole.seen)
    for checkpoint in checkpoints:
        resumed = train(checkpoint=checkpoint, **options)
        loops = torch.load(checkpoint, weights_only=False)["loops"]["fit_loop"]
        done = int(loops["epoch_loop.batch_progress"]["total"]["processed"])
        assert resumed.seen == whole.seen[done:], checkpoint.name
        if done % options.get("accumulate", 1) == 0:  # otherwise half a step's gradient is lost
            assert resumed.weight.equal(whole.weight), checkpoint.name


def attached(name, rank, world, **changes):
    """A data set as process `rank` of `world` sees it."""
    data = ready(name, **changes)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world, strategy=strategy)
    return data


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("recall", COUNTS | {"pairs": [2]}),
        ("reverse", COUNTS),
        ("digits", {"batch_size": 8}),
        *rows_of_systems("LOADED").items(),
    ],
)
def test_two_processes_see_the_batches_of_one(name, options):
    alone, *shares = (attached(name, *place, **options) for place in ((0, 1), (0, 2), (1, 2)))
    for split in ("train_dataloader", "val_dataloader", "test_dataloader"):
        whole = [*getattr(alone, split)()]
        parts = [*chain(*zip(*(getattr(data, split)() for data in shares), strict=True))]
        for key in ["index"] if "index" in whole[0] else whole[0]:  # pairs are padded
            first, second = (torch.cat([one[key] for one in of]) for of in (whole, parts))
            assert torch.equal(first.nan_to_num(), second.nan_to_num())


def test_what_processes_cannot_share_is_refused():
    with pytest.raises(UserError, match=r"data.batch_size=8: must be a multiple of the 3 process"):
        attached("recall", 0, 3, **RECALL).train_dataloader()
    with pytest.raises(UserError, match="4 processes are more than the 3 example"):
        attached("recall", 0, 4, **RECALL | {"val_examples": 3}).val_dataloader()


@pytest.mark.parametrize("name", ["pydoc", "recall", *rows_of_systems("LOADED")])
def test_a_typical_batch_has_the_shapes_of_one_of_training(name):
    data = ready(name, batch_size=8, **({"train_examples": 40} if name == "recall" else {}))
    typical, real = (
        {key: value.shape for key, value in batch.items()}
        for batch in (data.typical_batch(), next(iter(data.train_dataloader())))
    )
    assert typical == real
