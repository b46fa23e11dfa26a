"""A run from the composed config to the files it leaves."""

import json
import math
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from omegaconf import OmegaConf
from refusals import refused
from tiny import SMALL, images, overrides, rows_of

import ablate
from ablate.cli.job import process_seconds
from ablate.cli.summary import show_result
from ablate.config.composition import Composition
from ablate.data.loader import Share
from ablate.data.text import RandomWindows
from ablate.errors import RunFailed, UserError
from ablate.evaluate import evaluate as measured
from ablate.machine.peak import peak_flops
from ablate.task import Task
from ablate.task.causal_lm import CausalLM
from ablate.training.build import build, build_data
from ablate.training.checkpoint import sizes
from ablate.training.compile import Compiled
from ablate.training.curves import Curves
from ablate.training.same_model import on_meta
from ablate.training.steps import keys_of_batch
from ablate.training.train import prepare, train, utilization

WITH_FIGURES = True  # tests/conftest.py

FILES = ("config.yaml", "result.json", "provenance.json", "metrics.csv")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with a key of W&B in its environment: its config, its folder and what it returned."""
    cfg = ablate.compose(*overrides(tmp_path_factory.mktemp("finished")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", "a-secret-that-must-not-be-written")
        result = ablate.run(cfg)
    return cfg, Composition(cfg).folder, result


def test_a_run_leaves_what_the_contract_says(finished):
    cfg, folder, result = finished
    assert folder.parts[-3:] == ("outputs", "runs", Composition(cfg).id)
    assert all("a-secret" not in (folder / name).read_text() for name in FILES)
    for name in ("checkpoints/last.ckpt", "checkpoints/best.safetensors", "figures/curves.png"):
        assert (folder / name).exists()
    assert not list(folder.rglob("*.tmp"))
    saved = json.loads((folder / "result.json").read_text())
    assert {**saved, "folder": str(folder)} == json.loads(json.dumps(result))
    expected = {"status": "finished", "error": None, "run_id": Composition(cfg).id, "steps": 12}
    assert saved.items() >= expected.items()
    kernel = "sdpa (training: reference, for dropout; evaluation: flash)"
    assert set(saved["kernels"].values()) == {kernel}
    assert saved["choices"]["model.attention"] == "scaled_dot"
    loss = saved["metrics"]["val/loss"]
    assert saved["metric"]["value"] == loss
    assert saved["metrics"]["val/perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    # One character is one token here.
    assert saved["metrics"]["val/bits_per_char"] == pytest.approx(loss / math.log(2), rel=1e-5)
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["packages"]["torch"] == torch.__version__.split("+")[0]
    assert provenance["data_fingerprint"]
    rows = rows_of(folder)
    assert [int(row["step"]) for row in rows if row["train/loss"]] == list(range(1, 13))
    assert [int(row["step"]) for row in rows if row["val/loss"]] == [4, 8, 12]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can count the peak anew")
def test_the_table_says_the_scale_of_scores_of_100(finished, capsys):
    cfg, folder, result = finished
    metrics = {"test/bleu": 24.0, "test/chrf": 15.0, "test/exact_match": 0.5}
    show_result({**result, "metrics": metrics}, folder, cfg)
    assert capsys.readouterr().out.count(" (0 to 100)") == 2


@pytest.mark.ci
def test_label_leakage_is_said_before_training(tmp_path, capsys):
    ablate.run(ablate.compose(*overrides(tmp_path, *SMALL, "model.mask=none")))
    out = capsys.readouterr().out
    assert out.index("label leakage") < out.index("step 2/4")


@pytest.mark.ci
def test_the_time_of_a_run_has_what_came_before_its_training(finished, tmp_path):
    result = train(Composition(finished[0]), tmp_path, time.perf_counter() - 500)
    assert 500 < result["wall_seconds"] < 600
    before = process_seconds()
    time.sleep(0.1)
    assert 0 < before < before + 0.05 < process_seconds() < before + 60


@pytest.mark.ci
def test_config_yaml_is_enough_to_run_again_with_its_own_time_and_memory(finished, tmp_path):
    cfg, folder, first = finished
    before = torch.ones(400, 2**20)  # 1.6 GB, which this process held before the run
    del before
    earlier = {"run_id": Composition(cfg).id, "status": "failed", "wall_seconds": 1000.0}
    (tmp_path / "result.json").write_text(json.dumps(earlier))
    second = ablate.run(OmegaConf.load(folder / "config.yaml"), tmp_path)
    assert first["metrics"] == second["metrics"]
    assert first["run_id"] == second["run_id"]
    assert 1000 < second["wall_seconds"] < 1100
    assert second["peak_memory_bytes"] < first["peak_memory_bytes"] + 1e9


def begun_by_two(typed, folder):
    """A run that two processes began, which one is about to resume."""
    two = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"]
    cfg = ablate.compose(*typed, *two)
    folder.mkdir()
    OmegaConf.save(cfg, folder / "config.yaml")
    unfinished = {"run_id": Composition(cfg).id, "status": "failed", "wall_seconds": 1.0}
    (folder / "result.json").write_text(json.dumps(unfinished))
    return unfinished["run_id"]


def test_other_processes_resume_a_run(tmp_path, capsys):
    typed, folder = overrides(tmp_path, *SMALL), tmp_path / "run"
    begun = begun_by_two(typed, folder)
    with pytest.raises(
        UserError, match=r"already contains run .*, which differs .*; choose another"
    ):
        ablate.run(ablate.compose(*typed, "optimizer.lr=0.1"), folder)
    result = ablate.run(ablate.compose(*typed), folder)
    assert (result["status"], result["run_id"]) == ("finished", begun)
    assert "was begun with trainer.devices=2 trainer.strategy=ddp; other" in capsys.readouterr().out
    assert ablate.run(ablate.compose(*typed, "logger=tensorboard"), folder)["logged_to"]
    assert Composition(OmegaConf.load(folder / "config.yaml")).id == begun


RESNET = """model=timm model.name=resnet10t logger=none trainer.max_epochs=null
    trainer.check_val_every_n_epoch=null trainer.max_steps=4"""


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (lambda _: RESNET.split(), "batch norm takes the statistics of one process's share"),
        (lambda at: overrides(at, *SMALL, "model.ffn=moe"), "model.ffn.balance takes the load of"),
    ],
)
def test_other_processes_do_not_resume_a_run_with_statistics_of_one(tmp_path, made, line):
    typed, folder = made(tmp_path), tmp_path / "run"
    begun_by_two(typed, folder)
    with refused(line):
        ablate.run(ablate.compose(*typed), folder)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1", "config.yaml cannot be used: KeyError: 'choices'"),
        ("a: [", "config.yaml cannot be used: ParserError"),
        (None, "run already contains run"),
    ],
)
def test_a_folder_of_another_run_without_its_config_is_refused_in_a_line(tmp_path, text, line):
    typed, folder = overrides(tmp_path, *SMALL), tmp_path / "run"
    begun_by_two(typed, folder)
    config = folder / "config.yaml"
    config.write_text(text) if text else config.unlink()
    with refused(line):
        ablate.run(ablate.compose(*typed), folder)


@pytest.mark.parametrize("typed", ["sweep=mixers", "study.seeds=3"])
def test_a_study_is_not_trained_as_one_run(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"several runs.* python -m ablate .*{typed[:11]}"):
        ablate.run(ablate.compose(typed))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_not_trained_again_nor_another_in_its_folder(finished):
    cfg, folder, _ = finished
    before = (folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    assert ablate.run(cfg)["status"] == "finished"
    assert (folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before
    other = ablate.compose(*overrides(folder.parents[2], "seed=1"))
    with pytest.raises(UserError, match=r"run_dir=.*already contains run"):
        ablate.run(other, folder)
    with refused("data.path=none.txt: no such file"):
        ablate.run(ablate.compose(*overrides(folder.parents[2], "data.path=none.txt")), folder)
    with pytest.raises(UserError, match=r"no config\.yaml"):
        ablate.load(folder.parent)


def test_a_loaded_run_is_one_line_and_draws_its_maps(finished, tmp_path):
    _, folder, result = finished
    run = ablate.load(folder)
    loss = f"{result['metrics']['val/loss']:.4g}"
    assert repr(run) == f"Run(gpt on text, seed 0, val/loss {loss}, {folder})"
    (path,) = run.show(1, tmp_path / "maps")
    assert path.parent == tmp_path / "maps"


@pytest.mark.parametrize("batches", [1, 3])
def test_epochs_and_steps_measure_the_same_training(tmp_path, batches):
    """Two epochs of 9 batches, which are 18 steps of one; a validation every 9 batches."""
    typed = f"""trainer.max_steps=-1 trainer.max_epochs=2 trainer.check_val_every_n_epoch=1
        trainer.val_check_interval=null trainer.accumulate_grad_batches={batches}"""
    cfg = ablate.compose(*images(tmp_path, "data.batch_size=128", *typed.split()))
    data = build_data(cfg)
    trainer, *_ = prepare(cfg, tmp_path, data, build(cfg, data))
    epoch = data.batches_per_epoch()
    assert epoch == data.length("train") // 128 == 9
    assert trainer.max_steps == 2 * epoch // batches
    assert trainer.val_check_interval == epoch


def test_arms_read_the_same_batches(tmp_path):
    """Their initial values: test_init.py."""
    found = []
    for change in ("model.attention=dot", "model.attention=additive", "pos_enc=rotary"):
        data = build_data(ablate.compose(*overrides(tmp_path, change)))
        data.train_batches = 5
        found.append(torch.stack([batch["tokens"] for batch in data.train_dataloader()]))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.usefixtures("no_figures")
def test_the_curve_ends_with_the_last_weights_and_the_result_has_the_best(tmp_path, monkeypatch):
    monkeypatch.setattr(CausalLM, "mode", "max")  # so that the first weights count as the best
    cfg = ablate.compose(*overrides(tmp_path, "optimizer.lr=0.01"))
    result = ablate.run(cfg)
    losses = {int(row["step"]): row["val/loss"] for row in rows_of(Composition(cfg).folder)}
    assert result["best_step"] == 4
    assert result["metrics"]["val/loss"] == pytest.approx(float(losses[4]), abs=1e-6)
    assert result["metrics"]["val/loss"] != pytest.approx(float(losses[12]), abs=1e-4)


def test_a_finished_run_keeps_the_checkpoints_that_are_asked_for(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path, *SMALL))
    places = Composition(cfg).folder / "checkpoints"
    state, weights = "last.ckpt", "best.safetensors"
    every = {"last": {state, weights}, "best": {weights}, "none": set()}
    for wanted, kept in {"all": {state, weights, "previous.ckpt"}, **every}.items():
        typed = overrides(tmp_path, *SMALL, f"checkpoint_keep={wanted}")
        result = ablate.run(ablate.compose(*typed))
        assert {path.name for path in places.iterdir()} == kept | {"checksums.json"}
        if wanted == "last":
            found = sizes(on_meta(cfg, build_data(cfg)))
            assert found.weights == pytest.approx((places / weights).stat().st_size, rel=0.3)
            moments = 2 * 4 * result["parameters"]["total"]
            assert found.state - found.weights == pytest.approx(moments, rel=0.01)
            assert found.state < (places / state).stat().st_size
    with pytest.raises(UserError, match=r"its weights, checkpoints/best\.safetensors, are missing"):
        ablate.load(places.parent)
    assert json.loads((places.parent / "result.json").read_text())["status"] == "finished"


@pytest.mark.ci
def test_a_run_is_never_silent_for_long(tmp_path, monkeypatch, capsys):
    """A bar on a terminal, lines elsewhere; and what is measured is printed without them."""
    more = ("evaluate={short: {data.seq_len: 8}}", "trainer.val_check_interval=3")
    cfg = ablate.compose(*overrides(tmp_path, *SMALL, *more))
    monkeypatch.setattr(ablate.training.progress, "SILENCE", 0.0)
    result = ablate.run(cfg)
    out, errors = capsys.readouterr()
    told = ["step 1/4: ", "validation: 1 of ", "step 4/4: ", "validating the last weights",
            f"evaluating the weights of step {result['best_step']} on ",
            "plotting figures"]  # fmt: skip
    places = [out.index(line) for line in told[:3]] + [out.rindex(line) for line in told[3:]]
    assert places == sorted(places)
    assert "validation: 1 of" in errors  # under a condition
    measured(ablate.load(Composition(cfg).folder), {})
    out, errors = capsys.readouterr()
    assert (out, "validation: 1 of" in errors) == ("", True)


@pytest.mark.ci
def test_a_part_of_the_examples_chooses_the_weights_that_are_measured_on_all(
    tmp_path, monkeypatch, capsys
):
    seen: dict[str, set[str]] = {}
    evaluate = CausalLM.evaluate

    def noted(task, batch):
        of_pass = f"{task.data.val_examples}"
        seen.setdefault(of_pass, set()).update(map(str, batch["tokens"].tolist()))
        evaluate(task, batch)

    monkeypatch.setattr(CausalLM, "evaluate", noted)
    found = []
    for arm in ("model.attention=dot", "model.depth=2"):
        typed = overrides(tmp_path, *SMALL, "trainer.val_examples=5", "optimizer.lr=0.1", arm)
        cfg = ablate.compose(*typed)
        result = ablate.run(cfg)
        some, every = seen.pop("5"), seen.pop("None")
        assert len(some) == result["chosen_on"]["examples"] == 5
        assert some < every
        assert len(every) == result["chosen_on"]["of"]
        rows = rows_of(folder := Composition(cfg).folder)
        curve = {int(row["step"]): float(row["val/loss"]) for row in rows if row["val/loss"]}
        assert curve[result["best_step"]] == min(curve.values()) == result["chosen_on"]["value"]
        assert result["metric"]["value"] == measured(ablate.load(folder), {})["val/loss"]
        found.append(some)
    assert found[0] == found[1]
    show_result(result, tmp_path, cfg)
    assert f"5 of {len(every)} examples in training, all at the end" in capsys.readouterr().out


def test_training_took_the_time_that_the_gpu_needed(monkeypatch, tmp_path):
    """And not that in which the CPU told it what to do."""
    now = [10.0]
    synchronize = Mock(side_effect=lambda device: now.append(now.pop() + 5))
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    for device, seconds in (("cpu", 2.0), ("cuda", 7.0)):
        curves = Curves(tmp_path / "metrics.csv")
        curves._since, now[0] = now[0], now[0] + 2
        curves.on_validation_start(None, SimpleNamespace(device=torch.device(device)))
        assert curves.train_seconds == seconds


def test_waiting_for_data_is_told_from_computing(tmp_path, monkeypatch, capsys):
    """The first batch and validation are outside of the training time."""
    cfg = ablate.compose(*overrides(tmp_path))  # 12 steps, a validation after every 4
    read = RandomWindows.__getitem__

    def slowly(self, request):
        time.sleep(0.1)
        return read(self, request)

    monkeypatch.setattr(RandomWindows, "__getitem__", slowly)
    result = ablate.run(cfg)
    waited = result["throughput"]["waiting"] * result["train_seconds"]
    assert 9 * 0.1 < waited < 12 * 0.1
    show_result(result, tmp_path, cfg)
    assert "% of the time waiting for data" in capsys.readouterr().out


def test_the_share_of_the_peak_of_known_gpus(finished, monkeypatch, capsys):
    """By hand: 2e15 operations in 10 s on two H100 of 989.4e12 each; elsewhere there is none."""

    def mfu(device="cuda", precision="bf16-mixed", name="NVIDIA H100 80GB HBM3"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        strategy = SimpleNamespace(root_device=torch.device(device))
        trainer = SimpleNamespace(strategy=strategy, precision=precision, world_size=2)
        return utilization(trainer, 2 * 10**15, 10.0)

    assert mfu() == {"mfu": pytest.approx(0.1011, abs=1e-4)}
    assert mfu("cpu") == mfu(precision="32-true") == {}
    for name in ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "Fake"):
        assert mfu(name=name) == {}
    peaks = [peak_flops(f"NVIDIA {name}") for name in ("L4", "L40", "H200")]
    assert peaks == [121e12, 181.05e12, 989.4e12]
    cfg, folder, result = finished
    assert "mfu" not in result["throughput"]
    show_result({**result, "throughput": {**result["throughput"], "mfu": 0.451}}, folder, cfg)
    assert "MFU 45.1%" in " ".join(capsys.readouterr().out.replace("│", "").split())


def test_units_are_those_of_all_processes(tmp_path):
    data = SimpleNamespace(share=lambda: Share(0, 2))
    curves = Curves(tmp_path / "metrics.csv")
    task = Mock(spec=Task, units=lambda batch: 8, data=data)
    for _ in range(3):
        curves.on_train_batch_start(Mock(train_dataloader=Mock(waited=0.0)), task, {}, 0)
    assert curves.units == 3 * 8 * 2


@pytest.mark.parametrize(("rank", "world", "first"), [(0, 1, 8), (0, 2, 8), (1, 2, 12)])
def test_the_numbers_of_an_example_are_the_same_in_any_process(rank, world, first):
    """The fifth batch of 8 is the second of a step of three."""
    data = SimpleNamespace(batch_size=8, share=lambda: Share(rank, world))
    parts = {"data": data, "trainer": SimpleNamespace(accumulate_grad_batches=3)}
    draws = SimpleNamespace(of_batch=lambda *keys: keys)
    task = Mock(spec=Task, seed=7, draws=draws, **parts)
    assert keys_of_batch(task, 4) == (7, 1, first)


def test_validation_is_not_compiled():
    compiled, part = Compiled(), torch.nn.Linear(1, 1)
    compiled.calls = {part: "compiled"}
    compiled.on_validation_start(None, None)
    assert part._compiled_call_impl is None
    compiled.on_validation_end(None, None)
    assert part._compiled_call_impl == "compiled"


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    """The loss of the step before was finite, and the next one is not computed before the save."""
    steps, step = [], CausalLM.optimizer_step

    def spoil(task, *args, **kwargs):
        step(task, *args, **kwargs)
        steps.append(None)
        if len(steps) == 3:
            next(task.model.parameters()).data.fill_(torch.nan)

    monkeypatch.setattr(CausalLM, "optimizer_step", spoil)
    typed = ("checkpoint_every=3", "trainer.val_check_interval=12")
    cfg = ablate.compose(*overrides(tmp_path, *typed))
    with pytest.raises(RunFailed, match="at step 3"):
        ablate.run(cfg, tmp_path / "run")
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()
