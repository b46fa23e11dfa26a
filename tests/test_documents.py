"""Documents in a row: loss and gradients are those of the documents alone."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from make_model import gpt, kernel, kernels, options, part, random_parts, tokens
from torch import Tensor
from torch.testing import assert_close

from ablate.kernel.flex import ordered, seen
from ablate.kernel.interface.documents import Documents
from ablate.kernel.sdpa import SDPA
from ablate.model.layers import recurrence

LENGTHS = (5, 1, 9, 8), (11, 3, 9)  # of the documents of two rows
LENGTH = 23
NUMBERS = torch.stack(
    [torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in LENGTHS]
)
TOKENS = tokens(2, LENGTH)


def model(**keys):
    own = keys.pop("own", {})
    mixer = part("model.mixer", keys.pop("mixer", "attention"))
    keys = {"pos_enc": "none", "mask": "causal", "depth": 2, "length": LENGTH} | keys
    return random_parts(gpt(mixer=partial(mixer, **own), **keys), std=0.3)


def losses(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")


def together(model, **how) -> Tensor:
    """The loss of each token but the last of its document."""
    inside = NUMBERS[:, :-1] == NUMBERS[:, 1:]
    logits = model(TOKENS, documents=NUMBERS, **how)[:, :-1]
    return losses(logits, TOKENS[:, 1:])[inside.flatten()]


def alone(model) -> Tensor:
    found = []
    for row, lengths in zip(TOKENS, LENGTHS, strict=True):
        for document in row.split(list(lengths)):
            if len(document) > 1:
                found.append(losses(model(document[None, :-1]), document[None, 1:]))
    return torch.cat(found)


def assert_equal(model, **how):
    results = []
    for loss in (together(model, **how), alone(model)):
        model.zero_grad()
        loss.mean().backward()
        results.append((loss.detach(), {n: p.grad for n, p in model.named_parameters()}))
    (ours, of_ours), (theirs, of_theirs) = results
    assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for name, gradient in of_theirs.items():
        assert_close(of_ours[name], gradient, rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.ci
@pytest.mark.parametrize("mixer", sorted({*options("model.mixer")} - {"none", "fixed"}))
@pytest.mark.parametrize("chunk", [64, 4])
def test_every_mixer_stays_within_documents(mixer, chunk, monkeypatch):
    monkeypatch.setattr(recurrence, "CHUNK", chunk)
    monkeypatch.setattr(recurrence, "CHUNK_BY_CHANNEL", chunk)
    assert_equal(model(mixer=mixer))


@pytest.mark.parametrize("own", [{"short_conv": 4}, {"key_shift": True}, {"sink": "learned"},
    {"short_conv": 3, "key_shift": True, "value_residual": True, "exclusive": True, "kv_heads": 1},
    {"value_embedding": True, "short_conv": 2},
])  # fmt: skip
def test_every_key_of_attention_stays_within_documents(own):
    assert_equal(model(own=own))


@pytest.mark.parametrize("reads_pairs", [{"smear": True}, {"bigram": 2}])
def test_what_reads_the_token_before_stays_within_documents(reads_pairs):
    assert_equal(model(**reads_pairs))


@pytest.mark.ci
@pytest.mark.parametrize("pos_enc", ["rotary", "alibi", "t5", "relative"])
@pytest.mark.parametrize("mask", ["causal", partial(part("model.mask", "window"), size=3)])
def test_distances_are_those_within_a_document(pos_enc, mask):
    assert_equal(model(pos_enc=pos_enc, mask=mask))


@pytest.mark.parametrize("pos_enc", ["learned", "sinusoidal", "learned_from_sinusoidal"])
def test_added_positions_can_start_again(pos_enc):
    made = model(pos_enc=pos_enc)
    assert_equal(made, positions=Documents.numbered(NUMBERS).position)
    assert not torch.allclose(together(made), alone(made))


@pytest.mark.ci
@pytest.mark.parametrize("name", kernels())
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "cosine"])
@pytest.mark.parametrize("pos_enc", ["none", "t5"])
def test_every_kernel_stays_within_documents(name, score, pos_enc):
    if name == "sdpa" and score == "additive":
        pytest.skip("sdpa computes dot products")
    own = {"chunk": 4} if name == "chunked" else {}
    assert_equal(model(kernel=kernel(name, **own), attention=score, pos_enc=pos_enc))


def test_flex_computes_blocks_of_documents(monkeypatch):
    """Its block mask, which skips blocks of other documents, is the mask of the reference."""
    monkeypatch.setattr("ablate.kernel.flex.BLOCK", 4)
    made = model()
    attention, found = made.stack.blocks[0].attention.function, []

    class Seen(SDPA):
        def __call__(self, attend):
            found.append(attend)
            return super().__call__(attend)

    attention.kernel = Seen()
    made(TOKENS, documents=NUMBERS)
    mask, (_, allowed) = seen(found[0]), found[0].bias_and_mask()
    i, j = torch.meshgrid(torch.arange(LENGTH), torch.arange(LENGTH), indexing="ij")
    for b in range(2):
        assert_close(mask.mask_mod(torch.tensor(b), torch.tensor(0), i, j), allowed[b, 0])
    dense = F.pad(allowed, (0, -LENGTH % 4, 0, -LENGTH % 4)).unfold(2, 4, 4).unfold(3, 4, 4)
    some, full = dense.flatten(-2).any(-1), dense.flatten(-2).all(-1)
    count, columns = ordered((some & ~full)[:, 0])
    assert_close(mask.kv_num_blocks, count)
    for b, row in zip(*torch.where(count[:, 0] > 0), strict=True):
        kept = count[b, 0, row]
        assert_close(mask.kv_indices[b, 0, row, :kept], columns[b, 0, row, :kept])
    assert_close(mask.full_kv_num_blocks, ordered(full[:, 0])[0])


def test_a_document_may_begin_in_the_row_before():
    """Numbers may start anywhere; equal neighbors are one document."""
    documents = Documents.numbered(torch.tensor([[7, 7, 9, 9, 9, 12]]))
    assert documents.position.tolist() == [[0, 1, 0, 1, 2, 0]]
    first, beyond = documents.ranges()
    assert first.tolist() == [[0, 0, 2, 2, 2, 5]]
    assert beyond.tolist() == [[2, 2, 5, 5, 5, 6]]
