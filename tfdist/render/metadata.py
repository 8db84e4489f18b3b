"""Names a document, and says whose it is."""

from __future__ import annotations

from typing import Any

from tfdist.render.settings import Settings
from tfdist.render.workload import Workload

# On the job only: Kueue would admit labelled pods one by one.
_QUEUE = "kueue.x-k8s.io/queue-name"


def metadata(
    workload: Workload, settings: Settings, *, name: str | None = None, queued: bool = False
) -> dict[str, Any]:
    """Returns a document's metadata.

    Args:
        workload: The job.
        settings: The labels and the annotations.
        name: The document's name; the job's by default.
        queued: Whether the document is what Kueue admits.
    """
    labels = dict(settings.labels)
    if queued and settings.queue:
        labels[_QUEUE] = settings.queue
    found: dict[str, Any] = {"name": name or workload.name}
    if workload.namespace:
        found["namespace"] = workload.namespace
    if labels:
        found["labels"] = labels
    if queued and settings.annotations:
        found["annotations"] = dict(settings.annotations)
    return found
