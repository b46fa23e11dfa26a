"""The config tree is the test list: every option of every group makes a model that learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from make_axes import GROUPS as CHOSEN
from make_model import options
from make_rows import base_overrides, composed, inputs, needs, taker
from make_systems import REMOVED, list_of_systems
from omegaconf import OmegaConf
from test_no_effect import data_of

from ablate import model as models
from ablate.config.composition import compose
from ablate.config.keys import option_content
from ablate.config.parts import class_attribute
from ablate.config.schema import base_of
from ablate.config.tree import config_dir, config_file, config_files, groups
from ablate.kernel import chunked
from ablate.model.base import outputs
from ablate.training.build import build, build_data

listed = str.split
SOURCE = Path(models.__file__).parents[1]
GROUPS = sorted(groups())
# test_compose.py composes every sweep, test_debug.py every experiment.
OPTIONS = [
    (group, name)
    for group in GROUPS
    if group not in ("experiment", "sweep")
    for name in options(group)
]
# Groups that change no model; test_knobs_training.py trains with the first two.
AROUND = ("optimizer", "schedule", "trainer")
# Groups in which every file stands for a module of the same name.
MIRRORED = listed("""kernel logger pos_enc task model.attention model.cell
    model.decoder model.embedding model.ffn model.gate model.mask model.mixer
    model.norm_type model.window""")


@pytest.fixture(autouse=True, scope="module")
def _no_compiler(small_files: pytest.MonkeyPatch) -> None:
    small_files.setattr(chunked, "compiler", lambda device: False)  # test_kernel.py compiles


@pytest.mark.parametrize(("group", "name"), OPTIONS)
def test_every_option_builds_and_every_parameter_gets_a_gradient(group: str, name: str) -> None:
    if REMOVED and group == "data" and not is_read(name):
        pytest.skip("a system that was removed reads it")
    override = f"{group}={name}"
    model, row = taker(override)
    typed = base_overrides(model, name) if group == "data" else [override]
    assert compose(*typed, *needs(override)).choices[group] == name
    if group in AROUND or group not in ("model", *CHOSEN):
        return
    if override == "kernel=flex" and not torch.cuda.is_available():
        pytest.skip("FlexAttention has no backward pass on a CPU")
    if group == "data" and name in list_of_systems("DATA_ELSEWHERE"):
        pytest.skip("it reads a run, which the test of its system makes")
    cfg = composed(model, row)
    data = build_data(cfg) if group in ("data", "task", "model") else data_of(model)
    network = build(cfg, data)
    found = outputs(network(*inputs(cfg, data, network)))
    sum(out.square().sum() for out in found).backward()  # type: ignore[union-attr]
    learning = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for name, parameter in learning.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert any(p.grad.abs().max() > 0 for p in learning.values() if p.grad is not None)


def is_read(name: str) -> bool:
    """Whether a model reads a data set."""

    def stated(option: Path, attribute: str) -> Any:
        return class_attribute(str(option_content(option)[0]["_target_"]), attribute)

    kind = stated(config_file(f"data/{name}.yaml"), "kind")
    return any(kind in stated(model, "kinds") for model in config_files("model/*.yaml"))


# conf/ and src/ have the same names


# Modules beside the options, which several of them share.
SHARED = {
    "kernel": listed("additive_cpu additive_triton additive_triton_kernels heap"),
    "logger": ["role"],
    "task": listed("""accumulation attention cross_entropy experts measures optimizing presenter
        text_metrics translate"""),
}


@pytest.mark.parametrize("group", MIRRORED)
def test_every_module_is_the_option_of_its_name(group: str) -> None:
    folder = SOURCE / group.replace(".", "/")
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    named = {path.stem for path in (config_dir() / group).glob("*.yaml")}
    named -= {"none"} if group == "logger" else set()
    assert modules == named | {*SHARED.get(group, [])}
    for name in named:
        made = str(option_content(config_dir() / group / f"{name}.yaml")[0]["_target_"])
        assert made.startswith(f"ablate.{group}.{name}.")


def test_every_group_has_a_place_in_config_yaml_or_in_a_model() -> None:
    files = [f for name in ("config", "model/*", "task/*") for f in config_files(f"{name}.yaml")]
    lists = [OmegaConf.load(file).get("defaults", []) for file in files]
    # A text is a fragment, which is no choice.
    chosen = [entry for defaults in lists for entry in defaults if OmegaConf.is_dict(entry)]
    keys = {key for entry in chosen for key in entry}
    groups = {key.removeprefix("/") for key in keys if not key.startswith(("override", "optional"))}
    assert groups == set(GROUPS) - {"hydra"}


@pytest.mark.parametrize("name", [name for name in options("trainer") if name != "cpu"])
def test_a_trainer_is_that_of_the_cpu_but_for_what_its_file_says(name: str) -> None:
    cpu, own = compose().trainer, compose(f"trainer={name}", "trainer.log_every_n_steps=7")
    assert list(own.trainer) == list(cpu)
    content = OmegaConf.load(config_dir() / "trainer" / f"{name}.yaml")
    for key in set(content) - {"defaults"}:
        assert own.trainer[key] == content[key] != cpu[key]
    assert own.trainer.max_steps == cpu.max_steps > 0  # the model's wins over both files
    assert own.trainer.log_every_n_steps == 7  # and the command line over all


@pytest.mark.parametrize(
    ("group", "base"),
    [
        ("model", "Model"), ("model.attention", "Score"), ("model.mixer", "Layer"),
        ("pos_enc", "PosEnc"), ("data", "Data"), ("task", "Task"),
        ("model.norm_type", None), ("optimizer", None), ("schedule", None),
    ],
)  # fmt: skip
def test_what_a_part_must_be_is_what_the_options_of_its_group_are(group, base):
    """Where one of them is a function, or another package's class, anything may stand there."""
    found = base_of(group)
    assert (found and found.__name__) == base
