"""States as lists of objects, in the format of `kubectl get -o yaml` and of API servers.

A state written by batchyard holds the time of the snapshot, in an annotation of the list. For other lists it is the
latest timestamp in the objects. Objects without a uid, a revision or a creation time get one, so that plain manifests
work too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.meta import Key, Obj, annotation, controller_of, group_kind, key_of
from batchyard.api.scheme import CONFIGURATION, find_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import workload_view
from batchyard.api.yaml_documents import read_documents
from batchyard.base import uid_for
from batchyard.base.instant import Duration, Instant, duration_text
from batchyard.client.transport import received
from batchyard.scheduling.kueue_configuration import SIMULATED, parse_kueue_settings
from batchyard.sim.forecasting.run_times import owner_of, rounds_of, with_runtimes
from batchyard.sim.scenario import FileFault, InvalidScenario, Source, ends_of, is_text, read_sources
from batchyard.sim.state import LEFT_OUT, State

#: Annotation of a list: the time at which its objects were read.
TAKEN_AT: Final = "batchyard.dev/taken-at"
#: Annotation of a list: the kinds that could not be listed, separated by commas.
UNREAD: Final = "batchyard.dev/not-read"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def read_state(source: Source) -> State:
    """Read the state of a file; raises InvalidScenario with all errors."""
    faults: list[FileFault] = []
    objects: list[Obj] = []
    at: Instant | None = None
    unread: dict[str, None] = {}
    for name, text in read_sources([source], faults):
        for document in read_documents(text):
            faults += [FileFault(f"{name}:{document.number}", fault) for fault in document.faults]
            found, taken = _objects_of(document.value)
            at = taken if at is None else at
            unread.update(dict.fromkeys(_unread(document.value)))
            for obj in found:
                objects += _known(obj, f"{name}:{document.number}", faults)
    if not objects and not faults:
        remedy = "give what `kubectl get --output yaml` writes, or a list of manifests"
        faults.append(FileFault(str(source), FieldError("", "it contains no objects", remedy)))
    if faults:
        raise InvalidScenario(faults)
    return state_of(objects, at, tuple(unread))


def is_state(source: Source) -> bool:
    """Whether a file is a snapshot: a list with the time of the snapshot at its beginning or its end."""
    if isinstance(source, Mapping) or is_text(str(source)):
        return False
    return any(TAKEN_AT in end for end in ends_of(Path(source)))


def state_of(objects: Iterable[Obj], at: Instant | None = None, unread: Sequence[str] = ()) -> State:
    """Build the state of objects in their storage version; by default at the latest timestamp in them.

    A given time is kept even if other clients wrote later timestamps by clocks of their own. Only a later creation time
    moves it.
    """
    kept = {key_of(obj): obj for obj in objects if key_of(obj).kind not in LEFT_OUT}
    configurations = [kept.pop(key) for key in list(kept) if key.kind == CONFIGURATION]
    instants = _birth if at else _instants
    taken = max((instant for obj in kept.values() for instant in instants(obj)), default=0)
    taken = max(taken, at or 0)
    revisions = {key: _revision(obj) for key, obj in kept.items()}
    if len(set(revisions.values())) < len(kept) or 0 in revisions.values():
        order = sorted(kept, key=lambda key: (revisions[key] or len(kept), key))
        revisions = {key: number for number, key in enumerate(order, 1)}
    whole = {key: _completed(key, kept[key], revisions[key], taken) for key in kept}
    configuration = configurations[0] if configurations else None
    kueue = SIMULATED if configuration is None else parse_kueue_settings(configuration)
    return State(taken, max(revisions.values(), default=0), whole, _applied(whole), unread, configuration, kueue)


def document_of(state: State) -> dict[str, Any]:
    """Return the state as a list."""
    items = [state.objects[key] for key in sorted(state.objects) if key.kind not in LEFT_OUT]
    items += [] if state.configuration is None else [state.configuration]
    metadata = list_metadata(state.at, state.revision, state.unread)
    return {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items}


def list_metadata(at: Instant, revision: int, unread: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a list: its time, its revision, and the kinds that could not be read."""
    annotations = {TAKEN_AT: format_time(at), **({UNREAD: ",".join(unread)} if unread else {})}
    return {"resourceVersion": str(revision), "annotations": annotations}


def _unread(value: Any) -> Sequence[str]:
    metadata = value.get("metadata") if isinstance(value, Mapping) and isinstance(value.get("items"), list) else None
    text = annotation({"metadata": metadata or {}}, UNREAD)
    return [kind for kind in (text or "").split(",") if kind]


def _objects_of(value: Any) -> tuple[Sequence[Obj], Instant | None]:
    """Return the objects of a document, and the time of the snapshot, if it is recorded."""
    if not isinstance(value, Mapping):
        return (), None
    items = value.get("items")
    if not isinstance(items, list):
        return (value,), None
    taken = annotation({"metadata": value.get("metadata") or {}}, TAKEN_AT)
    return [item for item in items if isinstance(item, Mapping)], None if taken is None else parse_time(taken)


def _known(obj: Obj, place: str, faults: list[FileFault]) -> Sequence[Obj]:
    """Return an object of a known kind in its storage version; one that was never stored is validated as a manifest."""
    info = find_kind(str(obj.get("apiVersion")), str(obj.get("kind")))
    if info is None:
        return ()  #  clusters contain many kinds that are not used here
    metadata = obj.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("name") and metadata.get("resourceVersion"):
        return (received(info, _version(obj), obj),)
    decoded = decode(obj)
    faults += [FileFault(place, fault) for fault in decoded.faults]
    return () if decoded.obj is None else (decoded.obj,)


def _version(obj: Obj) -> str:
    return str(obj["apiVersion"]).rpartition("/")[2]


def _revision(obj: Obj) -> int:
    text = str(obj["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0


def _completed(key: Key, obj: Obj, revision: int, at: Instant) -> Obj:
    metadata = obj["metadata"]
    completed = {
        "uid": uid_for(0, *key),
        "creationTimestamp": format_time(at),
        **metadata,
        "resourceVersion": str(revision),
    }
    return {**obj, "metadata": completed}


def _applied(objects: Mapping[Key, Obj]) -> dict[Key, Obj]:
    """Return the last applied manifests recorded by kubectl, if they can still be decoded."""
    found: dict[Key, Obj] = {}
    for key, obj in objects.items():
        text = annotation(obj, LAST_APPLIED)
        documents = [] if text is None else list(read_documents(text))
        decoded = decode(documents[0].value) if len(documents) == 1 else None
        if decoded is not None and decoded.obj is not None and key_of(decoded.obj) == key:
            found[key] = decoded.obj
    return found


def _birth(obj: Obj) -> Iterator[Instant]:
    """Yield the creation time of an object, by the server's clock."""
    if created := obj["metadata"].get("creationTimestamp"):
        yield parse_time(created)


def _instants(obj: Obj) -> Iterator[Instant]:
    """Yield the timestamps in an object."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    texts = [metadata.get("creationTimestamp"), status.get("startTime"), status.get("completionTime")]
    texts += [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        texts += [(state.get("running") or {}).get("startedAt"), (state.get("terminated") or {}).get("finishedAt")]
    for text in texts:
        if text:
            yield parse_time(text)


# --- state manifests ---
#
# Conversion of a state to manifests, for commands that read manifests: `lint` and `compare`.
#
# Objects created by controllers are left out: Workloads, Jobs and pods with a controller, nodes created by a Cluster.
# The others are submitted at their creation time, counted from the first of them. They run as long as they ran, or as
# long as is estimated.


_WORK: Final = frozenset({scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD, scheme.POD})
#: The kinds that controllers create from other objects.
_MADE: Final = frozenset(
    {
        *(scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.PROVISIONING_REQUEST, scheme.POD_TEMPLATE, scheme.COST_RECORD),
        *(scheme.SERVICE, scheme.CONFIG_MAP, scheme.NODE_POOL),
    }
)
_OF_METADATA: Final = ("name", "namespace", "labels", "annotations")
_MADE_LABELS: Final = frozenset(
    {"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}
)


class StatePart(Enum):
    """The part of a state to convert."""

    ALL = "all"
    WORK = "work"
    CONFIGURATION = "configuration"


def manifest_texts(texts: Iterable[tuple[str, str]], part: StatePart = StatePart.ALL) -> Iterator[tuple[str, str]]:
    """Yield texts with their names; a text that is a state becomes manifests, each object on its previous line."""
    for name, text in texts:
        yield name, (_text_of(text, part) if TAKEN_AT in text and text.lstrip().startswith("{") else text)


def as_manifests(state: State) -> list[Obj | None]:
    """Return the manifest of each object of a state, in its order; None for those that are left out."""
    timed, _ = with_runtimes(state)
    has_cluster = bool(state.of_kind(scheme.CLUSTER))
    kept = [obj for obj in timed.objects.values() if _is_kept(obj, has_cluster=has_cluster)]
    first = min((_created(obj) for obj in kept if group_kind(obj) in _WORK), default=0)
    ran = _ran(timed)
    names = {id(obj) for obj in kept}
    return [_manifest(obj, first, ran) if id(obj) in names else None for obj in timed.objects.values()]


def _text_of(text: str, part: StatePart) -> str:
    lines = ['{"apiVersion":"v1","kind":"List","items":[']
    separator = ""
    state = read_state(text)
    for found in [*as_manifests(state), state.configuration]:
        obj = found if found is not None and _is_of(part, found) else None
        lines.append("" if obj is None else separator + msgspec.json.encode(obj).decode())
        separator = separator if obj is None else ","
    return "\n".join([*lines, "]}"])


def _is_of(part: StatePart, obj: Obj) -> bool:
    return part is StatePart.ALL or (group_kind(obj) in _WORK) == (part is StatePart.WORK)


def _is_kept(obj: Obj, *, has_cluster: bool) -> bool:
    kind = group_kind(obj)
    if kind in _MADE or (kind == scheme.NODE and has_cluster):
        return False
    return kind not in _WORK or controller_of(obj) is None


def _ran(state: State) -> Mapping[str, Duration]:
    """Return the run times of finished Workloads, by the uid of their job."""
    found: dict[str, Duration] = {}
    for workload in state.of_kind(scheme.WORKLOAD):
        conditions = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
        ends, begins = conditions.get("Finished"), conditions.get("Admitted")
        if ends is None or begins is None or not workload_view(workload).finished:
            continue
        of = owner_of(workload, state.objects) or workload
        lasted = parse_time(ends["lastTransitionTime"]) - parse_time(begins["lastTransitionTime"])
        found[of["metadata"]["uid"]] = max(1, lasted // rounds_of(of))
    return found


def _manifest(obj: Obj, first: Instant, ran: Mapping[str, Duration]) -> Obj:
    kind, metadata = group_kind(obj), obj["metadata"]
    kept = {field: metadata[field] for field in _OF_METADATA if metadata.get(field)}
    found = {field: value for field, value in obj.items() if field != "status" or kind == scheme.NODE}
    annotations = {name: text for name, text in (kept.get("annotations") or {}).items() if name != LAST_APPLIED}
    if kind in _WORK:
        annotations[well_known.SUBMIT_AT] = duration_text(max(0, _created(obj) - first))
        if metadata["uid"] in ran and annotation(obj, well_known.RUNTIME) is None:
            annotations[well_known.RUNTIME] = duration_text(ran[metadata["uid"]])
    if kind == scheme.JOB:
        found["spec"] = _job_spec(obj["spec"])
    return {**found, "metadata": {**kept, **({"annotations": annotations} if annotations else {})}}


def _job_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job without the fields that the Job controller added."""
    if spec.get("manualSelector"):
        return dict(spec)
    template = spec["template"]
    metadata = template.get("metadata") or {}
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if name not in _MADE_LABELS}
    kept: Sequence[str] = [field for field in spec if field not in {"selector", "suspend", "template"}]
    return {
        **{field: spec[field] for field in kept},
        "template": {**template, "metadata": {**metadata, "labels": labels}},
    }


def _created(obj: Obj) -> Instant:
    return parse_time(obj["metadata"]["creationTimestamp"])
