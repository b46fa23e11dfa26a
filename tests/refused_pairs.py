"""What make_pairs.py finds to be refused, and nothing else: test_pairs.py compares."""

from typing import Any

from make_axes import EVERY_AXIS
from make_model import kernels, options, scores

# Pairs by their axes, each with the options of both sides.
Refused = list[tuple[str, list[Any], str, list[Any]]]
TEXTS = ["pydoc", "text", "shakespeare"]
IMAGES = ["digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "image_folder"]
WITHOUT_WORDS = ["dates", "reverse", "copy", "sort"]  # pairs that come as tokens or characters
SENTENCES = ["parallel", "multi30k"]
SMOOTHING = EVERY_AXIS["task.label_smoothing"]
OF_TEXTS = ["char", "byte", "bpe"]  # tokenizers
OF_PAIRS = ["char", "bpe", "word"]
BOTH = [False, True]
OTHERS = [name for name in options("model.normalizer") if name != "softmax"]
NO_PRODUCTS = ["additive", "gat", "gatv2"]
BLOCKS: Refused = [
    ("model.attention", ["location", "uniform"], "pos_enc", ["rotary"]),
    ("model.attention", ["uniform"], "pos_enc", ["relative"]),
    ("model.attention", NO_PRODUCTS, "kernel", ["sdpa"]),
    ("pos_enc", ["relative"], "kernel", ["sdpa"]),
    ("model.normalizer", OTHERS, "kernel", ["sdpa"]),
    ("model.dim", [8], "model.heads", [3]),
    ("model.norm", ["none"], "model.norm_type", ["rms"]),
    ("model.residual", [False], "model.drop_path", [0.1]),
    ("model.ffn", ["none"], "model.ffn_dim", [5]),
]
OTHER_MIXERS = [name for name in options("model.mixer") if name != "attention"]
DISTANCES = ["rotary", "alibi", "relative", "t5"]
MIXERS: Refused = [
    ("model.mixer", OTHER_MIXERS, "pos_enc", DISTANCES),
    ("model.mixer", ["convolution", "none"], "model.mask", ["window", "prefix"]),
]
UNATTENDED: Refused = [  # where no other layer attends
    *MIXERS,
    ("model.mixer", OTHER_MIXERS, "model.attention", [s for s in scores() if s != "scaled_dot"]),
    ("model.mixer", OTHER_MIXERS, "model.normalizer", OTHERS),
    ("model.mixer", OTHER_MIXERS, "kernel", ["reference", "chunked", "sdpa"]),
    ("model.mixer", ["none"], "model.ffn", ["none"]),
]
MASKLESS: Refused = [("model.mixer", ["none"], "model.mask", ["none"])]
STACK: Refused = [
    *BLOCKS,
    *UNATTENDED,
    ("model.depth", [1], "model.share_layers", [True]),
    ("model.norm", ["none"], "model.norm_type", ["batch"]),
    ("model.norm_type", ["batch"], "model.bias", [False]),
    ("model.norm_type", ["batch"], "model.activation_checkpointing", [True]),
]
LANGUAGE: Refused = [
    ("task", ["causal_lm"], "data", ["recall"]),
    ("task", ["recall"], "data", TEXTS),
    ("task", ["recall"], "task.label_smoothing", SMOOTHING),
    ("data", ["recall"], "data.tokenizer", OF_TEXTS),
]
DOCUMENTS: Refused = [
    ("task", ["classification"], "data", [*TEXTS, "recall"]),
    ("task", ["causal_lm", "recall"], "data", ["text_files"]),
    ("data", ["text_files"], "model.tie_embeddings", [False]),
]
DOCUMENTS_OF_BERT: Refused = [
    ("task", ["classification"], "data", TEXTS),
    ("task", ["masked_lm"], "data", ["text_files"]),
    ("data", ["text_files"], "model.tie_embeddings", [False]),
    ("task", ["classification"], "task.next_sentence", [True, False]),
]
FROZEN: Refused = [
    ("model.freeze", ["embeddings", "encoder"], "model.norm_type", ["batch"]),
    ("model.freeze", ["encoder"], "model.activation_checkpointing", [True]),
]
RESIDUAL: Refused = [("model.depth", [1], "model.residual", [True])]
NO_ATTENTION: Refused = [
    ("model.attention", ["none"], "kernel", ["reference", "chunked", "sdpa"]),
    ("model.attention", ["none"], "model.normalizer", OTHERS),
    ("model.normalizer", OTHERS, "kernel", ["sdpa"]),
    ("model.attention", NO_PRODUCTS, "kernel", ["sdpa"]),
]
PAIRS: Refused = [
    ("data", [*WITHOUT_WORDS, "cmudict"], "data.tokenizer", OF_PAIRS),
    ("data", [*WITHOUT_WORDS, "cmudict"], "data.joint", BOTH),
    ("data", [*WITHOUT_WORDS, "cmudict"], "data.lower", BOTH),
    ("data", [*WITHOUT_WORDS, *SENTENCES], "data.stress", BOTH),
    ("data", [*WITHOUT_WORDS, *SENTENCES], "data.variants", ["first", "all"]),
    ("task.beam", [1], "task.length_penalty", [0.6]),
]
# Refused by way of a third axis: data=recall wants task=recall, and the one has no tokenizer, the
# other no label smoothing; no data has the keys of both; sentences alone have data.joint.
INDIRECT: Refused = [
    ("data", ["recall"], "task.label_smoothing", SMOOTHING),
    ("task", ["recall"], "data.tokenizer", OF_TEXTS),
]
INDIRECT_PAIRS: Refused = [
    (left, EVERY_AXIS[left], right, OF_PAIRS if right == "data.tokenizer" else BOTH)
    for left in ("data.stress", "data.variants")
    for right in ("data.tokenizer", "data.joint", "data.lower")
]
INDIRECT_SHARED: Refused = [
    ("model.share_embeddings", [True], "data.joint", [False]),
    ("model.share_embeddings", [True], "data.stress", BOTH),
    ("model.share_embeddings", [True], "data.variants", ["first", "all"]),
]
# Classes need texts with classes, which an untied output map does not go with, and of which no
# next one can be asked.
INDIRECT_CLASSES: Refused = [("task", ["classification"], "model.tie_embeddings", [False])]
INDIRECT_SEGMENTS: Refused = [("data", ["text_files"], "task.next_sentence", [True, False])]
EVERY_INDIRECT = [
    *INDIRECT,
    *INDIRECT_PAIRS,
    *INDIRECT_SHARED,
    *INDIRECT_CLASSES,
    *INDIRECT_SEGMENTS,
]
REFUSED: dict[str, Refused] = {
    "gpt": [*STACK, *MASKLESS, *LANGUAGE, *DOCUMENTS, *FROZEN, *INDIRECT, *INDIRECT_CLASSES],
    "bert": [
        *STACK,
        *FROZEN,
        *DOCUMENTS_OF_BERT,
        *INDIRECT_CLASSES,
        *INDIRECT_SEGMENTS,
        ("model.mixer", ["none"], "model.mask", ["causal"]),
    ],
    "vit": [
        *STACK,
        *FROZEN,
        ("model.attention", ["uniform"], "pos_enc", ["relative_2d"]),
        ("model.mixer", OTHER_MIXERS, "pos_enc", ["relative_2d"]),
        ("model.mask", ["causal", "prefix"], "model.pool", ["class"]),
        ("model.mixer", ["convolution"], "model.pool", ["class"]),
        ("model.mixer", ["convolution"], "model.mask", ["causal"]),
        ("data", ["digits"], "data.flip", BOTH),
    ],
    "resnet": [("data", ["digits"], "data.flip", BOTH)],
    "timm": [("data", ["digits"], "data.flip", BOTH)],
    "rnn_lm": [*RESIDUAL, *LANGUAGE, *INDIRECT],
    "rnn_seq2seq": [
        *RESIDUAL,
        *NO_ATTENTION,
        *PAIRS,
        *INDIRECT_PAIRS,
        ("model.attention", ["none"], "model.window", ["local_m", "local_p"]),
        ("model.window", ["local_p"], "kernel", ["sdpa"]),
        ("model.decoder", ["bahdanau"], "model.input_feeding", [True]),
    ],
    "transformer": [
        *BLOCKS,
        *MIXERS,
        *MASKLESS,
        *PAIRS,
        *INDIRECT_PAIRS,
        *INDIRECT_SHARED,
        ("model.cross_attention", NO_PRODUCTS, "kernel", ["sdpa"]),
        ("model.cross_attention", ["uniform"], "model.residual", [False]),
        ("model.share_embeddings", [True], "data", ["dates", "cmudict"]),
    ],
    "gat": [
        ("data", ["karate"], "data.normalise", BOTH),
        ("model.attention", NO_PRODUCTS, "kernel", ["sdpa"]),
        ("model.normalizer", OTHERS, "kernel", ["sdpa", "sparse"]),
        ("model.mask", ["none"], "kernel", ["sparse"]),
        ("model.attention", ["uniform"], "model.shared", [False]),
        ("model.dim", [8], "model.heads", [3]),
    ],
    "captioner": [
        ("model.attention", NO_PRODUCTS, "kernel", ["sdpa"]),
        ("model.normalizer", OTHERS, "kernel", ["sdpa"]),
        ("task.beam", [1], "task.length_penalty", [0.6]),
        ("task.doubly_stochastic", [0.1], "model.normalizer", ["hard"]),
        ("task.doubly_stochastic", [0.1], "model.attention", ["uniform"]),
    ],
    "rnn_forecaster": [*RESIDUAL, *NO_ATTENTION],
    "transformer_forecaster": [*STACK, *MASKLESS],
}
# The only options of these axes that a model, or a machine without a GPU, can be trained with.
Only = dict[str, list[Any]]
HERE: Only = {
    "trainer": ["cpu", "ddp"],
    "trainer.precision": ["32-true", "bf16-mixed", "bf16-true", "64-true"],
}
SCORES: Only = {"model.attention": scores()}
OF_IMAGES: Only = {"data": IMAGES, "task": ["classification"]}
OF_SEQUENCES: Only = {"pos_enc": [name for name in options("pos_enc") if not name.endswith("_2d")]}
NO_POSITIONS: Only = {"pos_enc": ["none"]}
OF_LANGUAGE: Only = {
    "data": [*TEXTS, "recall"],
    "task": ["causal_lm", "recall"],
    "data.tokenizer": OF_TEXTS,
}
OF_DOCUMENTS: Only = {
    "data": [*OF_LANGUAGE["data"], "text_files"],
    "task": [*OF_LANGUAGE["task"], "classification"],
}
OF_SOURCES: Only = {
    "data": [*WITHOUT_WORDS, *SENTENCES, "cmudict"],
    "task": ["seq2seq"],
    "data.tokenizer": OF_PAIRS,
}
# Some kernels need a GPU. None works along edges where there is no graph, and no mask.
KERNELS: Only = {"kernel": kernels()}
OF_ORDER = KERNELS | {
    "model.mask": [name for name in options("model.mask") if name != "neighbours"]
}
OF_GRAPHS: Only = {
    "data": ["karate", "planetoid"],
    "kernel": [*kernels(), "sparse"],
    "task": ["node_classification"],
    "model.attention": [name for name in scores() if name != "location"],
    "model.mask": ["neighbours", "none"],
    "model.depth": [2],
}
OF_CAPTIONS = KERNELS | {
    "data": ["digit_strings"],
    "task": ["captioning"],
    # What says a distance has none to say between a word and an image.
    "pos_enc": [name for name in options("pos_enc") if name not in (*DISTANCES, "relative_2d")],
    "model.norm_type": ["layer", "batch"],
}
OF_SERIES: Only = {"data": ["series"], "task": ["forecasting"]}
ONLY: dict[str, Only] = {
    "gpt": HERE | OF_ORDER | OF_LANGUAGE | OF_DOCUMENTS | SCORES | OF_SEQUENCES,
    "bert": HERE
    | OF_ORDER
    | SCORES
    | OF_SEQUENCES
    | {
        "data": [*TEXTS, "text_files"],
        "task": ["masked_lm", "classification"],
        "data.tokenizer": OF_TEXTS,
    },
    "vit": HERE | OF_ORDER | OF_IMAGES | SCORES,
    "resnet": HERE
    | OF_IMAGES
    | NO_POSITIONS
    | {"kernel": ["auto"], "model.norm_type": ["layer", "batch"]},
    "timm": HERE | OF_IMAGES | NO_POSITIONS | {"kernel": ["auto"]},
    "rnn_lm": HERE | OF_LANGUAGE | NO_POSITIONS | {"kernel": ["auto"]},
    "rnn_seq2seq": HERE | KERNELS | OF_SOURCES | NO_POSITIONS,
    "gat": HERE | OF_GRAPHS | NO_POSITIONS,
    "transformer": HERE
    | OF_ORDER
    | OF_SOURCES
    | SCORES
    | OF_SEQUENCES
    | {"model.norm_type": ["layer", "rms"]},
    "captioner": HERE | OF_CAPTIONS | SCORES,
    "rnn_forecaster": HERE | KERNELS | OF_SERIES | NO_POSITIONS,
    "transformer_forecaster": HERE | OF_ORDER | OF_SERIES | SCORES | OF_SEQUENCES,
}
