"""States as lists of objects, in the format of `kubectl get -o yaml` and of API servers.

A state written by batchyard holds the time of the snapshot, in an annotation of the list. For other lists it is the
latest timestamp in the objects. Objects without a uid, a revision or a creation time get one, so that plain manifests
work too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, annotation, key_of
from batchyard.api.scheme import CONFIGURATION, find_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.yaml_documents import read_documents
from batchyard.base.ids import uid_for
from batchyard.base.instant import Instant
from batchyard.client.resource_paths import received
from batchyard.scheduling.kueue_configuration import SIMULATED, parse_kueue_settings
from batchyard.sim.files import Source, ends_of, is_text, read_sources
from batchyard.sim.scenario import FileFault, InvalidScenario
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
