"""The `kubectl get` columns of Kubernetes's Services, Ingresses, volumes, workload controllers, quotas and policies.

Source: Kubernetes's pkg/printers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj, controller_of
from batchyard.api.printing import cells
from batchyard.api.printing.cells import NONE, PENDING, Cell, Column, format_value, value_at, value_cell
from batchyard.api.times import parse_time
from batchyard.api.views.volumes import storage_class_name
from batchyard.base.instant import Instant, format_age

# Cells of Services, Endpoints and Ingresses. Source: Kubernetes's pkg/printers/internalversion.


#: The maximum number of addresses or hosts in a cell.
_SHOWN_MAX: Final = 3


def service_type(obj: Obj, _now: Instant) -> str:
    """Return the type of a Service, by default ClusterIP."""
    return value_at(obj, "spec", "type") or "ClusterIP"


def cluster_ip(obj: Obj, _now: Instant) -> str:
    """Return the first cluster IP of a Service, or `<none>`."""
    addresses_of_service = value_at(obj, "spec", "clusterIPs") or [value_at(obj, "spec", "clusterIP")]
    return addresses_of_service[0] or NONE


def external_ip(obj: Obj, now: Instant) -> str:
    """Return a Service's external addresses (of load balancers, and external IPs) or its external name.

    Without addresses, return `<pending>` for a Service of type LoadBalancer, and `<none>` for others.
    """
    external_addresses = list(value_at(obj, "spec", "externalIPs") or ())
    match service_type(obj, now):
        case "LoadBalancer":
            return ",".join([*_load_balancer_addresses(obj), *external_addresses]) or PENDING
        case "ExternalName":
            return format_value(value_at(obj, "spec", "externalName"))
    return ",".join(external_addresses) or NONE


def service_ports(obj: Obj, _now: Instant) -> str:
    """Return the ports of a Service with node ports and protocols, such as `80:30080/TCP`; `<none>` without ports."""
    return ",".join(map(_service_port_text, value_at(obj, "spec", "ports") or ())) or NONE


def endpoint_addresses(obj: Obj, _now: Instant) -> str:
    """Return the first three addresses of Endpoints with ports, and the number of further ones; `<none>` if none."""
    address_texts = [
        f"{address['ip']}:{port['port']}" if port else str(address["ip"])
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or [{}]
        for address in subset.get("addresses") or ()
    ]
    return _first_three(address_texts)


def slice_ports(obj: Obj, _now: Instant) -> str:
    """Return the first three ports of an EndpointSlice, and the number of further ones.

    Return `<unset>` if the field `ports` is missing, and `<none>` if it is empty.
    """
    port_list = obj.get("ports")
    if port_list is None:
        return "<unset>"
    return _first_three([str(port.get("port", "*")) for port in port_list])


def slice_endpoints(obj: Obj, _now: Instant) -> str:
    """Return the first three addresses of an EndpointSlice, and the number of further ones.

    Return `<unset>` if the field `endpoints` is missing, and `<none>` if it contains no addresses.
    """
    endpoint_list = obj.get("endpoints")
    if endpoint_list is None:
        return "<unset>"
    return _first_three([str(address) for endpoint in endpoint_list for address in endpoint.get("addresses") or ()])


def ingress_hosts(obj: Obj, _now: Instant) -> str:
    """Return the hosts of the first three rules of an Ingress, and the number of further rules; `*` without hosts."""
    rules = value_at(obj, "spec", "rules") or ()
    return _first_three_of_total([rule["host"] for rule in rules[:_SHOWN_MAX] if rule.get("host")], len(rules)) or "*"


def ingress_addresses(obj: Obj, _now: Instant) -> str:
    """Return the load balancer addresses of an Ingress, separated by commas."""
    return ",".join(_load_balancer_addresses(obj))


def _first_three_of_total(texts: Sequence[str], total: int) -> str:
    joined_texts = ",".join(texts[:_SHOWN_MAX])
    return f"{joined_texts} + {total - _SHOWN_MAX} more..." if joined_texts and total > _SHOWN_MAX else joined_texts


def _first_three(texts: Sequence[str]) -> str:
    remainder_text = f" + {len(texts) - _SHOWN_MAX} more..." if len(texts) > _SHOWN_MAX else ""
    return ",".join(texts[:_SHOWN_MAX]) + remainder_text or NONE


def _load_balancer_addresses(obj: Obj) -> list[str]:
    ingress_points = value_at(obj, "status", "loadBalancer", "ingress") or ()
    return sorted(dict.fromkeys(point.get("ip") or point["hostname"] for point in ingress_points))


def _service_port_text(port: Mapping[str, Any]) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


# Cells of PersistentVolumes and PersistentVolumeClaims. Source: Kubernetes's pkg/printers/internalversion.


_NAME_COLUMN: Final = (Column("Name"), cells.name)
_AGE_COLUMN: Final = (Column("Age"), cells.age_text)
_UNSET_TEXT: Final = "<unset>"
_MODE_CODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _phase_text(obj: Obj, _now: Instant) -> str:
    return "Terminating" if "deletionTimestamp" in obj["metadata"] else format_value(value_at(obj, "status", "phase"))


def _access_modes_cell(section: str) -> Cell:
    def cell(obj: Obj, _now: Instant) -> str:
        access_modes = value_at(obj, section, "accessModes") or ()
        return ",".join(short for mode, short in _MODE_CODES.items() if mode in access_modes)

    return cell


def _volume_claim_text(obj: Obj, _now: Instant) -> str:
    claim_reference = value_at(obj, "spec", "claimRef")
    return f"{claim_reference.get('namespace', '')}/{claim_reference.get('name', '')}" if claim_reference else ""


_CLASS_COLUMNS: Final = (
    (Column("StorageClass"), lambda obj, _now: storage_class_name(obj)),
    (Column("VolumeAttributesClass"), value_cell("spec", "volumeAttributesClassName", default=_UNSET_TEXT)),
)
_VOLUME_MODE_COLUMN: Final = (Column("VolumeMode", priority=1), value_cell("spec", "volumeMode", default=_UNSET_TEXT))

VOLUMES: Final = (
    _NAME_COLUMN,
    (Column("Capacity"), value_cell("spec", "capacity", "storage", default="0")),
    (Column("Access Modes"), _access_modes_cell("spec")),
    (Column("Reclaim Policy"), value_cell("spec", "persistentVolumeReclaimPolicy")),
    (Column("Status"), _phase_text),
    (Column("Claim"), _volume_claim_text),
    *_CLASS_COLUMNS,
    (Column("Reason"), value_cell("status", "reason")),
    _AGE_COLUMN,
    _VOLUME_MODE_COLUMN,
)
CLAIMS: Final = (
    _NAME_COLUMN,
    (Column("Status"), _phase_text),
    (Column("Volume"), value_cell("spec", "volumeName")),
    (Column("Capacity"), value_cell("status", "capacity", "storage")),
    (Column("Access Modes"), _access_modes_cell("status")),
    *_CLASS_COLUMNS,
    _AGE_COLUMN,
    _VOLUME_MODE_COLUMN,
)


NAME: Final = (Column("Name"), cells.name)
AGE: Final = (Column("Age"), cells.age_text)
_TEMPLATE_SPEC_PATH: Final = ("spec", "template", "spec")
_NOT_AVAILABLE_TEXT: Final = "N/A"


def _ready_replicas(obj: Obj, _now: Instant) -> str:
    desired_count = value_at(obj, "spec", "replicas")
    return f"{value_at(obj, 'status', 'readyReplicas') or 0}/{1 if desired_count is None else desired_count}"


def _status_count_cell(field: str) -> Cell:
    return value_cell("status", field, default=0)


def _spec_value_cell(field: str) -> Cell:
    return value_cell("spec", field, default=_NOT_AVAILABLE_TEXT)


def _controller_text(obj: Obj, _now: Instant) -> str:
    owner = controller_of(obj)
    if owner is None:
        return NONE
    group = owner["apiVersion"].rpartition("/")[0]
    return f"{owner['kind'].lower()}{f'.{group}' if group else ''}/{owner['name']}"


def _last_schedule_age(obj: Obj, now: Instant) -> str:
    last_schedule_time = value_at(obj, "status", "lastScheduleTime")
    return format_age(now - parse_time(last_schedule_time)) if last_schedule_time else NONE


def _used_of_hard_text(obj: Obj, is_limit: bool) -> str:
    hard_amounts, used_amounts = value_at(obj, "status", "hard") or {}, value_at(obj, "status", "used") or {}
    names = sorted(name for name in hard_amounts if name.startswith("limits") is is_limit)
    return ", ".join(
        f"{name}: {format_value(used_amounts.get(name, 0))}/{format_value(hard_amounts[name])}" for name in names
    )


def _container_columns(*path: str) -> tuple[tuple[Column, Cell], ...]:
    return (
        (Column("Containers", priority=1), cells.containers_cell("name", *path)),
        (Column("Images", priority=1), cells.containers_cell("image", *path)),
    )


_SELECTOR_COLUMN: Final = (Column("Selector", priority=1), cells.selector_cell())

DEPLOYMENTS: Final = (
    NAME,
    (Column("Ready"), _ready_replicas),
    (Column("Up-to-date", counts=True), _status_count_cell("updatedReplicas")),
    (Column("Available", counts=True), _status_count_cell("availableReplicas")),
    AGE,
    *_container_columns(*_TEMPLATE_SPEC_PATH),
    _SELECTOR_COLUMN,
)
REPLICA_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), value_cell("spec", "replicas", default=1)),
    (Column("Current", type="integer"), _status_count_cell("replicas")),
    (Column("Ready", type="integer"), _status_count_cell("readyReplicas")),
    AGE,
    *_container_columns(*_TEMPLATE_SPEC_PATH),
    _SELECTOR_COLUMN,
)
REPLICATION_CONTROLLERS: Final = (
    *REPLICA_SETS[:-1],
    (Column("Selector", priority=1), cells.labels_cell("spec", "selector")),
)
STATEFUL_SETS: Final = (NAME, (Column("Ready"), _ready_replicas), AGE, *_container_columns(*_TEMPLATE_SPEC_PATH))
DAEMON_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), _status_count_cell("desiredNumberScheduled")),
    (Column("Current", type="integer"), _status_count_cell("currentNumberScheduled")),
    (Column("Ready", type="integer"), _status_count_cell("numberReady")),
    (Column("Up-to-date", type="integer"), _status_count_cell("updatedNumberScheduled")),
    (Column("Available", type="integer"), _status_count_cell("numberAvailable")),
    (Column("Node Selector"), cells.labels_cell(*_TEMPLATE_SPEC_PATH, "nodeSelector")),
    AGE,
    *_container_columns(*_TEMPLATE_SPEC_PATH),
    _SELECTOR_COLUMN,
)
CONTROLLER_REVISIONS: Final = (
    NAME,
    (Column("Controller"), _controller_text),
    (Column("Revision"), value_cell("revision", default=0)),
    AGE,
)
CRON_JOBS: Final = (
    NAME,
    (Column("Schedule"), value_cell("spec", "schedule")),
    (Column("Timezone"), value_cell("spec", "timeZone", default=NONE)),
    (Column("Suspend", type="boolean"), lambda obj, _now: str(bool(value_at(obj, "spec", "suspend")))),
    (Column("Active", type="integer"), cells.count_at_path_cell("status", "active")),
    (Column("Last Schedule"), _last_schedule_age),
    AGE,
    *_container_columns("spec", "jobTemplate", *_TEMPLATE_SPEC_PATH),
    (Column("Selector", priority=1), cells.selector_cell("spec", "jobTemplate", "spec", "selector")),
)
DISRUPTION_BUDGETS: Final = (
    NAME,
    (Column("Min Available"), _spec_value_cell("minAvailable")),
    (Column("Max Unavailable"), _spec_value_cell("maxUnavailable")),
    (Column("Allowed Disruptions", type="integer"), _status_count_cell("disruptionsAllowed")),
    AGE,
)
RESOURCE_QUOTAS: Final = (
    NAME,
    (Column("Request"), lambda obj, _now: _used_of_hard_text(obj, is_limit=False)),
    (Column("Limit"), lambda obj, _now: _used_of_hard_text(obj, is_limit=True)),
    AGE,
)
LIMIT_RANGES: Final = (NAME, (Column("Created At", type="date"), cells.creation_time_text))
NETWORK_POLICIES: Final = (NAME, (Column("Pod-Selector"), cells.selector_cell("spec", "podSelector")), AGE)


# Cells of HorizontalPodAutoscalers. Source: Kubernetes's pkg/printers/internalversion/printers.go (formatHPAMetrics).


_METRIC_FIELDS: Final = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}
_SHOWN_METRICS_MAX: Final = 2
_UNKNOWN_TEXT: Final = "<unknown>"


def autoscaler_targets(obj: Obj, _now: Instant) -> str:
    """Return the current and the target value of the first two metrics, and the number of further metrics."""
    metrics, statuses = value_at(obj, "spec", "metrics") or (), value_at(obj, "status", "currentMetrics") or ()
    if not metrics:
        return NONE
    texts = [_metric_text(metric, statuses[i] if i < len(statuses) else {}) for i, metric in enumerate(metrics)]
    joined_texts = ", ".join(texts[:_SHOWN_METRICS_MAX])
    hidden_count = len(texts) - _SHOWN_METRICS_MAX
    return f"{joined_texts} + {hidden_count} more..." if hidden_count > 0 else joined_texts


def _metric_text(metric: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    field = _METRIC_FIELDS.get(metric["type"])
    if field is None or metric.get(field) is None:
        return "<unknown type>"
    source, target = metric[field], metric[field].get("target") or {}
    current = (status.get(field) or {}).get("current") or {}
    is_resource = field in {"resource", "containerResource"}
    prefix = f"{source.get('name', '')}: " if is_resource else ""
    if target.get("averageValue") is not None:
        suffix = " (avg)" if field in {"object", "external"} else ""
        return f"{prefix}{current.get('averageValue', _UNKNOWN_TEXT)}/{target['averageValue']}{suffix}"
    if not is_resource:
        return f"{current.get('value', _UNKNOWN_TEXT)}/{target.get('value', '')}"
    utilization, target_utilization = current.get("averageUtilization"), target.get("averageUtilization")
    current_text = _UNKNOWN_TEXT if utilization is None else f"{utilization}%"
    return f"{prefix}{current_text}/{'<auto>' if target_utilization is None else f'{target_utilization}%'}"


def _scale_target_text(obj: Obj, _now: Instant) -> str:
    reference = value_at(obj, "spec", "scaleTargetRef") or {}
    return f"{reference.get('kind', '')}/{reference.get('name', '')}"


AUTOSCALERS: Final = (
    NAME,
    (Column("Reference"), _scale_target_text),
    (Column("Targets"), autoscaler_targets),
    (Column("MinPods"), value_cell("spec", "minReplicas", default="<unset>")),
    (Column("MaxPods"), value_cell("spec", "maxReplicas", default=0)),
    (Column("Replicas"), _status_count_cell("currentReplicas")),
    AGE,
)


# Cells of StorageClasses.


_DEFAULT_CLASS_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def _storage_class_text(obj: Obj, _now: Instant) -> str:
    annotations = obj["metadata"].get("annotations") or {}
    is_default = any(annotations.get(name) == "true" for name in _DEFAULT_CLASS_ANNOTATIONS)
    return f"{obj['metadata']['name']}{' (default)' if is_default else ''}"


STORAGE_CLASSES: Final = (
    (Column("Name"), _storage_class_text),
    (Column("Provisioner"), value_cell("provisioner")),
    (Column("ReclaimPolicy"), value_cell("reclaimPolicy", default="Delete")),
    (Column("VolumeBindingMode"), value_cell("volumeBindingMode", default="Immediate")),
    (Column("AllowVolumeExpansion"), lambda obj, _now: "true" if obj.get("allowVolumeExpansion") else "false"),
    AGE,
)


def _missing_level_text(obj: Obj, _now: Instant) -> str:
    """Return the status of the condition Dangling: whether the priority level is missing; `?` without condition."""
    conditions = value_at(obj, "status", "conditions") or ()
    return next((each["status"] for each in conditions if each["type"] == "Dangling"), "?")


FLOW_SCHEMAS: Final = (
    (Column("Name"), value_cell("metadata", "name")),
    (Column("PriorityLevel"), value_cell("spec", "priorityLevelConfiguration", "name")),
    (Column("MatchingPrecedence", type="integer"), value_cell("spec", "matchingPrecedence")),
    (Column("DistinguisherMethod"), value_cell("spec", "distinguisherMethod", "type", default=NONE)),
    AGE,
    (Column("MissingPL"), _missing_level_text),
)
_QUEUING: Final = ("spec", "limited", "limitResponse", "queuing")
PRIORITY_LEVELS: Final = (
    (Column("Name"), value_cell("metadata", "name")),
    (Column("Type"), value_cell("spec", "type")),
    (Column("NominalConcurrencyShares"), value_cell("spec", "limited", "nominalConcurrencyShares", default=NONE)),
    (Column("Queues"), value_cell(*_QUEUING, "queues", default=NONE)),
    (Column("HandSize"), value_cell(*_QUEUING, "handSize", default=NONE)),
    (Column("QueueLengthLimit"), value_cell(*_QUEUING, "queueLengthLimit", default=NONE)),
    AGE,
)


# Cells of admission policies and their bindings. Source: Kubernetes's pkg/printers/internalversion/printers.go.


_UNSET: Final = "<unset>"


def policy_param_kind(obj: Obj, _now: Instant) -> str:
    """Return the kind of an admission policy's parameters, such as `v1/ConfigMap`; `<unset>` without parameters."""
    kind = value_at(obj, "spec", "paramKind")
    return _UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}"


def policy_param_reference(obj: Obj, _now: Instant) -> str:
    """Return the namespace (by default `*`) and name, or the selector, of a policy binding's parameters."""
    reference = value_at(obj, "spec", "paramRef") or {}
    if name := reference.get("name"):
        return f"{reference.get('namespace') or '*'}/{name}"
    selector = reference.get("selector")
    return _UNSET if selector is None else format_go_selector(selector)


def format_go_selector(selector: Mapping[str, Any]) -> str:
    """Format a label selector as the method String of its Go type does."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((selector.get("matchLabels") or {}).items()))
    requirements = "".join(
        f"LabelSelectorRequirement{{Key:{each['key']},Operator:{each['operator']},"
        f"Values:[{' '.join(each.get('values') or ())}],}},"
        for each in selector.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )
