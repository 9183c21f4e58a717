"""Reads and writes states as lists of objects, like `kubectl get -o yaml`, and converts them to manifests.

A snapshot, a list written by batchyard, has its time in an annotation. For a dump, a list written by kubectl or another
client of an API server, the time is the latest timestamp in the objects. Objects without a uid, a revision or a
creation time get one, so that plain manifests can be read too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from batchyard.admission_plugins.built_in import new_namespace
from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import LAST_APPLIED, as_user_manifest, decode, objects_with_paths
from batchyard.api.meta import Key, Obj, annotation, controller_of, group_kind, key_of
from batchyard.api.scheme import CONFIGURATION, find_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import workload_view
from batchyard.api.yaml_documents import DocumentLines, read_documents
from batchyard.base.instant import Duration, Instant, format_duration
from batchyard.base.primitives import uid_for
from batchyard.client.transport import to_storage_version
from batchyard.scheduling.decisions import KueueVersion
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, parse_kueue_settings
from batchyard.sim.forecasting.run_times import owner_of, round_count_of, with_runtimes
from batchyard.sim.scenario import FileFault, InvalidScenario, Source, read_sources
from batchyard.sim.state import OMITTED_KINDS, State

#: The annotation of a list with the time at which its objects were read.
TAKEN_AT_ANNOTATION: Final = "batchyard.dev/taken-at"
#: The version of Kueue whose decision rules the recorded platform follows.
KUEUE_VERSION_ANNOTATION: Final = "batchyard.dev/kueue-version"
#: The annotation of a list with the kinds that could not be listed, separated by commas.
UNREAD_KINDS_ANNOTATION: Final = "batchyard.dev/not-read"
#: The timestamps of a condition. A kubelet sends heartbeats at least every five minutes.
_CONDITION_TIMES: Final = ("lastTransitionTime", "lastHeartbeatTime", "lastProbeTime")
#: Matches the kind of a list, in YAML and JSON.
_LIST_KIND_PATTERN: Final = re.compile(r"""(?:^|[\s{,])["']?kind["']?:\s*["']?[A-Za-z]*List\b""")
#: Match the fields that only an API server sets.
_SERVER_FIELD_PATTERNS: Final = (
    re.compile(r"""\buid["']?:\s*["']?[0-9a-f]"""),
    re.compile(r"""\bresourceVersion["']?:\s*["']?\d"""),
    re.compile(r"""\bcreationTimestamp["']?:\s*["']?\d"""),
)


def read_state(source: Source) -> State:
    """Read a state from a file or a text; raise InvalidScenario with all errors."""
    faults: list[FileFault] = []
    return state_of_texts(list(read_sources([source], faults)), faults)


def state_of_texts(texts: Sequence[tuple[str, str]], source_errors: Iterable[FileFault] = ()) -> State:
    """Build one state from texts, given as (name, text); raise InvalidScenario with all errors and `source_errors`."""
    faults = [*source_errors]
    objects: list[Obj] = []
    at: Instant | None = None
    version = ""
    unread_kinds: dict[str, None] = {}
    for name, text in texts:
        for document in read_documents(text):
            lines = DocumentLines(document.text, document.line)
            faults += _located_faults(name, lines, document.faults)
            document_objects, recorded_at = _objects_of(document.value)
            at = recorded_at if at is None else at
            version = version or _recorded_version(document.value)
            unread_kinds.update(dict.fromkeys(_unread_kinds(document.value)))
            for item_path, obj in document_objects:
                known_object, errors = _decode_known_object(obj)
                objects += known_object
                faults += _located_faults(name, lines, errors, item_path)
    if not objects and not faults:
        remedy = "use the output of `kubectl get --output yaml`, or a list of manifests"
        faults.append(FileFault(", ".join(name for name, _ in texts), FieldError("", "it contains no objects", remedy)))
    if faults:
        raise InvalidScenario(faults)
    return state_of(objects, at, tuple(unread_kinds), version)


def is_snapshot_text(text: str) -> bool:
    """Return whether a text contains the annotation in which a snapshot records its time."""
    return TAKEN_AT_ANNOTATION in text


def is_state_text(text: str) -> bool:
    """Return whether a text looks like a state: a snapshot, or a list with fields that only an API server sets."""
    if is_snapshot_text(text):
        return True
    return _LIST_KIND_PATTERN.search(text) is not None and all(each.search(text) for each in _SERVER_FIELD_PATTERNS)


def state_of(
    objects: Iterable[Obj], at: Instant | None = None, unread_kinds: Sequence[str] = (), version: str = ""
) -> State:
    """Build a state from objects in their storage version, at the instant `at`; None: at their latest timestamp.

    `version` is the version of Kueue whose decision rules the platform follows; '' or an unknown one: the default.

    A later creation time, which the API server writes, replaces `at`. Later timestamps of other clients do not, because
    their clocks may be wrong. Leases, Events and Secrets are left out; missing Namespaces and metadata are added.
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
    for namespace in _missing_namespaces(objects_by_key):
        objects_by_key[key_of(namespace)] = namespace
        revisions[key_of(namespace)] = max(revisions.values()) + 1
    completed_objects = {key: _complete_metadata(key, obj, revisions[key], time) for key, obj in objects_by_key.items()}
    configuration = configurations[0] if configurations else None
    kueue = SIMULATION_SETTINGS if configuration is None else parse_kueue_settings(configuration)
    if version in [*KueueVersion]:
        kueue = kueue.with_recorded_version(KueueVersion(version))
    last_applied_manifests = _applied_manifests(completed_objects)
    revision = max(revisions.values(), default=0)
    return State(
        *(time, revision, completed_objects, last_applied_manifests, unread_kinds, configuration, kueue),
        is_time_recorded=at is not None,
    )


def _missing_namespaces(objects: Mapping[Key, Obj]) -> list[Obj]:
    names = sorted({key.namespace for key in objects if key.namespace})
    return [new_namespace(name) for name in names if Key(scheme.NAMESPACE, "", name) not in objects]


def document_of(state: State) -> dict[str, Any]:
    """Return the state as a `List` document of its objects and its configuration.

    Leases, Events and Secrets are left out.
    """
    item_objects = [state.objects[key] for key in sorted(state.objects) if key.kind not in OMITTED_KINDS]
    item_objects += [] if state.configuration is None else [state.configuration]
    metadata = list_metadata(state.at, state.revision, state.unread_kinds, state.kueue.policy.rules.version)
    return {"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": item_objects}


def list_metadata(at: Instant, revision: int, unread_kinds: Sequence[str], version: str = "") -> dict[str, Any]:
    """Return the metadata of a `List` document: its time, its revision, and the kinds that could not be read.

    `version` is the version of Kueue whose decision rules apply; '' if it is unknown.
    """
    annotations = {TAKEN_AT_ANNOTATION: format_time(at)}
    if version:
        annotations[KUEUE_VERSION_ANNOTATION] = version
    if unread_kinds:
        annotations[UNREAD_KINDS_ANNOTATION] = ",".join(unread_kinds)
    return {"resourceVersion": str(revision), "annotations": annotations}


def _unread_kinds(value: Any) -> Sequence[str]:
    metadata = value.get("metadata") if isinstance(value, Mapping) and isinstance(value.get("items"), list) else None
    text = annotation({"metadata": metadata or {}}, UNREAD_KINDS_ANNOTATION)
    return [kind for kind in (text or "").split(",") if kind]


def _recorded_version(value: Any) -> str:
    metadata = value.get("metadata") if isinstance(value, Mapping) and isinstance(value.get("items"), list) else None
    return annotation({"metadata": metadata or {}}, KUEUE_VERSION_ANNOTATION) or ""


def _located_faults(
    name: str, lines: DocumentLines, errors: Iterable[FieldError], item_path: str = ""
) -> Iterator[FileFault]:
    for error in errors:
        line, error_in_line = lines.locate(error, item_path)
        yield FileFault(f"{name}:{line}", error_in_line)


def _objects_of(value: Any) -> tuple[Sequence[tuple[str, Obj]], Instant | None]:
    objects = [(path, obj) for obj, path in objects_with_paths(value) if isinstance(obj, Mapping)]
    if not isinstance(value, Mapping) or not isinstance(value.get("items"), list):
        return objects, None
    taken_at = annotation({"metadata": value.get("metadata") or {}}, TAKEN_AT_ANNOTATION)
    return objects, None if taken_at is None else parse_time(taken_at)


def _decode_known_object(obj: Obj) -> tuple[Sequence[Obj], Sequence[FieldError]]:
    """Return the object in its storage version (none if its kind is unknown or it is invalid), and its errors.

    An object with a resourceVersion, which an API server has stored, is not validated.
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
    manifests: dict[Key, Obj] = {}
    for key, obj in objects.items():
        text = annotation(obj, LAST_APPLIED)
        documents = [] if text is None else list(read_documents(text))
        decoded_object = decode(documents[0].value) if len(documents) == 1 else None
        if decoded_object is not None and decoded_object.obj is not None and key_of(decoded_object.obj) == key:
            manifests[key] = decoded_object.obj
    return manifests


def _creation_instants(obj: Obj) -> Iterator[Instant]:
    if created := obj["metadata"].get("creationTimestamp"):
        yield parse_time(created)


def _all_instants(obj: Obj) -> Iterator[Instant]:
    metadata, status = obj["metadata"], obj.get("status") or {}
    timestamps = [metadata.get("creationTimestamp"), status.get("startTime"), status.get("completionTime")]
    timestamps += [each.get("time") for each in metadata.get("managedFields") or ()]
    for condition in [*(status.get("conditions") or ()), *(status.get("admissionChecks") or ())]:
        timestamps += [condition.get(field) for field in _CONDITION_TIMES]
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


class StatePart(Enum):
    """Which objects of a state to convert to manifests: all, the work (jobs, pods, Workloads), or the configuration."""

    ALL = "all"
    WORK = "work"
    CONFIGURATION = "configuration"


def manifest_texts(texts: Iterable[tuple[str, str]], part: StatePart = StatePart.ALL) -> Iterator[tuple[str, str]]:
    """Yield (name, text) pairs, in which each cluster state is replaced by manifests of its objects in `part`.

    A cluster state is a snapshot, or a list of objects from an API server. Each object keeps the line on which it
    starts. Other texts are unchanged. Raises InvalidScenario with the errors of the first invalid state.
    """
    for name, text in texts:
        yield name, _manifest_text(name, text, part) if is_state_text(text) else text


def as_manifests(state: State) -> dict[Key, Obj]:
    """Return the manifests of a state's objects by key, without those that batchyard's controllers create again."""
    timed_state, _ = with_runtimes(state)
    has_cluster = bool(state.of_kind(scheme.CLUSTER))
    kept_objects = {
        key: obj for key, obj in timed_state.objects.items() if _is_kept(obj, state, has_cluster=has_cluster)
    }
    work_objects = (obj for key, obj in kept_objects.items() if key.kind in _WORK_KINDS)
    first_created = min(map(_created_at, work_objects), default=0)
    run_times = _run_times(timed_state)
    return {key: _manifest_of(obj, first_created, run_times) for key, obj in kept_objects.items()}


def _manifest_text(name: str, text: str, part: StatePart) -> str:
    state = state_of_texts([(name, text)])
    manifests = as_manifests(state)
    if state.configuration is not None:
        manifests[key_of(state.configuration)] = state.configuration
    line_by_key = _line_by_key(text)
    output_parts, last_line, separator = ['{"apiVersion":"v1","kind":"List","items":['], 1, ""
    for key, manifest in manifests.items():
        if _is_in_part(part, manifest) and key in line_by_key:  # not a Namespace that was not read
            line = max(last_line, line_by_key[key])
            output_parts.append(separator + "\n" * (line - last_line) + msgspec.json.encode(manifest).decode())
            separator, last_line = ",", line
    return "".join([*output_parts, "\n]}"])


def _line_by_key(text: str) -> dict[Key, int]:
    has_object_per_line = is_snapshot_text(text) and text.lstrip().startswith("{")  # not parsed again: it may be long
    line_by_key: dict[Key, int] = {}
    for document in read_documents(text):
        lines = DocumentLines(document.text, document.line)
        for index, (item_path, obj) in enumerate(_objects_of(document.value)[0]):
            for known_object in _decode_known_object(obj)[0]:
                line = document.line + 1 + index if has_object_per_line else lines.line_of(item_path)
                line_by_key.setdefault(key_of(known_object), line)
    return line_by_key


def _is_in_part(part: StatePart, obj: Obj) -> bool:
    return part is StatePart.ALL or (group_kind(obj) in _WORK_KINDS) == (part is StatePart.WORK)


def _is_kept(obj: Obj, state: State, *, has_cluster: bool) -> bool:
    kind = group_kind(obj)
    if kind in _CONTROLLER_KINDS or (kind == scheme.NODE and has_cluster):
        return False
    if kind not in _WORK_KINDS or controller_of(obj) is None:
        return True
    return kind != scheme.POD and owner_of(obj, state.objects) is None


def _run_times(state: State) -> Mapping[str, Duration]:
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
    manifest, metadata = as_user_manifest(obj), obj["metadata"]
    if manifest.get("spec") == {}:  # stored without a spec; an empty one is invalid for some kinds
        manifest = {field: value for field, value in manifest.items() if field != "spec"}
    if group_kind(obj) not in _WORK_KINDS:
        return manifest
    annotations = {well_known.SUBMIT_AT: format_duration(max(0, _created_at(obj) - first_created))}
    if metadata["uid"] in run_times and annotation(obj, well_known.RUNTIME) is None:
        annotations[well_known.RUNTIME] = format_duration(run_times[metadata["uid"]])
    old_annotations = manifest["metadata"].get("annotations") or {}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": {**old_annotations, **annotations}}}


def _created_at(obj: Obj) -> Instant:
    return parse_time(obj["metadata"]["creationTimestamp"])
