"""The printed columns of all kinds, and the cell functions of Pods, Jobs, Nodes, Events and batchyard's own kinds."""

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
# Cells of Pods: ready containers, status, restarts, IP address, readiness gates.
#
# Source: printPod of Kubernetes's pkg/printers/internalversion.


Container: TypeAlias = Mapping[str, Any]

_TERMINAL_PHASES: Final = ("Succeeded", "Failed")
#: The status reason of pods on an unreachable node.
_NODE_LOST: Final = "NodeLost"
_SCHEDULING_GATED: Final = "SchedulingGated"


class _InitProgress(NamedTuple):
    """The progress of a pod's init containers."""

    #: The statuses of the init containers up to the first unfinished one.
    statuses: Sequence[Container]
    #: The state of the first unfinished init container, such as `Init:0/2`; empty if all have finished.
    reason: str
    #: The number of ready sidecars.
    ready_count: int


def ready(obj: Obj, _now: Instant) -> str:
    """Return the number of ready containers and the total of a pod, including sidecars: `1/2`."""
    init_progress = _init_progress(obj)
    running = [each for each in _main_statuses(obj, init_progress) if _is_running(each)]
    total = len(value(obj, "spec", "containers") or ()) + len(_sidecars(obj))
    return f"{init_progress.ready_count + len(running)}/{total}"


def status(obj: Obj, _now: Instant) -> str:
    """Return the status of a pod: Terminating, the reason of a container that does not run, or the phase."""
    phase, pod_reason = value(obj, "status", "phase"), value(obj, "status", "reason")
    if obj["metadata"].get("deletionTimestamp"):
        if pod_reason == _NODE_LOST:
            return "Unknown"
        if phase not in _TERMINAL_PHASES:
            return "Terminating"
    gated = (find_condition(obj, "PodScheduled") or {}).get("reason") == _SCHEDULING_GATED
    init_progress = _init_progress(obj)
    return (
        _container_reason(obj, init_progress)
        or init_progress.reason
        or (_SCHEDULING_GATED if gated else text(pod_reason or phase))
    )


def restarts(obj: Obj, now: Instant) -> str:
    """Return the number of container restarts of a pod, and the time since the last one: `2 (5m ago)`."""
    init_progress = _init_progress(obj)
    sidecars = _sidecars(obj)
    sidecar_statuses = [
        status_of_container for status_of_container in init_progress.statuses if status_of_container["name"] in sidecars
    ]
    counted = (
        [*sidecar_statuses, *_main_statuses(obj, init_progress)]
        if _is_initialized(obj, init_progress)
        else init_progress.statuses
    )
    count = sum(status_of_container.get("restartCount") or 0 for status_of_container in counted)
    ends = [value(status_of_container, "lastState", "terminated", "finishedAt") for status_of_container in counted]
    last = max((parse_time(end) for end in ends if end), default=None)
    return str(count) if not count or last is None else f"{count} ({format_age(now - last)} ago)"


def ip(obj: Obj, _now: Instant) -> str:
    """Return the first IP address of a pod."""
    addresses = value(obj, "status", "podIPs") or [{"ip": value(obj, "status", "podIP")}]
    return addresses[0].get("ip") or NONE


def readiness_gates(obj: Obj, _now: Instant) -> str:
    """Return the number of a pod's readiness gates that are true, and the total: `1/2`."""
    gates = value(obj, "spec", "readinessGates") or ()
    return f"{sum(is_true(obj, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else NONE


def _container_reason(obj: Obj, init_progress: _InitProgress) -> str:
    """Return the reason of the first main container of a pod that does not run; empty if there is none."""
    counted = _main_statuses(obj, init_progress)
    reason = next(filter(None, map(_why_not_running, counted)), "")
    if reason == "Completed" and any(map(_is_running, counted)):
        return "Running" if is_true(obj, "Ready") else "NotReady"
    return reason


def _main_statuses(obj: Obj, init_progress: _InitProgress) -> Sequence[Container]:
    """Return the statuses of a pod's main containers; none while its init containers run."""
    return (value(obj, "status", "containerStatuses") or ()) if _is_initialized(obj, init_progress) else ()


def _is_initialized(obj: Obj, init_progress: _InitProgress) -> bool:
    return not init_progress.reason or is_true(obj, "Initialized")


def _init_progress(obj: Obj) -> _InitProgress:
    """Return the progress of a pod's init containers."""
    sidecars, total = _sidecars(obj), len(value(obj, "spec", "initContainers") or ())
    statuses: list[Container] = []
    ready_sidecars = 0
    for index, container in enumerate(value(obj, "status", "initContainerStatuses") or ()):
        statuses.append(container)
        ended = value(container, "state", "terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] not in sidecars or not container.get("started"):
            return _InitProgress(
                statuses, f"Init:{_why_not_running(container, 'PodInitializing') or f'{index}/{total}'}", ready_sidecars
            )
        ready_sidecars += bool(container.get("ready"))
    return _InitProgress(statuses, "", ready_sidecars)


def _sidecars(obj: Obj) -> Mapping[str, None]:
    """Return the names of a pod's sidecars: its init containers with restartPolicy Always."""
    init_containers = value(obj, "spec", "initContainers") or ()
    return {each["name"]: None for each in init_containers if each.get("restartPolicy") == "Always"}


def _why_not_running(container: Container, ignored_reason: str = "") -> str:
    """Return the reason why a container waits or has terminated; '' if it runs or waits for `ignored_reason`."""
    waiting, ended = (value(container, "state", state_name) for state_name in ("waiting", "terminated"))
    if waiting is not None and waiting.get("reason"):
        return "" if waiting["reason"] == ignored_reason else str(waiting["reason"])
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
    """Return the zones of a Cluster or NodePool, separated by commas."""
    return ",".join(value(obj, "spec", "zones") or ())


def size(obj: Obj, _now: Instant) -> str:
    """Return the size of a NodePool: `4` or `0-24` nodes in each zone, or `0-24 total` in all zones."""
    spec = obj.get("spec") or {}
    bounds = spec.get("autoscaling")
    if bounds is None:
        return text(spec.get("nodeCount"))
    if "totalMax" in bounds:
        return f"{bounds.get('totalMin', 0)}-{bounds['totalMax']} total"
    return f"{bounds.get('min', 0)}-{text(bounds.get('max'))}"


def phase(obj: Obj, _now: Instant) -> str:
    """Return the phase of an Instance; Terminating if it is being deleted."""
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return value(obj, "status", "phase") or "Pending"


# --- costs ---
#
# Cells of Budgets and of cost records.


_MICRODOLLARS_IN_CENT: Final = 10_000


def amount(obj: Obj, _now: Instant) -> str:
    """Return the amount of a Budget, such as `$5000` or `120 accelerator hours`."""
    spec = obj.get("spec") or {}
    dollars = spec.get("dollars")
    return f"${dollars}" if dollars is not None else f"{text(spec.get('acceleratorHours'))} accelerator hours"


def state(obj: Obj, _now: Instant) -> str:
    """Return the state of a Budget: the reason of its condition Exceeded."""
    conditions = value(obj, "status", "conditions") or ()
    return next((str(each["reason"]) for each in conditions if each["type"] == "Exceeded"), "")


def node_hours(obj: Obj, _now: Instant) -> str:
    """Return the total node hours of a CostRecord, with two decimals."""
    return f"{_sum_lines(obj, 'nodeMicroseconds') / HOUR:.2f}"


def dollars(obj: Obj, _now: Instant) -> str:
    """Return the total cost of a CostRecord in dollars, with two decimals."""
    cents = (_sum_lines(obj, "microdollars") + _MICRODOLLARS_IN_CENT // 2) // _MICRODOLLARS_IN_CENT
    return f"{cents // 100}.{cents % 100:02}"


def _sum_lines(obj: Obj, field: str) -> int:
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


_JOB_CONDITIONS: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def condition_status_cell(obj: Obj, _now: Instant) -> str:
    """Return the status of a Job: Terminating, the first true condition in Kubernetes's order, or Running."""
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((type_ for type_ in _JOB_CONDITIONS if is_true(obj, type_)), "Running")


def completions(obj: Obj, _now: Instant) -> str:
    """Return the succeeded pods and the completions of a Job: `2/4`; without completions, `2/1 of 4`."""
    succeeded = value(obj, "status", "succeeded") or 0
    desired, parallelism = value(obj, "spec", "completions"), value(obj, "spec", "parallelism") or 0
    if desired is not None:
        return f"{succeeded}/{desired}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def duration(obj: Obj, now: Instant) -> str:
    """Return the duration of a Job from its start to its completion, or to the present."""
    init_progress, end = value(obj, "status", "startTime"), value(obj, "status", "completionTime")
    if not init_progress:
        return ""
    return format_age((parse_time(end) if end else now) - parse_time(init_progress))


# --- nodes ---
#
# Cells of Nodes. Source: Kubernetes's pkg/printers/internalversion.


def nodes_status(obj: Obj, _now: Instant) -> str:
    """Return the readiness of a Node, followed by SchedulingDisabled if it is unschedulable."""
    ready = find_condition(obj, "Ready")
    readiness = "Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"
    return f"{readiness},SchedulingDisabled" if value(obj, "spec", "unschedulable") else readiness


def roles(obj: Obj, _now: Instant) -> str:
    """Return the roles of a Node from its labels, separated by commas."""
    labels = obj["metadata"].get("labels") or {}
    prefix = well_known.NODE_ROLE_PREFIX
    role_names = [key.removeprefix(prefix) for key in labels if key.startswith(prefix)]
    role_names.append(labels.get(well_known.OLD_NODE_ROLE) or "")
    return ",".join(sorted(dict.fromkeys(filter(None, role_names)))) or NONE


def address(type_: str) -> Cell:
    """Return a cell function for a Node's first address of a type, such as InternalIP."""

    def cell(obj: Obj, _now: Instant) -> str:
        addresses = value(obj, "status", "addresses") or ()
        return next((str(each["address"]) for each in addresses if each["type"] == type_), NONE)

    return cell


# --- rbac ---
#
# Cells of roles and their bindings. Source: Kubernetes's pkg/printers/internalversion.


def role(obj: Obj, _now: Instant) -> str:
    """Return the role of a role binding, such as `ClusterRole/view`."""
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def subjects(kind: str) -> Cell:
    """Return a cell function for the subjects of one kind in a role binding."""

    def cell(obj: Obj, _now: Instant) -> str:
        kind_subjects = [subject for subject in obj.get("subjects") or () if subject["kind"] == kind]
        return ", ".join(
            f"{each.get('namespace', '')}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in kind_subjects
        )

    return cell


_NAME: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age)
#: The age column of kinds defined by CRDs, whose type is date.
_CRD_AGE: Final = (Column("Age", type="date"), cells.age)
NAME_AND_AGE: Final = (_NAME, _CRD_AGE)
_PENDING: Final = (Column("Pending Workloads", type="integer"), at("status", "pendingWorkloads"))
_ADMITTED: Final = at("status", "admittedWorkloads")
_POD_SPEC_PATH: Final = ("spec", "template", "spec")
_NODE_INFO: Final = ("status", "nodeInfo")
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
        _CRD_AGE,
    ),
    scheme.PROVISIONING_REQUEST: (
        _NAME,
        (Column("Accepted"), cells.ConditionStatus("Accepted")),
        (Column("Provisioned"), cells.ConditionStatus("Provisioned")),
        (Column("Failed"), cells.ConditionStatus("Failed")),
        _CRD_AGE,
    ),
    scheme.WORKLOAD_PRIORITY_CLASS: (_NAME, (Column("Value", type="integer"), at("value"))),
    scheme.MULTI_KUEUE_CLUSTER: (_NAME, (Column("Connected"), cells.ConditionStatus("Active")), _CRD_AGE),
    scheme.JOB_SET: (
        _NAME,
        (Column("TerminalState"), at("status", "terminalState")),
        (Column("Restarts"), at("status", "restarts")),
        (Column("Completed"), cells.ConditionStatus("Completed")),
        (Column("Suspended"), at("spec", "suspend")),
        _CRD_AGE,
    ),
    scheme.JOB: (
        _NAME,
        (Column("Status"), condition_status_cell),
        (Column("Completions"), completions),
        (Column("Duration"), duration),
        _AGE,
        (Column("Containers", priority=1), cells.containers("name", *_POD_SPEC_PATH)),
        (Column("Images", priority=1), cells.containers("image", *_POD_SPEC_PATH)),
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
        (Column("Version"), at(*_NODE_INFO, "kubeletVersion")),
        (Column("Internal-IP", priority=1), address("InternalIP")),
        (Column("External-IP", priority=1), address("ExternalIP")),
        (Column("OS-Image", priority=1), at(*_NODE_INFO, "osImage", default=UNKNOWN)),
        (Column("Kernel-Version", priority=1), at(*_NODE_INFO, "kernelVersion", default=UNKNOWN)),
        (Column("Container-Runtime", priority=1), at(*_NODE_INFO, "containerRuntimeVersion", default=UNKNOWN)),
    ),
    scheme.LEASE: (_NAME, (Column("Holder"), at("spec", "holderIdentity")), _AGE),
    scheme.CLUSTER: (_NAME, (Column("Region"), at("spec", "region")), (Column("Zones"), zones), _CRD_AGE),
    scheme.NODE_POOL: (
        _NAME,
        (Column("Machine-Type"), at("spec", "machineType")),
        (Column("Provisioning"), _PROVISIONING),
        (Column("Size"), size),
        (Column("Instances", type="integer"), at("status", "instances", default=0)),
        (Column("Ready", type="integer"), at("status", "ready", default=0)),
        _CRD_AGE,
        (Column("Zones", priority=1), zones),
        (Column("Reservation", priority=1), chosen("spec", "reservation")),
    ),
    scheme.INSTANCE: (
        _NAME,
        (Column("Pool"), at("spec", "pool")),
        (Column("Zone"), at("spec", "zone")),
        (Column("Phase"), phase),
        _CRD_AGE,
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
        _CRD_AGE,
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
        _CRD_AGE,
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
