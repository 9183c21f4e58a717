"""Node heartbeats: Leases of nodes, and when a node counts as lost.

Unchanged heartbeats are not written: a Lease without `renewTime` means that heartbeats continue. When a machine is
lost, the time of its last heartbeat is written once. Sources: k8s.io/component-helpers apimachinery/lease and
pkg/kubelet (intervals), cmd/kube-controller-manager (node-monitor-grace-period and node-startup-grace-period).
"""

from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.times import format_micro_time, parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.nodes.conditions import readiness

LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
BEAT: Final = LEASE_SECONDS * SECOND // 4
MONITOR_GRACE: Final = 50 * SECOND
STARTUP_GRACE: Final = 60 * SECOND


def lease_key(node: str) -> Key:
    """Return the key of a node's Lease."""
    return Key(scheme.LEASE, LEASE_NAMESPACE, node)


def new_lease(node: Obj, now: Instant) -> Obj:
    """Build the Lease of a new node, owned by the node."""
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "acquireTime": format_micro_time(now)},
    }


def is_lease_of(lease: Obj, node: Obj) -> bool:
    """Report whether a Lease belongs to this node, not to an earlier one of the same name."""
    owners = lease["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == node["metadata"]["uid"] for owner in owners)


def is_beating(lease: Obj) -> bool:
    """Report whether heartbeats continue."""
    return "renewTime" not in lease["spec"]


def stopped(lease: Obj, at: Instant) -> Obj:
    """Return the Lease of a lost machine, with the last heartbeat that was due by then."""
    first = parse_time(lease["spec"]["acquireTime"])
    last = first + max(0, at - first) // BEAT * BEAT
    return with_path(lease, ("spec", "renewTime"), format_micro_time(last))


def resumed(lease: Obj, now: Instant) -> Obj:
    """Return the Lease of a machine that is back."""
    spec = {field: value for field, value in lease["spec"].items() if field != "renewTime"}
    return {**lease, "spec": {**spec, "acquireTime": format_micro_time(now)}}


def lost_at(node: Obj, lease: Obj | None) -> Instant | None:
    """Return when a node counts as lost; None while it has heartbeats."""
    if not readiness(node):
        return parse_time(node["metadata"]["creationTimestamp"]) + STARTUP_GRACE
    if lease is None or is_beating(lease) or not is_lease_of(lease, node):
        return None
    return parse_time(lease["spec"]["renewTime"]) + MONITOR_GRACE
