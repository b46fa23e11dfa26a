"""What the rules read in a composition is so: about our parts, and about other people's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import ablate
from ablate import data
from ablate.config.composition import compose
from ablate.config.facts import Facts
from ablate.config.keys import OURS, locate, option_content
from ablate.config.stated import Unreadable, stated
from ablate.config.tree import config_dir
from ablate.errors import UserError

CODE = " ".join(path.read_text() for path in (Path(ablate.__file__).parent).rglob("*.py"))
# What conflicts ask of the parts of a group.
ASKED = sorted(set(re.findall(r'state[sd]\("([\w.]+)", "(\w+)"\)', CODE)))


@pytest.mark.parametrize(("group", "attribute"), ASKED)
def test_what_is_read_of_a_class_is_what_it_states(group: str, attribute: str) -> None:
    found = []
    for path in (config_dir() / group).glob("*.yaml"):
        target = option_content(path)[0].get("_target_", "")
        if target.startswith(OURS) and hasattr(locate(target), attribute):
            assert stated(target, attribute) == getattr(locate(target), attribute), path.name
            found.append(path)
    assert found


def test_a_check_imports_no_torch() -> None:
    code = (
        "import sys; from ablate.config.composition import compose;"
        "from ablate.config.run_id import run_id;"
        "compose('model=transformer'); compose('model=vit'); run_id(compose('model=gat'), 'x');"
        "print('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


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
    with pytest.raises(UserError, match=rf"{module}\.Silent: .*`kind`, such as .text., or a name"):
        compose("data=silent", config_dir=tmp_path / "conf")
    with pytest.raises(UserError, match=r"model=gpt reads text, .* and data=.* is images"):
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
