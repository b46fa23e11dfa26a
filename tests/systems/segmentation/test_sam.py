"""SAM: equality with an independent one, prompts, what tokens and image read of each other."""

import pytest
import torch
from make_model import SIZES, normal, random_parts, tiny
from torch.testing import assert_close

from ablate.model.layers.multi_head import recording
from ablate.systems.segmentation.prompts import FIRST_CORNER, LAST_CORNER, PADDING

SIDE, PATCH, DIM, HEADS = 16, *(SIZES["sam"][size] for size in ("patch", "dim", "heads"))
CORNERS = [FIRST_CORNER, LAST_CORNER]
BOX = torch.tensor([[[2, 5, 9, 13]]]).double()
# Our points and their labels; those that are clicks; a box; whether a mask is given.
PROMPTED = {
    "click": ([(3, 12), (0, 0)], [1, PADDING], [0], None, False),
    "box": ([(2, 5), (9, 13)], CORNERS, [], BOX, False),
    "box and click": ([(2, 5), (9, 13), (3, 12)], [*CORNERS, 1], [2], BOX, False),
    "clicks and mask": ([(3, 12), (0, 0), (8, 1)], [1, PADDING, 0], [0, 2], None, True),
}


def sam(**changes):
    """In float64 and with random parameters."""
    return random_parts(tiny("sam", **changes))


# Names in transformers' modules and ours, in the order in which they are replaced.
DECODER = {
    "transformer.layers": "blocks", "layers.0": "layers.1", "proj_in": "layers.0",
    "proj_out": "layers.2", "transformer.final_attn_token_to_image": "to_image",
    "transformer.layer_norm_final_attn": "norm", "cross_attn_token_to_image": "to_image",
    "cross_attn_image_to_token": "to_tokens", "self_attn": "to_itself", "q_proj": "query",
    "k_proj": "key", "v_proj": "value", "out_proj": "out", "layer_norm1": "norm",
    "layer_norm2": "image_norm", "layer_norm3": "ffn_norm", "layer_norm4": "tokens_norm",
    "mlp.lin1": "up", "mlp.lin2": "down", "upscale_conv1": "enlarge",
    "upscale_layer_norm": "enlarge_norm", "upscale_conv2": "enlarge_again",
    "output_hypernetworks_mlps": "networks", "iou_prediction_head": "iou",
}  # fmt: skip
PROMPTS = {
    "no_mask_embed": "no_mask", "mask_embed": "masks", "conv1": "first", "conv2": "second",
    "conv3": "last", "layer_norm1": "first_norm", "layer_norm2": "second_norm",
    "shared_embedding.positional_embedding": "points.frequencies",
}  # fmt: skip


def copy(ours, theirs, names):
    state = {}
    for name, value in theirs.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    if tables := [state.pop(name) for name in list(state) if "point_embed" in name]:
        state["labels.weight"] = torch.cat(tables)
    ours.load_state_dict(state)


@pytest.mark.ci
@pytest.mark.parametrize("prompt", PROMPTED)
def test_prompts_and_masks_are_those_of_transformers(prompt):
    hf = pytest.importorskip("transformers", reason="needs the extra [hf]")
    from transformers.models.sam import modeling_sam as theirs

    config = hf.SamConfig(
        vision_config={"hidden_size": DIM, "num_pos_feats": DIM // 2, "scale": 1.0},
        prompt_encoder_config={"hidden_size": DIM, "image_size": SIDE, "patch_size": PATCH},
        mask_decoder_config={
            "hidden_size": DIM, "mlp_dim": 24, "num_attention_heads": HEADS,
            "attention_downsample_rate": 1, "iou_head_hidden_dim": DIM,
            "layer_norm_eps": 1e-5,  # as in the published code
        },
    )  # fmt: skip
    config.mask_decoder_config._attn_implementation = "sdpa"  # "eager" rounds to float32
    prompts = random_parts(theirs.SamPromptEncoder(config))
    decoder = theirs.SamMaskDecoder(config.mask_decoder_config)
    for block in decoder.transformer.layers:  # which have half of the width whatever is set
        for name in ("cross_attn_token_to_image", "cross_attn_image_to_token"):
            attention = theirs.SamAttention(config.mask_decoder_config, downsample_rate=1)
            setattr(block, name, attention)
    random_parts(decoder, seed=1)
    model = sam(num_masks=4, decoder={"depth": 2, "ffn_dim": 24})
    copy(model.prompts, prompts, PROMPTS)
    copy(model.decoder, decoder, DECODER)

    image, (points, labels, which, box, masked) = normal(1, 16, DIM), PROMPTED[prompt]
    before = normal(1, 1, SIDE, SIDE, seed=3) if masked else None
    points, labels = torch.tensor([points]), torch.tensor([labels])
    clicks = (points[:, None, which].double(), labels[:, None, which]) if which else (None, None)
    sparse, dense = prompts(*clicks, box, before)
    places = torch.tensor([(x + 0.5, y + 0.5) for y in range(4) for x in range(4)]) / 4
    cells = prompts.shared_embedding(places.double())
    args = [one.mT.reshape(1, DIM, 4, 4) for one in (image, cells)] + [sparse, dense]
    both = [decoder(*args, multimask_output=several) for several in (False, True)]
    expected = tuple(torch.cat(parts, dim=2)[:, 0] for parts in zip(*both, strict=True))
    assert_close(model.prompts.cells((4, 4)), cells)
    assert_close(model.decode(image, points, labels, before), expected)


IMAGES = normal(2, 1, SIDE, SIDE, seed=5)
POINTS = torch.tensor([[[3, 12], [0, 0], [9, 4]], [[2, 5], [9, 13], [6, 6]]])
LABELS = torch.tensor([[1, PADDING, 0], [*CORNERS, 1]])


@pytest.mark.parametrize("points", ["fourier", "learned"])
def test_a_prompt_is_answered_by_its_place_and_its_label(points):
    model = sam(points=points)
    masks, iou = model(IMAGES, POINTS, LABELS)
    assert masks.shape == (2, 2, 3, SIDE, SIDE)
    assert iou.shape == (2, 2, 3)
    elsewhere, otherwise = POINTS.clone(), LABELS.clone()
    elsewhere[:, 2], otherwise[:, 2] = torch.tensor([9, 5]), PADDING
    for other in (elsewhere, LABELS), (POINTS, otherwise):
        changed, _ = model(IMAGES, *other)
        assert torch.equal(changed[:, 0], masks[:, 0])
        assert not torch.allclose(changed[:, 1], masks[:, 1])
    nowhere = torch.where((LABELS == PADDING)[..., None], 7, POINTS)
    assert torch.equal(model(IMAGES, nowhere, LABELS)[0], masks)


def test_examples_of_a_batch_do_not_depend_on_each_other():
    model = sam()
    for n in (0, 1):
        alone = model(*(x[n : n + 1] for x in (IMAGES, POINTS, LABELS)))
        assert_close(alone, tuple(x[n : n + 1] for x in model(IMAGES, POINTS, LABELS)))


def test_a_given_click_and_the_same_one_as_a_correction_are_the_same():
    model, seen = sam(), []

    def correct(masks, iou):
        seen.append((masks, iou))
        return POINTS[:, 2], LABELS[:, 2]

    masks, iou = model(IMAGES, POINTS, LABELS)
    corrected = model(IMAGES, torch.zeros_like(POINTS) + POINTS, LABELS * 0 + LABELS, correct)
    assert_close(corrected, (masks, iou))
    assert_close(seen[0], (masks[:, 0], iou[:, 0]))


@pytest.mark.parametrize("exchange", ["two_way", "one_way", "none"])
def test_tokens_and_image_read_each_other_as_far_as_they_are_to(exchange):
    """What the tokens become depends on the image only if they read it, and what the pixels become
    on the prompt only if the image reads the tokens."""
    model, pixels = sam(exchange=exchange), []
    model.decoder.enlarge.register_forward_hook(lambda *args: pixels.append(args[-1]))
    _, iou = model(IMAGES, POINTS[:, :2], LABELS[:, :2])
    model(IMAGES, POINTS[:, :2].flip(0), LABELS[:, :2].flip(0))
    assert torch.equal(*pixels) == (exchange != "two_way")
    _, other = model(IMAGES.flip(0), POINTS[:, :2], LABELS[:, :2])
    assert torch.equal(iou, other) == (exchange == "none")
    with recording(model) as recorded:
        model(IMAGES, POINTS[:, :2], LABELS[:, :2])
    assert len(recorded) == {"two_way": 8, "one_way": 6, "none": 3}[exchange]


def test_cells_are_where_their_pixels_are():
    model = sam(points="learned", patch=1)
    points = torch.tensor([[[x, y] for y in range(SIDE) for x in range(SIDE)]])
    labels = torch.ones_like(points[..., 0])
    placed = model.prompts(points, labels) - model.prompts.labels.weight[1]
    assert_close(placed[0], model.prompts.cells((SIDE, SIDE)))
    assert [model.cell(x, y) for x, y in points[0].tolist()] == list(range(SIDE**2))
