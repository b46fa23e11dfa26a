"""task=diffusion: noise and the way back against plain loops, draws, sampling, judge, generate."""

import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from make_model import Each, options, part
from PIL import Image
from systems.diffusion.rows import drawings
from test_generate import Command
from tiny import built, trained

import ablate
from ablate.data import Request
from ablate.data.pairs import BOS, PAD
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.random.draws import Source, normal
from ablate.random.seeding import derive
from ablate.systems.diffusion.diffusion import FIXED, Diffusion, one_by_one, without_caption
from ablate.systems.diffusion.judge import Judge
from ablate.systems.diffusion.noise.ddpm import DDPM
from ablate.task.attention import attention_figures

WIDE = (-math.inf, math.inf)


def made(*more):
    return built(*drawings(Path("nowhere"), *more)).eval()


def double(value):
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_noise_is_what_a_loop_of_small_steps_makes(schedule):
    """Ho et al. 2020, equation 2: x = sqrt(1 - beta) x + sqrt(beta) z. Mean and variance of the
    loop, whose betas are the schedule's by its paper."""
    steps = 50
    process = DDPM(timesteps=steps, schedule=schedule, eta=1.0)
    left = [math.cos((n / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for n in range(steps + 1)]
    scale, variance = 1.0, 0.0
    for n in range(1, steps + 1):
        linear = (1e-4 + (0.02 - 1e-4) * (n - 1) / (steps - 1)) * 1000 / steps
        beta = linear if schedule == "linear" else min(0.999, 1 - left[n] / left[n - 1])
        scale, variance = math.sqrt(1 - beta) * scale, (1 - beta) * variance + beta
        one, zero, time = double([1.0]), double([0.0]), torch.tensor(n / steps)
        assert float(process.add(one, zero, time)) == pytest.approx(scale)
        assert float(process.add(zero, one, time)) ** 2 == pytest.approx(variance)


def test_a_step_of_ddpm_is_bayes_rule():
    """q(x_n-1 | x_n, image) as the product of two normal densities: the step before, and the
    likelihood of x_n after it; equations 6 and 7 are what comes of it."""
    steps, n = 30, 12
    process = DDPM(timesteps=steps, schedule="linear", eta=1.0)
    here, before = float(process.alpha_bar[n]), float(process.alpha_bar[n - 1])
    kept = here / before
    image, x = 0.3, -0.8
    precision = kept / (1 - kept) + 1 / (1 - before)
    mean = (math.sqrt(kept) * x / (1 - kept) + math.sqrt(before) * image / (1 - before)) / precision
    said = double((x - math.sqrt(here) * image) / math.sqrt(1 - here))
    times = {"now": n / steps, "after": (n - 1) / steps, "bounds": WIDE}
    zero, one = (
        float(process.step(double(x), said, fresh=lambda z=z: torch.tensor(z), **times))
        for z in (0.0, 1.0)
    )
    assert (zero, one - zero) == pytest.approx((mean, precision**-0.5))


@pytest.mark.parametrize("noise", options("task.noise"))
def test_who_knows_the_image_draws_it(noise):
    """From pure noise; on the way the image has the noise of its time."""
    process = part("task.noise", noise, **({"eta": 0.0} if noise == "ddpm" else {}))
    image, start = torch.full((1, 1, 2, 2), 0.7).double(), torch.randn(1, 1, 2, 2).double()
    levels = process.levels(4)
    assert (levels[0], levels[-1], len(levels)) == (1, 0, 5)
    x = process.add(image, start, torch.ones(1, 1, 1, 1))
    for now, after in pairwise(levels):
        x = process.step(x, process.target(image, start), now, after, fresh=None, bounds=WIDE)
        torch.testing.assert_close(x, process.add(image, start, torch.full((1, 1, 1, 1), after)))
    torch.testing.assert_close(x, image)


def test_a_device_needs_no_float64():
    image, made = torch.ones(2, 1, 2, 2, device="meta"), []
    with Each(made.append):
        part("task.noise", "ddpm").add(image, image, image[..., :1, :1])
    assert torch.float64 not in {tensor.dtype for tensor in made if tensor.is_meta}


def test_a_predicted_image_is_clipped():
    process = DDPM(timesteps=1000, schedule="linear", eta=0.0)
    x = torch.full((1, 1, 1, 1), 3.0)
    found = process.step(x, torch.zeros_like(x), 1.0, 0.0, fresh=None, bounds=(-1.0, 2.0))
    assert float(found) == 2


def test_numbers_are_normal_and_of_their_key():
    one, two, again = one_by_one(normal, [1, 2, 1], torch.empty(1, 1, 64, 64))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    many = normal(Source(torch.tensor(5)), torch.empty(20, 1, 64, 64))
    moments = [float((many**n).mean()) for n in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.05)


def batch_of(task, count=4):
    return task.data.splits["train"][Request(0, torch.arange(count))]


def prepared(task, batch, step=3, **of):
    task.train()
    task.draws.keys = task.draws.of_batch(seed=0, step=step, **of)
    return task.prepare(batch, step)


def test_arms_and_batches_in_parts_share_noise_times_and_captions_left_out():
    one, other = (
        made("task.drop_caption=0.5", *more)
        for more in ([], ["model.condition=in_context", "model.dropout=0.5"])
    )
    batch = batch_of(one)
    whole = prepared(one, batch)
    for rows in (slice(0, 4), slice(0, 2), slice(2, 4)):
        given = {name: value[rows] for name, value in batch.items()}
        found = prepared(other, given, example=rows.start)
        assert all(torch.equal(found[name], whole[name][rows]) for name in found)


def test_every_seed_is_validated_with_the_same_noise():
    first, other = made(), made("seed=1")
    other.model.load_state_dict(first.model.state_dict())
    batch, losses = next(iter(first.data.val_dataloader())), []
    for task in (first, other):
        task.trainer = SimpleNamespace(testing=False)
        task.evaluate(batch)
        losses.append(task.mean_loss.compute())
    assert torch.equal(*losses)


def test_times_are_uniform_and_captions_left_out_as_often_as_asked():
    task = made("task.drop_caption=0.25")
    batch = {name: torch.cat(100 * [value]) for name, value in batch_of(task).items()}
    found = prepared(task, batch, step=0)
    times, words = found["times"], found["words"]
    assert (float(times.min()), float(times.max())) == pytest.approx((0, 1), abs=0.02)
    assert float(times.mean()) == pytest.approx(0.5, abs=0.05)
    left_out = (words == without_caption(words)).all(1)
    assert float(left_out.float().mean()) == pytest.approx(0.25, abs=0.06)
    assert torch.equal(words[~left_out], batch["target_in"][~left_out])
    task.draws.keys = None  # outside of training
    assert torch.equal(task.prepared(batch)["words"], batch["target_in"])
    assert without_caption(torch.tensor([[BOS, 6, PAD]])).tolist() == [[BOS, PAD, PAD]]


def test_guidance_is_a_line_through_what_is_said_without_and_with_a_caption():
    task = made("model.condition=adaln")
    x, words, times = torch.randn(2, 1, 12, 24), batch_of(task, 2)["target_in"], torch.rand(2)
    with torch.no_grad():
        plain, told = task.model(x, without_caption(words), times), task.model(x, words, times)
        for guidance in (0.0, 1.0, 2.5):
            expected = (1 - guidance) * plain + guidance * told
            torch.testing.assert_close(task.guided(x, words, times, guidance), expected)
    assert not torch.allclose(plain, told)


@pytest.mark.parametrize("noise", options("task.noise"))
def test_a_sample_is_of_its_key_and_in_painting_keeps_the_rest(noise):
    task = made(f"task.noise={noise}", "task.guidance=2", "model.condition=adaln")
    words = batch_of(task, 2)["target_in"]
    both = task.sample(words, [7, 8])
    torch.testing.assert_close(task.sample(words[1:], [8]), both[1:])
    assert not torch.allclose(task.sample(words, [7, 9])[1], both[1])
    known = batch_of(task, 2)["images"]
    anew = torch.zeros(2, 1, 12, 24, dtype=torch.bool)
    anew[..., 12:] = True
    filled = task.sample(words, [7, 8], known=(known, anew))
    assert torch.equal(filled[..., :12], known[..., :12])
    assert not torch.allclose(filled[..., 12:], both[..., 12:])  # it has seen the other half


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def judge(folder):
    captions = pytest.importorskip("systems.captions.rows").captions
    return trained(*captions(folder))


@pytest.fixture(scope="module")
def run(folder, judge):
    return ablate.load(trained(*drawings(folder, f"task.judge={judge}")))


@pytest.mark.ci
def test_what_is_drawn(run, tmp_path):
    drawn = [
        path.stem for path in run.task.presenter(run.task).artifacts(run.path) if path.is_file()
    ]
    assert drawn == ["samples", "denoising", "inpainting"]
    maps = {path.stem for path in attention_figures(run.task, tmp_path)}
    assert maps == {"attention_layer_01", "caption_layer_01", "text_layer_01"}


@pytest.mark.ci
def test_a_run_is_measured_by_its_judge(run):
    metrics = run.result["metrics"]
    judged = ("exact_match", "der", "frechet")
    names = {"loss", *judged, *(f"{name}_reference" for name in judged)}
    assert {name.removeprefix("test/") for name in metrics if name.startswith("test/")} == names
    assert metrics["test/frechet"] > metrics["test/frechet_reference"] > 0
    assert all(map(math.isfinite, metrics.values()))
    assert evaluate(run, {}) == pytest.approx(metrics)
    assert evaluate(run, {"task.samples": 3})["test/frechet"] != metrics["test/frechet"]
    assert "test/frechet" not in evaluate(run, {"task.judge": None})


@pytest.mark.ci
def test_real_images_in_place_of_samples_are_read_as_real_ones(run, monkeypatch):
    """And have the distance of a part of the test images from all of them, here of all."""
    data = run.data
    index_of = {derive(FIXED, "sample", n): n for n in range(data.length("test"))}

    def sample(self, words, keys):
        return data.images(data.originals("test", torch.tensor([index_of[key] for key in keys])))

    monkeypatch.setattr(Diffusion, "sample", sample)
    found = evaluate(run, {"task.samples": data.length("test")})
    for name in ("exact_match", "der"):
        assert found[f"test/{name}"] == found[f"test/{name}_reference"]
    assert found["test/frechet"] == pytest.approx(0, abs=1e-4)


@pytest.fixture
def command(run, monkeypatch, capsys):
    return Command(run.task, run.path, monkeypatch, capsys)


def pixels(file):
    return np.asarray(Image.open(file))


@pytest.mark.ci
def test_it_writes_an_image_of_a_prompt_and_draws_a_masked_part_anew(command, run, tmp_path):
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    assert command("--prompt", "3 1", "--image", first) == (0, f"{first}\n", "")
    assert pixels(first).shape == (12, 24)
    for other in ([], ["--seed", 1], ["--guidance", 0], ["--steps", 2]):
        command("--prompt", "3 1", "--image", second, *other)
        assert (pixels(first) != pixels(second)).any() == bool(other)

    known = (255 * run.data.originals("val", torch.tensor([2]))[0]).round().numpy().astype(np.uint8)
    left = np.repeat(np.uint8([[255, 0]]), 12, axis=1).repeat(12, axis=0)
    for name, image in (("known", known), ("left", left)):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    files = ["--inpaint", tmp_path / "known.png", "--mask", tmp_path / "left.png"]
    for given in (["--index", 2, "--mask", "left"], files):
        assert command("--prompt", "3 1", "--image", first, *given)[0] == 0
        assert (pixels(first)[:, 12:] == known[:, 12:]).all()
        assert (pixels(first)[:, :12] != known[:, :12]).any()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (["--image", "a.png"], '--prompt "..."'),
        (["--prompt", "3 x"], "--prompt: 'x' is not a word of this data; use 0 1 2"),
        (["--prompt", "1 2 3 4"], "--prompt: has 4 digits, and the images of this data 1 to 3"),
        (["--prompt", "3", "--image", "a.jpg"], "choose a name that ends in .png"),
        (["--prompt", "3", "--mask", "left"], "--mask requires --inpaint FILE or --index N"),
        (["--prompt", "3", "--index", "99", "--mask", "left"], "has examples 0 to 13"),
        (["--prompt", "3", "--guidance", "-1"], "--guidance: -1 must be a finite number"),
    ],
)
def test_what_it_refuses(command, typed, line):
    code, _, error = command(*typed)
    assert (code, error.count("\n")) == (2, 1)
    assert line in error


def test_a_judge_is_a_captioner_of_such_images(judge, run):
    with pytest.raises(UserError, match="must be a run of model=captioner"):
        Judge(str(run.path), (12, 24))
    with pytest.raises(UserError, match="reads images of 12 x 24 pixels, not 16 x 24"):
        Judge(str(judge), (16, 24))
