"""Platform loader: decodes a platform.yaml by its field tables, then checks the rules between fields (`rules`).

An error prints as `file:line: field.path: problem; remedy`. All errors are reported at once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.yaml_documents import Document, DocumentLines, read_documents
from batchyard.cloud.cluster_objects import catalog_faults
from batchyard.provision import manifests
from batchyard.provision.completion import platform_of
from batchyard.provision.manifests.rendered import RenderedObject
from batchyard.provision.model import Part, PlatformModel
from batchyard.provision.rules import faults_of

# --- places ---
#
# Mapping of an object's fields to the platform's fields, for errors in generated objects.


#: Paths in resourceGroups: group, flavor, resource and the rest.
_GROUP: Final = re.compile(
    r"spec\.resourceGroups\[(\d+)\](?:\.flavors\[(\d+)\])?(?:\.resources\[(\d+)\](.*)|\.(?:coveredR|r)esources.*)"
)
_PATH: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*+)(?:\]|\Z)")
#: Platform fields that name an object, by kind; the default is `name`.
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "ClusterQueue": ("clusterQueue", "name"),
    "LocalQueue": ("localQueue", "name"),
    "Namespace": ("namespace", "name"),
    "ServiceAccount": ("serviceAccount", "name"),
}
#: Team fields whose value is an object's spec.
_SPECS: Final = {"ResourceQuota": "resourceQuota", "LimitRange": "limitRange", "Budget": "budget"}


def placed(made: RenderedObject, fault: FieldError, spec: Part) -> FieldError:
    """Map an error of an object to the platform field it comes from; by default to the part the object is made from."""
    path = _place(made, fault.path, spec)
    if path is not None:
        return fault._replace(path=path)
    name = f"{made.obj['kind']} {made.obj['metadata'].get('name', '')}"
    problem = f"{name}: {fault.path}: {fault.problem}" if fault.path else f"{name}: {fault.problem}"
    return FieldError(made.path, problem, fault.remedy)


def _place(made: RenderedObject, path: str, spec: Part) -> str | None:
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


def _rows(made: RenderedObject, spec: Part) -> Iterator[tuple[str, Part]]:
    """Yield the parts of the file that an object is made from, with their paths; the overriding part comes first."""
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
    """Return the path of a flavor's quotas, or of one resource's quota, in a part; '' if it has none."""
    group, flavor, resource = (int(number or 0) for number in found.groups()[:3])
    entry = obj["spec"]["resourceGroups"][group]["flavors"][flavor]
    name = entry["resources"][resource]["name"] if found[3] else ""
    for index, each in enumerate(row.get("flavors") or ()):
        if each["name"] == entry["name"] and (not name or name in each["resources"]):
            return f"flavors[{index}].resources" + (f"[{name}]{found[4]}" if name else "")
    return ""


def _has(row: Part, path: str) -> bool:
    """Whether a part has the field, or the first field of its path."""
    first = _PATH.match(path)
    return first is not None and first[1] in row


def _at(value: Any, path: str) -> Part:
    """Return the part at a path such as `spec.teams[0].queues[1]`."""
    for name, index in _PATH.findall(path):
        value = value[name] if name else value[int(index)]
    found: Part = value if isinstance(value, Mapping) else {}
    return found


API_VERSION: Final = scheme.kind_info(scheme.PLATFORM).api_version
_EXAMPLE: Final = "write one with `batchyard platform init`"


class PlatformFault(NamedTuple):
    """An error with its file and line; line 0 means the whole file."""

    source: str
    line: int
    error: FieldError

    def __str__(self) -> str:
        """Format as `file:line: field.path: problem; remedy`."""
        return f"{self.source}:{self.line}: {self.error}" if self.line else f"{self.source}: {self.error}"


class InvalidPlatform(Exception):  # noqa: N818 - named like the API's Invalid
    """The file is not a valid platform; `faults` lists all errors."""

    def __init__(self, faults: Sequence[PlatformFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class PlatformSource(NamedTuple):
    """The text of a platform file, and its display name."""

    name: str
    text: str


def read_platform(source: PlatformSource, project: str = "") -> PlatformModel:
    """Parse a platform; raise InvalidPlatform with all errors.

    `project` sets or overrides the Google Cloud project.
    """
    documents = list(read_documents(source.text))
    if len(documents) != 1:
        problem = "the file is empty" if not documents else f"the file has {len(documents)} documents"
        raise InvalidPlatform([PlatformFault(source.name, 0, FieldError("", problem, _EXAMPLE))])
    document = documents[0]
    platform, errors = _read(document, project)
    if platform is None or errors:
        raise InvalidPlatform([_placed(source.name, document, error) for error in errors])
    return platform


def _read(document: Document, project: str) -> tuple[PlatformModel | None, Sequence[FieldError]]:
    """Return the platform of a document, and the errors."""
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


def with_project(platform: PlatformModel, project: str) -> PlatformModel:
    """Return the platform with a Google Cloud project; '' changes nothing."""
    if platform.google is None or not project:
        return platform
    return replace(platform, google=replace(platform.google, project=project))


def _kind_error(value: Any) -> FieldError | None:
    """Return the error of a document of another kind."""
    if not isinstance(value, dict):
        return FieldError("", "this is not an object", _EXAMPLE)
    kind = value.get("kind")
    if kind != "Platform" and isinstance(kind, str):
        return FieldError("kind", f"this is a {kind}, not a Platform", f"write kind: Platform of {API_VERSION}")
    return None


def _cluster(name: str, spec: Part | None) -> tuple[Obj | None, Sequence[FieldError]]:
    """Return the complete Cluster of a platform, or its errors with the platform's paths."""
    if spec is None:
        return None, ()
    kind = scheme.kind_info(scheme.CLUSTER)
    wanted = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    decoded = decode(wanted)
    faults = decoded.faults if decoded.obj is None else catalog_faults(decoded.obj)
    return decoded.obj, [_of_cluster(fault) for fault in faults]


def _of_cluster(fault: FieldError) -> FieldError:
    """Map an error of the Cluster to the platform's path."""
    path, remedy = (text.replace("spec.", "spec.cluster.", 1) for text in (fault.path, fault.remedy))
    return fault._replace(path=path, remedy=remedy)


def _placed(source: str, document: Document | None, error: FieldError) -> PlatformFault:
    number = error.path.removeprefix("line ")
    if number != error.path and number.isdecimal():
        return PlatformFault(source, int(number), error._replace(path=""))
    line = DocumentLines(document.text, document.line).of(error.path) if document and error.path else 0
    return PlatformFault(source, line, error)
