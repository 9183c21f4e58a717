"""Reads and writes states as lists of objects, like `kubectl get -o yaml`, and converts them to manifests.

A list written by batchyard has the time of the snapshot in an annotation. For other lists, the time is the latest
timestamp in the objects. Objects without a uid, a revision or a creation time get one, so that plain manifests can be
read too.
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
from batchyard.api.yaml_documents import DocumentLines, read_documents
from batchyard.base import uid_for
from batchyard.base.instant import Duration, Instant, format_duration
from batchyard.client.transport import to_storage_version
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, parse_kueue_settings
from batchyard.sim.forecasting.run_times import owner_of, round_count_of, with_runtimes
from batchyard.sim.scenario import FileFault, InvalidScenario, Source, ends_of, is_text, read_sources
from batchyard.sim.state import OMITTED_KINDS, State

#: The annotation of a list with the time at which its objects were read.
TAKEN_AT_ANNOTATION: Final = "batchyard.dev/taken-at"
#: The annotation of a list with the kinds that could not be listed, separated by commas.
UNREAD_KINDS_ANNOTATION: Final = "batchyard.dev/not-read"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def read_state(source: Source) -> State:
    """Read a state from a file or a text; raise InvalidScenario with all errors."""
    faults: list[FileFault] = []
    objects: list[Obj] = []
    at: Instant | None = None
    unread_kinds: dict[str, None] = {}
    for name, text in read_sources([source], faults):
        for document in read_documents(text):
            lines = DocumentLines(document.text, document.line)
            faults += _located_faults(name, lines, document.faults)
            document_objects, recorded_at = _objects_of(document.value)
            at = recorded_at if at is None else at
            unread_kinds.update(dict.fromkeys(_unread_kinds(document.value)))
            for item_path, obj in document_objects:
                known_object, errors = _known_object(obj)
                objects += known_object
                faults += _located_faults(name, lines, errors, item_path)
    if not objects and not faults:
        remedy = "give the output of `kubectl get --output yaml`, or a list of manifests"
        faults.append(FileFault(str(source), FieldError("", "it contains no objects", remedy)))
    if faults:
        raise InvalidScenario(faults)
    return state_of(objects, at, tuple(unread_kinds))


def is_state(source: Source) -> bool:
    """Report whether a file contains a state: the annotation with its time is near the file's beginning or end."""
    if isinstance(source, Mapping) or is_text(str(source)):
        return False
    return any(TAKEN_AT_ANNOTATION in end for end in ends_of(Path(source)))


def state_of(objects: Iterable[Obj], at: Instant | None = None, unread: Sequence[str] = ()) -> State:
    """Build a state from objects in their storage version, by default at the latest timestamp in the objects.

    Only a later creation time, which the API server writes, replaces a given time. Later timestamps of other clients
    do not, because their clocks may be wrong.
    """
    objects_by_key = {key_of(obj): obj for obj in objects if key_of(obj).kind not in OMITTED_KINDS}
    configurations = [objects_by_key.pop(key) for key in list(objects_by_key) if key.kind == CONFIGURATION]
    instants_of = _creation_instants if at else _all_instants
    time = max((instant for obj in objects_by_key.values() for instant in instants_of(obj)), default=0)
    time = max(time, at or 0)
    revisions = {key: _revision_of(obj) for key, obj in objects_by_key.items()}
    if len(set(revisions.values())) < len(objects_by_key) or 0 in revisions.values():
        sorted_keys = sorted(objects_by_key, key=lambda key: (revisions[key] or len(objects_by_key), key))
        revisions = {key: number for number, key in enumerate(sorted_keys, 1)}
    completed_objects = {key: _complete_metadata(key, obj, revisions[key], time) for key, obj in objects_by_key.items()}
    configuration = configurations[0] if configurations else None
    kueue = SIMULATION_SETTINGS if configuration is None else parse_kueue_settings(configuration)
    applied = _applied_manifests(completed_objects)
    return State(time, max(revisions.values(), default=0), completed_objects, applied, unread, configuration, kueue)


def document_of(state: State) -> dict[str, Any]:
    """Return the state as a `List` document of its objects."""
    item_objects = [state.objects[key] for key in sorted(state.objects) if key.kind not in OMITTED_KINDS]
    item_objects += [] if state.configuration is None else [state.configuration]
    metadata = list_metadata(state.at, state.revision, state.unread)
    return {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": item_objects}


def list_metadata(at: Instant, revision: int, unread: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a `List` document: its time, its revision, and the kinds that could not be read."""
    annotations = {TAKEN_AT_ANNOTATION: format_time(at)}
    if unread:
        annotations[UNREAD_KINDS_ANNOTATION] = ",".join(unread)
    return {"resourceVersion": str(revision), "annotations": annotations}


def _unread_kinds(value: Any) -> Sequence[str]:
    metadata = value.get("metadata") if isinstance(value, Mapping) and isinstance(value.get("items"), list) else None
    text = annotation({"metadata": metadata or {}}, UNREAD_KINDS_ANNOTATION)
    return [kind for kind in (text or "").split(",") if kind]


def _located_faults(
    name: str, lines: DocumentLines, errors: Iterable[FieldError], item_path: str = ""
) -> Iterator[FileFault]:
    """Yield the errors of a document, or of the object at a path in it, with `file:line`."""
    for error in errors:
        line, error_in_line = lines.locate(error, item_path)
        yield FileFault(f"{name}:{line}", error_in_line)


def _objects_of(value: Any) -> tuple[Sequence[tuple[str, Obj]], Instant | None]:
    """Return the objects of a parsed document by their paths, and the time of the state if the document records it."""
    if not isinstance(value, Mapping):
        return (), None
    items = value.get("items")
    if not isinstance(items, list):
        return (("", value),), None
    taken_at = annotation({"metadata": value.get("metadata") or {}}, TAKEN_AT_ANNOTATION)
    objects = [(f"items[{index}]", item) for index, item in enumerate(items) if isinstance(item, Mapping)]
    return objects, None if taken_at is None else parse_time(taken_at)


def _known_object(obj: Obj) -> tuple[Sequence[Obj], Sequence[FieldError]]:
    """Return an object in its storage version, if its kind is known, and its errors.

    An object that an API server stored before is not validated.
    """
    kind_info = find_kind(str(obj.get("apiVersion")), str(obj.get("kind")))
    if kind_info is None:
        return (), ()  #  clusters contain many kinds that the simulator ignores
    metadata = obj.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("name") and metadata.get("resourceVersion"):
        return (to_storage_version(kind_info, _version_of(obj), obj),), ()
    decoded_object = decode(obj)
    return () if decoded_object.obj is None else (decoded_object.obj,), decoded_object.faults


def _version_of(obj: Obj) -> str:
    return str(obj["apiVersion"]).rpartition("/")[2]


def _revision_of(obj: Obj) -> int:
    text = str(obj["metadata"].get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0


def _complete_metadata(key: Key, obj: Obj, revision: int, at: Instant) -> Obj:
    metadata = obj["metadata"]
    default_metadata = {"uid": uid_for(0, *key), "creationTimestamp": format_time(at)}
    new_metadata = {**default_metadata, **metadata, "resourceVersion": str(revision)}
    return {**obj, "metadata": new_metadata}


def _applied_manifests(objects: Mapping[Key, Obj]) -> dict[Key, Obj]:
    """Return the manifests that kubectl recorded as last applied, by object; undecodable ones are omitted."""
    manifests: dict[Key, Obj] = {}
    for key, obj in objects.items():
        text = annotation(obj, LAST_APPLIED)
        documents = [] if text is None else list(read_documents(text))
        decoded_object = decode(documents[0].value) if len(documents) == 1 else None
        if decoded_object is not None and decoded_object.obj is not None and key_of(decoded_object.obj) == key:
            manifests[key] = decoded_object.obj
    return manifests


def _creation_instants(obj: Obj) -> Iterator[Instant]:
    """Yield the creation time of an object, which the API server sets."""
    if created := obj["metadata"].get("creationTimestamp"):
        yield parse_time(created)


def _all_instants(obj: Obj) -> Iterator[Instant]:
    """Yield all timestamps in an object's metadata and status."""
    metadata, status = obj["metadata"], obj.get("status") or {}
    timestamps = [metadata.get("creationTimestamp"), status.get("startTime"), status.get("completionTime")]
    timestamps += [each.get("lastTransitionTime") for each in status.get("conditions") or ()]
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        timestamps += [(state.get("running") or {}).get("startedAt"), (state.get("terminated") or {}).get("finishedAt")]
    for text in timestamps:
        if text:
            yield parse_time(text)


# Conversion of a state to manifests, for commands that read manifests: `lint` and `compare`.
#
# Objects created by controllers are left out: Workloads, Jobs and pods with a controller, nodes created by a Cluster.
# Other work is submitted at its creation time, counted from the first of these objects. It runs as long as it ran in
# the cluster, or for its estimated run time.


_WORK_KINDS: Final = frozenset({scheme.JOB, scheme.JOB_SET, scheme.WORKLOAD, scheme.POD})
#: The kinds that controllers create from other objects.
_CONTROLLER_KINDS: Final = frozenset(
    {
        *(scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.PROVISIONING_REQUEST, scheme.POD_TEMPLATE, scheme.COST_RECORD),
        *(scheme.SERVICE, scheme.CONFIG_MAP, scheme.NODE_POOL),
    }
)
_KEPT_METADATA: Final = ("name", "namespace", "labels", "annotations")
_CONTROLLER_LABELS: Final = frozenset(
    {"controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"}
)


class StatePart(Enum):
    """Which objects of a state to convert to manifests: all, the work (jobs, pods, Workloads), or the configuration."""

    ALL = "all"
    WORK = "work"
    CONFIGURATION = "configuration"


def manifest_texts(texts: Iterable[tuple[str, str]], part: StatePart = StatePart.ALL) -> Iterator[tuple[str, str]]:
    """Yield named texts with each state converted to manifests; each object stays on the line where it was."""
    for name, text in texts:
        is_state = TAKEN_AT_ANNOTATION in text and text.lstrip().startswith("{")
        yield name, _manifest_text(text, part) if is_state else text


def as_manifests(state: State) -> list[Obj | None]:
    """Return the manifest of each object of a state, in order; None for objects that controllers created."""
    timed_state, _ = with_runtimes(state)
    has_cluster = bool(state.of_kind(scheme.CLUSTER))
    kept_objects = [obj for obj in timed_state.objects.values() if _is_kept(obj, has_cluster=has_cluster)]
    first_created = min((_created_at(obj) for obj in kept_objects if group_kind(obj) in _WORK_KINDS), default=0)
    run_times = _run_times(timed_state)
    kept_ids = {id(obj) for obj in kept_objects}
    objects = timed_state.objects.values()
    return [_manifest_of(obj, first_created, run_times) if id(obj) in kept_ids else None for obj in objects]


def _manifest_text(text: str, part: StatePart) -> str:
    lines = ['{"apiVersion":"v1","kind":"List","items":[']
    separator = ""
    state = read_state(text)
    for manifest in [*as_manifests(state), state.configuration]:
        obj = manifest if manifest is not None and _is_in_part(part, manifest) else None
        lines.append("" if obj is None else separator + msgspec.json.encode(obj).decode())
        separator = separator if obj is None else ","
    return "\n".join([*lines, "]}"])


def _is_in_part(part: StatePart, obj: Obj) -> bool:
    return part is StatePart.ALL or (group_kind(obj) in _WORK_KINDS) == (part is StatePart.WORK)


def _is_kept(obj: Obj, *, has_cluster: bool) -> bool:
    kind = group_kind(obj)
    if kind in _CONTROLLER_KINDS or (kind == scheme.NODE and has_cluster):
        return False
    return kind not in _WORK_KINDS or controller_of(obj) is None


def _run_times(state: State) -> Mapping[str, Duration]:
    """Return the run times of finished Workloads, by the uid of their jobs."""
    run_time_by_uid: dict[str, Duration] = {}
    for workload in state.of_kind(scheme.WORKLOAD):
        conditions = {each["type"]: each for each in (workload.get("status") or {}).get("conditions") or ()}
        finished_condition, admission = conditions.get("Finished"), conditions.get("Admitted")
        if finished_condition is None or admission is None or not workload_view(workload).finished:
            continue
        job = owner_of(workload, state.objects) or workload
        run_time = parse_time(finished_condition["lastTransitionTime"]) - parse_time(admission["lastTransitionTime"])
        run_time_by_uid[job["metadata"]["uid"]] = max(1, run_time // round_count_of(job))
    return run_time_by_uid


def _manifest_of(obj: Obj, first_created: Instant, run_times: Mapping[str, Duration]) -> Obj:
    kind, metadata = group_kind(obj), obj["metadata"]
    fields = {field: metadata[field] for field in _KEPT_METADATA if metadata.get(field)}
    manifest = {field: value for field, value in obj.items() if field != "status" or kind == scheme.NODE}
    annotations = {name: text for name, text in (fields.get("annotations") or {}).items() if name != LAST_APPLIED}
    if kind in _WORK_KINDS:
        annotations[well_known.SUBMIT_AT] = format_duration(max(0, _created_at(obj) - first_created))
        if metadata["uid"] in run_times and annotation(obj, well_known.RUNTIME) is None:
            annotations[well_known.RUNTIME] = format_duration(run_times[metadata["uid"]])
    if kind == scheme.JOB:
        manifest["spec"] = _user_job_spec(obj["spec"])
    return {**manifest, "metadata": {**fields, **({"annotations": annotations} if annotations else {})}}


def _user_job_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a Job without the fields that the Job controller added."""
    if spec.get("manualSelector"):
        return dict(spec)
    template = spec["template"]
    metadata = template.get("metadata") or {}
    labels = {name: text for name, text in (metadata.get("labels") or {}).items() if name not in _CONTROLLER_LABELS}
    kept_fields: Sequence[str] = [field for field in spec if field not in {"selector", "suspend", "template"}]
    pod_template = {**template, "metadata": {**metadata, "labels": labels}}
    return {**{field: spec[field] for field in kept_fields}, "template": pod_template}


def _created_at(obj: Obj) -> Instant:
    return parse_time(obj["metadata"]["creationTimestamp"])
