"""Describes the job to render: its tasks, their resources and their command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.errors import EXIT_CONFIG, EXIT_USER_ERROR, ConfigError
from tfdist.render import checks
from tfdist.render.variables import check_expand, filled_in

PORT = 2222
MAX_RESTARTS = 10
# Time to save after SIGTERM.
GRACE_SECONDS = 120
# For the other pods to come: a cluster that makes nodes when they are asked for takes minutes.
WAIT_SECONDS = 1800
# Exit codes after which starting again cannot help; a missing program (126, 127) is for good too.
FOR_GOOD = (EXIT_USER_ERROR, EXIT_CONFIG, 126, 127)

# A pod's name is the job's, the role and two indices, in 63 characters.
_LONGEST_NAME = 40


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The tasks of a job, their resources and their command.

    Attributes:
        name: The job's name.
        image: The container image, with tfdist in it.
        command: The command of each task.
        workers: The number of worker tasks.
        ps: The number of parameter servers; where there are any, there is a chief too.
        namespace: The namespace, the client's default if None.
        gpus_per_worker: GPUs of each worker; the other tasks have none.
        cpus: CPUs of each task.
        memory: Memory of each task.
        secret: The Secret, of this namespace, whose key `secret` the tasks share; None for one
            that is made with the job.
        expand: The pods' variables to fill in where the command has `$NAME`.

    Raises:
        ConfigError: A field is out of range.
    """

    name: str
    image: str
    command: Sequence[str]
    workers: int
    ps: int = 0
    namespace: str | None = None
    gpus_per_worker: int = 0
    cpus: str = "4"
    memory: str = "8Gi"
    secret: str | None = None
    expand: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.secret is not None and not checks.name.fits(self.secret):
            raise ConfigError(f"render(--secret): {self.secret!r} is not the name of a Secret")
        if not checks.label.fits(self.name) or len(self.name) > _LONGEST_NAME:
            raise ConfigError(
                f"render(--name): {self.name!r} is not a name of lower-case letters, digits and "
                f"dashes, at most {_LONGEST_NAME}"
            )
        if self.namespace is not None and not checks.label.fits(self.namespace):
            raise ConfigError(f"render(--namespace): {self.namespace!r} is not a namespace")
        if not self.image or self.image.split() != [self.image]:
            raise ConfigError(f"render(--image): {self.image!r} is not the name of an image")
        if not self.command:
            raise ConfigError("render: no command given; add '-- COMMAND'")
        if {"--overwrite", "--overwrite=true"} & {*self.command}:
            raise ConfigError(
                "render: the command has --overwrite, by which a pod that is started again would "
                "remove what its job has saved; give another --output-dir, or remove the old one"
            )
        if self.workers < 1:
            raise ConfigError(f"render(--workers): {self.workers} is below 1")
        for option, quantity in (("cpus", self.cpus), ("memory", self.memory)):
            checks.quantity(f"render(--{option})", quantity)
        check_expand(self.expand, self.command)

    @property
    def words(self) -> list[str]:
        """The command as Kubernetes reads it, which fills in `$(NAME)` and makes `$$` a `$`."""
        return [filled_in(word, self.expand, "$({})".format, _literal) for word in self.command]

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks of each role, in the order they are started."""
        return (
            {"chief": 1, "ps": self.ps, "worker": self.workers}
            if self.ps
            else {"worker": self.workers}
        )


def _literal(text: str) -> str:
    # Not where that changes nothing, so that the text stays easy to read.
    return re.sub(r"\$(?![A-Za-z0-9_{])", "$$", text)
