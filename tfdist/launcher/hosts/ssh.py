"""Starts a job on several machines by ssh: on each its own launcher, supervised like a task."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tfdist
from tfdist.cluster.address import address_key, check_address, is_loopback
from tfdist.cluster.secret import VARIABLE as SECRET_VARIABLE
from tfdist.errors import EXIT_KILLED, EXIT_PEER_LOST, ConfigError
from tfdist.launcher.group import ATTEMPT_VARIABLE, RunContext
from tfdist.launcher.job import Job
from tfdist.launcher.local import LaunchOptions, Supervisor, pause
from tfdist.runtime.timeouts import WAIT_VARIABLE, wait_seconds
from tfdist.validation import quote, reject

_WHERE = "--hosts"
_WANTED = "give names such as a, user@b:2 or [fd00::1]:4"
_HOST = re.compile(r"(?:([A-Za-z0-9_][\w.-]*)@)?(\[[^]]*\]|[^:@\[\]]+)(?::([0-9]{1,4}))?", re.ASCII)
# Nobody can answer its questions; a dead network is seen within half a minute.
_SSH = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
_SSH_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_ANSWER_SECONDS = 30.0
# Between two calls of a machine that does not answer, and two looks at the calls.
_AGAIN_SECONDS = 2.0
_LOOK_SECONDS = 0.2
_SSH_FAILED = 255
# Seconds that the launcher of a machine has more than its tasks to end.
_LAUNCHER_SECONDS = 5.0
# Prints the version and a free port: last, after whatever a login prints.
_GREETING = (
    "import tfdist; from tfdist.launcher.ports import free_ports; "
    "print('tfdist', tfdist.__version__, *free_ports(1, ''))"
)


@dataclass(frozen=True)
class Host:
    """A machine of a job.

    Attributes:
        name: What other machines call it; an IPv6 address is in brackets.
        user: Whom to log in as; "" for ssh's own choice.
        workers: The number of workers there.
    """

    name: str
    user: str
    workers: int

    @property
    def login(self) -> str:
        """Whom and where, for ssh."""
        name = self.name.removeprefix("[").removesuffix("]")
        return f"{self.user}@{name}" if self.user else name


def read_hosts(text: str) -> list[Host]:
    """Reads hosts: `a,user@b:2,[fd00::1]:4`.

    Raises:
        ConfigError: One is malformed or named twice, or others cannot reach it by its name.
    """
    hosts: dict[tuple[str, int], Host] = {}
    for item in text.split(","):
        match = _HOST.fullmatch(item.strip())
        if match is None or (match[3] and not int(match[3])):
            reject(_WHERE, f"{quote(item)} is not a host with a number of workers; {_WANTED}")
        address = f"{match[2]}:1"
        try:
            key = address_key(check_address(address, _WHERE))
        except ConfigError:
            reject(_WHERE, f"{quote(item)} is not the name of a host; {_WANTED}")
        if key in hosts:
            reject(_WHERE, f"{match[2]} is named twice; give it once, with all its workers")
        hosts[key] = Host(match[2], match[1] or "", int(match[3] or 1))
    local = [host.name for host in hosts.values() if is_loopback(f"{host.name}:1")]
    if local and len(local) < len(hosts):
        reject(_WHERE, f"{local[0]} is another machine to each of the others; give its name there")
    return list(hosts.values())


def launch_on_hosts(
    hosts: Sequence[Host],
    counts: Mapping[str, int],
    flags: Sequence[str],
    command: Sequence[str],
    options: LaunchOptions,
    ssh: str,
) -> int:
    """Runs a job on several machines, and returns the exit code of the cause, or 0.

    Args:
        hosts: The machines; a chief and evaluators are on the first, ps on each in turn.
        counts: The tasks of each role but worker.
        flags: Those of `tfdist launch` for each machine.
        command: What the tasks run.
        options: Those of the run; its log directory and its restarts are for all machines together.
        ssh: The command to log in with, and its own arguments.

    Raises:
        ConfigError: A machine cannot be reached, or lacks what it needs. Nothing was started.
    """
    words = _words(ssh)
    wait = wait_seconds()
    port = _greet(hosts, words)
    env = dict(options.env)
    secret = env.get(SECRET_VARIABLE) or os.environ.get(SECRET_VARIABLE)
    env[SECRET_VARIABLE] = secret or secrets.token_hex(32)
    variables = "=".join([*env, ATTEMPT_VARIABLE])
    commands = {}
    for rank, host in enumerate(hosts):
        remote = [sys.executable, "-m", "tfdist", "launch", "--managed", "--host-rank", str(rank)]
        remote += ["--num-hosts", str(len(hosts)), "--rendezvous", f"{hosts[0].name}:{port}"]
        remote += [*_tasks(rank, len(hosts), host.workers, counts), *flags, "--", *command]
        commands[host.name] = [
            *(sys.executable, "-m", "tfdist.launcher.hosts.remote", variables, host.name),
            *(*words, *_SSH, *_SSH_ALIVE, host.login, _there(remote)),
        ]
    job = Job({}, commands, here=tuple(commands), noun="host")
    all_of_it = replace(
        options,
        env=env,
        grace=options.grace + _LAUNCHER_SECONDS,
        stall_timeout=0.0,  # The launchers see to it.
        report=False,
        cpus_per_task="none",
        gpus_per_task="none",
    )

    def all_answer(context: RunContext) -> bool:
        return _wait_for_all(hosts, words, wait, context)

    code = Supervisor(job, all_of_it, before_restart=all_answer).run()
    return EXIT_PEER_LOST if code == EXIT_KILLED else code


def _tasks(rank: int, hosts: int, workers: int, counts: Mapping[str, int]) -> list[str]:
    """Returns the flags for the tasks of one machine."""
    flags = ["--workers", str(workers)]
    if rank == 0:
        for role in ("chief", "evaluator"):
            flags += [f"--{role}", str(counts[role])] if counts.get(role) else []
    ps = len(range(rank, counts.get("ps", 0), hosts))
    return [*flags, "--ps", str(ps)] if ps else flags


def _words(ssh: str) -> list[str]:
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        reject(
            "--ssh", f"{quote(ssh)} cannot be read ({error}); give a command, such as 'ssh -p 22'"
        )
    if not words or shutil.which(words[0]) is None:
        reject("--ssh", f"no such command: {quote(words[0] if words else ssh)}; install OpenSSH")
    return words


def _there(command: Sequence[str]) -> str:
    """Returns the line for the other machine's shell: the same directory, the same Python."""
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(command)}"


def _greet(hosts: Sequence[Host], ssh: Sequence[str]) -> int:
    """Logs in to all hosts; returns a port that is free on the first.

    Raises:
        ConfigError: A host cannot be reached, or lacks what it needs.
    """
    line = _there([sys.executable, "-c", _GREETING])
    until = time.monotonic() + _ANSWER_SECONDS
    calls = [_call(host, ssh, line) for host in hosts]
    ports = []
    try:
        for host, call in zip(hosts, calls, strict=True):
            try:
                out, err = call.communicate(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                reject(
                    _WHERE,
                    f"{host.name} did not answer within {_ANSWER_SECONDS:g} s; {_see(host, ssh)}",
                )
            ports.append(_port(host, ssh, call.returncode, out, err))
    finally:
        for call in calls:
            call.kill()
            call.communicate()
    return ports[0]


def _wait_for_all(
    hosts: Sequence[Host], ssh: Sequence[str], seconds: float, context: RunContext
) -> bool:
    """Waits until all hosts answer; returns False if one stays away, or a signal to end came.

    So a host that is off, or is starting anew, is named, and costs one restart only.
    """
    until = time.monotonic() + seconds
    calls = {host: _call(host, ssh, "true") for host in hosts}
    try:
        for host in hosts:
            is_named = False
            while (code := calls[host].poll()) in (None, _SSH_FAILED):
                if time.monotonic() > until:
                    context.say(
                        f"{host.name} did not come back within {seconds:g} s; start it, or set "
                        f"{WAIT_VARIABLE}"
                    )
                    return False
                if code is not None:
                    last = _last_line(calls[host].communicate()[1], code)
                    if not is_named:
                        context.say(
                            f"{host.name} cannot be reached ({last}); waiting for it, "
                            f"{seconds:g} s at most"
                        )
                    is_named = True
                if not pause(_LOOK_SECONDS if code is None else _AGAIN_SECONDS, context):
                    return False
                if code is not None:
                    calls[host] = _call(host, ssh, "true")
        return True
    finally:
        for call in calls.values():
            call.kill()
            call.communicate()


def _call(host: Host, ssh: Sequence[str], line: str) -> subprocess.Popen[str]:
    """Logs in to a host and starts a line of shell there."""
    return subprocess.Popen(
        [*ssh, *_SSH, host.login, line],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _port(host: Host, ssh: Sequence[str], code: int, out: str, err: str) -> int:
    last = _last_line(err, code)
    if code == _SSH_FAILED:
        reject(_WHERE, f"{host.name} cannot be reached ({last}); {_see(host, ssh)}")
    words = out.split()[-3:]
    if code or len(words) < 3 or words[0] != "tfdist":
        reject(
            _WHERE,
            f"{host.name} cannot run tfdist ({last}); it needs {sys.executable} and {os.getcwd()}, "
            "as this machine has them",
        )
    if words[1] != tfdist.__version__:
        reject(_WHERE, f"{host.name} has tfdist {words[1]}, and this machine {tfdist.__version__}")
    return int(words[2])


def _last_line(err: str, code: int) -> str:
    said = [line.strip() for line in err.splitlines() if line.strip()]
    return said[-1] if said else f"exit code {code}"


def _see(host: Host, ssh: Sequence[str]) -> str:
    trial = shlex.join([*ssh, host.login, "true"])
    return f"see that `{trial}` works, and asks for nothing"
