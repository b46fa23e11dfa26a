"""A logger made as train.py does; without torch, which takes seconds to import in a process."""

from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from ablate.config.composition import unchecked
from ablate.config.keys import plain
from ablate.logger import RunLogger
from ablate.logger.role import Role

ROOT = Path(__file__).parents[1]
ALONE = Role("a_study")

CONFIG: dict[str, Any] = {
    "seed": 3,
    "model": {"_target_": "ablate.model.gpt.GPT", "dim": 16},
    "data": {
        "path": "https://me:pa55word@example.org/text.txt?key=t0ken",
        "others": ["https://host.org/a@b", "from s3://id@bucket/x or ?", "data.path=C:/x/y?z"],
    },
    "choices": {"model": "gpt", "model.attention": "dot", "pos_enc": "none", "data": "text"},
}
RESULT: dict[str, Any] = {
    "status": "finished",
    "metrics": {"val/loss": 1.5, "test/accuracy": 0.75},
    "parameters": {"total": 1234},
    "choices": CONFIG["choices"],
}


def make(
    option: str, run_dir: Path, run_id: str = "0123456789ab", role: Role = ALONE, **changes: Any
) -> RunLogger:
    """The logger of conf/logger/OPTION.yaml, made as train.py does."""
    run_dir.mkdir(parents=True, exist_ok=True)
    node = plain(unchecked(f"logger={option}").logger) | changes
    start = instantiate(node, _partial_=True, _recursive_=False)
    logger: RunLogger = start(run_dir=run_dir, run_id=run_id, role=role, config=CONFIG)
    return logger
