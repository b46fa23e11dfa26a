"""Weights & Biases (https://docs.wandb.ai): online with an API key, else offline, never a prompt.

A server that cannot be reached or rejects never fails a run and delays it for seconds only: the run
is then written offline, with one warning.
"""

from __future__ import annotations

import csv
import logging
import netrc
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from html import escape
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast
from urllib.parse import urlsplit

from ablate.config.rules import ListOf, Text
from ablate.config.short_name import short_name
from ablate.errors import UserError
from ablate.logger import OFF, RunLogger, first_line
from ablate.redact import without_credentials
from ablate.run_files import PREDICTIONS, RESULT, best_weights, read_text

if TYPE_CHECKING:
    import wandb
    from lightning.pytorch.loggers import WandbLogger

log = logging.getLogger(__name__)

# Seconds to wait for an answer at the start, and for the upload of the rest at the end.
START, END = 15, 60
# Limits of W&B, in characters.
LONGEST_NAME, LONGEST_TAG = 128, 64
# Variables of W&B that are the defaults of our keys, in conf/logger/wandb.yaml.
VARIABLES = {
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "name": "WANDB_NAME",
    "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_JOB_TYPE",
    "tags": "WANDB_TAGS",
    "notes": "WANDB_NOTES",
    "dir": "WANDB_DIR",
}

SAMPLE = "sample.txt"  # what a language model writes
TRAIN = "train"  # the job type of a run that does not tune

Mode = Literal["online", "offline", "disabled"]


class WandB(RunLogger):
    """One W&B run with our run id, so that a resumed run continues in it; grouped by study and arm.

    project, entity: where it goes; without an entity, to the user's default one.
    name, group, job_type: None is the run's own: its model and what
    differs from its defaults, or its arm, and the seed; study/arm; train.
    Runs of a study that tune keep the job type tune.
    tags: a list, or a text with commas; added to those of a study.
    dir: the parent of W&B's folder; None: the run's folder.
    mode: auto follows WANDB_MODE, else is online if there is a key. online and offline override
    WANDB_MODE; online without a key raises UserError.
    log_model: the best weights and the config, which `ablate.load` reads, as an artifact.
    log_predictions: predictions.csv as a table. log_maps: attention maps at every validation.
    """

    def __init__(
        self,
        *,
        project: str,
        entity: str | None,
        mode: Literal["auto", "online", "offline"],
        name: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: str | Annotated[Sequence[str], ListOf(Text(), least=0)] | None = None,
        notes: str | None = None,
        dir: str | None = None,
        log_model: bool = False,
        log_predictions: bool = False,
        log_maps: bool = False,
        **run: Any,
    ) -> None:
        super().__init__(**run)
        if mode == "online" and not has_key():
            raise UserError(
                "logger.mode=online needs a W&B API key: run `wandb login`, set WANDB_API_KEY, or "
                "use logger.mode=offline"
            )
        self.project, self.entity, self.mode = project, entity, mode
        self.name, self.group, self.job_type, self.notes = name, group, job_type, notes
        split = tags.split(",") if isinstance(tags, str) else tags or ()
        self.tags = [tag.strip() for tag in split if tag.strip()]
        self.log_model, self.log_predictions = log_model, log_predictions
        self.log_maps = log_maps
        self.folder = writable(Path(dir).expanduser().absolute()) if dir else self.run_dir
        self._check_project()
        settings = {"project": project, "entity": entity, "name": name, "group": group,
                 "job_type": job_type, "tags": tags, "notes": notes, "dir": dir}  # fmt: skip
        if used := from_environment(settings):
            line = f"ablate: W&B takes {used} from the environment"
            print(without_credentials(line), flush=True)

    @cached_property
    def run(self) -> wandb.Run:
        """The W&B run, opened when it is first used."""
        mode = _auto_mode() if self.mode == "auto" else cast(Mode, self.mode)
        if mode == "online":
            try:
                return self._open(mode)
            except Exception as error:  # no server error may stop a run
                log.warning(
                    "ablate: W&B cannot be reached, writing offline (%s)", first_line(error)
                )
                mode = "offline"
                # W&B's service still has the run that did not start, and would reject its id.
                import wandb

                wandb.teardown()
        return self._open(mode)

    @property
    def loggers(self) -> Sequence[WandbLogger]:
        return [self._logger]

    @cached_property
    def _logger(self) -> WandbLogger:
        from lightning.pytorch.loggers import WandbLogger

        send = self._send

        class Logger(WandbLogger):
            def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
                send(lambda: super(Logger, self).log_metrics(metrics, step))

        return Logger(experiment=self.run, project=self.project, save_dir=self.run_dir)

    @property
    def where(self) -> str:
        if self.run.disabled:
            return OFF
        if self.run.offline:
            # A resumed run has several folders, which belong together.
            folder = shlex.quote(str(Path(self.run.settings.sync_dir).parent))
            return f"W&B offline; to send it: wandb sync {folder}/offline-run-*-{self.run_id}"
        return str(self.run.url)

    def last_step(self, reached: Mapping[str, int]) -> float:
        last = super().last_step(reached)
        if self.run.offline or self.run.disabled:
            return last
        # The server's rows; the last may be incomplete.
        return max(last, self.run.summary.get("trainer/global_step", 0) - 1)

    def figure(self, name: str, path: Path, step: int | None = None) -> None:
        import wandb

        at = {} if step is None else {"trainer/global_step": step}
        self._send(lambda: self.run.log({f"figures/{name}": wandb.Image(str(path)), **at}))

    def close(self, result: dict[str, Any]) -> None:
        finished = result.get("status") == "finished"
        if finished and self.log_predictions:
            self._send(self._predictions)
        if finished and (self.run_dir / SAMPLE).exists():
            self._send(self._sample)
        if finished and self.log_model:
            self._send(self._model)
        self.run.summary.update(
            {**result.get("metrics", {}), "result": without_credentials(result)}
        )
        try:
            self.run.finish(exit_code=0 if finished else 1)
        except TimeoutError:
            self.lost = True
            folder = Path(self.run.settings.sync_dir)
            log.warning(
                "ablate: W&B had not received all of the run after %s s; to send the rest:"
                " wandb sync %s",
                END,
                shlex.quote(str(folder)),
            )

    def _predictions(self) -> None:
        import wandb

        with (self.run_dir / PREDICTIONS).open(newline="") as file:
            names, *rows = csv.reader(file)
        values: list[list[object]] = [[float(value) for value in row] for row in rows]
        self.run.log({"predictions": wandb.Table(columns=list(names), data=values)})

    def _sample(self) -> None:
        import wandb

        text = escape(read_text(self.run_dir / SAMPLE))
        self.run.log({"sample": wandb.Html(f"<pre>{text}</pre>", inject=False)})

    def _model(self) -> None:
        import wandb

        artifact = wandb.Artifact(f"run-{self.run_id}", type="model", metadata=self.config)
        weights = best_weights(self.run_dir)
        for path in (weights, self.run_dir / "config.yaml", self.run_dir / RESULT):
            artifact.add_file(str(path), name=str(path.relative_to(self.run_dir)))
        self.run.log_artifact(artifact, aliases=["best"])

    def _check_project(self) -> None:
        """Raise UserError for a project that W&B rejects, or would ignore in one of its sweeps."""
        import wandb

        try:
            wandb.Settings(project=self.project)
        except wandb.errors.UsageError as error:
            raise UserError(f"logger.project={self.project}: {first_line(error)}") from error
        for key, value in {"project": self.project, "entity": self.entity}.items():
            of_sweep = os.environ.get(VARIABLES[key])
            if os.environ.get("WANDB_SWEEP_ID") and of_sweep and value != of_sweep:
                raise UserError(
                    f"logger.{key}={value}: the runs of a W&B sweep belong to its {key}, {of_sweep}"
                )

    def _send(self, send: Callable[[], None]) -> None:
        """Hand something to W&B's process; if that has died, warn once and continue the run."""
        if self.lost:
            return
        try:
            send()
        except Exception as error:  # no logger error may stop a run
            self.lost = True
            log.warning(
                "ablate: W&B has stopped; the run continues without it (%s)", first_line(error)
            )

    def _open(self, mode: Mode) -> wandb.Run:
        role = self.role
        if role.arm is None:
            name, group, tags = short_name(self.config), role.study, list[str]()
        else:
            name, group = f"{role.arm} seed {self.config['seed']}", f"{role.study}/{role.arm}"
            tags = [role.study, role.arm, *(["baseline"] if role.is_baseline else [])]
        run = open_run(
            mode,
            project=self.project,
            entity=self.entity,
            run_id=self.run_id,
            name=self.name or name,
            group=self.group or group,
            job_type="tune" if role.tunes else self.job_type or TRAIN,
            tags=[*tags, *self.tags],
            notes=self.notes or "",  # None would be WANDB_NOTES
            config=self.config,
            folder=self.folder,
        )
        # Lightning does the same for the runs that it opens.
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return run


def open_run(
    mode: Mode, *, project: str, entity: str | None, run_id: str, name: str, group: str,
    job_type: str, tags: Iterable[str], config: dict[str, Any], folder: Path,
    notes: str | None = None,
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
        notes=notes,
        dir=str(folder),
        config=config,
        resume="allow",
        # Do not touch W&B runs opened by the caller.
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


def from_environment(settings: Mapping[str, Any]) -> str:
    """VARIABLE=VALUE of each value that was taken from the environment; empty if none was.

    settings: the values of our keys, by the names in `VARIABLES`.
    """
    return ", ".join(
        f"{variable}={shorten(str(settings[key]), 60)}"
        for key, variable in VARIABLES.items()
        if settings[key] and settings[key] == os.environ.get(variable)
    )


def writable(folder: Path) -> Path:
    """Create the folder for W&B's files, which W&B itself would silently replace by another."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UserError(
            f"logger.dir={folder}: cannot be written ({error.strerror}); choose another folder, or"
            " none (logger.dir=null)"
        ) from error


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
