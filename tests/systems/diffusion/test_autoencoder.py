"""model=autoencoder and task=autoencoding; data=digit_latents: images as latents of a run."""

import math

import pytest
import tiny
import torch
from make_model import normal
from make_model import tiny as tiny_model
from refusals import refused
from systems.diffusion.rows import drawings
from torch.distributions import Normal, kl_divergence
from torch.testing import assert_close

import ablate
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.random.draws import Draws
from ablate.run_files import best_weights
from ablate.systems.diffusion.autoencoding import divergence
from ablate.systems.diffusion.paint import caption, fill
from ablate.training.build import build_data

WITH_FIGURES = True  # tests/conftest.py


def made(num_downsamples=2):
    model = tiny_model("autoencoder", num_downsamples=num_downsamples)
    model.initialize(0)
    return model


def test_the_divergence_is_that_of_torch():
    mean, log_variance = normal(50, seed=1), normal(50, seed=2)
    first = Normal(mean, (log_variance / 2).exp())
    expected = kl_divergence(first, Normal(torch.zeros(()).double(), torch.ones(()).double()))
    assert_close(divergence(mean, log_variance), expected)


@pytest.mark.parametrize("num_downsamples", [0, 1, 2])
def test_each_halving_halves_both_sides(num_downsamples):
    model, x = made(num_downsamples).eval(), torch.randn(2, 1, 12, 24)
    reconstruction, mean, log_variance = model(x)
    assert reconstruction.shape == x.shape
    assert (
        mean.shape
        == log_variance.shape
        == (2, 3, 12 // 2**num_downsamples, 24 // 2**num_downsamples)
    )
    assert torch.equal(model.decode(model.encode(x)), reconstruction)


def test_in_training_latents_are_drawn_by_the_step():
    model, x = made().train(), torch.randn(2, 1, 12, 24)
    draws, found = Draws(model), []
    for step in (1, 1, 2):
        draws.keys = draws.of_batch(seed=0, step=step)
        found.append(model(x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def small(folder, *more):
    return ["model=autoencoder", *tiny.DIGITS, *tiny.four_steps(folder), *more]


@pytest.fixture(scope="module")
def autoencoder(folder):
    cfg = ablate.compose(*small(folder))
    result = ablate.run(cfg)
    assert math.isfinite(result["metrics"]["test/loss"])
    assert result["metrics"]["test/psnr"] > 0
    assert (Composition(cfg).folder / "figures" / "reconstructions.png").exists()
    return Composition(cfg).folder


LATENT = "data=digit_latents data.autoencoder={}"


def latent(folder, autoencoder, *more):
    return drawings(folder, *LATENT.format(autoencoder).split(), "model.patch=1", *more)


@pytest.mark.ci
def test_latents_are_the_autoencoders_with_deviation_one(folder, autoencoder):
    task = ablate.load(autoencoder).task
    data = build_data(ablate.compose(*latent(folder, autoencoder)))
    assert (data.sizes.image_size, data.sizes.channels) == ((3, 6), 4)
    seen = data.originals("train", torch.arange(40))
    images = data.images(seen)
    moments = images.mean((0, 2, 3)), images.std((0, 2, 3))
    assert_close(moments, (torch.zeros(4), torch.ones(4)), atol=1e-5, rtol=0)
    assert (float(images.min()), float(images.max())) == pytest.approx(data.bounds)
    assert_close(data.example(3)["images"], data.images(data.originals("val", torch.tensor([3]))))
    assert_close(data.to_pixels(images), task.presenter(task).reconstructed(seen))


@pytest.mark.ci
@pytest.mark.usefixtures("no_figures")
def test_a_model_draws_in_latents(folder, autoencoder):
    cfg = ablate.compose(*latent(folder, autoencoder))
    assert Composition(cfg).id != Composition(ablate.compose(*drawings(folder))).id
    assert ablate.run(cfg)["status"] == "finished"
    task = ablate.load(run := Composition(cfg).folder).task
    known = task.data.originals("val", torch.tensor([1]))
    mask = torch.zeros(1, 12, 24, dtype=torch.bool)
    mask[..., 13:] = True  # in the middle of a place of the latent
    drawn = fill(task, caption(task, "3 1"), [5], known, mask)
    assert torch.equal(drawn[..., :13], known[..., :13])
    assert not torch.allclose(drawn[..., 13:], known[..., 13:])
    before = (file := best_weights(autoencoder)).read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"data.autoencoder={autoencoder}: its content is not"):
        ablate.load(run)
    file.write_bytes(before)


@pytest.mark.parametrize(
    ("make", "typed", "line"),
    [
        (drawings, LATENT + " data.height=16", "reads images of 12 x 24 pixels, no"),
        (drawings, LATENT.format("nowhere"), "nowhere is not the folder of a run"),
        (drawings, "data=digit_latents", "data.autoencoder is missing"),
        (small, "data.height=14", "must be multiples of 4"),
        (small, "model.num_downsamples=9", "must be an integer of at least 0 and of at"),
    ],
)
def test_what_is_refused(make, typed, line, folder, autoencoder):
    with refused(line):
        ablate.run(ablate.compose(*make(folder, *typed.format(autoencoder).split())))
