"""Ownership of pods and other dependents, and what the workload controllers share: new pods, availability, counts.

Sources: pkg/controller of Kubernetes (controller_ref_manager.go, controller_utils.go); pkg/api/v1/pod.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import READY, is_ready, is_terminal, is_terminating
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import uid_for
from batchyard.client.local import generated_name
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord

_DELETED: Final = EventType.DELETED
#: The maximum number of pods that one reconcile creates or deletes.
BURST_REPLICAS: Final = 500
_INT32_MAX: Final = 2**31 - 1
_HASH_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


class ChildClaim(NamedTuple):
    """The dependents of an object, and the writes that adopt orphans or release objects that no longer match."""

    children: Sequence[meta.Obj]
    writes: Sequence[Write]


class ChildIndex:
    """Index of the objects of one kind that control objects of a child kind, and of the orphans of the child kind."""

    def __init__(self, parent_kind: str, child_kind: str) -> None:
        self._parent_info = scheme.kind_info(parent_kind)
        self._child_kind = child_kind
        #: The selectors of the controlling objects, by namespace and key.
        self._selectors: dict[str, dict[meta.Key, meta.Selector | None]] = {}
        #: By namespace: the objects of the child kind without a controller.
        self._orphans: dict[str, dict[meta.Key, None]] = {}
        #: The namespaces whose orphans from before the first watch event are known.
        self._scanned: dict[str, None] = {}

    def observe_parent(self, event: WatchEvent) -> None:
        """Process a watch event of a controlling object."""
        selectors = self._selectors.setdefault(event.key.namespace, {})
        if event.type is _DELETED:
            selectors.pop(event.key, None)
        else:
            selectors[event.key] = selector_of(event.obj)

    def observe_child(self, event: WatchEvent) -> list[meta.Key]:
        """Process a watch event of a child; return the keys of its controller, now and before, or of its adopters."""
        namespace = event.key.namespace
        keys = [key for obj in (event.obj, event.old) if obj is not None and (key := self._parent_key(obj)) is not None]
        orphans = self._orphans.setdefault(namespace, {})
        if event.type is _DELETED or meta.controller_of(event.obj) is not None:
            orphans.pop(event.key, None)
            return list(dict.fromkeys(keys))
        orphans[event.key] = None
        labels = event.obj["metadata"].get("labels") or {}
        keys += [
            key for key, each in self._selectors.get(namespace, {}).items() if each is not None and each.matches(labels)
        ]
        return list(dict.fromkeys(keys))

    def claim(
        self, parent: meta.Obj, reader: Reader, is_member: Callable[[meta.Obj], bool] = lambda _: True
    ) -> ChildClaim:
        """Return the children of an object, and the writes that adopt matching orphans and release other children.

        A child must match the selector of the parent and satisfy `is_member`. A deleted parent adopts and releases
        nothing. Orphans that are being deleted are not adopted.
        """
        metadata = parent["metadata"]
        namespace, uid = metadata.get("namespace", ""), metadata["uid"]
        selector = selector_of(parent)
        writes: list[Write] = []
        children: list[meta.Obj] = []
        for obj in reader.owned_by(uid, namespace):
            owner = meta.controller_of(obj)
            if meta.group_kind(obj) != self._child_kind or owner is None or owner["uid"] != uid:
                continue
            if selector is not None and selector.matches(obj["metadata"].get("labels") or {}) and is_member(obj):
                children.append(obj)
            elif "deletionTimestamp" not in metadata:
                writes.append(Update(meta.without_owner(obj, uid)))
        if selector is not None and "deletionTimestamp" not in metadata:
            orphans = filter(is_member, self._matching_orphans(namespace, selector, reader))
            writes += [Update(meta.with_controller(obj, parent)) for obj in orphans]
        return ChildClaim(children, writes)

    def _matching_orphans(self, namespace: str, selector: meta.Selector, reader: Reader) -> Iterator[meta.Obj]:
        orphans = self._orphans.setdefault(namespace, {})
        if namespace not in self._scanned:
            self._scanned[namespace] = None
            for obj in reader.list(self._child_kind, namespace):
                if meta.controller_of(obj) is None:
                    orphans[meta.key_of(obj)] = None
        for key in orphans:
            found = reader.get(key)
            if found is None or meta.controller_of(found) is not None or "deletionTimestamp" in found["metadata"]:
                continue
            is_adoptable = not (found["kind"] == "Pod" and is_terminal(found))
            if is_adoptable and selector.matches(found["metadata"].get("labels") or {}):
                yield found

    def _parent_key(self, child: meta.Obj) -> meta.Key | None:
        owner = meta.controller_of(child)
        parent = self._parent_info
        if owner is None or owner["kind"] != parent.kind or owner["apiVersion"] != parent.api_version:
            return None
        return meta.Key(self._parent_info.constant, child["metadata"].get("namespace", ""), owner["name"])


# New pods from the template of their controller.


def pod_from_template(owner: meta.Obj, template: Mapping[str, Any]) -> meta.Obj:
    """Return a pod with the labels, annotations, finalizers and spec of a template, controlled by `owner`."""
    template_metadata = template.get("metadata") or {}
    metadata: dict[str, Any] = {
        field: template_metadata[field]
        for field in ("labels", "annotations", "finalizers")
        if template_metadata.get(field)
    }
    if owner["metadata"].get("namespace"):
        metadata["namespace"] = owner["metadata"]["namespace"]
    metadata["ownerReferences"] = [meta.controller_reference(owner)]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec") or {}}


def with_generated_names(pods: Iterable[meta.Obj], owner: meta.Obj, reader: Reader, now: Instant) -> list[meta.Obj]:
    """Return the pods with unused names that start with the owner's name.

    The names are derived from the owner's uid and `now`, so that a simulation repeats them.
    """
    prefix, namespace = f"{owner['metadata']['name']}-", owner["metadata"].get("namespace", "")
    names, numbers = dict[str, None](), count()
    named_pods: list[meta.Obj] = []
    for pod in pods:
        name = ""
        while not name or name in names or reader.get(meta.Key(scheme.POD, namespace, name)) is not None:
            name = generated_name(prefix, uid_for(0, owner["metadata"]["uid"], str(now), str(next(numbers))))
        names[name] = None
        named_pods.append(meta.with_metadata(pod, name=name, generateName=prefix))
    return named_pods


def pod_event(owner: meta.Key, verb: str, pod: meta.Obj) -> EventRecord:
    """Return the Event about a created or deleted pod; `verb` is `Create` or `Delete`."""
    return EventRecord(owner, "Normal", f"Successful{verb}", f"{verb}d pod: {pod['metadata']['name']}")


def failed_pod_event(owner: meta.Key, *, is_creation: bool, error: ApiError) -> EventRecord | None:
    """Return the Event about a pod that the API server did not create or delete; None if the Namespace is ending."""
    if isinstance(error, NamespaceTerminating):
        return None
    verb, participle = ("Create", "creating") if is_creation else ("Delete", "deleting")
    return EventRecord(owner, "Warning", f"Failed{verb}", f"Error {participle}: {error}")


# States of pods.


def is_active(pod: meta.Obj) -> bool:
    """Return whether a pod has neither ended nor a deletionTimestamp."""
    return not is_terminal(pod) and not is_terminating(pod)


def ready_since(pod: meta.Obj) -> Instant | None:
    """Return when a ready pod became ready; None if the pod is not ready or has no transition time."""
    condition = meta.find_condition(pod, READY)
    if condition is None or condition["status"] != "True":
        return None
    text = condition.get("lastTransitionTime")
    return parse_time(text) if text else None


def is_available(pod: meta.Obj, min_ready_seconds: int, now: Instant) -> bool:
    """Return whether a pod has been ready for at least `min_ready_seconds`."""
    if not is_ready(pod):
        return False
    ready_time = ready_since(pod)
    return not min_ready_seconds or (ready_time is not None and ready_time + min_ready_seconds * SECOND <= now)


def next_availability(pods: Iterable[meta.Obj], min_ready_seconds: int, now: Instant) -> Instant | None:
    """Return when the next ready pod becomes available; None if no ready pod is unavailable."""
    if not min_ready_seconds:
        return None
    times = [ready_time + min_ready_seconds * SECOND for pod in pods if (ready_time := ready_since(pod)) is not None]
    return min((time for time in times if time > now), default=None)


# Fields of specs and statuses.


def selector_of(parent: meta.Obj) -> meta.Selector | None:
    """Return the selector of a controlling object; that of a ReplicationController is a mapping of labels."""
    selector = parent["spec"].get("selector")
    return meta.parse_selector({"matchLabels": selector} if parent["kind"] == "ReplicationController" else selector)


def scaled_value(value: Any, total: int, *, round_up: bool) -> int:
    """Return a count that is a number or a percentage of `total`, such as `25%`; 0 if it is neither."""
    if isinstance(value, int):
        return value
    number = meta.parse_integer(str(value or "").removesuffix("%"))
    if number is None or not str(value).endswith("%"):
        return 0
    return -(-number * total // 100) if round_up else number * total // 100


def limit_of(obj: meta.Obj, field: str) -> int | None:
    """Return a limit in the spec of an object; None if it is missing or the maximum of int32, which both mean none."""
    value: int | None = obj["spec"].get(field)
    return None if value == _INT32_MAX else value


def replicas_of(obj: meta.Obj) -> int:
    """Return the desired replicas in the spec of an object, by default 1."""
    replicas: int | None = obj["spec"].get("replicas")
    return 1 if replicas is None else replicas


def status_count(obj: meta.Obj, field: str) -> int:
    """Return a count in the status of an object; 0 if it is missing."""
    value: int = (obj.get("status") or {}).get(field) or 0
    return value


def newest_first(obj: meta.Obj) -> tuple[int, str]:
    """Return a sort key that orders objects by creation, the newest first, and by name."""
    return (-creation_time(obj), obj["metadata"]["name"])


def oldest_first(obj: meta.Obj) -> tuple[int, str]:
    """Return a sort key that orders objects by creation, the oldest first, and by name."""
    return (creation_time(obj), obj["metadata"]["name"])


def creation_time(obj: meta.Obj) -> Instant:
    """Return the creation time of an object; 0 if it is not stored yet."""
    text = obj["metadata"].get("creationTimestamp")
    return parse_time(text) if text else 0


def status_condition(condition_type: str, status: str, reason: str, message: str, now: Instant) -> dict[str, Any]:
    """Return a condition of a ReplicaSet, StatefulSet or DaemonSet."""
    return {
        "type": condition_type,
        "status": status,
        "lastTransitionTime": format_time(now),
        "reason": reason,
        "message": message,
    }


def with_set_condition(conditions: Sequence[meta.Condition], new: Mapping[str, Any]) -> list[meta.Condition]:
    """Return conditions with `new` at the end instead of the condition of its type.

    If status and reason do not change, the old condition stays. If only the status stays, its transition time stays.
    """
    old = next((each for each in conditions if each["type"] == new["type"]), None)
    if old is not None and (old["status"], old.get("reason")) == (new["status"], new["reason"]):
        return list(conditions)
    if old is not None and old["status"] == new["status"] and "lastTransitionTime" in old:
        new = {**new, "lastTransitionTime": old["lastTransitionTime"]}
    return [*without_condition(conditions, new["type"]), new]


def without_condition(conditions: Sequence[meta.Condition], condition_type: str) -> list[meta.Condition]:
    """Return the conditions without the condition of a type."""
    return [each for each in conditions if each["type"] != condition_type]


# Hashes of templates in names and labels.


def template_hash(content: Any, collision_count: int | None) -> str:
    """Return the hash of JSON content and a collision count, in the letters that Kubernetes uses for such hashes.

    Kubernetes hashes the memory layout of the template, so its hashes have other values.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    value = _fnv1a_32(text if collision_count is None else f"{text}{collision_count}")
    return "".join(_HASH_ALPHABET[ord(character) % len(_HASH_ALPHABET)] for character in str(value))


def _fnv1a_32(text: str) -> int:
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
