"""A change that would admit a Workload: in words, as patches, and tried out."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView
from batchyard.controllers.why.fork import Fork
from batchyard.core.explain.looks import PodSetLooks

QUOTA: Final = "quota"
PRIORITY: Final = "priority"
SIZE: Final = "size"
FLAVOR: Final = "flavor"
END: Final = "end"
STRATEGY: Final = "strategy"
NODES: Final = "nodes"
FIX: Final = "fix"

Patch = Mapping[str, Any]


class Proposal(NamedTuple):
    """See the module. Whoever makes one has tried it, and one unit less."""

    kind: str
    text: str
    apply: Sequence[Patch]

    def document(self) -> dict[str, Any]:
        """As the document has it."""
        return {"kind": self.kind, "text": self.text, "apply": list(self.apply), "proven": True}


class Case(NamedTuple):
    """A Workload that waits, and a fork to try things in."""

    workload: Obj
    view: WorkloadView
    looks: Sequence[PodSetLooks]
    fork: Fork
    #: The job that the Workload was made for; None if it was made for none.
    owner: Obj | None
    #: The limit that binds.
    limit: str = ""


def json_patch(kind: str, name: str, operations: Sequence[Mapping[str, Any]], namespace: str = "") -> Patch:
    """A patch as `kubectl patch --type json` takes it."""
    return _patch(kind, name, namespace, "json", list(operations))


def merge_patch(kind: str, name: str, fields: Mapping[str, Any], namespace: str = "") -> Patch:
    """A patch as `kubectl patch --type merge` takes it."""
    return _patch(kind, name, namespace, "merge", dict(fields))


def _patch(kind: str, name: str, namespace: str, how: str, patch: Any) -> Patch:
    where = {"namespace": namespace} if namespace else {}
    return {"kind": kind, **where, "name": name, "type": how, "patch": patch}
