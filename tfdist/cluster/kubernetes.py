"""Reads the cluster from the environment of a Kubernetes indexed Job or JobSet.

TFJob writes TF_CONFIG itself. An indexed Job gives each pod only its
JOB_COMPLETION_INDEX, so the manifest adds the addresses, with the same text
for every pod of the job:

    TFDIST_WORKERS=train-worker-0-[0-3].train:2222
    TFDIST_PS=train-ps-0-0.train:2222           (when there are parameter servers)
    TFDIST_CHIEF=train-chief-0-0.train:2222     (when there is a chief)
    TFDIST_EVALUATOR=...                        (when there is an evaluator)
    TFDIST_TASK_TYPE=worker                     (default: worker)
    TFDIST_TASK_INDEX=0                         (default: JOB_COMPLETION_INDEX, or a rank)

Lists are separated by commas and may hold ranges in brackets. In a JobSet a
pod's host name is `<jobset>-<replicated job>-<job index>-<pod index>` in the
subdomain of the JobSet's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.hostlist import expand_hostlist
from tfdist.cluster.spec import Jobs, check_index, check_jobs, check_role
from tfdist.validation import quote, reject

_LISTS = {
    "chief": "TFDIST_CHIEF",
    "worker": "TFDIST_WORKERS",
    "ps": "TFDIST_PS",
    "evaluator": "TFDIST_EVALUATOR",
}


# Where the index of this task is, the first of those that are set. Of mpirun's processes it is the
# rank: with the addresses given by hand, theirs need not be known.
_INDICES = (
    "TFDIST_TASK_INDEX",
    "JOB_COMPLETION_INDEX",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "RANK",
)


def is_indexed_job(environ: Mapping[str, str]) -> bool:
    """Returns whether the environment holds the address lists described above."""
    return any(environ.get(name) for name in _LISTS.values())


def parse_indexed_job(environ: Mapping[str, str]) -> tuple[Jobs, str, int]:
    """Returns the jobs, and the role and index of this pod.

    Raises:
        ConfigError: A variable is missing or malformed.
    """
    lists = {role: name for role, name in _LISTS.items() if environ.get(name)}
    jobs = check_jobs(
        {role: _addresses(environ[name], name) for role, name in lists.items()}, "TFDIST"
    )
    role = check_role(environ.get("TFDIST_TASK_TYPE") or "worker", "TFDIST_TASK_TYPE")
    if role not in jobs:
        reject("TFDIST_TASK_TYPE", f"there is no {_LISTS[role]}; tasks are {', '.join(jobs)}")
    name = next((name for name in _INDICES if environ.get(name)), "JOB_COMPLETION_INDEX")
    text = environ.get(name, "").strip()
    if not text:
        reject(name, "is not set; use completionMode: Indexed, or set TFDIST_TASK_INDEX")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        reject(name, f"{quote(text)} is not an integer of 0 or more")
    return jobs, role, check_index(int(text), role, jobs, name, "TFDIST")


def _addresses(text: str, name: str) -> list[str]:
    # Brackets of IPv6 addresses are no ranges.
    if "[" in text and "::" in text:
        return [part.strip() for part in text.split(",")]
    return expand_hostlist(text, name)
