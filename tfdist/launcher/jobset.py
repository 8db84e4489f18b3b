"""Reads a JobSet or a TrainJob: its tasks, their commands, and the fields not followed here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.spec import ROLES
from tfdist.launcher.manifest import (
    AT_ONCE,
    END,
    RESTARTS,
    Given,
    Manifest,
    add_notes,
    add_role,
    command_of,
    container_of,
    environment,
    number_of,
    part,
    refuse_suspended,
)
from tfdist.validation import kind, quote, reject

# Fields that are not followed here, and what is done instead.
_DIFFERENT_JOBSET = {
    "failurePolicy": RESTARTS,
    "successPolicy": END,
    "startupPolicy": AT_ONCE,
    "coordinator": "tasks find each other by TF_CONFIG",
    "volumeClaimPolicies": "nothing is mounted; paths are this machine's",
}
_DIFFERENT_REPLICATED = {"dependsOn": AT_ONCE, "groupName": "there are no groups"}
_DIFFERENT_TRAINJOB = {
    "activeDeadlineSeconds": "there is no deadline",
    "initializer": "it is not run; data and model have to be on this machine",
    "runtimePatches": "what they change is in the cluster",
    "podTemplateOverrides": "what they change is in the cluster",
}
_DIFFERENT_JOB = {
    "activeDeadlineSeconds": "there is no deadline",
    "backoffLimit": RESTARTS,
    "backoffLimitPerIndex": RESTARTS,
    "maxFailedIndexes": RESTARTS,
    "podFailurePolicy": RESTARTS,
    "successPolicy": END,
}
# Names of replicated jobs, in lower case, whose role is clear.
_CLEAR = {
    **dict.fromkeys(("worker", "workers", "node", "nodes", "trainer"), "worker"),
    **dict.fromkeys(("chief", "master", "leader", "driver", "coordinator"), "chief"),
    **dict.fromkeys(("ps", "parameter-server", "parameter-servers"), "ps"),
    **dict.fromkeys(("evaluator", "evaluators"), "evaluator"),
}
# In place of a role: it is not run.
NO_ROLE = "none"
# The steps of a TrainJob, in labels of a runtime's jobs.
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_RUNTIMES = ("TrainingRuntime", "ClusterTrainingRuntime")
# The addresses of a JobSet's pods, for which the launcher gives a TF_CONFIG.
_OWN = ("TFDIST_CHIEF", "TFDIST_WORKERS", "TFDIST_PS", "TFDIST_EVALUATOR")
_OWN_TASK = ("TFDIST_TASK_TYPE", "TFDIST_TASK_INDEX")


def read_jobset(loaded: Mapping[str, Any], path: str, given: Given) -> tuple[Manifest, str]:
    """Reads a JobSet, each of whose replicated jobs is a role.

    The role is given by the user, or by TFDIST_TASK_TYPE, or by the job's name. A job whose end
    others wait for prepares something, and is not run. If one job is left, its tasks are workers.

    Args:
        loaded: The document.
        path: The file, for messages.
        given: What was given with it.

    Returns:
        What was read, and the name of the field that has the tasks.

    Raises:
        ConfigError: It is malformed or suspended, or the role of a replicated job is not clear.
    """
    where = f"{path}: spec.replicatedJobs"
    spec = part(loaded, "spec", path)
    refuse_suspended(spec, f"{path}: spec")
    read = Manifest()
    _read_jobs(read, spec, f"{path}: spec", given)
    return read, where


def read_trainjob(loaded: Mapping[str, Any], path: str, given: Given) -> tuple[Manifest, str]:
    """Reads a TrainJob, in its runtime if that is in the file too; else as workers alone.

    Args:
        loaded: The document.
        path: The file, for messages.
        given: What was given with it.

    Returns:
        What was read, and the name of the field that has the tasks.

    Raises:
        ConfigError: It is malformed or suspended, or has no command and neither has the runtime.
    """
    where = f"{path}: spec.trainer"
    spec = part(loaded, "spec", path)
    refuse_suspended(spec, f"{path}: spec")
    trainer = spec.get("trainer") or {}
    if not isinstance(trainer, Mapping):
        reject(where, f"{quote(trainer)} is not an object")
    read = Manifest()
    add_notes(read, spec, f"{path}: spec", _DIFFERENT_TRAINJOB)
    add_notes(read, trainer, where, {"numProcPerNode": "each node is one task"})
    name = part(spec, "runtimeRef", f"{path}: spec").get("name")
    read.runtime = next((one for one in given.documents if _is_runtime(one, name)), None)
    if read.runtime is None:
        read.notes.append(f"{path}: the runtime {quote(name)} is in the cluster; not followed here")
        template = {"spec": {"containers": [dict(trainer)]}}
        pods = {"parallelism": trainer.get("numNodes"), "template": template}
        jobs = {"replicatedJobs": [{"name": "node", "template": {"spec": pods}}]}
        _read_jobs(read, jobs, where, given)
    else:
        here = f"{path}: {quote(name)}"
        its = part(part(read.runtime, "spec", here), "template", f"{here}: spec")
        made = _with_trainer(part(its, "spec", here), trainer, read.runtime["spec"])
        _read_jobs(read, made, here, given)
    return read, where


def _is_runtime(document: Mapping[str, Any], name: Any) -> bool:
    metadata = document.get("metadata")
    is_named = isinstance(metadata, Mapping) and metadata.get("name") == name
    return document.get("kind") in _RUNTIMES and is_named


def _with_trainer(
    jobset: Mapping[str, Any], trainer: Mapping[str, Any], runtime: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Returns the JobSet of a runtime with what a TrainJob changes in its step `trainer`."""
    made = copy.deepcopy(dict(jobset))
    policy, count, jobs = (
        runtime.get("mlPolicy"),
        trainer.get("numNodes"),
        made.get("replicatedJobs"),
    )
    if count is None and isinstance(policy, Mapping):
        count = policy.get("numNodes")
    for job in jobs if isinstance(jobs, list) else ():
        if _step(job) != "trainer":
            continue
        pods: Any = part(job["template"], "spec", "runtime: template")
        container: Any = container_of(pods, "runtime", named=False)
        if count is not None:
            pods["parallelism"] = pods["completions"] = count
        container |= {key: trainer[key] for key in ("command", "args") if trainer.get(key)}
        if trainer.get("env"):
            both = (container.get("env") or [], trainer["env"])
            is_fine = all(isinstance(each, list) for each in both)
            container["env"] = [*both[0], *both[1]] if is_fine else trainer["env"]
    return made


def _step(job: Any) -> Any:
    template = job.get("template") if isinstance(job, Mapping) else None
    metadata = template.get("metadata") if isinstance(template, Mapping) else None
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels.get(_STEP) if isinstance(labels, Mapping) else None


def _read_jobs(read: Manifest, spec: Mapping[str, Any], place: str, given: Given) -> None:
    """Adds the replicated jobs of a JobSet to `read`."""
    where = f"{place}.replicatedJobs"
    jobs = spec.get("replicatedJobs")
    if not isinstance(jobs, list) or not all(isinstance(job, Mapping) for job in jobs):
        reject(where, f"{quote(jobs)} is not a list of objects")
    names = [job.get("name") for job in jobs]
    for name in given.roles:
        if name not in names:
            reject("launch(--role)", f"{quote(name)} is not one of {', '.join(map(quote, names))}")
    add_notes(read, spec, place, _DIFFERENT_JOBSET)
    left_out = [job for job in jobs if _prepares(job, jobs) and job.get("name") not in given.roles]
    for number, job in enumerate(jobs):
        here = f"{where}[{number}]"
        if job in left_out:
            read.notes.append(f"{here}: {quote(job.get('name'))} prepares the others; not run here")
            continue
        inner = part(part(job, "template", here), "spec", f"{here}.template")
        pods = inner.get("completions")
        pods = inner.get("parallelism") if pods is None else pods
        count = number_of(job.get("replicas"), f"{here}.replicas") * number_of(
            pods, f"{here}: pods"
        )
        env = environment(container_of(inner, here, named=False), [], here)
        clear = _clear_role(job, count, is_only=len(jobs) - len(left_out) == 1)
        role = _role(read, job.get("name"), env, here, given.roles, clear)
        if not count or role == NO_ROLE:
            continue
        add_notes(read, job, here, _DIFFERENT_REPLICATED)
        add_notes(read, inner, f"{here}.template.spec", _DIFFERENT_JOB)
        before = read.commands.get(role)
        if before is None:
            add_role(read, role, inner, here, given.command, named=False)
        elif not given.command:
            container = container_of(inner, here, named=False)
            if command_of(container, env, here) != before:
                reject(here, f"has another command than the other {role}; add '-- COMMAND'")
        read.counts[role] = read.counts.get(role, 0) + count
        for own in (*_OWN, *_OWN_TASK):
            read.env[role].pop(own, None)


def _prepares(job: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether others wait for a job's end, or it is an initializer of a TrainJob."""
    if _step(job) not in (None, "trainer"):
        return True
    return any(
        isinstance(wait, Mapping)
        and (wait.get("name"), wait.get("status")) == (job.get("name"), "Complete")
        for other in jobs
        if isinstance(other.get("dependsOn"), list)
        for wait in other["dependsOn"]
    )


def _clear_role(job: Mapping[str, Any], count: int, *, is_only: bool) -> str | None:
    """Returns the role that the name or the place of a replicated job shows; None if neither."""
    name = job.get("name")
    found = _CLEAR.get(name.lower()) if isinstance(name, str) else None
    if found == "chief" and count > 1:
        return None
    return "worker" if found is None and is_only else found


def _role(
    read: Manifest,
    name: Any,
    env: Mapping[str, str],
    here: str,
    roles: Mapping[str, str],
    clear: str | None,
) -> str:
    """Returns the role of a replicated job; notes where it has another name.

    Raises:
        ConfigError: It is not clear.
    """
    if not isinstance(name, str):
        reject(f"{here}.name", f"{quote(name)} is {kind(name)}; give a string")
    given = roles.get(name) or env.get("TFDIST_TASK_TYPE")
    role = given or clear
    if role not in (*ROLES, NO_ROLE) or (role == NO_ROLE and name not in roles):
        reject(
            f"{here}.name",
            f"{quote(given or name)} is not a role; give --role {name}=ROLE, which is one of "
            f"{', '.join(ROLES)}, or {NO_ROLE} to leave it out",
        )
    if not given and role != name and (name, role) != ("node", "worker"):  # As in a TrainJob.
        read.notes.append(f"{here}: {quote(name)} runs as {role}; --role {name}=ROLE sets another")
    return role
