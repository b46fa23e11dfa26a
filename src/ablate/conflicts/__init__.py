"""What cannot be combined, as a table: when it happens, and what to change. A file a subject."""

from ablate.conflicts.attention import ATTENTION
from ablate.conflicts.blocks import BLOCKS
from ablate.conflicts.data import DATA
from ablate.conflicts.embedding import EMBEDDING
from ablate.conflicts.graph import GRAPH
from ablate.conflicts.kernel import KERNEL
from ablate.conflicts.mixer import MIXER
from ablate.conflicts.pictures import PICTURES
from ablate.conflicts.pos_enc import POS_ENC
from ablate.conflicts.recurrent import RECURRENT
from ablate.conflicts.task import TASK
from ablate.conflicts.trainer import TRAINER
from ablate.conflicts.transfer import TRANSFER

CONFLICTS = [
    *BLOCKS,
    *EMBEDDING,
    *POS_ENC,
    *ATTENTION,
    *RECURRENT,
    *PICTURES,
    *MIXER,
    *GRAPH,
    *TASK,
    *DATA,
    *KERNEL,
    *TRAINER,
    *TRANSFER,
]
