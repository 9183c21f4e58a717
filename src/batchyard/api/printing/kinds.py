"""Table definitions: the columns of every kind, each with its cell."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, event_count, event_last_time, find_condition, is_true
from batchyard.api.printing import cells, kubernetes
from batchyard.api.printing.cells import NONE, UNKNOWN, Cell, Column, at, chosen, text, value
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, Instant, format_age

# --- pods ---
#
# Cells of Pods: ready containers, and the status word.
#
# Source: printPod of Kubernetes's pkg/printers/internalversion.


Container: TypeAlias = Mapping[str, Any]

_ENDED: Final = ("Succeeded", "Failed")
#: The reason of pods on an unreachable node.
_NODE_LOST: Final = "NodeLost"
_GATED: Final = "SchedulingGated"


class _Start(NamedTuple):
    """The progress of the init containers."""

    #: The statuses up to the first that is not done.
    begun: Sequence[Container]
    #: The state of the first that is not done; empty if all are done.
    reason: str
    #: The number of ready sidecars.
    ready: int


def ready(obj: Obj, _now: Instant) -> str:
    """Return the ready containers and the total, including sidecars."""
    start = _start(obj)
    running = [each for each in _counted(obj, start) if _is_running(each)]
    total = len(value(obj, "spec", "containers") or ()) + len(_sidecars(obj))
    return f"{start.ready + len(running)}/{total}"


def status(obj: Obj, _now: Instant) -> str:
    """Return the status word of a pod: its deletion, the reason of its containers, or its phase."""
    phase, pod_reason = value(obj, "status", "phase"), value(obj, "status", "reason")
    if obj["metadata"].get("deletionTimestamp"):
        if pod_reason == _NODE_LOST:
            return "Unknown"
        if phase not in _ENDED:
            return "Terminating"
    gated = (find_condition(obj, "PodScheduled") or {}).get("reason") == _GATED
    start = _start(obj)
    return _of_containers(obj, start) or start.reason or (_GATED if gated else text(pod_reason or phase))


def restarts(obj: Obj, now: Instant) -> str:
    """Return the number of container restarts, and the time since the last one."""
    start = _start(obj)
    sidecars = _sidecars(obj)
    beside = [each for each in start.begun if each["name"] in sidecars]
    counted = [*beside, *_counted(obj, start)] if _is_prepared(obj, start) else start.begun
    times = sum(each.get("restartCount") or 0 for each in counted)
    ends = [value(each, "lastState", "terminated", "finishedAt") for each in counted]
    last = max((parse_time(end) for end in ends if end), default=None)
    return str(times) if not times or last is None else f"{times} ({format_age(now - last)} ago)"


def ip(obj: Obj, _now: Instant) -> str:
    """Return the pod's IP address."""
    addresses = value(obj, "status", "podIPs") or [{"ip": value(obj, "status", "podIP")}]
    return addresses[0].get("ip") or NONE


def readiness_gates(obj: Obj, _now: Instant) -> str:
    """Return the number of readiness gates that are true, and the total."""
    gates = value(obj, "spec", "readinessGates") or ()
    return f"{sum(is_true(obj, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else NONE


def _of_containers(obj: Obj, start: _Start) -> str:
    """Return the reason of the first container that does not run; empty if there is none."""
    counted = _counted(obj, start)
    reason = next(filter(None, map(_why_not_running, counted)), "")
    if reason == "Completed" and any(map(_is_running, counted)):
        return "Running" if is_true(obj, "Ready") else "NotReady"
    return reason


def _counted(obj: Obj, start: _Start) -> Sequence[Container]:
    """Return the statuses of the main containers, once the init containers are done."""
    return (value(obj, "status", "containerStatuses") or ()) if _is_prepared(obj, start) else ()


def _is_prepared(obj: Obj, start: _Start) -> bool:
    return not start.reason or is_true(obj, "Initialized")


def _start(obj: Obj) -> _Start:
    """Return the progress of the init containers."""
    sidecars, total = _sidecars(obj), len(value(obj, "spec", "initContainers") or ())
    begun: list[Container] = []
    up = 0
    for index, container in enumerate(value(obj, "status", "initContainerStatuses") or ()):
        begun.append(container)
        ended = value(container, "state", "terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] not in sidecars or not container.get("started"):
            return _Start(begun, f"Init:{_why_not_running(container, 'PodInitializing') or f'{index}/{total}'}", up)
        up += bool(container.get("ready"))
    return _Start(begun, "", up)


def _sidecars(obj: Obj) -> Mapping[str, None]:
    """Return the sidecars: init containers with restartPolicy Always."""
    found = value(obj, "spec", "initContainers") or ()
    return {each["name"]: None for each in found if each.get("restartPolicy") == "Always"}


def _why_not_running(container: Container, usual: str = "") -> str:
    """Return the waiting reason of a container, unless it is `usual`, or its exit reason; empty if it runs."""
    waits, ended = (value(container, "state", way) for way in ("waiting", "terminated"))
    if waits is not None and waits.get("reason"):
        return "" if waits["reason"] == usual else str(waits["reason"])
    if ended is None:
        return ""
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _is_running(container: Container) -> bool:
    return bool(container.get("ready")) and value(container, "state", "running") is not None


# --- cloud ---
#
# Cells of Clusters, NodePools, Instances and ResizeRequests.


def zones(obj: Obj, _now: Instant) -> str:
    """Return the zones of a cluster or a pool."""
    return ",".join(value(obj, "spec", "zones") or ())


def size(obj: Obj, _now: Instant) -> str:
    """Return the possible sizes of a pool: `4` or `0-24` for each zone, `0-24 total` for all zones."""
    spec = obj.get("spec") or {}
    bounds = spec.get("autoscaling")
    if bounds is None:
        return text(spec.get("nodeCount"))
    if "totalMax" in bounds:
        return f"{bounds.get('totalMin', 0)}-{bounds['totalMax']} total"
    return f"{bounds.get('min', 0)}-{text(bounds.get('max'))}"


def phase(obj: Obj, _now: Instant) -> str:
    """Return the phase of an instance; Terminating if it is being deleted."""
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return value(obj, "status", "phase") or "Pending"


# --- costs ---
#
# Cells of Budgets and of cost records.


_CENT: Final = 10_000


def amount(obj: Obj, _now: Instant) -> str:
    """Return the amount of a Budget: `$5000` or `120 accelerator hours`."""
    spec = obj.get("spec") or {}
    dollars = spec.get("dollars")
    return f"${dollars}" if dollars is not None else f"{text(spec.get('acceleratorHours'))} accelerator hours"


def state(obj: Obj, _now: Instant) -> str:
    """Return the state of a Budget: the reason of its condition Exceeded."""
    conditions = value(obj, "status", "conditions") or ()
    return next((str(each["reason"]) for each in conditions if each["type"] == "Exceeded"), "")


def node_hours(obj: Obj, _now: Instant) -> str:
    """Return the node hours of all lines of a record."""
    return f"{_sum(obj, 'nodeMicroseconds') / HOUR:.2f}"


def dollars(obj: Obj, _now: Instant) -> str:
    """Return the total cost of a record, to the cent."""
    cents = (_sum(obj, "microdollars") + _CENT // 2) // _CENT
    return f"{cents // 100}.{cents % 100:02}"


def _sum(obj: Obj, field: str) -> int:
    return sum(line.get(field, 0) for line in value(obj, "spec", "lines") or ())


# --- events ---
#
# Cells of Events. Source: Kubernetes's pkg/printers/internalversion (printEvent).


def _last_seen(obj: Obj, now: Instant) -> str:
    at_last = event_last_time(obj)
    return format_age(now - parse_time(at_last)) if at_last else UNKNOWN


def _first_seen(obj: Obj, now: Instant) -> str:
    at_first = obj.get("firstTimestamp") or obj.get("eventTime")
    return format_age(now - parse_time(at_first)) if at_first else UNKNOWN


def _count(obj: Obj, _now: Instant) -> str:
    return str(event_count(obj))


def _object(obj: Obj, _now: Instant) -> str:
    kind, name = (value(obj, "involvedObject", field) or "" for field in ("kind", "name"))
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _source(obj: Obj, _now: Instant) -> str:
    component = value(obj, "source", "component") or obj.get("reportingComponent") or ""
    host = value(obj, "source", "host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


EVENTS: Final = (
    (Column("Last Seen"), _last_seen),
    (Column("Type"), at("type")),
    (Column("Reason"), at("reason")),
    (Column("Object"), _object),
    (Column("Subobject", priority=1), at("involvedObject", "fieldPath")),
    (Column("Source", priority=1), _source),
    (Column("Message"), lambda obj, _now: (obj.get("message") or "").strip()),
    (Column("First Seen", priority=1), _first_seen),
    (Column("Count", priority=1, counts=True), _count),
    (Column("Name", priority=1), cells.name),
)


# --- jobs ---
#
# Cells of Jobs. The duration runs from the start to the completion, or to the present.
#
# Source: Kubernetes's pkg/printers/internalversion.


_CONDITIONS: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def condition_status_cell(obj: Obj, _now: Instant) -> str:
    """Return the status of a Job: the first condition that is true, in the order of Kubernetes."""
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((type_ for type_ in _CONDITIONS if is_true(obj, type_)), "Running")


def completions(obj: Obj, _now: Instant) -> str:
    """Return the succeeded pods and the completions; without completions, one success completes the Job."""
    succeeded = value(obj, "status", "succeeded") or 0
    wanted, parallelism = value(obj, "spec", "completions"), value(obj, "spec", "parallelism") or 0
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def duration(obj: Obj, now: Instant) -> str:
    """Return the duration of the Job."""
    start, end = value(obj, "status", "startTime"), value(obj, "status", "completionTime")
    if not start:
        return ""
    return format_age((parse_time(end) if end else now) - parse_time(start))


# --- nodes ---
#
# Cells of Nodes. Source: Kubernetes's pkg/printers/internalversion.


def nodes_status(obj: Obj, _now: Instant) -> str:
    """Return the readiness of a node, and whether scheduling is disabled."""
    ready = find_condition(obj, "Ready")
    known = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return f"{known},SchedulingDisabled" if value(obj, "spec", "unschedulable") else known


def roles(obj: Obj, _now: Instant) -> str:
    """Return the roles in a node's labels."""
    labels = obj["metadata"].get("labels") or {}
    prefix = well_known.NODE_ROLE_PREFIX
    found = [key.removeprefix(prefix) for key in labels if key.startswith(prefix)]
    found.append(labels.get(well_known.OLD_NODE_ROLE) or "")
    return ",".join(sorted(dict.fromkeys(filter(None, found)))) or NONE


def address(type_: str) -> Cell:
    """Return the cell of a node's first address of a type."""

    def cell(obj: Obj, _now: Instant) -> str:
        addresses = value(obj, "status", "addresses") or ()
        return next((str(each["address"]) for each in addresses if each["type"] == type_), NONE)

    return cell


# --- rbac ---
#
# Cells of roles and their bindings. Source: Kubernetes's pkg/printers/internalversion.


def role(obj: Obj, _now: Instant) -> str:
    """Return the role of a binding: `ClusterRole/view`."""
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def subjects(kind: str) -> Cell:
    """Return the cell of the subjects of a kind."""

    def cell(obj: Obj, _now: Instant) -> str:
        found = [subject for subject in obj.get("subjects") or () if subject["kind"] == kind]
        return ", ".join(
            f"{each.get('namespace', '')}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in found
        )

    return cell


_NAME: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age)
#: The age column as in CRDs.
_AGE_OF_CUSTOM: Final = (Column("Age", type="date"), cells.age)
NAME_AND_AGE: Final = (_NAME, _AGE_OF_CUSTOM)
_PENDING: Final = (Column("Pending Workloads", type="integer"), at("status", "pendingWorkloads"))
_ADMITTED: Final = at("status", "admittedWorkloads")
_TEMPLATE: Final = ("spec", "template", "spec")
_SYSTEM: Final = ("status", "nodeInfo")
_ROLE: Final = (_NAME, (Column("Created At", type="date"), cells.created))
_BINDING: Final = (
    _NAME,
    (Column("Role"), role),
    _AGE,
    (Column("Users", priority=1), subjects("User")),
    (Column("Groups", priority=1), subjects("Group")),
    (Column("ServiceAccounts", priority=1), subjects("ServiceAccount")),
)
_PROVISIONING: Final = at("spec", "provisioning", default="standard")

TABLES: Final[Mapping[str, Sequence[tuple[Column, Cell]]]] = {
    scheme.EVENT: EVENTS,
    scheme.DEPLOYMENT: kubernetes.DEPLOYMENTS,
    scheme.REPLICA_SET: kubernetes.REPLICA_SETS,
    scheme.STATEFUL_SET: kubernetes.STATEFUL_SETS,
    scheme.DAEMON_SET: kubernetes.DAEMON_SETS,
    scheme.CRON_JOB: kubernetes.CRON_JOBS,
    scheme.POD_DISRUPTION_BUDGET: kubernetes.DISRUPTION_BUDGETS,
    scheme.RESOURCE_QUOTA: kubernetes.RESOURCE_QUOTAS,
    scheme.LIMIT_RANGE: kubernetes.LIMIT_RANGES,
    scheme.NETWORK_POLICY: kubernetes.NETWORK_POLICIES,
    scheme.REPLICATION_CONTROLLER: kubernetes.REPLICATION_CONTROLLERS,
    scheme.ENDPOINTS: (_NAME, (Column("Endpoints"), kubernetes.endpoints), _AGE),
    scheme.INGRESS: (
        _NAME,
        (Column("Class"), at("spec", "ingressClassName", default=NONE)),
        (Column("Hosts"), kubernetes.hosts),
        (Column("Address"), kubernetes.addresses),
        (Column("Ports"), lambda obj, _now: "80, 443" if value(obj, "spec", "tls") else "80"),
        _AGE,
    ),
    scheme.PERSISTENT_VOLUME: kubernetes.VOLUMES,
    scheme.PERSISTENT_VOLUME_CLAIM: kubernetes.CLAIMS,
    scheme.CLUSTER_QUEUE: (
        _NAME,
        (Column("Cohort"), at("spec", "cohortName")),
        (Column("Strategy", priority=1), at("spec", "queueingStrategy")),
        _PENDING,
        (Column("Admitted Workloads", priority=1, type="integer"), _ADMITTED),
    ),
    scheme.LOCAL_QUEUE: (
        _NAME,
        (Column("ClusterQueue"), at("spec", "clusterQueue")),
        _PENDING,
        (Column("Admitted Workloads", type="integer"), _ADMITTED),
    ),
    scheme.WORKLOAD: (
        _NAME,
        (Column("Queue"), at("spec", "queueName")),
        (Column("Reserved in"), at("status", "admission", "clusterQueue")),
        (Column("Admitted"), cells.ConditionStatus("Admitted")),
        (Column("Finished"), cells.ConditionStatus("Finished")),
        _AGE_OF_CUSTOM,
    ),
    scheme.PROVISIONING_REQUEST: (
        _NAME,
        (Column("Accepted"), cells.ConditionStatus("Accepted")),
        (Column("Provisioned"), cells.ConditionStatus("Provisioned")),
        (Column("Failed"), cells.ConditionStatus("Failed")),
        _AGE_OF_CUSTOM,
    ),
    scheme.WORKLOAD_PRIORITY_CLASS: (_NAME, (Column("Value", type="integer"), at("value"))),
    scheme.MULTI_KUEUE_CLUSTER: (_NAME, (Column("Connected"), cells.ConditionStatus("Active")), _AGE_OF_CUSTOM),
    scheme.JOB_SET: (
        _NAME,
        (Column("TerminalState"), at("status", "terminalState")),
        (Column("Restarts"), at("status", "restarts")),
        (Column("Completed"), cells.ConditionStatus("Completed")),
        (Column("Suspended"), at("spec", "suspend")),
        _AGE_OF_CUSTOM,
    ),
    scheme.JOB: (
        _NAME,
        (Column("Status"), condition_status_cell),
        (Column("Completions"), completions),
        (Column("Duration"), duration),
        _AGE,
        (Column("Containers", priority=1), cells.containers("name", *_TEMPLATE)),
        (Column("Images", priority=1), cells.containers("image", *_TEMPLATE)),
        (Column("Selector", priority=1), cells.selector()),
    ),
    scheme.NAMESPACE: (_NAME, (Column("Status"), at("status", "phase")), _AGE),
    scheme.PRIORITY_CLASS: (
        _NAME,
        (Column("Value", type="integer"), at("value", default=0)),
        (Column("Global-Default", type="boolean"), at("globalDefault", default=False)),
        _AGE,
        (Column("PreemptionPolicy"), at("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    scheme.SERVICE: (
        _NAME,
        (Column("Type"), kubernetes.type_of),
        (Column("Cluster-IP"), kubernetes.cluster_ip),
        (Column("External-IP"), kubernetes.external_ip),
        (Column("Port(s)"), kubernetes.ports),
        _AGE,
        (Column("Selector", priority=1), cells.labels("spec", "selector")),
    ),
    scheme.ENDPOINT_SLICE: (
        _NAME,
        (Column("AddressType"), at("addressType")),
        (Column("Ports"), kubernetes.slice_ports),
        (Column("Endpoints"), kubernetes.slice_endpoints),
        _AGE,
    ),
    scheme.RUNTIME_CLASS: (_NAME, (Column("Handler"), at("handler")), _AGE),
    **dict.fromkeys(
        (scheme.MUTATING_WEBHOOKS, scheme.VALIDATING_WEBHOOKS),
        (_NAME, (Column("Webhooks"), cells.count("webhooks")), _AGE),
    ),
    scheme.CONFIG_MAP: (_NAME, (Column("Data", counts=True), cells.count("data", "binaryData")), _AGE),
    scheme.SECRET: (
        _NAME,
        (Column("Type"), at("type", default="Opaque")),
        (Column("Data", counts=True), cells.count("data")),
        _AGE,
    ),
    scheme.SERVICE_ACCOUNT: (_NAME, (Column("Secrets", counts=True), cells.count("secrets")), _AGE),
    scheme.ROLE: _ROLE,
    scheme.CLUSTER_ROLE: _ROLE,
    scheme.ROLE_BINDING: _BINDING,
    scheme.CLUSTER_ROLE_BINDING: _BINDING,
    scheme.POD: (
        _NAME,
        (Column("Ready"), ready),
        (Column("Status"), status),
        (Column("Restarts"), restarts),
        _AGE,
        (Column("IP", priority=1), ip),
        (Column("Node", priority=1), chosen("spec", "nodeName")),
        (Column("Nominated Node", priority=1), chosen("status", "nominatedNodeName")),
        (Column("Readiness Gates", priority=1), readiness_gates),
    ),
    scheme.NODE: (
        _NAME,
        (Column("Status"), nodes_status),
        (Column("Roles"), roles),
        _AGE,
        (Column("Version"), at(*_SYSTEM, "kubeletVersion")),
        (Column("Internal-IP", priority=1), address("InternalIP")),
        (Column("External-IP", priority=1), address("ExternalIP")),
        (Column("OS-Image", priority=1), at(*_SYSTEM, "osImage", default=UNKNOWN)),
        (Column("Kernel-Version", priority=1), at(*_SYSTEM, "kernelVersion", default=UNKNOWN)),
        (Column("Container-Runtime", priority=1), at(*_SYSTEM, "containerRuntimeVersion", default=UNKNOWN)),
    ),
    scheme.LEASE: (_NAME, (Column("Holder"), at("spec", "holderIdentity")), _AGE),
    scheme.CLUSTER: (_NAME, (Column("Region"), at("spec", "region")), (Column("Zones"), zones), _AGE_OF_CUSTOM),
    scheme.NODE_POOL: (
        _NAME,
        (Column("Machine-Type"), at("spec", "machineType")),
        (Column("Provisioning"), _PROVISIONING),
        (Column("Size"), size),
        (Column("Instances", type="integer"), at("status", "instances", default=0)),
        (Column("Ready", type="integer"), at("status", "ready", default=0)),
        _AGE_OF_CUSTOM,
        (Column("Zones", priority=1), zones),
        (Column("Reservation", priority=1), chosen("spec", "reservation")),
    ),
    scheme.INSTANCE: (
        _NAME,
        (Column("Pool"), at("spec", "pool")),
        (Column("Zone"), at("spec", "zone")),
        (Column("Phase"), phase),
        _AGE_OF_CUSTOM,
        (Column("Machine-Type", priority=1), at("spec", "machineType")),
        (Column("Provisioning", priority=1), _PROVISIONING),
        (Column("Error", priority=1), chosen("status", "error", "code")),
    ),
    scheme.RESIZE_REQUEST: (
        _NAME,
        (Column("Pool"), at("spec", "pool")),
        (Column("Zone"), at("spec", "zone")),
        (Column("Count", type="integer"), at("spec", "count")),
        (Column("State"), at("status", "state")),
        _AGE_OF_CUSTOM,
        (Column("Error", priority=1), chosen("status", "error", "code")),
    ),
    scheme.BUDGET: (
        _NAME,
        (Column("Period"), at("spec", "period", default="Month")),
        (Column("Amount"), amount),
        (Column("Spent"), at("status", "spent")),
        (Column("Remaining"), at("status", "remaining")),
        (Column("Forecast"), at("status", "forecast")),
        (Column("State"), state),
        _AGE_OF_CUSTOM,
    ),
    scheme.COST_RECORD: (
        _NAME,
        (Column("From"), at("spec", "from")),
        (Column("Through"), at("spec", "through")),
        (Column("Node-Hours"), node_hours),
        (Column("Dollars"), dollars),
    ),
    scheme.POD_TEMPLATE: (
        _NAME,
        (Column("Containers"), cells.containers("name", "template", "spec")),
        (Column("Images"), cells.containers("image", "template", "spec")),
        (Column("Pod Labels"), cells.labels("template", "metadata", "labels")),
    ),
}
