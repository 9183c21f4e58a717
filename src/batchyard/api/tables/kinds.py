"""The tables: the columns of every kind, each with its cell."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.tables import apps, cells, cloud, costs, events, jobs, nodes, pods, rbac, services, volumes
from batchyard.api.tables.cells import NONE, UNKNOWN, Cell, Column, at, chosen, value

_NAME: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age)
#: The age as columns of CRDs have it.
_AGE_OF_CUSTOM: Final = (Column("Age", type="date"), cells.age)
NAME_AND_AGE: Final = (_NAME, _AGE_OF_CUSTOM)
_PENDING: Final = (Column("Pending Workloads", type="integer"), at("status", "pendingWorkloads"))
_ADMITTED: Final = at("status", "admittedWorkloads")
_TEMPLATE: Final = ("spec", "template", "spec")
_SYSTEM: Final = ("status", "nodeInfo")
_ROLE: Final = (_NAME, (Column("Created At", type="date"), cells.created))
_BINDING: Final = (
    _NAME,
    (Column("Role"), rbac.role),
    _AGE,
    (Column("Users", priority=1), rbac.subjects("User")),
    (Column("Groups", priority=1), rbac.subjects("Group")),
    (Column("ServiceAccounts", priority=1), rbac.subjects("ServiceAccount")),
)
_PROVISIONING: Final = at("spec", "provisioning", default="standard")

TABLES: Final[Mapping[str, Sequence[tuple[Column, Cell]]]] = {
    scheme.EVENT: events.EVENTS,
    scheme.DEPLOYMENT: apps.DEPLOYMENTS,
    scheme.REPLICA_SET: apps.REPLICA_SETS,
    scheme.STATEFUL_SET: apps.STATEFUL_SETS,
    scheme.DAEMON_SET: apps.DAEMON_SETS,
    scheme.CRON_JOB: apps.CRON_JOBS,
    scheme.POD_DISRUPTION_BUDGET: apps.DISRUPTION_BUDGETS,
    scheme.RESOURCE_QUOTA: apps.RESOURCE_QUOTAS,
    scheme.LIMIT_RANGE: apps.LIMIT_RANGES,
    scheme.NETWORK_POLICY: apps.NETWORK_POLICIES,
    scheme.REPLICATION_CONTROLLER: apps.REPLICATION_CONTROLLERS,
    scheme.ENDPOINTS: (_NAME, (Column("Endpoints"), services.endpoints), _AGE),
    scheme.INGRESS: (
        _NAME,
        (Column("Class"), at("spec", "ingressClassName", default=NONE)),
        (Column("Hosts"), services.hosts),
        (Column("Address"), services.addresses),
        (Column("Ports"), lambda obj, _now: "80, 443" if value(obj, "spec", "tls") else "80"),
        _AGE,
    ),
    scheme.PERSISTENT_VOLUME: volumes.VOLUMES,
    scheme.PERSISTENT_VOLUME_CLAIM: volumes.CLAIMS,
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
        (Column("Status"), jobs.status),
        (Column("Completions"), jobs.completions),
        (Column("Duration"), jobs.duration),
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
        (Column("Type"), services.type_of),
        (Column("Cluster-IP"), services.cluster_ip),
        (Column("External-IP"), services.external_ip),
        (Column("Port(s)"), services.ports),
        _AGE,
        (Column("Selector", priority=1), cells.labels("spec", "selector")),
    ),
    scheme.ENDPOINT_SLICE: (
        _NAME,
        (Column("AddressType"), at("addressType")),
        (Column("Ports"), services.slice_ports),
        (Column("Endpoints"), services.slice_endpoints),
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
        (Column("Ready"), pods.ready),
        (Column("Status"), pods.status),
        (Column("Restarts"), pods.restarts),
        _AGE,
        (Column("IP", priority=1), pods.ip),
        (Column("Node", priority=1), chosen("spec", "nodeName")),
        (Column("Nominated Node", priority=1), chosen("status", "nominatedNodeName")),
        (Column("Readiness Gates", priority=1), pods.readiness_gates),
    ),
    scheme.NODE: (
        _NAME,
        (Column("Status"), nodes.status),
        (Column("Roles"), nodes.roles),
        _AGE,
        (Column("Version"), at(*_SYSTEM, "kubeletVersion")),
        (Column("Internal-IP", priority=1), nodes.address("InternalIP")),
        (Column("External-IP", priority=1), nodes.address("ExternalIP")),
        (Column("OS-Image", priority=1), at(*_SYSTEM, "osImage", default=UNKNOWN)),
        (Column("Kernel-Version", priority=1), at(*_SYSTEM, "kernelVersion", default=UNKNOWN)),
        (Column("Container-Runtime", priority=1), at(*_SYSTEM, "containerRuntimeVersion", default=UNKNOWN)),
    ),
    scheme.LEASE: (_NAME, (Column("Holder"), at("spec", "holderIdentity")), _AGE),
    scheme.CLUSTER: (_NAME, (Column("Region"), at("spec", "region")), (Column("Zones"), cloud.zones), _AGE_OF_CUSTOM),
    scheme.NODE_POOL: (
        _NAME,
        (Column("Machine-Type"), at("spec", "machineType")),
        (Column("Provisioning"), _PROVISIONING),
        (Column("Size"), cloud.size),
        (Column("Instances", type="integer"), at("status", "instances", default=0)),
        (Column("Ready", type="integer"), at("status", "ready", default=0)),
        _AGE_OF_CUSTOM,
        (Column("Zones", priority=1), cloud.zones),
        (Column("Reservation", priority=1), chosen("spec", "reservation")),
    ),
    scheme.INSTANCE: (
        _NAME,
        (Column("Pool"), at("spec", "pool")),
        (Column("Zone"), at("spec", "zone")),
        (Column("Phase"), cloud.phase),
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
        (Column("Amount"), costs.amount),
        (Column("Spent"), at("status", "spent")),
        (Column("Remaining"), at("status", "remaining")),
        (Column("Forecast"), at("status", "forecast")),
        (Column("State"), costs.state),
        _AGE_OF_CUSTOM,
    ),
    scheme.COST_RECORD: (
        _NAME,
        (Column("From"), at("spec", "from")),
        (Column("Through"), at("spec", "through")),
        (Column("Node-Hours"), costs.node_hours),
        (Column("Dollars"), costs.dollars),
    ),
    scheme.POD_TEMPLATE: (
        _NAME,
        (Column("Containers"), cells.containers("name", "template", "spec")),
        (Column("Images"), cells.containers("image", "template", "spec")),
        (Column("Pod Labels"), cells.labels("template", "metadata", "labels")),
    ),
}
