"""Writes a job as a JobSet, with one indexed Job for each role.

With parameter servers there is a chief, which coordinates, and workers are replaced one at a time.
Without, all tasks are workers and start again together. A JobSet acts on tfdist's exit codes: 1 and
2 end the job, 128 and above (a peer was lost, the pod was stopped) start it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.errors import EXIT_PREEMPTED
from tfdist.render.pod import CONTAINER, Manifest, metadata, template
from tfdist.render.settings import Settings
from tfdist.render.workload import FOR_GOOD, MAX_RESTARTS, PORT, WAIT_SECONDS, Workload
from tfdist.validation import reject

_VARIABLES = {"chief": "TFDIST_CHIEF", "ps": "TFDIST_PS", "worker": "TFDIST_WORKERS"}
# How long tasks wait for each other.
WAIT = {"TFDIST_WAIT": str(WAIT_SECONDS)}
# Of each Job, whose pods Volcano then starts together.
_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"


def jobset(workload: Workload, settings: Settings | None = None) -> Manifest:
    """Returns a JobSet, jobset.x-k8s.io/v1alpha2.

    Each pod has its index in JOB_COMPLETION_INDEX, from Kubernetes, and the addresses of all tasks
    in TFDIST_WORKERS, TFDIST_PS and TFDIST_CHIEF, from which `tfdist.Cluster.from_environment`
    reads the cluster.

    Args:
        workload: The job.
        settings: How its pods are run.

    Raises:
        ConfigError: The settings contradict each other or the job.
    """
    settings = settings or Settings()
    if settings.gang == "coscheduling":
        reject(
            "render(--gang)",
            "coscheduling needs a PodGroup, which a JobSet does not make; give a queue of Kueue, "
            "which admits a JobSet as a whole, or volcano, or render a trainjob",
        )
    jobs = [
        replicated_job(workload, settings, role, env=addresses(workload, role))
        for role in workload.tasks
    ]
    if settings.gang:
        for job in jobs:
            members = str(job["template"]["spec"]["parallelism"])
            job["template"] = {
                "metadata": {"annotations": {_MIN_MEMBER: members}},
                **job["template"],
            }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(workload, settings, queued=True),
        "spec": {
            **jobset_spec(workload, settings),
            "replicatedJobs": jobs,
        },
    }


def jobset_spec(workload: Workload, settings: Settings) -> Manifest:
    """Returns the spec of a JobSet, but for its jobs.

    Args:
        workload: The job.
        settings: How its pods are run.
    """
    reasons = ["PodFailurePolicy"]
    if settings.deadline is not None:
        reasons.append("DeadlineExceeded")
    spec: Manifest = {
        "network": {
            "enableDNSHostnames": True,
            "subdomain": workload.name,
            "publishNotReadyAddresses": True,
        },
        "failurePolicy": {
            "maxRestarts": MAX_RESTARTS,
            "rules": [
                {
                    "name": "failedForGood",
                    "action": "FailJobSet",
                    "onJobFailureReasons": reasons,
                }
            ],
        },
    }
    if settings.ttl is not None:
        spec["ttlSecondsAfterFinished"] = settings.ttl
    if workload.ps:
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": ["chief"]}
    return spec


def replicated_job(
    workload: Workload,
    settings: Settings,
    role: str,
    *,
    env: Mapping[str, str],
    port: int = PORT,
) -> Manifest:
    """Returns a role's job, of the role's name.

    Args:
        workload: The job.
        settings: How its pods are run.
        role: chief, ps or worker.
        env: What tells each task its place in the cluster.
        port: The port of each task.

    Raises:
        ConfigError: The settings contradict each other or the job.
    """
    count = workload.tasks[role]
    # The chief replaces a lost worker's work by itself. Any other loss fails the Job, and the
    # JobSet starts all of them again.
    alone = bool(workload.ps) and role == "worker"
    spec: Manifest = {
        "parallelism": count,
        "completions": count,
        "completionMode": "Indexed",
        "backoffLimit": MAX_RESTARTS if alone else 0,
    }
    if settings.deadline is not None:
        spec["activeDeadlineSeconds"] = settings.deadline
    spec["podFailurePolicy"] = {
        "rules": [
            _on_exit_codes("FailJob", *FOR_GOOD),
            {
                "action": "Ignore",
                "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            _on_exit_codes("Ignore", EXIT_PREEMPTED),
        ]
    }
    # A Job with a podFailurePolicy replaces its pods, never the container.
    never = {"restartPolicy": "Never"}
    spec["template"] = template(workload, settings, role, port=("tf", port), env=env, base=never)
    return {"name": role, "replicas": 1, "template": {"spec": spec}}


def addresses(
    workload: Workload, role: str, job_names: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the variables that tell a task of the role all addresses and its role.

    Args:
        workload: The job.
        role: chief, ps or worker.
        job_names: The names of roles' replicated jobs, where they are not the roles'.
    """
    env = {}
    for name, count in workload.tasks.items():
        pods = f"[0-{count - 1}]" if count > 1 else "0"
        job = (job_names or {}).get(name, name)
        env[_VARIABLES[name]] = f"{workload.name}-{job}-0-{pods}.{workload.name}:{PORT}"
    return env | {"TFDIST_TASK_TYPE": role, **WAIT}


def _on_exit_codes(action: str, *values: int) -> Manifest:
    return {
        "action": action,
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": list(values)},
    }
