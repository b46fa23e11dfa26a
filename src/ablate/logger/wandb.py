"""Weights & Biases (https://docs.wandb.ai): online with an API key, else offline, never a prompt.

A server that cannot be reached or refuses never fails a run and delays it for seconds only: the run
is then written offline, with one warning.
"""

from __future__ import annotations

import logging
import netrc
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import urlsplit

from ablate.errors import UserError, suggest
from ablate.logger import RunLogger, first_line
from ablate.redact import without_credentials

if TYPE_CHECKING:
    import wandb
    from lightning.pytorch.loggers import WandbLogger

log = logging.getLogger(__name__)

MODES = ("auto", "online", "offline")
# Seconds to wait for an answer at the start, and for the upload of the rest at the end.
START, END = 15, 60
# Limits of W&B, in characters.
LONGEST_NAME, LONGEST_TAG = 128, 64

Mode = Literal["online", "offline", "disabled"]


class WandB(RunLogger):
    """One W&B run with our run id, so that a resumed run continues in it; grouped by study and arm.

    project, entity: where it goes; without an entity, to the user's default one.
    mode: auto follows WANDB_MODE, else is online if there is a key. online and offline override
    WANDB_MODE; online without a key raises UserError.
    """

    def __init__(self, *, project: str, entity: str | None, mode: str, **run: Any) -> None:
        super().__init__(**run)
        if mode not in MODES:
            raise UserError(
                f"logger.mode={mode}: must be one of {', '.join(MODES)}{suggest(str(mode), MODES)}"
            )
        if mode == "online" and not has_key():
            raise UserError(
                "logger.mode=online needs a W&B API key: run `wandb login`, set WANDB_API_KEY, or "
                "use logger.mode=offline"
            )
        self.project, self.entity, self.mode = project, entity, mode
        self._lost = False

    @cached_property
    def run(self) -> wandb.Run:
        """The W&B run, opened when it is first used."""
        mode = _auto_mode() if self.mode == "auto" else cast(Mode, self.mode)
        if mode == "online":
            try:
                return self._open(mode)
            except Exception as error:  # no server error may stop a run
                log.warning("ablate: W&B is out of reach, writing offline (%s)", first_line(error))
                mode = "offline"
                # W&B's service still holds the run that did not start, and would refuse its id.
                import wandb

                wandb.teardown()
        return self._open(mode)

    @cached_property
    def lightning(self) -> WandbLogger:
        from lightning.pytorch.loggers import WandbLogger

        send = self._send

        class Logger(WandbLogger):
            def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
                send(lambda: super(Logger, self).log_metrics(metrics, step))

        return Logger(experiment=self.run, project=self.project, save_dir=self.run_dir)

    @property
    def where(self) -> str:
        if self.run.disabled:
            return "W&B is switched off (WANDB_MODE)"
        if self.run.offline:
            # A resumed run has several folders, which belong together.
            folder = f"{shlex.quote(str(self.run_dir))}/wandb/offline-run-*"
            return f"W&B offline; to send it: wandb sync {folder}"
        return str(self.run.url)

    def figure(self, name: str, path: Path) -> None:
        import wandb

        self._send(lambda: self.run.log({f"figures/{name}": wandb.Image(str(path))}))

    def close(self, result: dict[str, Any]) -> None:
        finished = result.get("status") == "finished"
        self.run.summary.update(
            {**result.get("metrics", {}), "result": without_credentials(result)}
        )
        try:
            self.run.finish(exit_code=0 if finished else 1)
        except TimeoutError:
            folder = Path(self.run.settings.sync_dir)
            log.warning(
                "ablate: W&B did not take all of the run in %s s; to send the rest: wandb sync %s",
                END,
                shlex.quote(str(folder)),
            )

    def _send(self, send: Callable[[], None]) -> None:
        """Hand something to W&B's process; if that has died, warn once and continue the run."""
        if self._lost:
            return
        try:
            send()
        except Exception as error:  # no logger error may stop a run
            self._lost = True
            log.warning(
                "ablate: W&B has stopped; the run continues without it (%s)", first_line(error)
            )

    def _open(self, mode: Mode) -> wandb.Run:
        role = self.role
        if role.arm is None:
            name, group, tags = _name(self.config), role.study, []
        else:
            name, group = f"{role.arm} seed {self.config['seed']}", f"{role.study}/{role.arm}"
            tags = [role.study, role.arm, *(["baseline"] if role.is_baseline else [])]
        run = open_run(
            mode,
            project=self.project,
            entity=self.entity,
            run_id=self.run_id,
            name=name,
            group=group,
            job_type="tune" if role.tunes else "train",
            tags=tags,
            config=self.config,
            folder=self.run_dir,
        )
        # Lightning does the same for the runs that it opens.
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return run


def open_run(
    mode: Mode, *, project: str, entity: str | None, run_id: str, name: str, group: str,
    job_type: str, tags: Iterable[str], config: dict[str, Any], folder: Path,
) -> wandb.Run:  # fmt: skip
    """Open a W&B run without prompts or output; resume the run with this id if it exists."""
    import wandb

    return wandb.init(
        project=project,
        entity=entity,
        id=run_id,
        name=fitted(name, LONGEST_NAME),
        group=fitted(group, LONGEST_NAME),
        job_type=job_type,
        tags=list(dict.fromkeys(fitted(tag, LONGEST_TAG) for tag in tags)),
        dir=str(folder),
        config=config,
        resume="allow",
        # Leave W&B runs opened by the caller alone.
        reinit="create_new",
        mode=mode,
        settings=wandb.Settings(
            init_timeout=START,
            finish_timeout=END,
            finish_timeout_raises=True,
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            # The metadata repeats the command line.
            x_disable_meta=without_credentials(sys.argv) != sys.argv,
        ),
    )


def fitted(name: str, most: int) -> str:
    """Cut a name to `most` characters, ending in a hash that keeps it unique."""
    if len(name) <= most:
        return name
    mark = "…" + sha256(name.encode()).hexdigest()[:8]
    return name[: most - len(mark)] + mark


def _auto_mode() -> Mode:
    """Follow WANDB_MODE or `wandb offline`; else online if there is a key."""
    configured = settings().mode
    if configured == "disabled":
        return "disabled"
    return "offline" if configured in ("offline", "dryrun") or not has_key() else "online"


def has_key() -> bool:
    """Whether W&B would find credentials: in its environment or settings, or in netrc."""
    known = settings()
    if known.api_key or known.identity_token_file:
        return True
    host = urlsplit(known.base_url).netloc
    files = [os.environ.get("NETRC"), *(Path.home() / name for name in (".netrc", "_netrc"))]
    try:
        file = next(file for file in files if file and Path(file).exists())
        return netrc.netrc(file).authenticators(host) is not None
    except (StopIteration, OSError, netrc.NetrcParseError):
        return False


def settings() -> wandb.Settings:
    # W&B reports client errors to its server, which takes long if that cannot be reached.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # Silent from the first call on, since the login prints otherwise.
    return wandb.setup(wandb.Settings(silent=True)).settings


def _name(config: dict[str, Any]) -> str:
    """Name a run after the parts of its model and its data, so that users can tell runs apart."""
    choices = config["choices"]
    shown = [g for g in choices if g in ("model", "pos_enc", "data") or g.startswith("model.")]
    return " ".join([*(str(choices[group]) for group in shown), f"seed {config['seed']}"])
