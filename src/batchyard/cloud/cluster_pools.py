"""The controller that applies changes of a Cluster's `spec.nodePools` to the NodePools of a running platform.

An annotation of the Cluster holds a hash of each applied row. Only rows that changed since then are applied. So a
NodePool that a user changed or deleted stays as it is until its row changes. Simulations need no such controller,
because the scenario applies the NodePools of each Cluster document (`sim/scenario.py`).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, with_metadata
from batchyard.api.validation.cluster import changed_machine_fields
from batchyard.base.instant import Instant
from batchyard.cloud.cluster_objects import find_cluster, node_pool_of
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult

_CLUSTER_KEY: Final = Key(scheme.CLUSTER, "", "")
_HASH_LENGTH: Final = 16


class ClusterPoolsController:
    """The controller that creates, updates and deletes NodePools when the Cluster's `spec.nodePools` changes."""

    name = "cloud-cluster-pools"
    rank = 0
    kinds = (scheme.CLUSTER, scheme.NODE_POOL)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the Cluster after each of its changes, and after the deletion of a NodePool."""
        is_deleted_pool = event.key.kind == scheme.NODE_POOL and event.type is EventType.DELETED
        return (_CLUSTER_KEY,) if is_deleted_pool or event.key.kind == scheme.CLUSTER else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Apply the entries of `spec.nodePools` that changed since they were last applied, and record their hashes.

        NodePools of removed entries are deleted. An entry that would change the machines of an existing NodePool is
        refused with an Event. If the Cluster has no `spec.nodePools`, all NodePools stay as they are.
        """
        cluster = find_cluster(reader)
        if cluster is None or "nodePools" not in cluster["spec"]:
            return ReconcileResult()
        applied_hashes = _applied_hash_by_pool(cluster)
        row_by_name = {row["name"]: row for row in cluster["spec"]["nodePools"] or ()}
        hashes = {name: _hash_of_pool_entry(row) for name, row in row_by_name.items()}
        result = ReconcileResult()
        for name, row in row_by_name.items():
            if hashes[name] != applied_hashes.get(name) and not _apply_node_pool_row(row, cluster, reader, result):
                hashes.pop(name)
        for name in applied_hashes:
            if name not in row_by_name and reader.get(_pool_key(name)) is not None:
                result.writes.append(Delete(_pool_key(name)))
                result.events.append(_cluster_event(cluster, "NodePoolDeleted", f"deleted node pool {name}"))
        if hashes != applied_hashes:
            annotations = cluster["metadata"].get("annotations") or {}
            new_annotations = {**annotations, well_known.APPLIED_NODE_POOLS: json.dumps(hashes, separators=(",", ":"))}
            result.writes.append(Update(with_metadata(cluster, annotations=new_annotations)))
        return result


def _apply_node_pool_row(row: Mapping[str, Any], cluster: Obj, reader: Reader, result: ReconcileResult) -> bool:
    """Add to `result` the write and the Event that a row of the Cluster's `spec.nodePools` requires.

    Return False, without adding any, if a NodePool with the row's name is still being deleted.
    """
    pool, name = node_pool_of(row), row["name"]
    stored_pool = reader.get(_pool_key(name))
    if stored_pool is None:
        result.writes.append(Create(pool))
        result.events.append(_cluster_event(cluster, "NodePoolCreated", f"created node pool {name}"))
        return True
    if "deletionTimestamp" in stored_pool["metadata"]:
        return False
    if fields := changed_machine_fields(pool["spec"], stored_pool["spec"]):
        message = f"node pool {name} keeps its {', '.join(fields)}; give the changed pool another name"
        result.events.append(_cluster_event(cluster, "NodePoolConflict", message, "Warning"))
    elif stored_pool["spec"] != pool["spec"]:
        result.writes.append(Update({**stored_pool, "spec": pool["spec"]}))
        result.events.append(_cluster_event(cluster, "NodePoolUpdated", f"updated node pool {name}"))
    return True


def _cluster_event(cluster: Obj, reason: str, message: str, event_type: str = "Normal") -> EventRecord:
    return EventRecord(Key(scheme.CLUSTER, "", cluster["metadata"]["name"]), event_type, reason, message)


def _applied_hash_by_pool(cluster: Obj) -> dict[str, str]:
    try:
        hashes = json.loads(annotation(cluster, well_known.APPLIED_NODE_POOLS) or "{}")
    except ValueError:
        return {}
    return hashes if isinstance(hashes, dict) else {}


def _hash_of_pool_entry(pool_entry: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(pool_entry, sort_keys=True).encode()).hexdigest()[:_HASH_LENGTH]


def _pool_key(name: str) -> Key:
    return Key(scheme.NODE_POOL, "", name)
