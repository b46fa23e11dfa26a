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


OWN = """
from ablate.data import Data
from ablate.model.attention import Score

class Silent(Data):
    pass

class Images(Data):
    kind = "images"

class Mine(Score):
    query = False

    def __init__(self, *, power: int, **sizes: int) -> None:
        super().__init__(**sizes)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder for --config-dir with options of a module beside it."""
    (tmp_path / "my_parts.py").write_text(OWN)
    for group in ("data", "model.attention"):
        (tmp_path / "conf" / group).mkdir(parents=True)
    score = tmp_path / "conf" / "model.attention"
    (score / "mine.yaml").write_text("_target_: my_parts.Mine\n_partial_: true\npower: 2\n")
    (score / "gone.yaml").write_text("_target_: my_parts.Gone\n_partial_: true\n")
    return tmp_path / "conf"


@pytest.mark.parametrize("module", ["my_parts", "ablate.data.my_parts"])
def test_the_data_of_others_says_itself_what_it_holds(own, monkeypatch, module):
    """Also where its module lies among ours: in a checkout of one's own, or a plug-in."""
    for name in ("Silent", "Images"):
        text = f"_target_: {module}.{name}\nbatch_size: 2\n"
        (own / "data" / f"{name.lower()}.yaml").write_text(text)
    if module == "my_parts":
        monkeypatch.syspath_prepend(own.parent)
    else:
        monkeypatch.setattr("ablate.data.__path__", [*data.__path__, str(own.parent)])
    with pytest.raises(UserError, match=rf"{module}\.Silent: .*`kind`, such as .text., or a name"):
        compose("data=silent", config_dir=own)
    with pytest.raises(UserError, match=r"model=gpt reads text, .* and data=.* is images"):
        compose("data=images", config_dir=own)
    compose("model=vit", "data=images", config_dir=own)


def test_the_parts_of_others_are_asked_themselves(own, monkeypatch):
    monkeypatch.syspath_prepend(own.parent)
    mine = ["model.attention=mine", "model.attention.power=3"]
    assert compose(*mine, config_dir=own).model.attention.power == 3
    for typed, line in {
        "pos_enc=rotary": "does not compare them",
        "+model.attention.powr=3": "no key model.attention.powr.*did you mean",
        "model.attention=gone": "my_parts.Gone: cannot be imported",
    }.items():
        with pytest.raises(UserError, match=line):
            compose("model.attention=mine", typed, config_dir=own)
