"""Combinations that are refused, with what to change; one file per subject."""

from ablate.config.conflicts.attention import ATTENTION
from ablate.config.conflicts.blocks import BLOCKS
from ablate.config.conflicts.data import DATA
from ablate.config.conflicts.embedding import EMBEDDING
from ablate.config.conflicts.graph import GRAPH
from ablate.config.conflicts.images import IMAGE_MODELS
from ablate.config.conflicts.kernel import KERNEL
from ablate.config.conflicts.mixer import MIXER
from ablate.config.conflicts.pos_enc import POS_ENC
from ablate.config.conflicts.recurrent import RECURRENT
from ablate.config.conflicts.task import TASK
from ablate.config.conflicts.trainer import TRAINER
from ablate.config.conflicts.transfer import TRANSFER

CONFLICTS = [
    *BLOCKS,
    *EMBEDDING,
    *POS_ENC,
    *ATTENTION,
    *RECURRENT,
    *IMAGE_MODELS,
    *MIXER,
    *GRAPH,
    *TASK,
    *DATA,
    *KERNEL,
    *TRAINER,
    *TRANSFER,
]
