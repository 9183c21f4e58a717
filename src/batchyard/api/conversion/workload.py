"""The parts of Workloads that differ between versions. Source: Kueue's apis/kueue/v1beta1/workload_conversion.go."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api.conversion import topology
from batchyard.api.conversion.parts import Fields, Fragment, Part, new_only, renamed
from batchyard.api.meta import Obj, with_path
from batchyard.api.validation.topology_assignment import assignment_faults

_SOURCES: Final[Mapping[str, tuple[str, str]]] = {
    "kueue.x-k8s.io/workloadpriorityclass": ("kueue.x-k8s.io", "WorkloadPriorityClass"),
    "scheduling.k8s.io/priorityclass": ("scheduling.k8s.io", "PriorityClass"),
}
_SOURCE_OF: Final = {reference: source for source, reference in _SOURCES.items()}
_LAYERS: Final = "podsetSliceRequiredTopologyConstraints"
_POD_SETS: Final = ("spec", "podSets")
_ASSIGNMENTS: Final = ("status", "admission", "podSetAssignments")


@dataclass(frozen=True, slots=True)
class Items:
    """A field of each item of a list, by the items' names; `within` is the mapping in the item that has the field."""

    path: tuple[str, ...]
    field: str
    within: tuple[str, ...] = ()

    def read(self, obj: Obj) -> Fragment:
        """The field of each item that has it."""
        said = {}
        for item in self._items(obj) or ():
            holder = _at(item, self.within)
            if isinstance(holder, Mapping) and holder.get(self.field) is not None:
                said[item.get("name", "main")] = holder[self.field]
        return said

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """The object whose items have the field as the fragment says."""
        items = self._items(obj)
        if not items or fragment == self.read(obj):
            return obj
        return with_path(obj, self.path, [self._written(item, fragment) for item in items])

    def _written(self, item: Obj, fragment: Fragment) -> Obj:
        """One item with its field; items without the mapping for it stay as they are."""
        if not isinstance(_at(item, self.within), Mapping):
            return item
        return with_path(item, (*self.within, self.field), fragment.get(item.get("name", "main")))

    def _items(self, obj: Obj) -> list[Obj] | None:
        """The list's items."""
        items = _at(obj, self.path)
        return items if isinstance(items, list) else None


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    """What is at a path; None where it leads nowhere."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, Mapping) else None
    return obj


def _class_up(said: Fragment) -> Fragment:
    """A reference to the class; none without a name or a source."""
    reference = _SOURCES.get(said.get("priorityClassSource") or "")
    name = said.get("priorityClassName")
    if reference is None or not name:
        return {}
    return {"priorityClassRef": {"group": reference[0], "kind": reference[1], "name": name}}


def _class_down(said: Fragment) -> Fragment:
    """The name of the class and where it is from; nothing for a reference to something else."""
    reference = said.get("priorityClassRef") or {}
    source = _SOURCE_OF.get((reference.get("group", ""), reference.get("kind", "")))
    return {"priorityClassName": reference["name"], "priorityClassSource": source} if source else {}


def _slices(assignment: Obj) -> Obj:
    """The assignment in slices. One whose domains do not fit its levels stays, for validation to refuse."""
    levels, domains = assignment.get("levels") or [], assignment.get("domains")
    if domains is None or any(len(domain["values"]) != len(levels) for domain in domains):
        return assignment
    others = {name: value for name, value in assignment.items() if name != "domains"}
    return {**others, "slices": topology.compressed(levels, domains)}


def _domains(assignment: Obj) -> Obj:
    """The assignment in domains. One whose slices do not fit its levels stays."""
    if next(assignment_faults(assignment, ""), None) is not None:
        return assignment
    others = {name: value for name, value in assignment.items() if name != "slices"}
    return {**others, "domains": topology.expanded(assignment["slices"])}


def _each(change: Callable[[Obj], Obj]) -> Callable[[Fragment], Fragment]:
    """The change of every assignment."""
    return lambda said: {name: change(assignment) for name, assignment in said.items()}


PARTS: Final = (
    Part(
        "spec.priorityClassRef",
        Fields(("spec",), ("priorityClassName", "priorityClassSource"), {"priorityClassSource": ""}),
        Fields(("spec",), ("priorityClassRef",)),
        _class_up,
        _class_down,
    ),
    new_only(("spec",), "preemptionGates"),
    new_only(("status",), "preemptionGates"),
    renamed(("status",), "accumulatedPastExexcutionTimeSeconds", "accumulatedPastExecutionTimeSeconds"),
    Part(
        f"spec.podSets.topologyRequest.{_LAYERS}",
        Fields(_POD_SETS, ()),
        Items(_POD_SETS, _LAYERS, ("topologyRequest",)),
        lambda _: {},
        lambda _: {},
    ),
    Part(
        "status.admission.podSetAssignments.topologyAssignment",
        Items(_ASSIGNMENTS, "topologyAssignment"),
        Items(_ASSIGNMENTS, "topologyAssignment"),
        _each(_slices),
        _each(_domains),
    ),
)
