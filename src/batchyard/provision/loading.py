"""Reads a platform.yaml: its structure as field tables say it, then the rules between fields (`rules`).

A fault prints as `file:line: field.path: what is wrong; what would be right`. All faults are told at once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.yaml_documents import Document, Lines, read_documents
from batchyard.cloud.cluster_objects import catalog_faults
from batchyard.provision import manifests
from batchyard.provision.completion import platform_of
from batchyard.provision.manifests.rendered import Made
from batchyard.provision.model import Part, Platform
from batchyard.provision.rules import faults_of

# --- places ---
#
# Which field of a platform says what an object has: where to look when a rule of the object's kind is broken.


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


API_VERSION: Final = scheme.kind_info(scheme.PLATFORM).api_version
_EXAMPLE: Final = "write one with `batchyard platform init`"


class PlatformFault(NamedTuple):
    """What is wrong with a file, and where; a line of 0 is the file as a whole."""

    source: str
    line: int
    error: FieldError

    def __str__(self) -> str:
        """`file:line: field.path: what is wrong; what would be right`."""
        return f"{self.source}:{self.line}: {self.error}" if self.line else f"{self.source}: {self.error}"


class InvalidPlatform(Exception):  # noqa: N818 - named like the API's Invalid
    """The file is no platform; `faults` says why, all of it."""

    def __init__(self, faults: Sequence[PlatformFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class Source(NamedTuple):
    """The text of a platform, and the name to show for it."""

    name: str
    text: str


def read_platform(source: Source, project: str = "") -> Platform:
    """The platform of a text; InvalidPlatform with every fault.

    `project` is the Google Cloud project where the file names none, or another.
    """
    documents = list(read_documents(source.text))
    if len(documents) != 1:
        problem = "there is nothing in it" if not documents else f"there are {len(documents)} documents in it"
        raise InvalidPlatform([PlatformFault(source.name, 0, FieldError("", problem, _EXAMPLE))])
    document = documents[0]
    platform, errors = _read(document, project)
    if platform is None or errors:
        raise InvalidPlatform([_placed(source.name, document, error) for error in errors])
    return platform


def _read(document: Document, project: str) -> tuple[Platform | None, Sequence[FieldError]]:
    """The platform of a document, and what is wrong."""
    if document.faults:
        return None, document.faults
    error = _kind_error(document.value)
    if error is not None:
        return None, [error]
    decoded = decode(document.value)
    if decoded.obj is None:
        return None, decoded.faults
    name, spec = decoded.obj["metadata"].get("name") or "", decoded.obj["spec"]
    cluster, errors = _cluster(name, spec.get("cluster"))
    if errors:
        return None, errors
    platform = with_project(platform_of(name, spec, cluster), project)
    errors = list(faults_of(platform, spec))
    if not errors:
        errors = list(dict.fromkeys(placed(made, fault, spec) for made, fault in manifests.faults(platform)))
    return platform, errors


def with_project(platform: Platform, project: str) -> Platform:
    """The platform in a Google Cloud project, where it is made in one; '' changes nothing."""
    if platform.google is None or not project:
        return platform
    return replace(platform, google=replace(platform.google, project=project))


def _kind_error(value: Any) -> FieldError | None:
    """What is wrong where a document is of another kind."""
    if not isinstance(value, dict):
        return FieldError("", "this is no object", _EXAMPLE)
    kind = value.get("kind")
    if kind != "Platform" and isinstance(kind, str):
        return FieldError("kind", f"this is a {kind}, and no Platform", f"write kind: Platform of {API_VERSION}")
    return None


def _cluster(name: str, spec: Part | None) -> tuple[Obj | None, Sequence[FieldError]]:
    """The Cluster of a platform, complete; or what is wrong with it, with paths as the platform has them."""
    if spec is None:
        return None, ()
    kind = scheme.kind_info(scheme.CLUSTER)
    wanted = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    decoded = decode(wanted)
    faults = decoded.faults if decoded.obj is None else catalog_faults(decoded.obj)
    return decoded.obj, [_of_cluster(fault) for fault in faults]


def _of_cluster(fault: FieldError) -> FieldError:
    """A fault of the Cluster as one of the platform that holds it."""
    path, remedy = (text.replace("spec.", "spec.cluster.", 1) for text in (fault.path, fault.remedy))
    return fault._replace(path=path, remedy=remedy)


def _placed(source: str, document: Document | None, error: FieldError) -> PlatformFault:
    said = error.path.removeprefix("line ")
    if said != error.path and said.isdecimal():
        return PlatformFault(source, int(said), error._replace(path=""))
    line = Lines(document.text, document.line).of(error.path) if document and error.path else 0
    return PlatformFault(source, line, error)
