"""The allowed values of every key. A key without a rule here takes the type of its default.

An exact key counts before patterns; of the patterns, the first that matches (`*` as in fnmatch).
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from ablate.config.keys import default_of, parts_in
from ablate.config.rules import (
    Below,
    Bool,
    Exactly,
    Int,
    Keys,
    ListOf,
    Named,
    Real,
    Rule,
    Text,
    either,
    one_of,
    or_null,
)

HUGGING_FACE = "hf:"  # prefix of names on the Hugging Face Hub
SHARE = Real(0, 1, below=True)  # of units dropped, labels smoothed, a rate's floor
POSITIVE = Real(0, above=True)
NOT_NEGATIVE = Real(0)
COUNT = Int(1, 2**31 - 1)  # the product of two of them still is an index of 64 bits
SEED = Int(0, 2**63 - 1)
# The largest published ones or more; larger ones would take minutes to be refused for their memory.
LAYERS = Int(1, 1000)  # DeepNet, Wang et al. 2022, https://arxiv.org/abs/2203.00555
WIDTH = Int(1, 2**24)
TOKENS = 10**6  # of a vocabulary
PIXELS = 2**14  # of a side
PROCESSES = 1024

VALUES: dict[str, Rule] = {
    "seed": SEED,
    "init_from": or_null(Text()),
    "output_dir": Text(),
    "study.name": Below("output_dir"),
    "study.baseline": ListOf(Text(), least=0),
    "study.factors": or_null(Keys()),
    "study.design": one_of("one_factor", "leave_one_out", "pairs", "factorial", "fractional"),
    "study.resolution": Int(3),
    "study.seeds": either(COUNT, ListOf(SEED)),
    "study.metric": or_null(Text()),
    "study.mode": or_null(one_of("min", "max")),
    "study.exclude": ListOf(Keys(), least=0),
    "study.on_invalid": one_of("error", "skip"),
    "study.match": or_null(one_of("parameters", "flops")),
    "study.match_by": Text(),
    "study.tune": or_null(Keys()),
    "study.tune_seeds": either(COUNT, ListOf(SEED)),
    "study.margin": or_null(POSITIVE),
    "study.rerun": one_of("missing", "failed", "all"),
    "study.dry_run": Bool(),
    "study.confirm_large": Bool(),
    "study.arm": or_null(Text()),
    "checkpoint_every": COUNT,
    "compile": Bool(),
    # the model
    "model.dim": WIDTH,
    "model.depth": LAYERS,
    "model.encoder.depth": LAYERS,
    "model.decoder.depth": LAYERS,
    "model.embedding_dim": or_null(WIDTH),
    "model.embedding.algorithm": one_of("skip_gram", "cbow"),
    "model.embedding.window": COUNT,
    "model.embedding.negative": COUNT,
    "model.embedding.epochs": COUNT,
    "model.window.size": COUNT,
    "model.gate.reduction": COUNT,
    "model.mixer.size": WIDTH,
    "model.normalizer.temperature": POSITIVE,
    "model.heads": WIDTH,
    "model.ffn_dim": or_null(WIDTH),
    "model.norm": one_of("pre", "post", "sandwich", "none"),
    "model.norm_eps": POSITIVE,
    "model.dropout": SHARE,
    "model.drop_path": SHARE,
    "model.embedding_scale": either(POSITIVE, one_of("sqrt")),
    "model.init_std": or_null(POSITIVE),
    "model.patch": WIDTH,
    "model.stride": or_null(WIDTH),
    "model.out_heads": WIDTH,
    "model.pool": one_of("class", "mean"),
    "model.pretrained": either(Bool(), or_null(Text())),
    "model.freeze": one_of("none", "embeddings", "encoder"),
    "model.name": Text(),
    "model.args": Keys(),
    "model.attention.hidden": or_null(WIDTH),
    "model.attention.max_length": or_null(COUNT),
    "model.cross_attention.hidden": or_null(WIDTH),
    "model.cross_attention.max_length": or_null(COUNT),
    "model.mask.size": COUNT,
    # positions
    "pos_enc.base": POSITIVE,
    "pos_enc.layout": one_of("half", "interleaved"),
    "pos_enc.max_distance": COUNT,
    "pos_enc.buckets": Int(2, 2**31 - 1),
    # debugging
    "debug.ratio": Real(0, 1, above=True, below=True),
    "debug.steps": COUNT,
    "debug.rows": COUNT,
    # data
    "data.name": one_of("cora", "citeseer", "pubmed"),
    "data.normalise": Bool(),
    "data.path": or_null(Text()),
    "data.root": or_null(Text()),
    "data.sha256": or_null(Text()),
    "data.tokenizer": either(one_of("char", "byte", "word", "bpe"), Named(HUGGING_FACE)),
    "data.vocab_size": or_null(Int(1, TOKENS)),
    "data.seq_len": COUNT,
    "data.batch_size": COUNT,
    "data.*_fraction": or_null(Real(0, 1, above=True, below=True)),
    "data.size": Int(1, PIXELS),
    "data.background": or_null(one_of("white", "black")),
    "data.flip": Bool(),
    "data.randaugment": or_null(Text()),
    "data.workers": Int(0, PROCESSES),
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
    "data.symbols": Int(2, TOKENS),
    "data.min_length": COUNT,
    "data.max_train_length": COUNT,
    "data.test_max_length": COUNT,
    "data.locales": ListOf(Text()),
    "data.styles": ListOf(one_of("full", "long", "medium", "short")),
    "data.years": ListOf(Int(1), length=2),
    "data.*_examples": COUNT,
    "data.data_seed": SEED,
    "data.height": Int(8, PIXELS),
    "data.width": Int(8, PIXELS),
    "data.min_digits": COUNT,
    "data.max_digits": COUNT,
    "data.columns": or_null(ListOf(Text())),
    "data.window": COUNT,
    "data.horizon": COUNT,
    "data.period": or_null(COUNT),
    # training
    "task.label_smoothing": SHARE,
    "task.doubly_stochastic": NOT_NEGATIVE,
    "task.beam": COUNT,
    "task.length_penalty": NOT_NEGATIVE,
    "task.max_length": or_null(COUNT),
    "task.mask_rate": Real(0, 1, above=True, below=True),
    "task.mask_share": Real(0, 1),
    "task.random_share": Real(0, 1),
    "task.mixup": NOT_NEGATIVE,
    "task.cutmix": NOT_NEGATIVE,
    "optimizer.lr": POSITIVE,
    "optimizer.betas": ListOf(SHARE, length=2),
    "optimizer.eps": NOT_NEGATIVE,
    "optimizer.weight_decay": NOT_NEGATIVE,
    "optimizer.momentum": SHARE,
    "optimizer.nesterov": Bool(),
    "optimizer.fused": Bool(),
    "schedule.warmup": either(
        Int(0, 2**31 - 1), Real(0, 1, above=True, below=True), one_of("auto")
    ),
    "schedule.floor": Real(0, 1),
    "kernel.chunk": or_null(COUNT),
    "kernel.compile": either(Bool(), one_of("auto")),
    "logger.project": Text(),
    "logger.entity": or_null(Text()),
    "logger.name": or_null(Text()),
    "logger.group": or_null(Text()),
    "logger.job_type": or_null(Text()),
    "logger.tags": or_null(either(Text(), ListOf(Text(), least=0))),
    "logger.notes": or_null(Text()),
    "logger.dir": or_null(Text()),
    "logger.mode": one_of("auto", "online", "offline"),
    # Lightning's Trainer
    "trainer.accelerator": one_of("cpu", "gpu", "cuda", "mps", "auto"),
    "trainer.devices": either(Int(1, PROCESSES), one_of("auto"), ListOf(Int(0))),
    "trainer.num_nodes": Int(1, 2**16),
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


# The rule of a key of ours that stands nowhere above: the type of its default.
OF_TYPE: dict[type, Rule] = {bool: Bool(), int: Int(), float: Real(), str: Text()}


@dataclass(frozen=True)
class ClassOf:
    """module.Class of an option of the group, or of one's own: not of another group's option."""

    group: str

    def allows(self, value: object) -> bool:
        if not isinstance(value, str) or "." not in value:
            return False
        return value in _classes(self.group) or value not in _classes("*")

    def __str__(self) -> str:
        return f"module.Class, of an option of {self.group} or of one's own"


@cache
def _classes(group: str) -> frozenset[str]:
    return frozenset(part["_target_"] for part in parts_in(group))


@cache
def rule_of(path: str) -> Rule | None:
    """Return the rule of a key such as "model.heads"; None for keys of external code."""
    if path in VALUES:
        return VALUES[path]
    group, _, key = path.rpartition(".")
    if group and key == "_target_":
        return ClassOf(group)
    if group and key == "_partial_":
        ways = {part.get(key, False) for part in parts_in(group)}
        return Exactly(*ways) if len(ways) == 1 else None
    for pattern, rule in VALUES.items():
        if fnmatchcase(path, pattern):
            return rule
    return OF_TYPE.get(type(default_of(path)))
