"""bfloat16: every part computes in it, and what comes out is near what float32 gives."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from make_model import (
    SIZES,
    gpt,
    kernels,
    normal,
    options,
    part,
    random_parts,
    together,
    tokens,
    vit,
)
from make_pairs import refusal
from torch import Tensor, nn

from ablate.model.vit import ViT

LENGTH = SIZES["gpt"]["length"]
SCORES, ENCODINGS, KERNELS = options("model.attention"), options("pos_enc"), kernels()
# Length of the error in units of the length of the result. bfloat16 keeps 8 bits, so a rounding is
# off by up to 2^-9 of a number, and some dozens follow each other here.
NEAR = 16 * 2**-9
# A LeakyReLU that has a number near 0 may take it for one below 0, and has another slope there:
# float32 with parameters that are off by 2^-9 differs by as much (gat with t5).
KINKED = 64 * 2**-9
Around = Callable[[], AbstractContextManager[None]]
PRECISIONS: dict[str, tuple[torch.dtype, Around]] = {
    "bf16-mixed": (torch.float32, lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "bf16-true": (torch.bfloat16, nullcontext),
}


def made(score: str, pos_enc: str, kernel: str) -> nn.Module:
    """A model of the parts, its parameters away from 0 and 1 and exact in bfloat16."""
    model = vit if pos_enc.endswith("_2d") else gpt
    network = random_parts(model(attention=score, pos_enc=pos_enc, kernel=kernel))
    return network.bfloat16()


def results(network: nn.Module, dtype: torch.dtype, around: Around) -> tuple[Tensor, Tensor]:
    """The output, and the gradients of all parameters in one row."""
    network = network.to(dtype)
    with around():
        if isinstance(network, ViT):
            output = network(normal(2, 2, 6, 6).to(dtype))
        else:
            keep = torch.ones(2, LENGTH, dtype=torch.bool)
            keep[0, 4:] = False
            keep[1, :2] = False  # before these no query sees anything
            output = network(tokens(2, LENGTH), keep=keep)[keep]
        loss = (output * normal(*output.shape, seed=9).to(output.dtype)).sum()
    loss.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return output.detach().float(), torch.cat([grad.flatten().float() for grad in gradients])


def is_refused(score: str, pos_enc: str, kernel: str) -> bool:
    model = "vit" if pos_enc.endswith("_2d") else "gpt"
    row = {"model.attention": score, "pos_enc": pos_enc, "kernel": kernel}
    return refusal(model, row) is not None


@pytest.mark.slow
@pytest.mark.parametrize("pos_enc", ENCODINGS)
@pytest.mark.parametrize("score", SCORES)
def test_every_combination_computes_in_bfloat16(score: str, pos_enc: str) -> None:
    no_score_of_theirs = is_refused(score, "none", "reference")  # for decoders with a state alone
    if no_score_of_theirs or not together(score, pos_enc):
        assert all(is_refused(score, pos_enc, kernel) for kernel in KERNELS)
        return
    exact = results(made(score, pos_enc, "reference"), torch.float32, nullcontext)
    by_products = part("model.attention", score).func.lowers and pos_enc != "relative"
    for kernel in KERNELS:
        if kernel == "sdpa" and not by_products:
            assert is_refused(score, pos_enc, kernel)
            continue
        for dtype, around in PRECISIONS.values():
            found = results(made(score, pos_enc, kernel), dtype, around)
            slopes = KINKED if score in ("gat", "gatv2") else NEAR
            for mine, expected, near in zip(found, exact, (NEAR, slopes), strict=True):
                assert mine.isfinite().all()
                assert (mine - expected).norm() < near * expected.norm()
