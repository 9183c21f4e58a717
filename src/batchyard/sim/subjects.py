"""Whom a question is about: a Workload, or that of a Job or a JobSet."""

from collections.abc import Mapping
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of
from batchyard.api.scheme import kind_info
from batchyard.api.views.workload import workload_view

#: The kinds that may be asked about.
KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)


def workload_of(objects: Mapping[Key, Obj], subject: Key) -> str | None:
    """The Workload of a subject, by namespace and name; None if it has none. Of several the one that goes on."""
    if subject.kind == scheme.WORKLOAD:
        return str(subject) if subject in objects else None
    kind = kind_info(subject.kind).kind
    found = []
    for key, obj in objects.items():
        if key.kind != scheme.WORKLOAD or key.namespace != subject.namespace:
            continue
        owner = controller_of(obj)
        if owner is not None and owner["kind"] == kind and owner["name"] == subject.name:
            found.append(workload_view(obj))
    found.sort(key=lambda view: (view.finished, -view.created, view.key))
    return found[0].key if found else None


def told_of(subject: Key) -> dict[str, str]:
    """A subject as documents name it."""
    return {"kind": kind_info(subject.kind).kind, "namespace": subject.namespace, "name": subject.name}
