"""The interface of layers: parts from outside that keep a state, and keys that differ by layer."""

import pytest
import torch
from make_model import bert, context, gpt, normal, part, random_parts, tokens, transformer
from omegaconf import OmegaConf
from test_add_a_component import MIXER, SECTIONS, write_package
from tiny import SMALL, overrides
from torch.testing import assert_close

import ablate
from ablate.cli.summary import show_result
from ablate.config.composition import Composition
from ablate.config.run_id import run_id
from ablate.decode.sample import sample
from ablate.errors import UserError
from ablate.model.layers.layer import Layer, LayerTraits
from ablate.task.accumulation import added_losses
from ablate.training.build import make_layers


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The mixer with a state of docs/how-to/add-a-component.md; its class is on the path."""
    return write_package(SECTIONS[MIXER], tmp_path, monkeypatch)


def test_a_mixer_from_outside_trains_and_generates_from_its_state(own, tmp_path):
    more = (*SMALL, "model.mixer=decay", "model.depth=2", "model.heads=4")
    cfg = ablate.compose(*overrides(tmp_path, *more), config_dir=own)
    result = ablate.run(cfg)
    assert (result["status"], result["choices"]["model.mixer"]) == ("finished", "decay")
    folder = next(tmp_path.rglob("config.yaml")).parent
    model = ablate.load(folder, allow=["my"]).model.double().eval()
    read = torch.randint(0, 5, (3, 8))
    cache, rows = model.new_cache(), torch.tensor([2, 0, 0])
    first = [model(read[:, a:b], cache=cache) for a, b in ((0, 1), (1, 5))]
    assert_close(torch.cat(first, dim=1), model(read)[:, :5])
    cache.select(rows)
    assert_close(model(read[rows][:, 5:], cache=cache), model(read[rows])[:, 5:])
    with_cache, without = (
        list(sample(model, read[:, :2], tokens=4, top_k=1, use_cache=use)) for use in (True, False)
    )
    assert all(map(torch.equal, with_cache, without))
    held = sum(t.numel() for state in cache.states.values() for t in state)
    assert held == 2 * 3 * cfg.model.dim


@pytest.mark.ci
@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("model.mixer=decay model.mask=none", "reads only earlier positions, and model.mask=none"),
        ("model.mixer=decay model.attention=dot", "acts inside attention, and model.mixer=decay"),
        ("model.mixer=decay model.mixer.width=3", "no key model.mixer.width"),
    ],
)
def test_a_mixer_from_outside_is_refused_where_it_has_no_meaning(own, given, line):
    with pytest.raises(UserError, match=line):
        ablate.compose(*given.split(), config_dir=own)


class Balanced(Layer):
    """Adds the mean square of its scale to the loss."""

    traits = LayerTraits(causal=True)

    def __init__(self, place):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((place.dim,), 2.0))

    def forward(self, x, context):
        context.add_loss("balance", self.scale.square().mean())
        return x * self.scale


@pytest.mark.parametrize("again", [False, True])
def test_what_layers_add_to_the_loss_is_summed_and_has_a_gradient(again):
    model = gpt(mixer=Balanced, activation_checkpointing=again).double()
    for _ in range(2):  # nothing is left of the step before
        model.zero_grad()
        logits = model(tokens(2, 5))
        added = added_losses(model)
        assert {name: loss.item() for name, loss in added.items()} == {"balance": 2 * 4.0}
        (0 * logits.sum() + added["balance"]).backward()
        for block in model.stack.blocks:
            scale = block.mixer.function.scale
            assert_close(scale.grad, 2 * scale / scale.numel())
    assert added_losses(model) == {}


GROUPS = ("mask", "mixer", "attention", "normalizer", "pos_enc", "ffn", "norm_type")


def layered(**patterns):
    """The layers of a model of two blocks."""

    def value(key, chosen):
        group = key if key == "pos_enc" else f"model.{key}"
        return part(group, chosen) if isinstance(chosen, str) and key in GROUPS else chosen

    return [{key: value(key, pattern[n]) for key, pattern in patterns.items()} for n in range(2)]


PATTERNS = {
    "windows": ({}, {"mask": [lambda **s: part("model.mask", "window", size=2)(**s), "causal"]}),
    "heads": ({"pos_enc": "alibi"}, {"heads": [3, 1]}),
    "NoPE": ({"pos_enc": "rotary", "heads": 2}, {"pos_enc": ["rotary", "none"]}),
    "tables": ({"pos_enc": "relative"}, {"pos_enc": ["none", "relative"]}),
    "hybrid": ({"pos_enc": "rotary", "heads": 2}, {"mixer": ["convolution", "attention"]}),
    "scores": ({}, {"attention": ["dot", "additive"], "normalizer": ["softmax", "sparsemax"]}),
    "norms": ({}, {"norm": ["pre", "post"], "norm_type": ["layer", "rms"]}),
    "eps": ({}, {"norm_eps": [1e-5, 1.0]}),
    "others": ({}, {"ffn": ["gelu", "swiglu"], "residual": [True, False], "ffn_dim": [6, 9]}),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_block_is_that_of_a_model_of_such_blocks(name):
    """For each layer a stack of two such layers, with the same weights where it has the layer; and
    a cache serves them all."""
    base, patterns = PATTERNS[name]
    layers, x = layered(**patterns), normal(2, 6, 12)
    model = random_parts(gpt(**base, layers=layers)).eval()
    mixed, read, cache = model.stack, tokens(2, 7), model.new_cache()
    pieces = [model(piece, cache=cache) for piece in read.split((3, 1, 3), dim=1)]
    assert_close(torch.cat(pieces, dim=1), model(read))
    expected = mixed.pos_enc.embed(x)
    for n, own in enumerate(layers):
        stack = gpt(**base | own).double().eval().stack
        stack.blocks[n].load_state_dict(mixed.blocks[n].state_dict())
        pos = stack.pos_enc
        if name == "tables" and n:  # those of the one layer that has them
            pos = gpt(pos_enc="relative", depth=1).double().stack.pos_enc
            stack.blocks[n].attention.function.layer = 0
        pos.load_state_dict(mixed.positions[n].state_dict())
        expected = stack.blocks[n](expected, context(pos))
    assert_close(mixed(x), mixed.final_norm(expected))


def test_the_decoder_of_a_transformer_takes_mask_and_cross_attention_by_layer():
    model = transformer(layers=layered(mask=["window", "causal"], attention=["dot", "additive"]))
    assert [type(mask).__name__ for mask in model.decoder.masks] == ["Window", "Causal"]
    assert [type(one.score).__name__ for one in model.decoder.cross] == ["Dot", "Additive"]
    assert not any(mask.restricts for mask in model.encoder.masks)


def test_a_table_serves_the_layers_that_use_it():
    shared = bert(pos_enc="t5", layers=layered(attention=["dot", "cosine"])).stack
    assert shared.positions[0] is shared.positions[1] is shared.pos_enc
    model = gpt(pos_enc="relative", layers=layered(pos_enc=["none", "relative"]))
    assert {role for name, role in model.roles().items() if "pos_enc" in name} == {"embedding"}
    sizes = [len(list(pos.parameters())) for pos in model.stack.positions]
    assert sizes == [0, len(list(gpt(pos_enc="relative", depth=1).stack.pos_enc.parameters()))]


def node(*given):
    return ablate.compose("logger=none", *given)


def test_options_are_named_as_on_the_command_line():
    cfg = node("model.layers.mask=[{window:{size:3}},window,causal]", "model.layers.heads=[4,8]")
    layers = make_layers(OmegaConf.to_container(cfg, resolve=True))
    masks = [(own["mask"].func.__name__, own["mask"].keywords) for own in layers]
    window = ablate.compose("model.mask=window").model.mask.size
    sized = [("Window", {"size": 3}), ("Window", {"size": window}), ("Causal", {})]
    assert masks == [*sized, sized[0]]
    assert [own["heads"] for own in layers] == [4, 8, 4, 8]


def test_keys_of_the_mixer_differ_by_layer_in_those_that_have_them():
    """The model's option keeps its values."""
    mixed = node("model.layers.kv_heads=[4,1]", "model.layers.mixer=[gla,attention,attention]",
                 "model.qk_norm=rms", "model.depth=6")  # fmt: skip
    layers = mixed.model.layers
    found = [(layer.get("kv_heads"), layer.get("qk_norm")) for layer in layers.mixer]
    grouped = (1, "rms"), (4, "rms")
    assert found == [(None, None), *grouped, (None, None), *grouped[::-1]]
    assert layers.kv_heads is None


def test_a_pattern_counts_in_the_id_as_the_values_that_it_gives():
    def ids(*patterns):
        return {run_id(node(f"model.layers.{pattern}"), "data") for pattern in patterns}

    assert len(ids("heads=[4,8]", "heads=[4,8,4,8]")) == 1
    assert len(ids("heads=[4,8]", "heads=[8,4]", "heads=[4,8,8]", "mask=[window,causal]")) == 4
    assert len(ids("mask=[window,causal]", "mask=[{window:{size:16}},causal]")) == 1
    assert run_id(node(), "data") not in ids("heads=[4,8]")


REFUSED = [
    ("heads=4", "must be a list of per-block values, cycled over the blocks"),
    ("heads=[3,4]", "block 0: model.heads=3 does not divide model.dim=128"),
    ("heads=[4,4]", "has one value for all blocks; set model.heads instead"),
    ("heads=[1,2,4,8,1]", "has 5 values for 4 blocks"),
    ("kv_heads=4", "kv_heads=4: must be a list of per-block values"),
    ("kv_heads=[2,2]", "has one value for all blocks; set model.kv_heads instead"),
    ("kv_heads=[1,3]", "block 1: model.mixer.kv_heads=3 does not divide model.heads=4"),
    (
        "kv_heads=[2,4] model.layers.mixer=[attention,gla]",
        "would have the value 4 has a key kv_heads",
    ),
    ("mask=[windw,causal]", "unknown option model.mask=windw; allowed: .* did you mean 'window'"),
    ("mask=[{window:{sise:8}},causal]", "window has no key sise; allowed: size"),
    ("pos_enc=[rotary,learned] pos_enc=rotary", "pos_enc=learned is added to the input"),
    ("heads=[4,8] model.share_layers=true", "no effect with model.share_layers=true"),
    ("mask=[window,window,causal] model=transformer model.decoder.depth=2", "for 2 blocks"),
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_cannot_differ_is_refused(given, line):
    with pytest.raises(UserError, match=f"^[^\n]*{line}[^\n]*$"):
        node(*f"model.layers.{given}".split())


def test_a_part_may_be_without_effect_in_some_layers():
    """model.attention, positions and windows act in every other block."""
    node("model.layers.mixer=[convolution,attention]", "model.attention=dot", "pos_enc=rotary")
    node("model.layers.mixer=[convolution,attention]", "model.mask=window")


def test_a_run_whose_layers_differ_is_written_and_read(tmp_path, capsys):
    more = [*SMALL, "model.depth=2", "model.layers.mask=[{window:{size:2}},causal]"]
    result = ablate.run(ablate.compose(*overrides(tmp_path, *more)))
    folder = next(tmp_path.rglob("config.yaml")).parent
    run = ablate.load(folder)
    assert [type(mask).__name__ for mask in run.model.stack.masks] == ["Window", "Causal"]
    assert Composition(run.config).id == result["run_id"]
    show_result(result, folder, run.config)
    names = "model=gpt, model.attention=scaled_dot, pos_enc=learned, model.mask={}, data=text, seed"
    assert names.format("by layer") in capsys.readouterr().out
    show_result(result, folder, ablate.compose(*overrides(tmp_path, *SMALL)))
    assert names.format("causal") in capsys.readouterr().out
    config = folder / "config.yaml"
    for place in ("mask.window.Window", "mask.causal.Causal"):
        config.write_text(config.read_text().replace(f"ablate.model.{place}", "shutil.rmtree", 1))
        with pytest.raises(
            UserError, match=r"mask\[\d\]._target_=shutil.rmtree is not an ablate component"
        ):
            ablate.load(folder)
