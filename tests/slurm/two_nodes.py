"""A real Slurm of two nodes on this machine, for as long as a test needs it.

Each node is a network namespace with a host name, two addresses (the second one is that of the name
with `-fast`) and a /etc/hosts of its own, so tasks on both may listen on one port, and names are
looked up, as on two machines. The file system is shared. The controller and the commands run on the
first node. Whatever runs in the namespaces is the lab's: it is found by its namespace, and ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.harness import SOON, wait

# Slurm orders them as numbers, and text does not. Where one is enough, the last one is taken.
NODES = ("node9", "node10")
GPUS = 2
_PROGRAMS = ("ip", "nsenter", "unshare", "slurmctld", "slurmd", "sbatch", "munged", "mungekey")
_CONTROLLER = "slurmctld"
_ADDRESSES = {"node9": "10.79.0.9", "node10": "10.79.0.10"}
_FAST = {"node9": "10.79.1.9", "node10": "10.79.1.10"}
# A job that was put back in the queue waits so long; the shortest time that Slurm allows.
_DELAY = 5
# A node that does not answer so long is down. A busy machine may be slow.
_DOWN = 30
# Tasks that SIGTERM does not end are killed then.
_KILL = 4

_CONFIGURATION = """
ClusterName=tests
SlurmctldHost=node9({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={delay}
CredType=cred/munge
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
MpiParams=ports=23000-23999
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SlurmdTimeout={down}
KillWait={kill}
ReturnToService=2
MinJobAge=3600
PropagateResourceLimits=NONE
GresTypes=gpu
NodeName=node9 Weight=2 NodeAddr={node9} CPUs=8 RealMemory=64000 Gres=gpu:{gpus}
NodeName=node10 NodeAddr={node10} CPUs=8 RealMemory=64000 Gres=gpu:{gpus}
PartitionName=tests Nodes=node9,node10 Default=YES MaxTime=INFINITE State=UP
"""


class TwoNodes:
    """Two nodes and their Slurm.

    Attributes:
        folder: Files of Slurm and of the tests, which both nodes see.
    """

    def __init__(self) -> None:
        # Not pytest's folder: the path of a socket may have 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tfdist-slurm-"))
        self._spaces = {node: f"{self.folder.name}-{node}" for node in NODES}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Starts all of it, or skips the test where that cannot be done."""
        if os.geteuid() != 0:
            pytest.skip("makes network namespaces, which needs root")
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
        if missing:
            pytest.skip(f"no {missing[0]}; Debian: apt-get install slurm-wlm munge iproute2")
        if not self._wire():
            pytest.skip("network namespaces cannot be made here")
        self._write()
        self._munge()
        self._daemon(_CONTROLLER, "node9", "slurmctld", "-D", "-c")
        for node in NODES:
            self.power_on(node)

    def _wire(self) -> bool:
        first, second = (self._spaces[node] for node in NODES)
        commands = [f"ip netns add {first}", f"ip netns add {second}"]
        for wire, addresses in (("wire", _ADDRESSES), ("fast", _FAST)):
            commands.append(
                f"ip link add {wire} netns {first} type veth peer {wire} netns {second}"
            )
            for node, space in self._spaces.items():
                commands += [
                    f"ip -n {space} addr add {addresses[node]}/24 dev {wire}",
                    f"ip -n {space} link set {wire} up",
                    f"ip -n {space} link set lo up",
                ]
        return not any(subprocess.run(c.split(), capture_output=True).returncode for c in commands)

    def _write(self) -> None:
        folder = self.folder
        for name in ("munge", "state", "gpus", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        (folder / "munge").chmod(0o755)
        folder.chmod(0o755)
        hosts = ["127.0.0.1 localhost"]
        hosts += [f"{_ADDRESSES[node]} {node}\n{_FAST[node]} {node}-fast" for node in NODES]
        (folder / "hosts").write_text("\n".join(hosts) + "\n")
        for number in range(GPUS):
            os.mknod(folder / "gpus" / f"gpu{number}", 0o20666, os.makedev(1, 3))  # As /dev/null.
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpus/gpu[0-{GPUS - 1}]\n")
        text = _CONFIGURATION.format(
            folder=folder,
            delay=_DELAY,
            down=_DOWN,
            kill=_KILL,
            gpus=GPUS,
            controller=_ADDRESSES["node9"],
            **_ADDRESSES,
        )
        (folder / "slurm.conf").write_text(text)

    def _munge(self) -> None:
        munge = self.folder / "munge"
        subprocess.run(["mungekey", "--create", "--keyfile", munge / "key"], check=True)
        options = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        words = [f"--{option}={munge / name}" for option, name in options.items()]
        log = f"--log-file={munge / 'log'}"
        self._daemon("munged", None, "munged", "--foreground", "--force", *words, log)
        wait((munge / "socket").exists, what="munge")

    def _daemon(self, name: str, node: str | None, *words: str) -> None:
        command = self.command(node, *words) if node else words
        with open(self.folder / f"{name}.out", "ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self._environ(), stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def _environ(self) -> dict[str, str]:
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        return {**os.environ, "PATH": path, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def command(self, node: str, *words: str) -> list[str]:
        """Returns a command that runs on a node."""
        # Not by `ip netns exec`, which hides /sys/fs/cgroup: slurmd wants that.
        program = f'mount --bind {self.folder}/hosts /etc/hosts; hostname {node}; exec "$@"'
        space = ["nsenter", f"--net=/run/netns/{self._spaces[node]}", "unshare", "--uts", "--mount"]
        return [*space, "sh", "-c", program, "sh", *words]

    def run(self, *words: str, seconds: float = SOON, env: dict[str, str] | None = None) -> str:
        """Runs a command of Slurm's on the first node; returns what it prints."""
        done = subprocess.run(
            self.command("node9", *words),
            env=self._environ() | (env or {}),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def power_on(self, node: str) -> None:
        """Starts a node, or starts it again, and waits until Slurm uses it."""
        space = self._spaces[node]
        subprocess.run(["ip", "-n", space, "link", "set", "wire", "up"], check=True)
        self._daemon(node, node, "slurmd", "-D", "-N", node)
        wait(lambda: self.state(node) == "idle", what=f"{node} up: {self.logs()}")

    def power_off(self, node: str) -> None:
        """Ends all that runs on a node at once, and cuts its wire."""
        subprocess.run(["ip", "-n", self._spaces[node], "link", "set", "wire", "down"], check=True)
        for process in self.processes(node):
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._daemons.pop(node).wait()

    def state(self, node: str) -> str:
        """The state of a node, as sinfo has it."""
        with contextlib.suppress(AssertionError):  # The controller does not answer yet.
            return self.run("sinfo", "-h", "-n", node, "-o", "%T").strip()
        return ""

    def job(self, number: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.run("scontrol", "show", "job", number)))

    def processes(self, node: str) -> list[psutil.Process]:
        """All processes of a node."""
        space = os.stat(f"/run/netns/{self._spaces[node]}").st_ino
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == space:
                    found.append(process)
        return found

    def logs(self) -> str:
        """The last lines of the daemons, for a message."""
        texts = (path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))
        return "\n".join("\n".join(text.splitlines()[-15:]) for text in texts)

    def clear(self) -> None:
        """Ends all jobs, and sees that none of their processes is left and both nodes are there."""
        self.run("scancel", "--user=root")
        wait(lambda: not self.run("squeue", "-h").strip(), what="the end of all jobs")
        wait(lambda: not self._of_jobs(), what=f"the end of {self._of_jobs()}")

    def _of_jobs(self) -> list[psutil.Process]:
        daemons = {daemon.pid for daemon in self._daemons.values()}
        # The controller has a process of its own beside it.
        theirs = daemons | {
            p.pid for p in psutil.Process(self._daemons[_CONTROLLER].pid).children()
        }
        return [p for node in NODES for p in self.processes(node) if p.pid not in theirs]

    def close(self) -> None:
        """Ends all of it, and sees that nothing is left."""
        for name in reversed(list(self._daemons)):
            self._daemons[name].terminate()
            try:
                self._daemons[name].wait(20)
            except subprocess.TimeoutExpired:
                self._daemons[name].kill()
                self._daemons[name].wait()
        left: list[Any] = []
        for node, space in self._spaces.items():
            if os.path.exists(f"/run/netns/{space}"):
                left += self.processes(node)
                for process in self.processes(node):
                    process.kill()
                subprocess.run(["ip", "netns", "delete", space], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes were left: {left}"
