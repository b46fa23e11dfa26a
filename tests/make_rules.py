"""The rules of the keys of conf/: what the parameters of their classes state."""

from collections import defaultdict
from functools import cache

from ablate.config.keys import option_content
from ablate.config.rules import Rule
from ablate.config.schema import ruled
from ablate.config.tree import config_files


@cache
def rules_of_options() -> dict[str, dict[str, tuple[object, Rule | None]]]:
    """Every option's file -> each of its keys, such as data.path, with its default and rule."""
    found: dict[str, dict[str, tuple[object, Rule | None]]] = {}
    for path in config_files("*/*.yaml"):
        group, content = path.parent.name, option_content(path)[0]
        if "_target_" in content:
            found[f"{group}/{path.name}"] = {
                name: (value, rule) for name, value, rule in ruled(content, group)
            }
    return found


def rules_of_keys() -> dict[str, set[Rule]]:
    """Every key of a part, such as data.path -> its rules, one for each class that has another."""
    found = defaultdict(set)
    for keys in rules_of_options().values():
        for name, (_, rule) in keys.items():
            if rule is not None:
                found[name].add(rule)
    return found
