"""Nothing is accepted and ignored: a key of the model that changes nothing is refused by name."""

from pathlib import Path

import pytest
from tiny import overrides

import ablate
from ablate.errors import UserError
from ablate.training.build import build_data
from ablate.training.ignored import refuse_ignored


def ask(folder: Path, *given: str) -> None:
    cfg = ablate.compose(*overrides(folder, *given))
    refuse_ignored(cfg, build_data(cfg))


IGNORED = [
    ("model.mixer=convolution model.heads=1", "model.heads=1 has no effect"),
    ("model.mixer=none model.heads=1", "model.heads=1 has no effect"),
    ("model.norm=none model.norm_eps=0.1", "model.norm_eps=0.1 has no effect"),
    ("model.mask=window model.mask.size=16", "model.mask=window has no effect on this model"),
    ("model.depth=2 model.layers.heads=[4,8] model.heads=1", "model.heads=1 has no effect"),
    ("model.depth=2 model.layers.dropout=[0.1,0.2] model.heads=1 model.layers.heads=[4,8]",
     "model.heads=1 has no effect"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "line"), IGNORED)
def test_a_key_that_changes_nothing_is_refused(tmp_path: Path, given: str, line: str) -> None:
    given = f"model.dim=32 {given}" if "layers" in given else given
    with pytest.raises(UserError, match=line) as error:
        ask(tmp_path, *given.split())
    assert "model.dim" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        "model.heads=1 model.norm_eps=0.1 model.ffn_dim=20 model.bias=false",
        "model.mask=window model.mask.size=15 model.norm=post model.ffn=swiglu",
        "model.mixer=convolution model.heads=4 model.mixer.size=3 model.init_std=0.3",
        "model.attention=dot pos_enc=rotary pos_enc.base=100 model.normalizer=sparsemax",
        "model.activation_checkpointing=true model.freeze=embeddings model.residual=false",
    ],
)
def test_keys_that_change_something_are_accepted(tmp_path: Path, given: str) -> None:
    ask(tmp_path, *given.split())


def test_a_run_is_refused_before_it_starts_and_an_arm_of_a_study_is_not(tmp_path: Path) -> None:
    given = ["model.mixer=none", "model.heads=1", "trainer.max_steps=1", "schedule.warmup=0"]
    cfg = ablate.compose(*overrides(tmp_path, *given))
    with pytest.raises(UserError, match=r"model\.heads=1 has no effect"):
        ablate.run(cfg)
    assert not list(tmp_path.rglob("result.json"))
    cfg.study.arm = "heads"
    refuse_ignored(cfg, build_data(cfg))
