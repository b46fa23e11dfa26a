"""What cannot be combined, as a table: when it happens, and what to change."""

from collections.abc import Callable
from dataclasses import dataclass

from ablate.facts import IMAGES, PAIRS, RECALL, SERIES, TEXT, Facts

WRITERS = ("transformer", "rnn_seq2seq")  # models that read a source and write a target
FORECASTERS = ("rnn_forecaster", "transformer_forecaster")  # models that read values


@dataclass(frozen=True)
class Conflict:
    """`says` names the overrides; {model.heads} stands for a value, {:name} for a fact."""

    when: Callable[[Facts], bool]
    says: str


CONFLICTS: list[Conflict] = [
    # heads and width
    Conflict(
        lambda c: c("model.dim") % c("model.heads") != 0,
        "model.heads={model.heads} does not divide model.dim={model.dim}",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc") == "rotary"
            and c("model.dim") % c("model.heads") == 0
            and c("model.dim") // c("model.heads") % 2 == 1
        ),
        "pos_enc=rotary turns pairs of numbers and needs an even head width; here it is"
        " model.dim={model.dim} / model.heads={model.heads}",
    ),
    Conflict(
        lambda c: c.option("pos_enc") == "learned_2d" and c("model.dim") % 2 != 0,
        "pos_enc=learned_2d needs an even model.dim, not {model.dim}",
    ),
    Conflict(
        lambda c: c.option("pos_enc") == "sinusoidal_2d" and c("model.dim") % 4 != 0,
        "pos_enc=sinusoidal_2d needs a model.dim that is a multiple of 4, not {model.dim}",
    ),
    # scores and positions
    Conflict(
        lambda c: (
            c.states("pos_enc", "compares")
            and not (c.states("model.attention", "query") and c.states("model.attention", "key"))
        ),
        "pos_enc={pos_enc} acts where queries and keys are compared, and"
        " model.attention={model.attention} does not compare them",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc") == "relative"
            and c("pos_enc.keys")
            and not c.states("model.attention", "query")
        ),
        "pos_enc=relative with pos_enc.keys=true needs a score that reads the query, and"
        " model.attention={model.attention} does not; set pos_enc.keys=false",
    ),
    Conflict(
        lambda c: (
            c.option("model.attention") == "location"
            and c("model.attention.max_length") is not None
            and c("model.attention.max_length") < c.positions
        ),
        "model.attention.max_length={model.attention.max_length} is shorter than the {:positions}"
        " positions of training; give that many or more, or null",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc").endswith("_2d")
            and c.option("model") in ("gpt", "transformer", "transformer_forecaster")
        ),
        "pos_enc={pos_enc} needs pictures, and model={model} reads a sequence; take the same"
        " without _2d",
    ),
    # masks
    Conflict(
        lambda c: c("model.pool") == "class" and c.option("model.mask") in ("causal", "prefix"),
        "model.mask={model.mask} with model.pool=class: the classification token stands first and"
        " would not see the picture; set model.pool=mean",
    ),
    # blocks
    Conflict(
        lambda c: c("model.drop_path") > 0 and not c("model.residual"),
        "model.drop_path={model.drop_path} drops whole sublayers and needs model.residual=true",
    ),
    Conflict(
        lambda c: c("model.norm") == "none" and c("model.norm_type") != "layer",
        "model.norm_type={model.norm_type} has no effect with model.norm=none",
    ),
    Conflict(
        lambda c: c("model.share_layers") and c("model.depth") == 1,
        "model.share_layers=true has no effect with model.depth=1",
    ),
    Conflict(
        lambda c: (
            c("model.share_layers") and c("model.encoder.depth") == c("model.decoder.depth") == 1
        ),
        "model.share_layers=true has no effect with model.encoder.depth=1 and"
        " model.decoder.depth=1",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "transformer"
            and c("model.norm") != "none"
            and c("model.norm_type") == "batch"
        ),
        "model.norm_type=batch would take the padding of model=transformer's batches into its"
        " statistics; use model.norm_type=layer or rms",
    ),
    Conflict(
        lambda c: (
            c("model.norm") != "none" and c("model.norm_type") == "batch" and not c("model.bias")
        ),
        "model.norm_type=batch always has a bias; set model.bias=true or another norm_type",
    ),
    Conflict(
        lambda c: c("model.ffn") == "none" and c("model.ffn_dim") is not None,
        "model.ffn_dim={model.ffn_dim} has no effect with model.ffn=none",
    ),
    # recurrent models
    Conflict(
        lambda c: c("model.bidirectional") and c("model.dim") % 2 != 0,
        "model.bidirectional=true gives each direction half of model.dim={model.dim}, which must be"
        " even",
    ),
    Conflict(
        lambda c: c("model.decoder") == "bahdanau" and c("model.dim") % 2 != 0,
        "model.decoder=bahdanau reads out the larger of each pair of model.dim={model.dim} numbers,"
        " which must be even",
    ),
    Conflict(
        lambda c: c("model.cell") and c("model.residual") and c("model.depth") == 1,
        "model.residual=true goes around the second layer and those above it, and has no effect"
        " with model.depth=1",
    ),
    Conflict(
        lambda c: c("model.input_feeding") and c("model.decoder") != "luong",
        "model.input_feeding=true belongs to model.decoder=luong; model.decoder={model.decoder}"
        " always feeds the context to the cell",
    ),
    Conflict(
        lambda c: (
            c("model.tie_embeddings") and (c("model.embedding_dim") or c("model.dim")) != c.read_out
        ),
        "model.tie_embeddings=true needs embeddings as wide as what the output map reads; set"
        " model.embedding_dim={:read_out}",
    ),
    Conflict(
        lambda c: (
            c.is_ours("model")
            and c.option("model.attention") == "none"
            and c.option("model") not in ("rnn_seq2seq", "rnn_forecaster")
        ),
        "model.attention=none leaves model={model} nothing to read; use model.attention=uniform, or"
        " model=rnn_seq2seq",
    ),
    Conflict(
        lambda c: c.option("model.cross_attention") == "none",
        "model.cross_attention=none leaves model={model} nothing to read of the source; use"
        " model.cross_attention=uniform, or model=rnn_seq2seq with model.attention=none",
    ),
    Conflict(
        lambda c: c.option("model.attention") == "none" and c.option("model.window") != "none",
        "model.window={model.window} has no effect with model.attention=none",
    ),
    Conflict(
        lambda c: (
            c.option("model") in ("rnn_lm", "rnn_seq2seq", "rnn_forecaster")
            and c.option("pos_enc") != "none"
        ),
        "pos_enc={pos_enc} has no effect on model={model}, which reads in order; use pos_enc=none",
    ),
    # pictures
    Conflict(
        lambda c: c("model.patch") > c.side,
        "model.patch={model.patch} is larger than the pictures, which are {:side} pixels a side",
    ),
    Conflict(
        lambda c: c("model.patch") <= c.side and (c.side - c("model.patch")) % c.stride != 0,
        "model.patch={model.patch} with model.stride={:stride} leaves pixels out at the border of"
        " pictures of {:side} pixels a side",
    ),
    Conflict(
        lambda c: c.stride > c("model.patch"),
        "model.stride={model.stride} is larger than model.patch={model.patch} and skips pixels",
    ),
    Conflict(
        lambda c: c.option("model") == "vit" and isinstance(c("model.pretrained"), bool),
        "model.pretrained={model.pretrained}: must be the name of a timm ViT, or null",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and not isinstance(c("model.pretrained"), bool),
        "model.pretrained={model.pretrained}: must be true or false; the name is model.name",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and c.option("pos_enc") != "none",
        "pos_enc={pos_enc} has no effect on model=timm, which has its own; use pos_enc=none",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect on model=timm, which computes its own way; use kernel=auto",
    ),
    # model, task and data
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == IMAGES,
        "model={model} reads text, and data={data} is pictures; use model=vit, or data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in ("vit", "timm") and c.kind != IMAGES,
        "model={model} reads pictures, and data={data} is {:kind}; use model={:reader}, or"
        " data=digits",
    ),
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == PAIRS,
        "model={model} reads one text, and data={data} is pairs of texts; use model={:reader}, or"
        " data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == SERIES,
        "model={model} reads text, and data={data} is a series of numbers; use model={:reader}, or"
        " data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in FORECASTERS and c.kind != SERIES,
        "model={model} reads a series of numbers, and data={data} is {:kind}; use model={:reader},"
        " or data=series",
    ),
    Conflict(
        lambda c: c.option("model") in ("transformer", "rnn_seq2seq") and c.kind != PAIRS,
        "model={model} reads pairs of texts, and data={data} is {:kind}; use model={:reader}, or"
        " data=dates",
    ),
    Conflict(
        lambda c: c.option("task") == "causal_lm" and c.kind != TEXT,
        "task=causal_lm needs text, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "classification" and c.kind != IMAGES,
        "task=classification needs pictures with classes, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "recall" and c.kind != RECALL,
        "task=recall needs data=recall, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "seq2seq" and c.kind != PAIRS,
        "task=seq2seq needs pairs of texts, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: (
            c.option("task") == "seq2seq"
            and c.is_ours("model")
            and c.option("model") not in WRITERS
        ),
        "task=seq2seq needs a model that reads a source and writes a target, and model={model} does"
        " not; use model=transformer or model=rnn_seq2seq",
    ),
    Conflict(
        lambda c: c.option("model") in WRITERS and c.option("task") != "seq2seq",
        "model={model} needs task=seq2seq, not task={task}",
    ),
    Conflict(
        lambda c: c.option("task") == "forecasting" and c.kind != SERIES,
        "task=forecasting needs a series of numbers, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: (
            c.option("task") == "forecasting"
            and c.is_ours("model")
            and c.option("model") not in FORECASTERS
        ),
        "task=forecasting needs a model that reads values and says the next, and model={model} does"
        " not; use model=rnn_forecaster or model=transformer_forecaster",
    ),
    Conflict(
        lambda c: c.option("model") in FORECASTERS and c.option("task") != "forecasting",
        "model={model} needs task=forecasting, not task={task}",
    ),
    Conflict(
        lambda c: c("task.beam") == 1 and c("task.length_penalty") > 0,
        "task.length_penalty={task.length_penalty} ranks what a beam finds, and has no effect with"
        " task.beam=1",
    ),
    Conflict(
        lambda c: max(c("task.mixup"), c("task.cutmix")) > 0 and c("data.batch_size") % 2 != 0,
        "task.mixup and task.cutmix mix pairs: data.batch_size={data.batch_size} must be even",
    ),
    Conflict(
        lambda c: c("model.share_embeddings") and not c("data.joint"),
        "model.share_embeddings=true needs one vocabulary for both sides; set data.joint=true",
    ),
    # texts
    Conflict(
        lambda c: c.kind == TEXT and c("data.tokenizer") == "word",
        "data.tokenizer=word is for pairs of texts; data={data} takes char, byte or bpe",
    ),
    Conflict(
        lambda c: c.kind == PAIRS and c("data.tokenizer") == "byte",
        "data.tokenizer=byte is for single texts; data={data} takes char, word or bpe",
    ),
    Conflict(
        lambda c: c("data.vocab_size") is not None and c("data.tokenizer") != "bpe",
        "data.vocab_size={data.vocab_size}: data.tokenizer={data.tokenizer} takes what it finds;"
        " use data.tokenizer=bpe, or data.vocab_size=null",
    ),
    Conflict(
        lambda c: c("data.min_count") > 1 and c("data.tokenizer") != "word",
        "data.min_count={data.min_count} has no effect with data.tokenizer={data.tokenizer}; use"
        " data.tokenizer=word, or data.min_count=1",
    ),
    Conflict(
        lambda c: (c("data.val_source") is None) != (c("data.val_target") is None),
        "data.val_source={data.val_source} and data.val_target={data.val_target}: set both, or"
        " neither",
    ),
    Conflict(
        lambda c: (c("data.test_source") is None) != (c("data.test_target") is None),
        "data.test_source={data.test_source} and data.test_target={data.test_target}: set both, or"
        " neither",
    ),
    Conflict(
        lambda c: c("data.val_fraction") is not None and c("data.val_source") is not None,
        "data.val_fraction={data.val_fraction} has no effect beside data.val_source; set one null",
    ),
    Conflict(
        lambda c: c("data.test_fraction") is not None and c("data.test_source") is not None,
        "data.test_fraction={data.test_fraction} has no effect beside data.test_source; set one"
        " null",
    ),
    Conflict(
        lambda c: len(set(c("data.pair"))) == 1,
        "data.pair={data.pair}: must be two different languages",
    ),
    Conflict(
        lambda c: c("data.min_length") > min(c("data.max_train_length"), c("data.test_max_length")),
        "data.min_length={data.min_length} is above data.max_train_length={data.max_train_length}"
        " or data.test_max_length={data.test_max_length}",
    ),
    # series
    Conflict(
        lambda c: c.kind in (TEXT, SERIES) and c("data.val_fraction") is None,
        "data.val_fraction=null: data={data} has nothing else to validate on",
    ),
    Conflict(
        lambda c: c.kind == TEXT and c("data.path") is None,
        "data.path=null: data={data} needs a file or a URL",
    ),
    Conflict(
        lambda c: c.kind == SERIES and c("data.columns") is not None and c("data.path") is None,
        "data.columns={data.columns}: the sunspots have one column; set data.path=FILE, or"
        " data.columns=null",
    ),
    Conflict(
        lambda c: (c("data.period") or 0) > c("data.window"),
        "data.window={data.window}: the seasonal naive forecast repeats the last"
        " data.period={data.period} values, so the window must hold as many",
    ),
    Conflict(
        lambda c: (
            c.kind == SERIES and (c("data.val_fraction") or 0) + (c("data.test_fraction") or 0) >= 1
        ),
        "data.val_fraction={data.val_fraction} and data.test_fraction={data.test_fraction} leave"
        " nothing to train on",
    ),
    # kernels
    Conflict(
        lambda c: c.option("kernel") == "sdpa" and not c.states("model.cross_attention", "lowers"),
        "kernel=sdpa computes scaled dot products only, and"
        " model.cross_attention={model.cross_attention} is none; use kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") == "sdpa"
            and not c.states("model.attention", "lowers")
            and c.option("model.attention") != "none"
        ),
        "kernel=sdpa computes scaled dot products only, and model.attention={model.attention} is"
        " none; use kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") == "sdpa"
            and c.option("pos_enc") == "relative"
            and c("pos_enc.values")
        ),
        "kernel=sdpa hides the weights that pos_enc=relative with pos_enc.values=true needs; use"
        " kernel=auto or pos_enc.values=false",
    ),
    Conflict(
        lambda c: c.option("kernel") == "sdpa" and c.states("model.window", "weighs"),
        "kernel=sdpa hides the weights that model.window={model.window} multiplies; use"
        " kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model.attention") == "none" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect with model.attention=none; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model") == "rnn_lm" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect on model=rnn_lm, which has no attention; use kernel=auto",
    ),
    # training
    Conflict(
        lambda c: c("optimizer.nesterov") and c("optimizer.momentum") == 0,
        "optimizer.nesterov=true needs optimizer.momentum above 0",
    ),
    Conflict(
        lambda c: c("trainer.max_steps") == -1 and c("trainer.max_epochs") is None,
        "nothing says how long to train; set trainer.max_steps or trainer.max_epochs",
    ),
    Conflict(
        lambda c: 0 < c("trainer.max_steps") < c("schedule.warmup_steps"),
        "schedule.warmup_steps={schedule.warmup_steps} is longer than the training of"
        " trainer.max_steps={trainer.max_steps}",
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
            c("model.norm_type") == "batch"
            and c("model.norm") != "none"
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
        lambda c: c("trainer.accelerator") == "cpu" and c("trainer.strategy").startswith("fsdp"),
        "trainer.strategy={trainer.strategy} needs GPUs, not trainer.accelerator=cpu; use"
        " trainer=ddp",
    ),
    Conflict(
        lambda c: c("trainer.accelerator") == "cpu" and c("trainer.precision").startswith("16"),
        "trainer.precision={trainer.precision} needs a GPU; on a CPU use bf16-mixed or 32-true",
    ),
]
