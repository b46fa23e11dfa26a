"""What every task does: stops at the first loss that is not finite, shares batches of pairs."""

import inspect
import json
import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from make_axes import MODELS
from make_data import ready
from make_model import options
from make_rows import base, option
from make_systems import list_of_systems
from refusals import refused
from tiny import built, images, overrides, pairs

import ablate
from ablate.config.composition import Composition
from ablate.config.parts import locate
from ablate.data import IGNORED
from ablate.data.interface import Sizes
from ablate.errors import RunFailed, UserError
from ablate.model.gpt import GPT
from ablate.study.metric_words import mode_of
from ablate.study.plan.budget import measured
from ablate.task import Task
from ablate.task.accumulation import total
from ablate.task.causal_lm import CausalLM, ahead
from ablate.task.classification import Classification
from ablate.task.measures import names_of_measures
from ablate.training.build import build, build_data
from ablate.training.leakage import caution
from ablate.training.measure import full_pass
from ablate.training.steps import FiniteLosses
from ablate.training.train import prepare


@pytest.mark.parametrize(
    ("task", "tiny", "more", "looked_at", "bad"),
    [
        (CausalLM, overrides, ["trainer.log_every_n_steps=3"], 3, math.inf),  # before it is logged
        # The accuracy is a number whatever the weights are, and no best.safetensors may come of it.
        (Classification, images, [], 2, math.nan),
    ],
)
def test_the_first_bad_loss_is_named_when_it_is_looked_at(
    tmp_path, monkeypatch, task, tiny, more, looked_at, bad
):
    """A GPU would wait for a loss that is looked at, so it is not looked at after every step."""
    losses, step, seen = task.losses, 1, []

    def explode(self, batch):
        seen.append(self.global_step)
        terms = losses(self, batch)
        return {"loss": terms["loss"] * bad} if self.global_step == step else terms

    monkeypatch.setattr(task, "losses", explode)
    cfg = ablate.compose(*tiny(tmp_path, "trainer.log_every_n_steps=100", *more))
    with pytest.raises(RunFailed, match=f"the loss is infinite or nan at step {step}: try"):
        ablate.run(cfg)
    assert len(seen) == looked_at
    folder = Composition(cfg).folder
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    assert list((folder / "checkpoints").iterdir()) == []


# The others have the tasks of these.
OTHERS = {"vit", "timm", "rnn_lm", "rnn_seq2seq", "gpt_seq2seq", *list_of_systems("SAME_TASK")}


@pytest.mark.ci
@pytest.mark.parametrize("model", sorted(MODELS.keys() - OTHERS))
@pytest.mark.usefixtures("small_files")
def test_the_names_of_all_measures_are_known_before_training(model, tmp_path):
    cfg = base(model)
    data = build_data(cfg)
    network = build(cfg, data)
    (tmp_path / "checkpoints").mkdir()
    trainer, task, _, _ = prepare(cfg, tmp_path, data, network)
    found, known = set(full_pass(trainer, task, data)), set(measured(cfg, build_data))
    assert found <= known
    assert all("/accuracy/length_" in name for name in known - found)  # which do not occur
    assert {mode_of(name) for name in known} <= {"min", "max"}


def test_the_direction_of_a_metric_is_in_its_name():
    assert [mode_of(f"val/{name}") for name in ("accuracy/loss", "mae/oracle")] == ["max", "min"]
    for name in ("charm", "tokens_per_second", "accuracy_drop", "reward_per_token"):
        with refused(f"study.metric=val/{name}: set the better direction, study.mode=min or"):
            mode_of(f"val/{name}", typed="study.metric=", by="study.mode=")


def test_a_class_without_examples_has_no_accuracy(tmp_path):
    """Two of three right of one class, and none of another, which has one."""
    targets = torch.tensor([0, 0, 0, 1])
    data = SimpleNamespace(
        unit="images", sizes=Sizes(classes=3), class_names=["a", "b", "c"], reads=("x",),
        splits={"val": SimpleNamespace(targets=targets), "test": object()},
    )  # fmt: skip
    settings = {"optimizer": None, "schedule": None, "label_smoothing": 0.0, "seed": 0}
    task = Classification(torch.nn.Identity(), data=data, mixup=0.0, cutmix=0.0, **settings)
    known = names_of_measures(task, "val")
    x = torch.eye(3)[torch.tensor([0, 0, 1, 0])]
    task.evaluate({"x": x, "targets": targets})
    found = {name: float(value) for name, value in task.measures("val").items()}
    presenter = task.presenter(task)
    assert found["accuracy/a"] == pytest.approx(2 / 3)
    assert found["accuracy/b"] == 0
    assert found["accuracy"] == pytest.approx(1 / 2)
    assert found["balanced_accuracy"] == pytest.approx(1 / 3)  # of the two that occur
    assert "accuracy/c" not in found
    assert presenter.notes()["examples"] == {"val": {"a": 3, "b": 1, "c": 0}}
    table, drawn = presenter.artifacts(tmp_path)
    assert table.read_text() == "true class,a,b,c\na,2,1,0\nb,1,0,0\nc,0,0,0\n"
    assert drawn == tmp_path / "figures" / "confusion.png"
    assert {"accuracy/a", "accuracy/c"} <= {*known}


def test_classes_that_differ_in_size_are_said_before_training():
    assert ready("digits").amount().endswith("training images")
    data = ready("digits")
    data.splits["train"].targets = torch.tensor([0] * 9 + list(range(1, 10)) * 3)
    assert data.amount().endswith("training images, 3 of class 1 to 9 of 0")


def task_of(processes, **values):
    """A classification on the digits as a Trainer with that many processes would hold it."""
    data = ready("digits", **values)
    settings = {"label_smoothing": 0.0, "mixup": 0.2, "cutmix": 0.0, "seed": 0}
    model = torch.nn.Linear(1, 1)
    task = Classification(model, data=data, optimizer=None, schedule=None, **settings)
    task.trainer = SimpleNamespace(world_size=processes, global_rank=0, strategy=None)
    return task


def test_a_bad_loss_of_another_process_stops_this_one_too():
    least = {"min": lambda step: torch.minimum(step, torch.tensor(3))}
    reduce = lambda step, reduce_op: least[reduce_op](step)  # noqa: E731
    strategy = SimpleNamespace(reduce=reduce, root_device=torch.device("cpu"))
    with pytest.raises(RunFailed, match="at step 3"):
        FiniteLosses().require(SimpleNamespace(strategy=strategy))


def test_sums_of_metrics_stay_in_32_bits():
    metric = task_of(1).to(torch.bfloat16).mean_loss
    for _ in range(600):
        metric.update(1.5, 4096)
    assert metric.compute() == 1.5


def test_pairs_are_mixed_within_a_process():
    task_of(2, batch_size=4).setup("fit")
    odd = task_of(2, batch_size=6)
    odd.setup("validate")  # nothing is mixed
    with pytest.raises(UserError, match=r"data.batch_size=6: .*of 4, .*trainer\.devices"):
        odd.setup("fit")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("make", "choices", "leaks_targets"),
    [
        (overrides, ["model.mask=window"], False),
        (overrides, ["model.mask=prefix", "model.mask.size=4"], True),
        (pairs, ["model=transformer", "model.heads=2"], False),  # whose encoder may see everything
        (pairs, ["model=transformer", "model.heads=2", "model.mask=none"], True),
        (pairs, ["model=gpt_seq2seq", "model.heads=2"], False),
        (pairs, ["model=gpt_seq2seq", "model.heads=2", "model.mask=none"], True),
    ],
)
def test_a_loss_is_said_to_be_none_where_the_model_sees_what_it_is_to_predict(
    tmp_path, make, choices, leaks_targets
):
    task = built(*make(tmp_path, *choices))
    assert (caution(task, computed=False) is not None) == leaks_targets


def test_the_loss_is_the_mean_over_all_targets(tmp_path):
    """The last window of validation is padded, so that its batch has fewer."""
    task = built(*overrides(tmp_path)).eval()
    batches = [*task.data.val_dataloader()]
    assert len({int((batch["targets"] != IGNORED).sum()) for batch in batches}) > 1
    with torch.no_grad():
        for batch in batches:
            task.evaluate(batch)
        logits = [task.model(batch["tokens"]).flatten(0, 1) for batch in batches]
    targets = torch.cat([batch["targets"].flatten() for batch in batches])
    expected = torch.nn.functional.cross_entropy(torch.cat(logits), targets, ignore_index=IGNORED)
    torch.testing.assert_close(task.measures("val")["loss"], expected)


def test_an_author_knows_few_hooks_and_inherits_little():
    targets = {option("task", name)._target_ for name in options("task")}
    tasks = [locate(target) for target in targets]
    every = {kind for task in tasks for kind in task.__mro__[: task.__mro__.index(Task)]}
    names = {*vars(Task), *Task.__annotations__} - {"conflicts", *vars(LightningModule)}
    hooks = {name for name in names if any(name in vars(kind) for kind in every) and name[0] != "_"}
    assert len(hooks) <= 12, sorted(hooks)
    assert max(task.__mro__.index(Task) for task in tasks) <= 2
    assert len(inspect.getsource(inspect.getmodule(Task)).splitlines()) <= 200


def test_the_terms_of_a_loss_are_added():
    assert total({"loss": torch.tensor(2.0), "balance": torch.tensor(3.0)}) == 5


@pytest.mark.ci
def test_chunks_of_the_loss_have_the_loss_and_the_weights_of_whole_batches(tmp_path, monkeypatch):
    """64 tokens in chunks of 5, with every term; no call computes the logits of more."""
    parts, seen = GPT.logits, []
    monkeypatch.setattr(GPT, "logits", lambda self, x: seen.append(x.numel()) or parts(self, x))
    terms = ["task.z_loss=0.1", "task.label_smoothing=0.1", "task.multi_token=3"]
    more = ["trainer.precision=64-true", "trainer.accumulate_grad_batches=2", *terms]
    more.append("model.logit_softcap=2")
    whole, chunks = (
        ablate.run(
            ablate.compose(
                *overrides(
                    tmp_path, *more, f"task.loss_chunk={size}", f"run_dir={tmp_path / str(size)}"
                )
            )
        )
        for size in ("null", 5)
    )
    assert chunks["metrics"] == pytest.approx(whole["metrics"], rel=1e-9)
    weights = [ablate.load(run["folder"]).task.state_dict() for run in (whole, chunks)]
    torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-9)
    assert seen.count(5 * 16) > seen.count(64 * 16) > 0


def test_tokens_ahead_are_of_the_same_document_of_a_packed_row():
    targets = torch.tensor([[1, 2, 3, 101, 102, IGNORED]])
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    found = ahead(targets, 3, documents)[0].tolist()
    no = IGNORED
    assert [row[1] for row in found] == [2, 3, no, 102, no, no]
    assert [row[2] for row in found] == [3, no, no, no, no, no]


def test_tokens_further_ahead_add_half_as_much_each(tmp_path):
    """Up to the end of the row and of a document, whose last position has no target."""
    task = built(*overrides(tmp_path, "task.multi_token=3", "model.dropout=0"))
    task.trainer = SimpleNamespace(world_size=1)
    batch = next(iter(task.data.train_dataloader()))
    batch["targets"] = targets = batch["targets"].clone()  # of the tokens, one position on
    targets[0, 4] = targets[1, 9:] = IGNORED
    scores = task.model(batch["tokens"]).log_softmax(-1)
    sums = [torch.tensor(0.0)] * 3
    for b, i, n in product(range(len(targets)), range(targets.shape[1]), range(3)):
        row = targets[b, i : i + n + 1]
        if len(row) == n + 1 and (row != IGNORED).all():
            sums[n] = sums[n] - scores[b, i, row[-1]]
    first, second, third = (loss / (targets != IGNORED).sum() for loss in sums)
    found = task.losses(batch)
    torch.testing.assert_close(found, {"loss": first, "multi_token": second / 2 + third / 4})
    validated = (task.evaluate(batch), task.measures("val"))[1]
    torch.testing.assert_close(validated["loss"], first.detach())


def test_only_some_models_have_states_for_chunks_of_the_loss():
    with refused("task.loss_chunk=5: model=rnn_lm computes its logits for the whole batch"):
        ablate.compose("model=rnn_lm", "task.loss_chunk=5")
