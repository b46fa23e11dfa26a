"""What the rules read in a composition is so: about our parts, and about other people's."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from ablate import data
from ablate.config.compose import compose
from ablate.config.facts import KINDS, STATED, Facts, Unreadable
from ablate.config.keys import locate
from ablate.config.tree import config_dir
from ablate.errors import UserError


def test_what_is_written_about_our_parts_is_what_they_state() -> None:
    """The table that saves importing torch, against the classes themselves."""
    for group, table in STATED.items():
        for path in (config_dir() / group).glob("*.yaml"):
            cfg = OmegaConf.create({group.split(".")[0]: {}})
            OmegaConf.update(cfg, group, OmegaConf.load(path), force_add=True)
            if (target := OmegaConf.select(cfg, f"{group}._target_")) is None:
                continue  # model.cross_attention=same says nothing of its own
            part = locate(target)
            for attribute in table:
                assert Facts(cfg).states(group, attribute) == getattr(part, attribute), path.name


def test_what_is_written_about_our_data_is_what_it_states() -> None:
    for path in (config_dir() / "data").glob("*.yaml"):
        target = yaml.safe_load(path.read_text())["_target_"]
        assert KINDS[target.split(".")[-2]] == locate(target).kind


def test_a_fact_that_is_not_there_silences_the_rule() -> None:
    facts = Facts(OmegaConf.create({"model": {"dim": "wide"}}))
    for path in ("model.heads", "model.dim", "data._target_", "pos_enc.base"):
        with pytest.raises(Unreadable):
            facts(path)


OWN_DATA = """
from ablate.data import Data

class Silent(Data):
    pass

class Images(Data):
    kind = "images"
"""


@pytest.mark.parametrize("module", ["my_data", "ablate.data.my_data"])
def test_the_data_of_others_says_itself_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Also where its module lies among ours: in a checkout of one's own, or a plug-in."""
    (tmp_path / "my_data.py").write_text(OWN_DATA)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    for name in ("Silent", "Images"):
        (tmp_path / "conf" / "data" / f"{name.lower()}.yaml").write_text(
            f"# Mine.\n_target_: {module}.{name}\nbatch_size: 2\n"
        )
    if module == "my_data":
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.setattr("ablate.data.__path__", [*data.__path__, str(tmp_path)])
    with pytest.raises(
        UserError, match=rf"{module}\.Silent: .*`kind`, one of captions, graph, images, .*text"
    ):
        compose("data=silent", config_dir=tmp_path / "conf")
    with pytest.raises(UserError, match=r"model=gpt reads text, and data=.* is images"):
        compose("data=images", config_dir=tmp_path / "conf")
    compose("model=vit", "data=images", config_dir=tmp_path / "conf")


OWN_SCORE = """
from ablate.model.attention import Score

class Mine(Score):
    query = False

    def __init__(self, *, power: int, **sizes: int) -> None:
        super().__init__(**sizes)
"""


def test_the_parts_of_others_are_asked_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_score.py").write_text(OWN_SCORE)
    folder = tmp_path / "conf" / "model.attention"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# A score of my own.\n_target_: my_score.Mine\n_partial_: true\npower: 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    mine = ["model.attention=mine", "model.attention.power=3"]
    cfg = compose(*mine, config_dir=tmp_path / "conf")
    assert cfg.model.attention.power == 3
    with pytest.raises(UserError, match=r"does not compare them"):
        compose(*mine, "pos_enc=rotary", config_dir=tmp_path / "conf")
    with pytest.raises(UserError, match=r"no key model.attention.powr.*did you mean"):
        compose("model.attention=mine", "+model.attention.powr=3", config_dir=tmp_path / "conf")
    (folder / "gone.yaml").write_text("# Not there.\n_target_: my_score.Gone\n_partial_: true\n")
    with pytest.raises(UserError, match=r"my_score.Gone: cannot be imported"):
        compose("model.attention=gone", config_dir=tmp_path / "conf")
