"""Writes documents as YAML, with a comment where something is not obvious."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

_CHIEF_ENDS = "Ps and workers serve: the job is done when the chief is."

# The end of a key's path, without the numbers of lists, and the comment above it: once in a
# document, the first of these that fits.
_COMMENTS = {
    ("NetworkPolicy", "spec"): (
        "TensorFlow's servers authenticate nobody: let only the job's own pods call them."
    ),
    ("Secret", "stringData"): "Only tasks that have it take part in the job.",
    ("TFJob", "metadata", "labels", "kueue.x-k8s.io/queue-name"): (
        "Kueue starts the job when all of it has room. From 0.19 on it leaves TFJobs alone unless\n"
        "its configuration has kubeflow.org/tfjob in integrations.frameworks."
    ),
    (
        "labels",
        "kueue.x-k8s.io/queue-name",
    ): "Kueue starts the job when all of it has room.",
    ("annotations", "sidecar.istio.io/inject"): (
        "A proxy next to the task would outlive it, and the pod would not end."
    ),
    ("annotations", "scheduling.volcano.sh/group-min-member"): (
        "Volcano starts all pods of a role, or none."
    ),
    ("runPolicy", "cleanPodPolicy"): "Pods that have ended stay, with their logs.",
    ("runPolicy", "schedulingPolicy"): (
        "All pods start or none, where the operator runs with --gang-scheduler-name."
    ),
    ("TFJob", "spec", "successPolicy"): "Done when all workers are, not when worker 0 is.",
    ("JobSet", "spec", "successPolicy"): _CHIEF_ENDS,
    ("template", "spec", "successPolicy"): _CHIEF_ENDS,
    ("tfReplicaSpecs", "Chief"): "The job is done when the chief is.",
    ("Worker", "restartPolicy"): (
        "Starts again after exit codes of 128 and above; 1 and 2 end the job."
    ),
    ("network", "publishNotReadyAddresses"): "Tasks look for each other before they are ready.",
    ("failurePolicy", "rules"): (
        "What starting again cannot help ends the job; of anything else all tasks start again."
    ),
    ("JobSet", "spec", "replicatedJobs", "template", "spec", "activeDeadlineSeconds"): (
        "Counted from the start of the role's pods; again from 0 when all tasks start again."
    ),
    ("podFailurePolicy",): (
        "For good: the user's code raised (1), the configuration is wrong (2), the command is\n"
        "missing (126, 127). A pod that was evicted, or was stopped and has saved (143), is\n"
        "replaced. After anything else, such as a lost peer (138), backoffLimit and the JobSet's\n"
        "failurePolicy limit how often to start again."
    ),
    ("mlPolicy", "torch"): (
        "Tells each pod how many there are, which one it is and where the first is (PET_NNODES,\n"
        "PET_NODE_RANK, PET_MASTER_ADDR). Trainer has no such policy for TensorFlow; tfdist reads\n"
        "these."
    ),
    ("labels", "trainer.kubeflow.org/trainjob-ancestor-step"): (
        "The pods that a TrainJob's 'trainer' means."
    ),
    ("spec", "terminationGracePeriodSeconds"): "To save after SIGTERM.",
    ("spec", "securityContext"): 'Unless changed, what Pod Security "restricted" asks for.',
    ("livenessProbe",): "Ends a task that runs but makes no progress.",
    ("resources",): "Requests equal limits, so that the CPUs can be whole ones.",
    ("emptyDir", "medium"): (
        "/dev/shm has 64 MB otherwise. What is in it counts as the container's memory."
    ),
}


def commented(documents: Sequence[dict[str, Any]]) -> str:
    """Returns the documents as YAML, which reads as the same again.

    Args:
        documents: Manifests, each with a `kind`.
    """
    return "---\n".join(map(_one, documents))


def _one(document: dict[str, Any]) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    text = yaml.dump(document, Dumper=Dumper, sort_keys=False, width=100)
    above: dict[int, list[str]] = {}
    written = set()
    for path, line in _keys(yaml.compose(text, yaml.SafeLoader), (document["kind"],)):
        end = next((end for end in _COMMENTS if path[-len(end) :] == end), None)
        if end is not None and end not in written:
            written.add(end)
            above.setdefault(line, []).extend(_COMMENTS[end].splitlines())
    lines = []
    for number, line_text in enumerate(text.splitlines(keepends=True)):
        indent = " " * (len(line_text) - len(line_text.lstrip()))
        lines += [f"{indent}# {comment}\n" for comment in above.get(number, [])]
        lines.append(line_text)
    return "".join(lines)


def _keys(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yields the path of every key and the number of its line."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            yield here, key.start_mark.line
            yield from _keys(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _keys(item, path)
