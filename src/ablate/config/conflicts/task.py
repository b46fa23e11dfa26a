"""Model, task and data: which data each model reads and each task measures."""

from ablate.config.facts import LABELLED
from ablate.config.rules import Conflict

WRITERS = ("transformer", "rnn_seq2seq")  # models that read a source and write a target
FORECASTERS = ("rnn_forecaster", "transformer_forecaster")  # models that read values


def _models(task: str, models: tuple[str, ...], does: str) -> tuple[Conflict, Conflict]:
    """The conflicts of a task with our other models, and of `models` with other tasks."""
    use = " or ".join(f"model={model}" for model in models)
    return (
        Conflict(
            lambda c: (
                c.option("task") == task and c.is_ours("model") and c.option("model") not in models
            ),
            f"task={task} needs a model that {does}, and model={{model}} does not; use {use}",
        ),
        Conflict(
            lambda c: (
                c.option("model") in models and c.is_ours("task") and c.option("task") != task
            ),
            f"model={{model}} needs task={task}, not task={{task}}",
        ),
    )


# What the check says before a run, and the constructor to whoever calls it.
ONE_VOCABULARY = (
    "model.share_embeddings=true needs one vocabulary for both sides, and {data} has two; set"
    " model.share_embeddings=false"
)

TASK: list[Conflict] = [
    Conflict(
        lambda c: c.kind not in c.stated("model", "kinds"),
        "model={model} reads {:model_reads}, and data={data} is {:words}{:instead}",
    ),
    Conflict(
        lambda c: c.kind not in c.stated("task", "kinds"),
        "task={task} needs {:task_needs}, and data={data} is {:words}",
    ),
    Conflict(
        lambda c: (
            c.option("task") == "masked_lm" and c.is_ours("model") and c.option("model") != "bert"
        ),
        "task=masked_lm needs a masked-LM head, which model={model} does not have; use model=bert",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "bert"
            and c.is_ours("task")
            and c.option("task") not in ("masked_lm", "classification")
        ),
        "model=bert needs task=masked_lm, or task=classification, not task={task}",
    ),
    Conflict(
        lambda c: c("task.mask_share") + c("task.random_share") > 1 + 1e-9,
        "task.mask_share={task.mask_share} and task.random_share={task.random_share} are shares of"
        " the same tokens: together at most 1",
    ),
    Conflict(
        lambda c: c("data.seq_len") < (8 if c("task.next_sentence") else 4),
        "data.seq_len={data.seq_len} leaves too little text beside [CLS] and [SEP]: at least 8, or"
        " 4 with task.next_sentence=false",
    ),
    *_models("seq2seq", WRITERS, "reads a source and writes a target"),
    *_models("forecasting", FORECASTERS, "reads values and says the next"),
    *_models("node_classification", ("gat",), "reads a graph"),
    *_models("captioning", ("captioner",), "reads an image and writes a caption"),
    Conflict(
        lambda c: c("task.doubly_stochastic") > 0 and c.option("model.normalizer") == "hard",
        "task.doubly_stochastic={task.doubly_stochastic} has no gradient with"
        " model.normalizer=hard, whose weights are 0 or 1; use 0, or another normalizer",
    ),
    Conflict(
        lambda c: (
            c("task.doubly_stochastic") > 0
            and not c.states("model.attention", "query")
            and not c.states("model.attention", "key")
        ),
        "task.doubly_stochastic={task.doubly_stochastic} has no effect with"
        " model.attention={model.attention}, whose weights nothing changes; use 0",
    ),
    Conflict(
        lambda c: c.kind == LABELLED and not c("model.tie_embeddings"),
        "model.tie_embeddings=false unties an output map over tokens, which a model of classes has"
        " not; leave it at true",
    ),
    Conflict(
        lambda c: c.kind == LABELLED and max(c("task.mixup"), c("task.cutmix")) > 0,
        "task.mixup and task.cutmix mix images, and data={data} is {:words}",
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
    Conflict(
        lambda c: c("model.share_embeddings") and not c.joint and c.get("data.joint", None) is None,
        ONE_VOCABULARY.format(data="data={data}"),
    ),
]
