"""The options of an axis that a model, or a machine without a GPU, can be trained with at all.

An axis that is not here takes every option, alone; which pairs are refused, the parts and
config/conflicts.py say.
"""

from typing import Any

from make_model import CONF, kernels, options, scores

from ablate.config.facts import (
    CAPTIONS,
    GRAPH,
    IMAGES,
    LABELLED,
    PAIRS,
    PREFERENCES,
    RECALL,
    SERIES,
    TEXT,
)
from ablate.config.keys import option_content
from ablate.config.stated import stated

Only = dict[str, list[Any]]


def data(*kinds: str) -> list[str]:
    """The data sets of these kinds."""
    target = {
        name: option_content(CONF / "data" / f"{name}.yaml")[0]["_target_"]
        for name in options("data")
    }
    return [name for name in target if stated(target[name], "kind") in kinds]


def but(group: str, *names: str) -> list[str]:
    return [name for name in options(group) if name not in names]


IN_2D = [name for name in options("pos_enc") if name.endswith("_2d")]
DISTANCES = ["rotary", "alibi", "relative", "t5"]  # what says a distance has none to an image
HERE: Only = {
    "trainer": ["cpu", "ddp"],
    "trainer.precision": ["32-true", "bf16-mixed", "bf16-true", "64-true"],
}
NO_POSITIONS: Only = {"pos_enc": ["none"]}
KERNELS: Only = {"kernel": kernels()}  # some need a GPU; none works along edges without a graph
BLOCKS: Only = KERNELS | {
    "model.mask": but("model.mask", "neighbours", "source"),
    "model.attention": scores(),
}
ALONG = BLOCKS | {"pos_enc": but("pos_enc", *IN_2D)}
OF_LANGUAGE: Only = {
    "data": data(TEXT, RECALL, PREFERENCES),
    "task": ["causal_lm", "recall", "dpo", "rlhf"],
    "data.tokenizer": ["char", "byte", "bpe"],
}
OF_DOCUMENTS = OF_LANGUAGE | {
    "data": data(TEXT, RECALL, LABELLED, PREFERENCES),
    "task": ["causal_lm", "recall", "classification", "reward", "dpo", "rlhf"],
}
OF_MASKED = OF_LANGUAGE | {
    "data": data(TEXT, LABELLED),
    "task": ["masked_lm", "classification"],
}
OF_IMAGES: Only = {"data": data(IMAGES), "task": ["classification"]}
OF_SOURCES: Only = {
    "data": data(PAIRS),
    "task": ["seq2seq", "speech"],
    "data.tokenizer": ["char", "bpe", "word"],
}
OF_SERIES: Only = {"data": data(SERIES), "task": ["forecasting"]}
WITHOUT_ATTENTION = NO_POSITIONS | {"kernel": ["auto"]}
ONLY: dict[str, Only] = {
    "gpt": HERE | ALONG | OF_DOCUMENTS,
    "bert": HERE | ALONG | OF_MASKED,
    "vit": HERE | BLOCKS | OF_IMAGES,
    "resnet": HERE | OF_IMAGES | WITHOUT_ATTENTION | {"model.norm_type": ["layer", "batch"]},
    "timm": HERE | OF_IMAGES | WITHOUT_ATTENTION,
    "rnn_lm": HERE | OF_LANGUAGE | WITHOUT_ATTENTION,
    "rnn_seq2seq": HERE | KERNELS | OF_SOURCES | NO_POSITIONS,
    # Its batches have padding, which batch norm would count.
    "transformer": HERE | ALONG | OF_SOURCES | {"model.norm_type": but("model.norm_type", "batch")},
    "gpt_seq2seq": HERE
    | ALONG
    | OF_SOURCES
    | {"model.norm_type": but("model.norm_type", "batch")}
    | {"model.mask": but("model.mask", "neighbours")}
    | {"model.mixer": but("model.mixer", "fixed")},
    "gat": HERE
    | NO_POSITIONS
    | {
        "data": data(GRAPH),
        "kernel": [*kernels(), "sparse"],
        "task": ["node_classification"],
        "model.attention": [name for name in scores() if name != "location"],
        "model.mask": ["neighbours", "none"],
        "model.depth": [2],
    },
    "captioner": HERE
    | KERNELS
    | {
        "data": data(CAPTIONS),
        "task": ["captioning"],
        "model.attention": scores(),
        "pos_enc": but("pos_enc", *DISTANCES, "relative_2d"),
        "model.norm_type": ["layer", "batch"],
    },
    "sam": HERE | BLOCKS | {"data": data("images with masks"), "task": ["segmentation"]},
    "autoencoder": HERE | WITHOUT_ATTENTION | {"data": data(CAPTIONS), "task": ["autoencoding"]},
    # Captions have padding, which batch norm would count.
    "dit": HERE
    | BLOCKS
    | {
        "data": data(CAPTIONS),
        "task": ["diffusion"],
        "model.norm_type": but("model.norm_type", "batch"),
    },
    "rnn_forecaster": HERE | KERNELS | OF_SERIES | NO_POSITIONS,
    "transformer_forecaster": HERE | ALONG | OF_SERIES,
}
