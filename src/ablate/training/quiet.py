"""Imported with Lightning's Trainer: hides messages about settings that ablate chooses."""

import logging
import warnings

import lightning.pytorch  # noqa: F401  # sets the levels that are changed here

# Hide Lightning's messages about its own settings.
for _part in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(_part).setLevel(logging.WARNING)
# Hide torch.compile's message on a CPU that the CUDA compiler is installed without a GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated")
warnings.filterwarnings("ignore", message=".*does not have many workers.*")
# Issued if Slurm is installed; hydra/launcher=slurm uses srun, and other runs do not need it.
warnings.filterwarnings("ignore", message=".*`srun` command is available.*")
# torchmetrics reduces over the processes before a metric is logged.
warnings.filterwarnings("ignore", message=".*sync_dist=True.*")
# Of an RMS norm with float32 weights and bfloat16 input (trainer.precision=bf16-mixed): torch does
# without its fused kernel, and computes in float32 and rounds the result all the same.
warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
