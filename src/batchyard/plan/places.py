"""Which field of a platform says what an object has: where to look when a rule of the object's kind is broken."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.plan.manifests.made import Made
from batchyard.plan.model import Part

#: A group of resources, of it a flavor, of that a resource and what is said of it.
_GROUP: Final = re.compile(
    r"spec\.resourceGroups\[(\d+)\](?:\.flavors\[(\d+)\])?(?:\.resources\[(\d+)\](.*)|\.(?:coveredR|r)esources.*)"
)
_PATH: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*+)(?:\]|\Z)")
#: Fields that name an object, by its kind; others are called by `name`.
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "ClusterQueue": ("clusterQueue", "name"),
    "LocalQueue": ("localQueue", "name"),
    "Namespace": ("namespace", "name"),
    "ServiceAccount": ("serviceAccount", "name"),
}
#: What a team has as a field whose value is the spec of an object.
_SPECS: Final = {"ResourceQuota": "resourceQuota", "LimitRange": "limitRange", "Budget": "budget"}


def placed(made: Made, fault: FieldError, spec: Part) -> FieldError:
    """A fault of an object as one of the field that says so; where no field does, of the part that it is made of."""
    path = _place(made, fault.path, spec)
    if path is not None:
        return fault._replace(path=path)
    who = f"{made.obj['kind']} {made.obj['metadata'].get('name', '')}"
    problem = f"{who}: {fault.path}: {fault.problem}" if fault.path else f"{who}: {fault.problem}"
    return FieldError(made.path, problem, fault.remedy)


def _place(made: Made, path: str, spec: Part) -> str | None:
    group, rows = _GROUP.fullmatch(path), list(_rows(made, spec))
    if path == "metadata.name":
        whole, row = rows[0]
        return next((f"{whole}.{field}" for field in _NAMES.get(made.obj["kind"], ("name",)) if field in row), None)
    wanted = path.removeprefix("spec.")
    for whole, row in rows:
        found = _quota(made.obj, group, row) if group else wanted if wanted and _has(row, wanted) else ""
        if found:
            return f"{whole}.{found}"
    return None


def _rows(made: Made, spec: Part) -> Iterator[tuple[str, Part]]:
    """The parts of the file that an object is made of, with their paths; what goes before comes first."""
    path = made.path
    own = _at({"spec": spec}, path)
    field = _SPECS.get(made.obj["kind"])
    if field is not None:
        path, own = f"{path}.{field}", own.get(field) or {}
    yield path, own
    for index, row in enumerate(spec.get("queueClasses") or ()):
        if made.obj["kind"] == "ClusterQueue" and row["name"] == own.get("class"):
            yield f"spec.queueClasses[{index}]", row


def _quota(obj: Mapping[str, Any], found: re.Match[str], row: Part) -> str:
    """Where a part has the quotas of a flavor, or that of one resource; '' where it has none."""
    group, flavor, resource = (int(number or 0) for number in found.groups()[:3])
    entry = obj["spec"]["resourceGroups"][group]["flavors"][flavor]
    name = entry["resources"][resource]["name"] if found[3] else ""
    for index, each in enumerate(row.get("flavors") or ()):
        if each["name"] == entry["name"] and (not name or name in each["resources"]):
            return f"flavors[{index}].resources" + (f"[{name}]{found[4]}" if name else "")
    return ""


def _has(row: Part, path: str) -> bool:
    """Whether a part has a field, or what the field would be in."""
    first = _PATH.match(path)
    return first is not None and first[1] in row


def _at(value: Any, path: str) -> Part:
    """What stands at a path such as `spec.teams[0].queues[1]`."""
    for name, index in _PATH.findall(path):
        value = value[name] if name else value[int(index)]
    found: Part = value if isinstance(value, Mapping) else {}
    return found
