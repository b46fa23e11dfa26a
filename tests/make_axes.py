"""The axes of a composition: what can be chosen, and which models have it."""

from typing import Any

from make_model import options
from make_systems import Tiny, rows_of_systems

from ablate.config.tree import groups

# Every config group but `model`, which is the outer loop, and those that train nothing.
NO_AXES = ("model", "callbacks", "debug", "experiment", "hydra", "logger", "sweep")
GROUPS = ("data", "task", *(g for g in sorted(groups()) if g not in (*NO_AXES, "data", "task")))
CHOICES: dict[str, list[Any]] = {group: options(group) for group in GROUPS}
AXES: dict[str, list[Any]] = CHOICES | {
    # One-hot vectors need a model as wide as the vocabulary: test_embedding.py.
    "model.embedding": ["learned", "word2vec"],
    "model.dim": [12, 8],
    "model.heads": [2, 1, 3],
    "model.depth": [2, 1],
    "model.encoder.depth": [2, 1],
    "model.decoder.depth": [2, 1],
    "model.norm": ["pre", "post", "sandwich", "output", "none"],
    "model.residual": [True, False],
    "model.parallel": [False, True],
    "model.mixer.kv_heads": [None, 1],
    "model.mixer.qk_norm": [None, "l2", "rms", "rms_all", "layer"],
    "model.mixer.softcap": [None, 2.0],
    "model.mixer.sink": [None, "zero", "learned"],
    "model.mixer.output_gate": [None, "head", "element"],
    "model.ffn_dim": [None, 5],
    "model.share_layers": [False, True],
    "model.activation_checkpointing": [False, True, "selective"],
    "model.tie_embeddings": [True, False],
    "model.freeze": ["none", "embeddings", "encoder"],
    "model.share_embeddings": [False, True],
    "model.smear": [False, True],
    "model.bigram": [None, 2],
    "model.unit_weights": [False, True],
    "model.logit_scale": [False, True],
    "model.bias": [True, False],
    "model.patch": [2, 4],
    "model.stride": [None, 2],
    "model.pool": ["mean", "class"],
    "model.drop_path": [0.0, 0.1],
    "model.dropout": [0.0, 0.1],
    "model.embedding_scale": [1.0, "sqrt"],
    "model.init_depth_scale": [True, False, "zero"],
    "model.embedding_dim": [None, 6],
    "model.bidirectional": [True, False],
    "model.input_feeding": [False, True],
    "task.label_smoothing": [0.0, 0.1],
    "task.beam": [1, 2],
    "task.length_penalty": [0.0, 0.6],
    "task.max_length": [None, 3],
    "trainer.precision": [
        *("32-true", "bf16-mixed", "bf16-true", "64-true", "fp8-mixed", "16-mixed", "16-true"),
    ],
    "trainer.accumulate_grad_batches": [1, 2],
    "trainer.gradient_clip_val": [1.0, None],
}
# Axes that only some data or tasks have, and only for these models.
TEXTS: dict[str, list[Any]] = {"data.tokenizer": ["char", "byte", "bpe", "word"]}
PAIRS = TEXTS | {
    "data.joint": [False, True],
    "data.lower": [False, True],
    "data.stress": [False, True],
    "data.variants": ["first", "all"],
}
SEGMENTS: dict[str, list[Any]] = {"task.next_sentence": [True, False]}
IMAGES: dict[str, list[Any]] = {
    "data.flip": [False, True],
    "task.mixup": [0.0, 0.2],
    "task.cutmix": [0.0, 1.0],
}
EVERY_AXIS = AXES | PAIRS | SEGMENTS | IMAGES | rows_of_systems("AXES")


BLOCKS = ("model.dim=12", "model.heads=2")
DEEP = ("model.dim=12", "model.depth=2")
# Embeddings as wide as a state, or as half of one.
WIDTHS: dict[str, list[Any]] = {"model.dim": [12, 6]}
MODELS: dict[str, Tiny] = {
    "gpt": Tiny("pydoc", (*BLOCKS, "model.depth=2"), TEXTS),
    "bert": Tiny("pydoc", (*BLOCKS, "model.depth=2", "pos_enc=learned"), TEXTS | SEGMENTS),
    "vit": Tiny("digits", (*BLOCKS, "model.depth=2", "model.patch=2", "model.pool=mean"), IMAGES),
    # oneDNN's bfloat16 convolutions of 3 x 3 on one pixel, the size that most of timm's test models
    # make of a digit, sometimes have gradients that are not finite; this one has none of them.
    "resnet": Tiny("digits", ("model.dim=12",), IMAGES),
    "timm": Tiny("digits", ("model.name=test_efficientnet",), IMAGES),
    "rnn_lm": Tiny("pydoc", DEEP, TEXTS, WIDTHS),
    "rnn_seq2seq": Tiny("dates", DEEP, PAIRS, WIDTHS),
    "transformer": Tiny("dates", BLOCKS, PAIRS),
    "gpt_seq2seq": Tiny("dates", (*BLOCKS, "model.depth=2"), PAIRS),
    **rows_of_systems("MODELS"),
}
