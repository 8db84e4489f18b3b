"""A container's namespaces and root file system, with the tools that every Linux has.

As in the image, the command is process 1, runs as user 1000 of group 0 without capabilities, and
finds Python, tfdist and the tests where they are here. All else it sees is its own: /tmp, /dev/shm,
/etc, processes, host name, network.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
USER, GROUP = 1000, 0
HOME = "/home/tfdist"
IMAGE_ENV = {
    "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "tfdist",
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}
_OF_IMAGE = dict.fromkeys([sys.base_prefix, sys.prefix, str(ROOT)])
_AS_USER = (
    f"setpriv --reuid {USER} --regid {GROUP} --clear-groups --no-new-privs "
    "--bounding-set=-all --inh-caps=-all --pdeathsig=KILL"
).split()


def command(
    folder: Path,
    words: Sequence[str],
    env: Mapping[str, str],
    *,
    space: str,
    host: str,
    cpus: int,
    mounts: Mapping[str, Path],
) -> list[str]:
    """Returns the command that runs a container's command.

    Args:
        folder: Has a folder `root`, and a folder `etc` with the container's own files.
        words: The container's command.
        env: Its environment.
        space: The name of its network namespace.
        host: Its host name.
        cpus: Its limit, which it finds in its control group; it is not enforced.
        mounts: The folders of volumes, by where they are mounted.
    """
    root = folder / "root"
    lines = ["set -e", f"mount -t tmpfs -o mode=755 tmpfs {root}", f"cd {root}"]
    for name in ("bin", "sbin", "lib", "lib64"):
        lines.append(f"if [ -L /{name} ]; then cp -P /{name} .; else {_bind(f'/{name}')}; fi")
    lines += [_bind(path) for path in ("/usr", "/dev", *_OF_IMAGE)]
    lines += ["mkdir -p etc proc sys/fs/cgroup tmp", f"mkdir -p .{HOME}"]
    lines += ["cp -a /etc/ld.so.cache /etc/alternatives etc", f"cp {folder}/etc/* etc"]
    lines += [f"mount -t tmpfs -o mode=1777 tmpfs {path}" for path in ("tmp", "dev/shm")]
    lines += [f"chown {USER}:{GROUP} .{HOME}", f"echo {cpus}00000 100000 > sys/fs/cgroup/cpu.max"]
    lines += [_bind(str(source), target) for target, source in mounts.items()]
    lines.append(f"hostname {host}")
    inner = ["chroot", str(root), *_AS_USER, *_environment(env), *words]
    # The first process that the last shell starts is process 1, and becomes the command. It is not
    # `unshare --fork`, which does not tell that the command was killed.
    last = f"(mount -t proc proc proc && exec {shlex.join(inner)}) &\nwait $!"
    lines.append(f"exec unshare --pid sh -c {shlex.quote(last)}")
    outer = ["nsenter", f"--net=/run/netns/{space}", "unshare", "--mount", "--uts"]
    return [*outer, "sh", "-c", "\n".join(lines)]


def beside(process: int, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Returns the command that runs another one in the container of a process 1."""
    spaces = ("--mount", "--uts", "--net", "--pid", "--root", "--wd")
    return ["nsenter", f"--target={process}", *spaces, *_AS_USER, *_environment(env), *words]


def _environment(env: Mapping[str, str]) -> list[str]:
    # A shell that starts something beside itself has it ignore SIGINT.
    variables = [f"{name}={value}" for name, value in env.items()]
    return ["env", "-i", "--default-signal", f"--chdir={HOME}", *variables]


def _bind(source: str, target: str | None = None) -> str:
    inside = shlex.quote("." + (target or source))
    return f"mkdir -p {inside} && mount --rbind {shlex.quote(source)} {inside}"
