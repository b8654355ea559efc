"""A Slurm cluster of one node, on loopback and on free ports: munged, slurmctld and slurmd, all of them ours.

    with Cluster(folder) as cluster:
        job = cluster.submit("--ntasks=1", "job.sh", cwd=home)
        cluster.call("scancel", "--signal=USR1", "--batch", job)
        ended = cluster.ended(job)

It needs root and the packages slurm-wlm and munge; `unavailable` says what is missing. Everything that it writes is
in `folder`, the logs of the daemons as well. Source: slurm.conf(5), munged(8).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

_NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "squeue")
_ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")
_PATIENCE_S = 60.0
_POLL_S = 0.1

_CONF = """\
ClusterName=loopback
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# How long a requeued job waits at least, in seconds.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
# Nothing that needs cgroups, a database or a fabric.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=100000
# The cluster of the checkpointing contract: an urgent job takes the node, and the job that gives way is signalled
# first. (`PreemptParameters=send_user_signal` is the newer name.)
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=5
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000
PartitionName=batch Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def unavailable() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if missing := [program for program in _NEEDED if shutil.which(program) is None]:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "only root may start slurmd"


class Cluster:
    """Runs from `with` to its end; jobs that are left then are cancelled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A cluster or a job that these tests run in is none of this one's.
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self._environ |= {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        host = socket.gethostname().partition(".")[0]
        controller_port, node_port = _free_ports(2)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        conf = _CONF.format(host=host, folder=self.folder, controller_port=controller_port, node_port=node_port)
        (self.folder / "slurm.conf").write_text(conf, encoding="utf-8")
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        try:
            self._start_daemons(key)
        except BaseException:
            self._stop_daemons()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if left := self._queued():
                self.call("scancel", "--signal=KILL", "--full", *left)
                self._until(lambda: not self._queued(), "the last job to end")
        finally:
            self._stop_daemons()

    def call(self, *command: str | Path, cwd: Path | None = None) -> str:
        """Run a program as a user of the cluster; what it printed."""
        done = subprocess.run(command, cwd=cwd, env=self._environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *job: str | Path, cwd: Path) -> str:
        """Hand a job in, as options and script of sbatch(1), from the folder `cwd`; its id."""
        return self.call("sbatch", "--parsable", *job, cwd=cwd).strip()

    def job(self, job: str) -> Mapping[str, str]:
        """What the controller knows of the job: `JobState`, `ExitCode`, `Restarts` and the rest of scontrol(1)."""
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "show", "job", job, "--oneliner")))

    def ended(self, job: str) -> Mapping[str, str]:
        """What the controller knows of the job once it has ended, in whichever way."""
        self._until(lambda: self.job(job)["JobState"] in _ENDS, f"job {job} to end")
        return self.job(job)

    def _queued(self) -> list[str]:
        return self.call("squeue", "--noheader", "--format=%A").split()

    def _start_daemons(self, key: Path) -> None:
        own = {"key-file": key, **{f"{name}-file": self.folder / f"munge.{name}" for name in ("pid", "log", "seed")}}
        places = (f"--{option}={path}" for option, path in own.items())
        self._start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *places)
        self._until((self.folder / "munge.socket").exists, "munged to listen")
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._until(self._idle, "a node to be idle")

    def _idle(self) -> bool:
        command = ("sinfo", "--noheader", "--partition=batch", "--format=%T")
        return subprocess.run(command, env=self._environ, capture_output=True, text=True).stdout.strip() == "idle"

    def _start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.out").open("wb") as out:
            self._daemons.append(subprocess.Popen(command, env=self._environ, stdout=out, stderr=out))

    def _stop_daemons(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _until(self, there: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + _PATIENCE_S
        while not there():
            died = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not died, f"{died} ended; see {self.folder}"
            assert time.monotonic() < until_s, f"waited {_PATIENCE_S:g} s for {what}; see {self.folder}"
            time.sleep(_POLL_S)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()
