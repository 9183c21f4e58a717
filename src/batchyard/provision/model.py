"""What a platform.yaml says, read and completed: every default is filled in, every queue has its own name.

Words are those of Kueue, Kubernetes and our Cluster. Where their own objects say it already (a Cluster, a preemption, a
selector), what is here is the plain dict that those objects have, in the storage version of their kinds. Money is in
millionths of a dollar elsewhere; here there is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

#: A part of an object of Kubernetes, Kueue or the cloud, as its kind has it.
Part: TypeAlias = Mapping[str, Any]


class Engine(StrEnum):
    """Who decides: our operator, or Kueue and JobSet as they are released."""

    BATCHYARD = "batchyard"
    KUEUE = "kueue"


class Collector(StrEnum):
    """Who fetches metrics: Google's managed Prometheus, the Prometheus Operator, or nobody."""

    POD_MONITORING = "PodMonitoring"
    SERVICE_MONITOR = "ServiceMonitor"
    NONE = "None"


class Isolation(StrEnum):
    """Who may talk to a team's pods: those of its own namespace, or everybody."""

    ISOLATED = "Isolated"
    OPEN = "Open"


@dataclass(frozen=True, slots=True)
class Network:
    """The addresses of a cluster on GKE, as CIDRs; and who may reach its control plane."""

    nodes: str
    pods: str
    services: str
    control_plane: str
    private_endpoint: bool
    #: Rows of name and CIDR; none: everybody who has credentials.
    authorized: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class JobImage:
    """An image of Jobs to be put into a repository of the platform: exactly one of `copy_from` and `build_from`."""

    #: With its tag: pytorch-mnist:v1.
    name: str
    #: The reference of an image in another registry.
    copy_from: str
    #: A git repository as container engines take it: https://host/path.git#REF:FOLDER.
    build_from: str
    #: Another repository of the project than the platform's, and its location; '' for the platform's.
    repository: str
    location: str


@dataclass(frozen=True, slots=True)
class Google:
    """What is particular to a cluster that is made on GKE."""

    #: '' while nobody has said it: see `with_project`.
    project: str
    network: Network
    release_channel: str
    #: Where Terraform keeps its state. '' stands for PROJECT-NAME-state.
    state_bucket: str
    state_prefix: str
    image_streaming: bool
    managed_prometheus: bool
    cost_allocation: bool
    deletion_protection: bool
    #: How GKE installs the drivers of GPUs: `default`, `latest`, or `disabled` (then a DaemonSet does).
    gpu_driver: str
    disk_size_gb: int
    disk_type: str
    #: Whether Filestore volumes can be mounted (the CSI driver is enabled).
    filestore: bool
    #: The name of the repository in Artifact Registry.
    repository: str
    images: Sequence[JobImage]
    #: Whether destroy leaves the repositories with their images.
    keep_repository: bool
    #: Whether Cloud Build's files for create and destroy are written.
    build: bool
    #: Whether Cloud Monitoring gets a dashboard of GPUs.
    dashboards: bool
    labels: Mapping[str, str]
    #: The names of the future reservations that Google is asked for. All others are drafts, which reserve nothing.
    submitted: Sequence[str]


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: what its pools' nodes have in common, and what is said besides."""

    name: str
    pools: Sequence[str]
    node_labels: Mapping[str, str]
    node_taints: Sequence[Part]
    tolerations: Sequence[Part]
    topology: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A Topology: its levels, widest first, as labels of nodes."""

    name: str
    levels: Sequence[str]


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass of pods, or a WorkloadPriorityClass (which has but name, value and description)."""

    name: str
    value: int
    is_default: bool
    preemption_policy: str
    description: str


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """An AdmissionCheck; `provisioning` is the spec of its ProvisioningRequestConfig where it asks for capacity."""

    name: str
    controller: str
    parameters: Part | None
    config: str
    provisioning: Part | None


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """The quotas of one flavor: by resource `nominalQuota`, `borrowingLimit` and `lendingLimit`, as Kueue has them."""

    name: str
    resources: Mapping[str, Part]


@dataclass(frozen=True, slots=True)
class Cohort:
    """A Cohort, with quotas of its own or without."""

    name: str
    parent: str
    fair_sharing: Part | None
    flavors: Sequence[FlavorQuotas]


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """A LocalQueue: where a team submits."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A ClusterQueue with its LocalQueues; flavors in the order in which they are tried."""

    #: Where the file says it: `spec.teams[0].queues[1]`.
    path: str
    name: str
    #: The class it is made of; '' for one that teams share.
    of_class: str
    cohort: str
    flavors: Sequence[FlavorQuotas]
    local_queues: Sequence[LocalQueue]
    namespace_selector: Part
    admission_checks: Sequence[Part]
    #: The fields of the ClusterQueue's spec that are taken as they are: queueingStrategy, preemption and the like.
    spec: Part

    @property
    def is_stopped(self) -> bool:
        """Whether it admits nothing, by what the file says: it is not Active then."""
        return bool(self.spec.get("stopPolicy", "None") != "None")


@dataclass(frozen=True, slots=True)
class People:
    """Users and groups as the API server knows them."""

    users: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a team's pods are: their ServiceAccount, and on GKE the Google service account behind it."""

    name: str
    #: The account's id, before the @.
    google_name: str
    #: Roles of the project that it has, such as roles/bigquery.dataViewer; none unless said.
    roles: Sequence[str]
    #: Buckets whose objects it reads and writes.
    buckets: Sequence[str]


@dataclass(frozen=True, slots=True)
class Team:
    """A tenant: a namespace, who may do what in it, and its limits."""

    #: Where the file says it: `spec.teams[0]`.
    path: str
    name: str
    namespace: str
    cohort: str
    members: People
    admins: People
    identity: Identity
    queues: Sequence[Queue]
    #: The spec of its ResourceQuota, LimitRange and Budget; None: it has none.
    resource_quota: Part | None
    limit_range: Part | None
    budget: Part | None
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class MonitoringStack:
    """Prometheus and Grafana in the cluster: their images, and how long metrics are kept."""

    prometheus_image: str
    grafana_image: str
    kube_state_metrics_image: str
    retention_days: int


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Who fetches metrics, and whether rules and dashboards come with it."""

    collector: Collector
    rules: bool
    dashboards: bool
    #: None: the platform installs none.
    stack: MonitoringStack | None


@dataclass(frozen=True, slots=True)
class Operator:
    """Our operator. An image of '' is the one of this version in the platform's own repository."""

    image: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Platform:
    """A platform.yaml."""

    name: str
    engine: Engine
    #: Versions of what `engine: kueue` installs, such as v0.14.0; '' are those pinned by this version.
    kueue_version: str
    job_set_version: str
    #: What is said of Kueue's Configuration, by its own fields; nothing: it is that of the release.
    kueue: Part
    #: Whether queues and cohorts have by their weights what is lent.
    fair_sharing: bool
    google: Google | None
    #: The Cluster with this platform's name, complete, as `simulate --cluster` takes it; None: one that is there.
    cluster: Part | None
    flavors: Sequence[Flavor]
    topologies: Sequence[Topology]
    priorities: Sequence[PriorityClass]
    workload_priorities: Sequence[PriorityClass]
    admission_checks: Sequence[AdmissionCheck]
    cohorts: Sequence[Cohort]
    #: The names of the classes of queues, in the order of the file.
    queue_classes: Sequence[str]
    #: Those that teams share; a team's own are with it.
    shared_queues: Sequence[Queue]
    teams: Sequence[Team]
    monitoring: Monitoring
    operator: Operator

    @property
    def queues(self) -> Sequence[Queue]:
        """All ClusterQueues: the teams' own, then those they share."""
        return [*(queue for team in self.teams for queue in team.queues), *self.shared_queues]

    @property
    def region(self) -> str:
        """Where it is; '' without a cluster. A Cluster that names no region is in that of its first zone."""
        if self.cluster is None:
            return ""
        spec = self.cluster["spec"]
        region: str = spec.get("region") or spec["zones"][0].rpartition("-")[0]
        return region

    @property
    def node_pools(self) -> Sequence[Part]:
        """The pools of its cluster, as rows of the Cluster's spec."""
        return [] if self.cluster is None else self.cluster["spec"].get("nodePools") or []
