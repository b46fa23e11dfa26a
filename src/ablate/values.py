"""What every key may be set to. A key of conf/ that stands nowhere here fails a test.

The first pattern that fits a path counts; `*` stands for one part of it.
"""

from fnmatch import fnmatchcase
from functools import cache

from ablate.rules import Bool, Exactly, Int, ListOf, Real, Rule, Text, either, one_of, or_null

SHARE = Real(0, 1, below=True)  # of units dropped, labels smoothed, a rate's floor
POSITIVE = Real(0, above=True)
NOT_NEGATIVE = Real(0)
COUNT = Int(1)

VALUES: dict[str, Rule] = {
    "seed": Int(0),
    "output_dir": Text(),
    "study": Text(),
    "checkpoint_every": COUNT,
    # the model
    "model.dim": COUNT,
    "model.depth": COUNT,
    "model.encoder.depth": COUNT,
    "model.decoder.depth": COUNT,
    "model.embedding_dim": or_null(COUNT),
    "model.cell": one_of("rnn", "gru", "lstm"),
    "model.bidirectional": Bool(),
    "model.decoder": one_of("luong", "bahdanau"),
    "model.input_feeding": Bool(),
    "model.window.size": COUNT,
    "model.heads": COUNT,
    "model.ffn": one_of("gelu", "relu", "swiglu", "geglu", "none"),
    "model.ffn_dim": or_null(COUNT),
    "model.norm": one_of("pre", "post", "sandwich", "none"),
    "model.norm_type": one_of("layer", "rms", "batch"),
    "model.norm_eps": POSITIVE,
    "model.residual": Bool(),
    "model.dropout": SHARE,
    "model.drop_path": SHARE,
    "model.bias": Bool(),
    "model.tie_embeddings": Bool(),
    "model.share_embeddings": Bool(),
    "model.difference": Bool(),
    "model.init_std": or_null(POSITIVE),
    "model.share_layers": Bool(),
    "model.patch": COUNT,
    "model.stride": or_null(COUNT),
    "model.pool": one_of("class", "mean"),
    "model.pretrained": either(Bool(), or_null(Text())),
    "model.name": Text(),
    "model.attention.hidden": or_null(COUNT),
    "model.attention.max_length": or_null(COUNT),
    "model.cross_attention.hidden": or_null(COUNT),
    "model.cross_attention.max_length": or_null(COUNT),
    "model.mask.size": COUNT,
    # positions
    "pos_enc.base": POSITIVE,
    "pos_enc.scale": Bool(),
    "pos_enc.layout": one_of("half", "interleaved"),
    "pos_enc.max_distance": COUNT,
    "pos_enc.keys": Bool(),
    "pos_enc.values": Bool(),
    "pos_enc.buckets": Int(2),
    # data
    "data.path": or_null(Text()),
    "data.root": or_null(Text()),
    "data.sha256": or_null(Text()),
    "data.tokenizer": one_of("char", "byte", "word", "bpe"),
    "data.vocab_size": or_null(COUNT),
    "data.seq_len": COUNT,
    "data.batch_size": COUNT,
    "data.*_fraction": or_null(Real(0, 1, above=True, below=True)),
    "data.size": COUNT,
    "data.flip": Bool(),
    "data.randaugment": or_null(Text()),
    "data.workers": Int(0),
    "data.pairs": ListOf(COUNT),
    "data.source": Text(),
    "data.target": Text(),
    "data.val_source": or_null(Text()),
    "data.val_target": or_null(Text()),
    "data.test_source": or_null(Text()),
    "data.test_target": or_null(Text()),
    "data.lower": Bool(),
    "data.min_count": COUNT,
    "data.joint": Bool(),
    "data.max_length": or_null(COUNT),
    "data.pair": ListOf(one_of("de", "en", "fr"), length=2),
    "data.stress": Bool(),
    "data.variants": one_of("first", "all"),
    "data.symbols": Int(2),
    "data.min_length": COUNT,
    "data.max_train_length": COUNT,
    "data.test_max_length": COUNT,
    "data.locales": ListOf(Text()),
    "data.styles": ListOf(one_of("full", "long", "medium", "short")),
    "data.years": ListOf(Int(1), length=2),
    "data.*_examples": COUNT,
    "data.data_seed": Int(0),
    "data.columns": or_null(ListOf(Text())),
    "data.window": COUNT,
    "data.horizon": COUNT,
    "data.period": or_null(COUNT),
    # training
    "task.label_smoothing": SHARE,
    "task.beam": COUNT,
    "task.length_penalty": NOT_NEGATIVE,
    "task.max_length": or_null(COUNT),
    "task.mixup": NOT_NEGATIVE,
    "task.cutmix": NOT_NEGATIVE,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": ListOf(SHARE, length=2),
    "optimizer.eps": NOT_NEGATIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.momentum": SHARE,
    "optimizer.nesterov": Bool(),
    "schedule.warmup_steps": Int(0),
    "schedule.floor": Real(0, 1),
    "kernel.chunk": or_null(COUNT),
    "kernel.compile": either(Bool(), one_of("auto")),
    "logger.project": Text(),
    "logger.entity": or_null(Text()),
    "logger.mode": one_of("auto", "online", "offline"),
    # Lightning's Trainer
    "trainer.accelerator": one_of("cpu", "gpu", "cuda", "mps", "auto"),
    "trainer.devices": either(COUNT, one_of("auto"), ListOf(Int(0))),
    "trainer.num_nodes": COUNT,
    "trainer.strategy": one_of("auto", "ddp", "fsdp"),
    "trainer.precision": one_of(
        "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"
    ),
    "trainer.max_steps": either(COUNT, Exactly(-1)),
    "trainer.max_epochs": or_null(COUNT),
    "trainer.val_check_interval": or_null(COUNT),
    "trainer.check_val_every_n_epoch": or_null(COUNT),
    "trainer.gradient_clip_val": or_null(POSITIVE),
    "trainer.accumulate_grad_batches": COUNT,
    "trainer.log_every_n_steps": COUNT,
    "trainer.deterministic": either(Bool(), one_of("warn")),
}


@cache
def rule_of(path: str) -> Rule | None:
    """The rule of a key such as "model.heads"; None for keys that belong to someone else's code."""
    if path in VALUES:
        return VALUES[path]
    return next((rule for pattern, rule in VALUES.items() if fnmatchcase(path, pattern)), None)
