"""The `kubectl get` columns of all kinds, and the cell texts of Pods, Jobs, Nodes, Events and batchyard's own kinds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, event_count, event_last_time, find_condition, is_true
from batchyard.api.printing import cells, kubernetes
from batchyard.api.printing.cells import (
    NONE,
    UNKNOWN,
    Cell,
    Column,
    format_value,
    value_at,
    value_cell,
    value_or_none_cell,
)
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, Instant, format_age

# Cells of Pods: ready containers, status, restarts, IP address, readiness gates.
#
# Source: printPod of Kubernetes's pkg/printers/internalversion.


ContainerFields: TypeAlias = Mapping[str, Any]

_TERMINAL_PHASES: Final = ("Succeeded", "Failed")
#: The status reason of pods on an unreachable node.
_NODE_LOST_REASON: Final = "NodeLost"
_SCHEDULING_GATED_REASON: Final = "SchedulingGated"


class _InitProgress(NamedTuple):
    #: The statuses of the init containers up to the first unfinished one.
    statuses: Sequence[ContainerFields]
    #: The state of the first unfinished init container, such as `Init:0/2`; empty if all have finished.
    reason: str
    #: The number of ready sidecars.
    ready_count: int


def ready_containers(obj: Obj, _now: Instant) -> str:
    """Return the number of a pod's ready containers and the total, including sidecars: `1/2`."""
    init_progress = _init_progress(obj)
    running_containers = [each for each in _main_statuses(obj, init_progress) if _is_container_running(each)]
    container_count = len(value_at(obj, "spec", "containers") or ()) + len(_sidecar_names(obj))
    return f"{init_progress.ready_count + len(running_containers)}/{container_count}"


def pod_status_text(obj: Obj, _now: Instant) -> str:
    """Return the status of a pod as kubectl prints it, such as Running, Terminating, CrashLoopBackOff or Init:0/2."""
    phase, pod_reason = value_at(obj, "status", "phase"), value_at(obj, "status", "reason")
    if obj["metadata"].get("deletionTimestamp"):
        if pod_reason == _NODE_LOST_REASON:
            return "Unknown"
        if phase not in _TERMINAL_PHASES:
            return "Terminating"
    is_gated = (find_condition(obj, "PodScheduled") or {}).get("reason") == _SCHEDULING_GATED_REASON
    init_progress = _init_progress(obj)
    own_reason = _SCHEDULING_GATED_REASON if is_gated else format_value(pod_reason or phase)
    return _pod_container_reason(obj, init_progress) or init_progress.reason or own_reason


def restart_text(obj: Obj, now: Instant) -> str:
    """Return the number of container restarts of a pod, and the time since the last one: `2 (5m ago)` or `0`."""
    init_progress = _init_progress(obj)
    sidecar_names = _sidecar_names(obj)
    statuses = init_progress.statuses
    if _is_initialized(obj, init_progress):
        statuses = [*(each for each in statuses if each["name"] in sidecar_names), *_main_statuses(obj, init_progress)]
    count = sum(each.get("restartCount") or 0 for each in statuses)
    end_times = [value_at(each, "lastState", "terminated", "finishedAt") for each in statuses]
    last_end_time = max((parse_time(end) for end in end_times if end), default=None)
    return str(count) if not count or last_end_time is None else f"{count} ({format_age(now - last_end_time)} ago)"


def pod_ip(obj: Obj, _now: Instant) -> str:
    """Return the first IP address of a pod, or `<none>`."""
    addresses = value_at(obj, "status", "podIPs") or [{"ip": value_at(obj, "status", "podIP")}]
    return addresses[0].get("ip") or NONE


def readiness_gates(obj: Obj, _now: Instant) -> str:
    """Return the number of a pod's readiness gates that are true, and the total: `1/2`; `<none>` without gates."""
    gates = value_at(obj, "spec", "readinessGates") or ()
    return f"{sum(is_true(obj, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else NONE


def _pod_container_reason(obj: Obj, init_progress: _InitProgress) -> str:
    """Return why the first waiting or terminated main container of a pod is not running; '' if there is none.

    If the reason is Completed and another main container is running, return Running or NotReady.
    """
    main_statuses = _main_statuses(obj, init_progress)
    reason = next(filter(None, map(_why_not_running, main_statuses)), "")
    if reason == "Completed" and any(map(_is_container_running, main_statuses)):
        return "Running" if is_true(obj, "Ready") else "NotReady"
    return reason


def _main_statuses(obj: Obj, init_progress: _InitProgress) -> Sequence[ContainerFields]:
    return (value_at(obj, "status", "containerStatuses") or ()) if _is_initialized(obj, init_progress) else ()


def _is_initialized(obj: Obj, init_progress: _InitProgress) -> bool:
    return not init_progress.reason or is_true(obj, "Initialized")


def _init_progress(obj: Obj) -> _InitProgress:
    sidecar_names, total = _sidecar_names(obj), len(value_at(obj, "spec", "initContainers") or ())
    statuses: list[ContainerFields] = []
    ready_sidecars = 0
    for index, container in enumerate(value_at(obj, "status", "initContainerStatuses") or ()):
        statuses.append(container)
        end_state = value_at(container, "state", "terminated")
        if end_state is not None and not end_state.get("exitCode"):
            continue
        if container["name"] not in sidecar_names or not container.get("started"):
            return _InitProgress(
                statuses, f"Init:{_why_not_running(container, 'PodInitializing') or f'{index}/{total}'}", ready_sidecars
            )
        ready_sidecars += bool(container.get("ready"))
    return _InitProgress(statuses, "", ready_sidecars)


def _sidecar_names(obj: Obj) -> Mapping[str, None]:
    init_containers = value_at(obj, "spec", "initContainers") or ()
    return {each["name"]: None for each in init_containers if each.get("restartPolicy") == "Always"}


def _why_not_running(container: ContainerFields, ignored_reason: str = "") -> str:
    waiting_state, end_state = (value_at(container, "state", state_name) for state_name in ("waiting", "terminated"))
    if waiting_state is not None and waiting_state.get("reason"):
        return "" if waiting_state["reason"] == ignored_reason else str(waiting_state["reason"])
    if end_state is None:
        return ""
    if end_state.get("reason"):
        return str(end_state["reason"])
    return f"Signal:{end_state['signal']}" if end_state.get("signal") else f"ExitCode:{end_state.get('exitCode', 0)}"


def _is_container_running(container: ContainerFields) -> bool:
    return bool(container.get("ready")) and value_at(container, "state", "running") is not None


# Cells of Clusters, NodePools, Instances and ResizeRequests.


def zones(obj: Obj, _now: Instant) -> str:
    """Return the zones of a Cluster or NodePool, separated by commas."""
    return ",".join(value_at(obj, "spec", "zones") or ())


def node_pool_size(obj: Obj, _now: Instant) -> str:
    """Return the size of a NodePool: `4` or `0-24` nodes in each zone, or `0-24 total` in all zones."""
    spec = obj.get("spec") or {}
    autoscaling_bounds = spec.get("autoscaling")
    if autoscaling_bounds is None:
        return format_value(spec.get("nodeCount"))
    if "totalMax" in autoscaling_bounds:
        return f"{autoscaling_bounds.get('totalMin', 0)}-{autoscaling_bounds['totalMax']} total"
    return f"{autoscaling_bounds.get('min', 0)}-{format_value(autoscaling_bounds.get('max'))}"


def instance_phase(obj: Obj, _now: Instant) -> str:
    """Return the phase of an Instance, by default Pending; Terminating if the Instance is being deleted."""
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return value_at(obj, "status", "phase") or "Pending"


# Cells of Budgets and of cost records.


_MICRODOLLARS_IN_CENT: Final = 10_000


def budget_amount(obj: Obj, _now: Instant) -> str:
    """Return the amount of a Budget, such as `$5000` or `120 accelerator hours`."""
    spec = obj.get("spec") or {}
    dollars = spec.get("dollars")
    return f"${dollars}" if dollars is not None else f"{format_value(spec.get('acceleratorHours'))} accelerator hours"


def budget_state(obj: Obj, _now: Instant) -> str:
    """Return the state of a Budget: the reason of its condition Exceeded, or ''."""
    conditions = value_at(obj, "status", "conditions") or ()
    return next((str(each["reason"]) for each in conditions if each["type"] == "Exceeded"), "")


def node_hours(obj: Obj, _now: Instant) -> str:
    """Return the total node hours of a CostRecord, with two decimals."""
    return f"{_sum_cost_lines(obj, 'nodeMicroseconds') / HOUR:.2f}"


def cost_dollars(obj: Obj, _now: Instant) -> str:
    """Return the total cost of a CostRecord in dollars, with two decimals."""
    rounded_cents = (_sum_cost_lines(obj, "microdollars") + _MICRODOLLARS_IN_CENT // 2) // _MICRODOLLARS_IN_CENT
    return f"{rounded_cents // 100}.{rounded_cents % 100:02}"


def _sum_cost_lines(obj: Obj, field: str) -> int:
    return sum(line.get(field, 0) for line in value_at(obj, "spec", "lines") or ())


# Cells of Events. Source: Kubernetes's pkg/printers/internalversion (printEvent).


def _last_seen_age(obj: Obj, now: Instant) -> str:
    last_time_text = event_last_time(obj)
    return format_age(now - parse_time(last_time_text)) if last_time_text else UNKNOWN


def _first_seen_age(obj: Obj, now: Instant) -> str:
    first_time_text = obj.get("firstTimestamp") or obj.get("eventTime")
    return format_age(now - parse_time(first_time_text)) if first_time_text else UNKNOWN


def _event_count_text(obj: Obj, _now: Instant) -> str:
    return str(event_count(obj))


def _involved_object(obj: Obj, _now: Instant) -> str:
    kind, name = (value_at(obj, "involvedObject", field) or "" for field in ("kind", "name"))
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _event_source(obj: Obj, _now: Instant) -> str:
    source_component = value_at(obj, "source", "component") or obj.get("reportingComponent") or ""
    source_host = value_at(obj, "source", "host") or obj.get("reportingInstance") or ""
    return f"{source_component}, {source_host}" if source_host else source_component


EVENTS: Final = (
    (Column("Last Seen"), _last_seen_age),
    (Column("Type"), value_cell("type")),
    (Column("Reason"), value_cell("reason")),
    (Column("Object"), _involved_object),
    (Column("Subobject", priority=1), value_cell("involvedObject", "fieldPath")),
    (Column("Source", priority=1), _event_source),
    (Column("Message"), lambda obj, _now: (obj.get("message") or "").strip()),
    (Column("First Seen", priority=1), _first_seen_age),
    (Column("Count", priority=1, counts=True), _event_count_text),
    (Column("Name", priority=1), cells.name),
)


# Cells of Jobs. The duration runs from the start to the completion, or to the present.
#
# Source: Kubernetes's pkg/printers/internalversion.


_JOB_STATUS_CONDITIONS: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def job_status(obj: Obj, _now: Instant) -> str:
    """Return a Job's status: Complete, Failed, Terminating, else a true condition such as Suspended, else Running."""
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((type_ for type_ in _JOB_STATUS_CONDITIONS if is_true(obj, type_)), "Running")


def completions_text(obj: Obj, _now: Instant) -> str:
    """Return the numbers of succeeded and needed pods of a Job: `2/4`.

    Without spec.completions, one is needed: `2/1`, or `2/1 of 4` if the parallelism is 4.
    """
    succeeded_count = value_at(obj, "status", "succeeded") or 0
    completion_count, parallelism = value_at(obj, "spec", "completions"), value_at(obj, "spec", "parallelism") or 0
    if completion_count is not None:
        return f"{succeeded_count}/{completion_count}"
    return f"{succeeded_count}/1 of {parallelism}" if parallelism > 1 else f"{succeeded_count}/1"


def job_duration(obj: Obj, now: Instant) -> str:
    """Return the duration of a Job from its start to its completion, or to the present; '' before its start."""
    start_time, end_time = value_at(obj, "status", "startTime"), value_at(obj, "status", "completionTime")
    if not start_time:
        return ""
    return format_age((parse_time(end_time) if end_time else now) - parse_time(start_time))


# Cells of Nodes. Source: Kubernetes's pkg/printers/internalversion.


def node_status(obj: Obj, _now: Instant) -> str:
    """Return the readiness of a Node, followed by SchedulingDisabled if it is unschedulable."""
    ready_condition = find_condition(obj, "Ready")
    readiness = "Unknown" if ready_condition is None else "Ready" if ready_condition["status"] == "True" else "NotReady"
    return f"{readiness},SchedulingDisabled" if value_at(obj, "spec", "unschedulable") else readiness


def node_roles(obj: Obj, _now: Instant) -> str:
    """Return the roles of a Node from its labels, sorted and separated by commas; `<none>` without roles."""
    labels = obj["metadata"].get("labels") or {}
    role_prefix = well_known.NODE_ROLE_PREFIX
    role_names = [key.removeprefix(role_prefix) for key in labels if key.startswith(role_prefix)]
    role_names.append(labels.get(well_known.OLD_NODE_ROLE) or "")
    return ",".join(sorted(dict.fromkeys(filter(None, role_names)))) or NONE


def address_cell(type_: str) -> Cell:
    """Return a table cell function for a Node's first address of a type, such as InternalIP; `<none>` without any."""

    def cell(obj: Obj, _now: Instant) -> str:
        addresses = value_at(obj, "status", "addresses") or ()
        return next((str(each["address"]) for each in addresses if each["type"] == type_), NONE)

    return cell


# Cells of roles and their bindings. Source: Kubernetes's pkg/printers/internalversion.


def bound_role(obj: Obj, _now: Instant) -> str:
    """Return the role to which a RoleBinding or ClusterRoleBinding refers, such as `ClusterRole/view`."""
    return f"{obj['roleRef']['kind']}/{obj['roleRef']['name']}"


def subjects_cell(kind: str) -> Cell:
    """Return a table cell function that lists the subjects of one kind in a RoleBinding or ClusterRoleBinding."""

    def cell(obj: Obj, _now: Instant) -> str:
        kind_subjects = [subject for subject in obj.get("subjects") or () if subject["kind"] == kind]
        return ", ".join(
            f"{each.get('namespace', '')}/{each['name']}" if kind == "ServiceAccount" else each["name"]
            for each in kind_subjects
        )

    return cell


_NAME_COLUMN: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age_text)
#: The age column of kinds defined by CRDs, whose type is date.
_CRD_AGE_COLUMN: Final = (Column("Age", type="date"), cells.age_text)
NAME_AND_AGE: Final = (_NAME_COLUMN, _CRD_AGE_COLUMN)
_PENDING_COLUMN: Final = (Column("Pending Workloads", type="integer"), value_cell("status", "pendingWorkloads"))
_ADMITTED_CELL: Final = value_cell("status", "admittedWorkloads")
_POD_SPEC_PATH: Final = ("spec", "template", "spec")
_NODE_INFO: Final = ("status", "nodeInfo")
_ROLE_COLUMNS: Final = (_NAME_COLUMN, (Column("Created At", type="date"), cells.creation_time_text))
_BINDING_COLUMNS: Final = (
    _NAME_COLUMN,
    (Column("Role"), bound_role),
    _AGE,
    (Column("Users", priority=1), subjects_cell("User")),
    (Column("Groups", priority=1), subjects_cell("Group")),
    (Column("ServiceAccounts", priority=1), subjects_cell("ServiceAccount")),
)
_PROVISIONING_CELL: Final = value_cell("spec", "provisioning", default="standard")

TABLES: Final[Mapping[str, Sequence[tuple[Column, Cell]]]] = {
    scheme.EVENT: EVENTS,
    scheme.DEPLOYMENT: kubernetes.DEPLOYMENTS,
    scheme.REPLICA_SET: kubernetes.REPLICA_SETS,
    scheme.STATEFUL_SET: kubernetes.STATEFUL_SETS,
    scheme.DAEMON_SET: kubernetes.DAEMON_SETS,
    scheme.CONTROLLER_REVISION: kubernetes.CONTROLLER_REVISIONS,
    scheme.CRON_JOB: kubernetes.CRON_JOBS,
    scheme.POD_DISRUPTION_BUDGET: kubernetes.DISRUPTION_BUDGETS,
    scheme.RESOURCE_QUOTA: kubernetes.RESOURCE_QUOTAS,
    scheme.LIMIT_RANGE: kubernetes.LIMIT_RANGES,
    scheme.NETWORK_POLICY: kubernetes.NETWORK_POLICIES,
    scheme.REPLICATION_CONTROLLER: kubernetes.REPLICATION_CONTROLLERS,
    scheme.ENDPOINTS: (_NAME_COLUMN, (Column("Endpoints"), kubernetes.endpoint_addresses), _AGE),
    scheme.INGRESS: (
        _NAME_COLUMN,
        (Column("Class"), value_cell("spec", "ingressClassName", default=NONE)),
        (Column("Hosts"), kubernetes.ingress_hosts),
        (Column("Address"), kubernetes.ingress_addresses),
        (Column("Ports"), lambda obj, _now: "80, 443" if value_at(obj, "spec", "tls") else "80"),
        _AGE,
    ),
    scheme.HORIZONTAL_POD_AUTOSCALER: kubernetes.AUTOSCALERS,
    scheme.STORAGE_CLASS: kubernetes.STORAGE_CLASSES,
    scheme.FLOW_SCHEMA: kubernetes.FLOW_SCHEMAS,
    scheme.PRIORITY_LEVEL: kubernetes.PRIORITY_LEVELS,
    scheme.PERSISTENT_VOLUME: kubernetes.VOLUMES,
    scheme.PERSISTENT_VOLUME_CLAIM: kubernetes.CLAIMS,
    scheme.CLUSTER_QUEUE: (
        _NAME_COLUMN,
        (Column("Cohort"), value_cell("spec", "cohortName")),
        (Column("Strategy", priority=1), value_cell("spec", "queueingStrategy")),
        _PENDING_COLUMN,
        (Column("Admitted Workloads", priority=1, type="integer"), _ADMITTED_CELL),
    ),
    scheme.LOCAL_QUEUE: (
        _NAME_COLUMN,
        (Column("ClusterQueue"), value_cell("spec", "clusterQueue")),
        _PENDING_COLUMN,
        (Column("Admitted Workloads", type="integer"), _ADMITTED_CELL),
    ),
    scheme.WORKLOAD: (
        _NAME_COLUMN,
        (Column("Queue"), value_cell("spec", "queueName")),
        (Column("Reserved in"), value_cell("status", "admission", "clusterQueue")),
        (Column("Admitted"), cells.ConditionStatusCell("Admitted")),
        (Column("Finished"), cells.ConditionStatusCell("Finished")),
        _CRD_AGE_COLUMN,
    ),
    scheme.PROVISIONING_REQUEST: (
        _NAME_COLUMN,
        (Column("Accepted"), cells.ConditionStatusCell("Accepted")),
        (Column("Provisioned"), cells.ConditionStatusCell("Provisioned")),
        (Column("Failed"), cells.ConditionStatusCell("Failed")),
        _CRD_AGE_COLUMN,
    ),
    scheme.WORKLOAD_PRIORITY_CLASS: (_NAME_COLUMN, (Column("Value", type="integer"), value_cell("value"))),
    scheme.MULTI_KUEUE_CLUSTER: (
        _NAME_COLUMN,
        (Column("Connected"), cells.ConditionStatusCell("Active")),
        _CRD_AGE_COLUMN,
    ),
    scheme.JOB_SET: (
        _NAME_COLUMN,
        (Column("TerminalState"), value_cell("status", "terminalState")),
        (Column("Restarts"), value_cell("status", "restarts")),
        (Column("Completed"), cells.ConditionStatusCell("Completed")),
        (Column("Suspended"), value_cell("spec", "suspend")),
        _CRD_AGE_COLUMN,
    ),
    scheme.JOB: (
        _NAME_COLUMN,
        (Column("Status"), job_status),
        (Column("Completions"), completions_text),
        (Column("Duration"), job_duration),
        _AGE,
        (Column("Containers", priority=1), cells.containers_cell("name", *_POD_SPEC_PATH)),
        (Column("Images", priority=1), cells.containers_cell("image", *_POD_SPEC_PATH)),
        (Column("Selector", priority=1), cells.selector_cell()),
    ),
    scheme.NAMESPACE: (_NAME_COLUMN, (Column("Status"), value_cell("status", "phase")), _AGE),
    scheme.PRIORITY_CLASS: (
        _NAME_COLUMN,
        (Column("Value", type="integer"), value_cell("value", default=0)),
        (Column("Global-Default", type="boolean"), value_cell("globalDefault", default=False)),
        _AGE,
        (Column("PreemptionPolicy"), value_cell("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    scheme.SERVICE: (
        _NAME_COLUMN,
        (Column("Type"), kubernetes.service_type),
        (Column("Cluster-IP"), kubernetes.cluster_ip),
        (Column("External-IP"), kubernetes.external_ip),
        (Column("Port(s)"), kubernetes.service_ports),
        _AGE,
        (Column("Selector", priority=1), cells.labels_cell("spec", "selector")),
    ),
    scheme.ENDPOINT_SLICE: (
        _NAME_COLUMN,
        (Column("AddressType"), value_cell("addressType")),
        (Column("Ports"), kubernetes.slice_ports),
        (Column("Endpoints"), kubernetes.slice_endpoints),
        _AGE,
    ),
    scheme.RUNTIME_CLASS: (_NAME_COLUMN, (Column("Handler"), value_cell("handler")), _AGE),
    **dict.fromkeys(
        (scheme.MUTATING_WEBHOOKS, scheme.VALIDATING_WEBHOOKS),
        (_NAME_COLUMN, (Column("Webhooks"), cells.count_cell("webhooks")), _AGE),
    ),
    scheme.VALIDATING_POLICY: (
        _NAME_COLUMN,
        (Column("Validations", type="integer"), cells.count_at_path_cell("spec", "validations")),
        (Column("ParamKind"), kubernetes.policy_param_kind),
        _AGE,
    ),
    scheme.MUTATING_POLICY: (
        _NAME_COLUMN,
        (Column("Mutations", type="integer"), cells.count_at_path_cell("spec", "mutations")),
        (Column("ParamKind"), kubernetes.policy_param_kind),
        _AGE,
    ),
    **dict.fromkeys(
        (scheme.MUTATING_POLICY_BINDING, scheme.VALIDATING_POLICY_BINDING),
        (
            _NAME_COLUMN,
            (Column("PolicyName"), value_cell("spec", "policyName")),
            (Column("ParamRef"), kubernetes.policy_param_reference),
            _AGE,
        ),
    ),
    scheme.CONFIG_MAP: (_NAME_COLUMN, (Column("Data", counts=True), cells.count_cell("data", "binaryData")), _AGE),
    scheme.SECRET: (
        _NAME_COLUMN,
        (Column("Type"), value_cell("type", default="Opaque")),
        (Column("Data", counts=True), cells.count_cell("data")),
        _AGE,
    ),
    scheme.SERVICE_ACCOUNT: (_NAME_COLUMN, (Column("Secrets", counts=True), cells.count_cell("secrets")), _AGE),
    scheme.ROLE: _ROLE_COLUMNS,
    scheme.CLUSTER_ROLE: _ROLE_COLUMNS,
    scheme.ROLE_BINDING: _BINDING_COLUMNS,
    scheme.CLUSTER_ROLE_BINDING: _BINDING_COLUMNS,
    scheme.POD: (
        _NAME_COLUMN,
        (Column("Ready"), ready_containers),
        (Column("Status"), pod_status_text),
        (Column("Restarts"), restart_text),
        _AGE,
        (Column("IP", priority=1), pod_ip),
        (Column("Node", priority=1), value_or_none_cell("spec", "nodeName")),
        (Column("Nominated Node", priority=1), value_or_none_cell("status", "nominatedNodeName")),
        (Column("Readiness Gates", priority=1), readiness_gates),
    ),
    scheme.NODE: (
        _NAME_COLUMN,
        (Column("Status"), node_status),
        (Column("Roles"), node_roles),
        _AGE,
        (Column("Version"), value_cell(*_NODE_INFO, "kubeletVersion")),
        (Column("Internal-IP", priority=1), address_cell("InternalIP")),
        (Column("External-IP", priority=1), address_cell("ExternalIP")),
        (Column("OS-Image", priority=1), value_cell(*_NODE_INFO, "osImage", default=UNKNOWN)),
        (Column("Kernel-Version", priority=1), value_cell(*_NODE_INFO, "kernelVersion", default=UNKNOWN)),
        (Column("Container-Runtime", priority=1), value_cell(*_NODE_INFO, "containerRuntimeVersion", default=UNKNOWN)),
    ),
    scheme.LEASE: (_NAME_COLUMN, (Column("Holder"), value_cell("spec", "holderIdentity")), _AGE),
    scheme.CLUSTER: (
        _NAME_COLUMN,
        (Column("Region"), value_cell("spec", "region")),
        (Column("Zones"), zones),
        _CRD_AGE_COLUMN,
    ),
    scheme.NODE_POOL: (
        _NAME_COLUMN,
        (Column("Machine-Type"), value_cell("spec", "machineType")),
        (Column("Provisioning"), _PROVISIONING_CELL),
        (Column("Size"), node_pool_size),
        (Column("Instances", type="integer"), value_cell("status", "instances", default=0)),
        (Column("Ready", type="integer"), value_cell("status", "ready", default=0)),
        _CRD_AGE_COLUMN,
        (Column("Zones", priority=1), zones),
        (Column("Reservation", priority=1), value_or_none_cell("spec", "reservation")),
    ),
    scheme.INSTANCE: (
        _NAME_COLUMN,
        (Column("Pool"), value_cell("spec", "pool")),
        (Column("Zone"), value_cell("spec", "zone")),
        (Column("Phase"), instance_phase),
        _CRD_AGE_COLUMN,
        (Column("Machine-Type", priority=1), value_cell("spec", "machineType")),
        (Column("Provisioning", priority=1), _PROVISIONING_CELL),
        (Column("Error", priority=1), value_or_none_cell("status", "error", "code")),
    ),
    scheme.RESIZE_REQUEST: (
        _NAME_COLUMN,
        (Column("Pool"), value_cell("spec", "pool")),
        (Column("Zone"), value_cell("spec", "zone")),
        (Column("Count", type="integer"), value_cell("spec", "count")),
        (Column("State"), value_cell("status", "state")),
        _CRD_AGE_COLUMN,
        (Column("Error", priority=1), value_or_none_cell("status", "error", "code")),
    ),
    scheme.BUDGET: (
        _NAME_COLUMN,
        (Column("Period"), value_cell("spec", "period", default="Month")),
        (Column("Amount"), budget_amount),
        (Column("Spent"), value_cell("status", "spent")),
        (Column("Remaining"), value_cell("status", "remaining")),
        (Column("Forecast"), value_cell("status", "forecast")),
        (Column("State"), budget_state),
        _CRD_AGE_COLUMN,
    ),
    scheme.COST_RECORD: (
        _NAME_COLUMN,
        (Column("From"), value_cell("spec", "from")),
        (Column("Through"), value_cell("spec", "through")),
        (Column("Node-Hours"), node_hours),
        (Column("Dollars"), cost_dollars),
    ),
    scheme.POD_TEMPLATE: (
        _NAME_COLUMN,
        (Column("Containers"), cells.containers_cell("name", "template", "spec")),
        (Column("Images"), cells.containers_cell("image", "template", "spec")),
        (Column("Pod Labels"), cells.labels_cell("template", "metadata", "labels")),
    ),
}
