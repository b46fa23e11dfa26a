"""A private Slurm on this machine, with ports, keys and folders of its own.

It needs root and the programs of Debian's slurmctld, slurmd, slurm-client and munge. A node is
said to have more processors than there may be: a test's runs are small, and waiting is not.
Several nodes are one machine under several names, which each slurmd knows in namespaces of its own.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from make_launch import until

from ablate.config.tree import config_dir
from ablate.run_files import read_mapping
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.slurm import executors, launch
from ablate.study.launch.state import QUEUED, State

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "munged")
PACKAGES = ("submitit", "hydra_plugins.hydra_submitit_launcher")
CPUS = 8
NODE = "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 State=UNKNOWN"
# As root: a host name, and a file of host names, that only this process and its children see.
APART = ["unshare", "--uts", "--mount", "sh", "-c",
         'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"']  # fmt: skip

# A job that is requeued waits until its credential has expired. Jobs of `low` give way to those of
# `urgent` at once, those of `slow_to_go` after a time of grace.
CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=slow_to_go Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


def missing() -> str:
    """Why no Slurm can be started here, or nothing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a private Slurm needs root on Linux"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    absent += [name for name in PACKAGES if find_spec(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def no_namespaces() -> str:
    """Why there cannot be several nodes, or nothing."""
    done = subprocess.run([*APART, "node1", "/etc/hosts", "true"], capture_output=True, text=True)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


@contextmanager
def slurm(place: Path, nodes: int = 1) -> Iterator[Path]:
    """Runs while the block does; gives the configuration, for the variable SLURM_CONF."""
    host = socket.gethostname().split(".")[0]
    names = [host] if nodes == 1 else [f"node{number}" for number in range(nodes)]
    for name in ("state", *(f"spool.{name}" for name in names)):
        (place / name).mkdir(parents=True)
    conf, ports = place / "slurm.conf", _free_ports(1 + nodes)
    lines = [
        NODE.format(name=name, port=port, cpus=CPUS)
        for name, port in zip(names, ports[1:], strict=True)
    ]
    conf.write_text(CONF.format(place=place, host=host, ports=ports, nodes="\n".join(lines)))
    hosts = place / "hosts"
    hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in ("localhost", host, *names)))
    key = place / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    around = {**os.environ, "SLURM_CONF": str(conf)}
    files = {"socket": "sock", "key-file": "key", "pid-file": "pid", "log-file": "log",
             "seed-file": "seed"}  # fmt: skip
    munge = [f"--{option}={place / 'munge'}.{end}" for option, end in files.items()]
    commands = (
        ["munged", "--foreground", "--force", *munge],
        ["slurmctld", "-D", "-f", str(conf)],
        *(
            [*([*APART, name, str(hosts)] if nodes > 1 else []), "slurmd", "-D", "-f", str(conf)]
            for name in names
        ),
    )
    started: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            with open(place / f"{command[0]}.{number}.out", "wb") as out:
                started.append(
                    subprocess.Popen(
                        command, stdout=out, stderr=out, env=around, start_new_session=True
                    )
                )
            if command[0] == "munged":
                until((place / "munge.sock").exists, 60)
        states = ["sinfo", "-h", "-N", "-p", "low", "-o", "%T"]
        until(lambda: _said(*states, env=around).split() == ["idle"] * nodes, 60)
        yield conf
    finally:
        _said("scancel", "--user=root", env=around)
        with suppress(AssertionError):
            until(lambda: not _said("squeue", "-h", env=around), 60)
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def submitted(runs: Sequence[ScheduledRun], place: Path, **own: Any) -> list[State]:
    """Train them by the launcher, in this process, which belongs to a Slurm."""
    settings = yaml.safe_load((config_dir() / "hydra/launcher/slurm.yaml").read_text())
    names = {"name": "ablate-test", "submitit_folder": str(place / ".submitit/%j")}
    return launch(runs, executors({**settings, **names, **own}, runs))


def job_of(folder: Path) -> str:
    """That of a run, as its folder says."""
    until(lambda: bool(read_mapping(folder / QUEUED).get("job")))
    return str(read_mapping(folder / QUEUED)["job"])


def ask(*command: str) -> str:
    """A command of Slurm, which must succeed."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _said(*command: str, env: dict[str, str]) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True).stdout.strip()
