"""Training: optimizer, schedule, processes, devices."""

from ablate.config.rules import Conflict
from ablate.schedule import TOO_LONG

TRAINER: list[Conflict] = [
    Conflict(
        lambda c: c("optimizer.nesterov") and c("optimizer.momentum") == 0,
        "optimizer.nesterov=true needs optimizer.momentum above 0",
    ),
    Conflict(
        lambda c: c("trainer.max_steps") == -1 and c("trainer.max_epochs") is None,
        "nothing says how long to train; set trainer.max_steps or trainer.max_epochs",
    ),
    Conflict(
        # For training by epochs, training/trainer.py checks this once they are steps.
        lambda c: (
            c("schedule.warmup") != "auto" and 0 < c("trainer.max_steps") < c("schedule.warmup")
        ),
        TOO_LONG.format(warmup="{schedule.warmup}", steps="{trainer.max_steps}"),
    ),
    Conflict(
        lambda c: (
            c("trainer.val_check_interval") is not None
            and c("trainer.check_val_every_n_epoch") is not None
        ),
        "trainer.val_check_interval={trainer.val_check_interval} counts batches and"
        " trainer.check_val_every_n_epoch={trainer.check_val_every_n_epoch} epochs; set one null",
    ),
    Conflict(
        lambda c: (
            c.option("model.norm_type") == "batch"
            and c.get("model.norm", None) != "none"
            and c.several_processes
            and not c.get("trainer.sync_batchnorm", False)
        ),
        "model.norm_type=batch with several processes: each would have statistics of its own; use"
        " +trainer.sync_batchnorm=true on GPUs, trainer=cpu or trainer=gpu, or another norm_type",
    ),
    Conflict(
        lambda c: (
            c("trainer.accelerator") == "cpu" and bool(c.get("trainer.sync_batchnorm", False))
        ),
        "trainer.sync_batchnorm=true needs GPUs, not trainer.accelerator=cpu",
    ),
    Conflict(
        lambda c: c("trainer.strategy") == "fsdp" and not c.several_processes,
        "trainer.strategy=fsdp splits a model over several processes; set trainer.devices, or"
        " trainer.strategy=auto",
    ),
    Conflict(
        lambda c: c("trainer.strategy") == "fsdp" and bool(c.get("trainer.sync_batchnorm", False)),
        "trainer.sync_batchnorm=true cannot be had with trainer.strategy=fsdp; use trainer=ddp",
    ),
    Conflict(
        lambda c: (
            c("trainer.strategy") == "fsdp" and c("trainer.precision") in ("16-mixed", "64-true")
        ),
        "trainer.precision={trainer.precision} cannot be had with trainer.strategy=fsdp; use"
        " bf16-mixed or 32-true",
    ),
    Conflict(
        lambda c: c("compile") and c("trainer.strategy").startswith("fsdp"),
        "compile=true compiles whole models, which trainer.strategy={trainer.strategy} takes apart;"
        " use trainer=ddp or compile=false",
    ),
    Conflict(
        lambda c: c("trainer.accelerator") == "cpu" and c("trainer.precision").startswith("16"),
        "trainer.precision={trainer.precision} needs a GPU; on a CPU use bf16-mixed or 32-true",
    ),
]
