"""Cells of Services, volumes, workload controllers, budgets and quotas. Source: Kubernetes's pkg/printers."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import NONE, PENDING, Cell, Column, at, text, value
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age

# --- services ---
#
# Cells of Services, Endpoints and Ingresses. Source: Kubernetes's pkg/printers/internalversion.


#: The maximum number of addresses or hosts in a cell.
_SHOWN: Final = 3


def type_of(obj: Obj, _now: Instant) -> str:
    """Return the type of a Service."""
    return value(obj, "spec", "type") or "ClusterIP"


def cluster_ip(obj: Obj, _now: Instant) -> str:
    """Return the cluster IP of a Service."""
    given = value(obj, "spec", "clusterIPs") or [value(obj, "spec", "clusterIP")]
    return given[0] or NONE


def external_ip(obj: Obj, now: Instant) -> str:
    """Return the external addresses of a Service."""
    external = list(value(obj, "spec", "externalIPs") or ())
    match type_of(obj, now):
        case "LoadBalancer":
            return ",".join([*_load_balancers(obj), *external]) or PENDING
        case "ExternalName":
            return text(value(obj, "spec", "externalName"))
    return ",".join(external) or NONE


def ports(obj: Obj, _now: Instant) -> str:
    """Return the ports of a Service, with node ports."""
    return ",".join(map(_port, value(obj, "spec", "ports") or ())) or NONE


def endpoints(obj: Obj, _now: Instant) -> str:
    """Return the first addresses of Endpoints with their ports, and the number of the others."""
    found = [
        f"{address['ip']}:{port['port']}" if port else str(address["ip"])
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or [{}]
        for address in subset.get("addresses") or ()
    ]
    return _some(found)


def slice_ports(obj: Obj, _now: Instant) -> str:
    """Return the ports of an EndpointSlice."""
    found = obj.get("ports")
    if found is None:
        return "<unset>"
    return _some([str(port.get("port", "*")) for port in found])


def slice_endpoints(obj: Obj, _now: Instant) -> str:
    """Return the addresses of an EndpointSlice."""
    found = obj.get("endpoints")
    if found is None:
        return "<unset>"
    return _some([str(address) for endpoint in found for address in endpoint.get("addresses") or ()])


def hosts(obj: Obj, _now: Instant) -> str:
    """Return the first hosts of an Ingress."""
    rules = value(obj, "spec", "rules") or ()
    return _first([rule["host"] for rule in rules[:_SHOWN] if rule.get("host")], len(rules)) or "*"


def addresses(obj: Obj, _now: Instant) -> str:
    """Return the load balancer addresses of an Ingress."""
    return ",".join(_load_balancers(obj))


def _first(found: Sequence[str], of: int) -> str:
    """Return the first few of many."""
    shown = ",".join(found[:_SHOWN])
    return f"{shown} + {of - _SHOWN} more..." if shown and of > _SHOWN else shown


def _some(found: Sequence[str]) -> str:
    """Return the first three of a list, and the number of the others."""
    more = f" + {len(found) - _SHOWN} more..." if len(found) > _SHOWN else ""
    return ",".join(found[:_SHOWN]) + more or NONE


def _load_balancers(obj: Obj) -> list[str]:
    ingress = value(obj, "status", "loadBalancer", "ingress") or ()
    return sorted(dict.fromkeys(point.get("ip") or point["hostname"] for point in ingress))


def _port(port: Mapping[str, Any]) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


# --- volumes ---
#
# Cells of PersistentVolumes and PersistentVolumeClaims. Source: Kubernetes's pkg/printers/internalversion.


_NAME: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age)
_UNSET: Final = "<unset>"
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _phase(obj: Obj, _now: Instant) -> str:
    return "Terminating" if "deletionTimestamp" in obj["metadata"] else text(value(obj, "status", "phase"))


def _modes(part: str) -> Cell:
    """Return the cell of the access modes of a part of the object, in the order of Kubernetes."""

    def cell(obj: Obj, _now: Instant) -> str:
        found = value(obj, part, "accessModes") or ()
        return ",".join(short for mode, short in _MODES.items() if mode in found)

    return cell


def _class(obj: Obj, _now: Instant) -> str:
    old = (obj["metadata"].get("annotations") or {}).get(_OLD_CLASS)
    return text(value(obj, "spec", "storageClassName") if old is None else old)


def _claim(obj: Obj, _now: Instant) -> str:
    claim = value(obj, "spec", "claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


_CLASSES: Final = (
    (Column("StorageClass"), _class),
    (Column("VolumeAttributesClass"), at("spec", "volumeAttributesClassName", default=_UNSET)),
)
_MODE: Final = (Column("VolumeMode", priority=1), at("spec", "volumeMode", default=_UNSET))

VOLUMES: Final = (
    _NAME,
    (Column("Capacity"), at("spec", "capacity", "storage", default="0")),
    (Column("Access Modes"), _modes("spec")),
    (Column("Reclaim Policy"), at("spec", "persistentVolumeReclaimPolicy")),
    (Column("Status"), _phase),
    (Column("Claim"), _claim),
    *_CLASSES,
    (Column("Reason"), at("status", "reason")),
    _AGE,
    _MODE,
)
CLAIMS: Final = (
    _NAME,
    (Column("Status"), _phase),
    (Column("Volume"), at("spec", "volumeName")),
    (Column("Capacity"), at("status", "capacity", "storage")),
    (Column("Access Modes"), _modes("status")),
    *_CLASSES,
    _AGE,
    _MODE,
)


NAME: Final = (Column("Name"), cells.name)
AGE: Final = (Column("Age"), cells.age)
_TEMPLATE: Final = ("spec", "template", "spec")
_NOT_AVAILABLE: Final = "N/A"


def _ready_of_wanted(obj: Obj, _now: Instant) -> str:
    wanted = value(obj, "spec", "replicas")
    return f"{value(obj, 'status', 'readyReplicas') or 0}/{1 if wanted is None else wanted}"


def _in_status(field: str) -> Cell:
    return at("status", field, default=0)


def _or_not_available(field: str) -> Cell:
    return at("spec", field, default=_NOT_AVAILABLE)


def _last_schedule(obj: Obj, now: Instant) -> str:
    last = value(obj, "status", "lastScheduleTime")
    return format_age(now - parse_time(last)) if last else NONE


def _used(obj: Obj, is_limit: bool) -> str:
    """Return used and hard amounts, of limits or of all others: `requests.cpu: 1/4, pods: 2/10`."""
    hard, used = value(obj, "status", "hard") or {}, value(obj, "status", "used") or {}
    names = sorted(name for name in hard if name.startswith("limits") is is_limit)
    return ", ".join(f"{name}: {text(used.get(name, 0))}/{text(hard[name])}" for name in names)


def _containers(*path: str) -> tuple[tuple[Column, Cell], ...]:
    return (
        (Column("Containers", priority=1), cells.containers("name", *path)),
        (Column("Images", priority=1), cells.containers("image", *path)),
    )


_SELECTOR: Final = (Column("Selector", priority=1), cells.selector())

DEPLOYMENTS: Final = (
    NAME,
    (Column("Ready"), _ready_of_wanted),
    (Column("Up-to-date", counts=True), _in_status("updatedReplicas")),
    (Column("Available", counts=True), _in_status("availableReplicas")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
REPLICA_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), at("spec", "replicas", default=1)),
    (Column("Current", type="integer"), _in_status("replicas")),
    (Column("Ready", type="integer"), _in_status("readyReplicas")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
REPLICATION_CONTROLLERS: Final = (
    *REPLICA_SETS[:-1],
    (Column("Selector", priority=1), cells.labels("spec", "selector")),
)
STATEFUL_SETS: Final = (NAME, (Column("Ready"), _ready_of_wanted), AGE, *_containers(*_TEMPLATE))
DAEMON_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), _in_status("desiredNumberScheduled")),
    (Column("Current", type="integer"), _in_status("currentNumberScheduled")),
    (Column("Ready", type="integer"), _in_status("numberReady")),
    (Column("Up-to-date", type="integer"), _in_status("updatedNumberScheduled")),
    (Column("Available", type="integer"), _in_status("numberAvailable")),
    (Column("Node Selector"), cells.labels(*_TEMPLATE, "nodeSelector")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
CRON_JOBS: Final = (
    NAME,
    (Column("Schedule"), at("spec", "schedule")),
    (Column("Timezone"), at("spec", "timeZone", default=NONE)),
    (Column("Suspend", type="boolean"), lambda obj, _now: str(bool(value(obj, "spec", "suspend")))),
    (Column("Active", type="integer"), cells.count_at("status", "active")),
    (Column("Last Schedule"), _last_schedule),
    AGE,
    *_containers("spec", "jobTemplate", *_TEMPLATE),
    (Column("Selector", priority=1), cells.selector("spec", "jobTemplate", "spec", "selector")),
)
DISRUPTION_BUDGETS: Final = (
    NAME,
    (Column("Min Available"), _or_not_available("minAvailable")),
    (Column("Max Unavailable"), _or_not_available("maxUnavailable")),
    (Column("Allowed Disruptions", type="integer"), _in_status("disruptionsAllowed")),
    AGE,
)
RESOURCE_QUOTAS: Final = (
    NAME,
    (Column("Request"), lambda obj, _now: _used(obj, is_limit=False)),
    (Column("Limit"), lambda obj, _now: _used(obj, is_limit=True)),
    AGE,
)
LIMIT_RANGES: Final = (NAME, (Column("Created At", type="date"), cells.created))
NETWORK_POLICIES: Final = (NAME, (Column("Pod-Selector"), cells.selector("spec", "podSelector")), AGE)
