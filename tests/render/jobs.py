"""Jobs to render."""

from __future__ import annotations

from typing import Any

from tfdist.render.kubernetes import documents
from tfdist.render.settings import Settings
from tfdist.render.workload import Workload

from .webhooks import templates

KINDS = ("tfjob", "jobset", "trainjob")


def workload(**changes: Any) -> Workload:
    arguments = {"name": "job", "image": "image:1", "command": ["tfdist", "train"], "workers": 2}
    return Workload(**arguments | changes)


def settings(**values: Any) -> Settings:
    return Settings.parse(values, "values: {}".format)


def rendered(kind: str, values: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The documents of a job, by kind."""
    made = documents(kind, workload(**changes), settings(**values or {}))
    return {document["kind"]: document for document in made}


def pods(kind: str, values: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The template of the pods of each role."""
    made = rendered(kind, values, **changes)
    found = {role: template for one in made.values() for role, _, template in templates(one)}
    return {{"node": "worker"}.get(role, role): template for role, template in found.items()}


def task(template: dict[str, Any]) -> dict[str, Any]:
    """The container that runs the task."""
    containers = template["spec"]["containers"]
    (found,) = [one for one in containers if one["name"] in ("tensorflow", "node")]
    return found
