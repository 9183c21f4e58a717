"""Data model of a platform.yaml after defaulting, and after merging the queue classes into the teams' queues.

Objects of Kubernetes, Kueue and the cloud inside the model, such as a Cluster or a selector, are plain dicts in the
storage version of their kinds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

#: Part of an object of Kubernetes, Kueue or the cloud, in the format of its kind.
Part: TypeAlias = Mapping[str, Any]


class PlatformEngine(StrEnum):
    """The scheduler of a platform's queues: batchyard's operator, or the releases of Kueue and JobSet."""

    BATCHYARD = "batchyard"
    KUEUE = "kueue"


class MetricsCollector(StrEnum):
    """The collector of a platform's metrics: Google's managed Prometheus, the Prometheus Operator, or none."""

    POD_MONITORING = "PodMonitoring"
    SERVICE_MONITOR = "ServiceMonitor"
    NONE = "None"


class Isolation(StrEnum):
    """The pods that may connect to a team's pods: only those of the same namespace, or all."""

    ISOLATED = "Isolated"
    OPEN = "Open"


@dataclass(frozen=True, slots=True)
class Network:
    """Address ranges of a GKE cluster as CIDRs, and settings of the access to its control plane."""

    nodes: str
    pods: str
    services: str
    control_plane: str
    private_endpoint: bool
    #: Networks that may reach the control plane, as rows of name and CIDR; empty: all networks, with credentials.
    authorized_networks: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class JobImage:
    """A container image for Jobs that the platform builds or copies into its repository.

    In a valid platform, exactly one of `copy_from` and `build_from` is set.
    """

    #: The image name with its tag: pytorch-mnist:v1.
    name: str
    #: An image reference in another registry.
    copy_from: str
    #: A git repository in the format of container engines: https://host/path.git#REF:FOLDER.
    build_from: str
    #: Another repository of the project, and its location; '' means the platform's.
    repository: str
    location: str


@dataclass(frozen=True, slots=True)
class GoogleSettings:
    """Settings of a platform whose cluster Terraform creates on GKE."""

    #: The project ID; '' while it is unknown, until `with_project` sets it.
    project: str
    network: Network
    release_channel: str
    #: The bucket of Terraform's state. '' means PROJECT-NAME-state.
    state_bucket: str
    state_prefix: str
    image_streaming: bool
    managed_prometheus: bool
    cost_allocation: bool
    deletion_protection: bool
    #: GKE's installation of GPU drivers: `default`, `latest`, or `disabled` (then a DaemonSet installs them).
    gpu_driver: str
    disk_size_gb: int
    disk_type: str
    #: Whether Filestore volumes can be mounted (the CSI driver is enabled).
    filestore: bool
    #: The name of the repository in Artifact Registry.
    repository: str
    images: Sequence[JobImage]
    #: Whether destroy keeps the repositories with their images.
    keep_repository: bool
    #: Whether Cloud Build files for create and destroy are rendered.
    has_build_files: bool
    #: Whether Cloud Monitoring gets a GPU dashboard.
    dashboards: bool
    labels: Mapping[str, str]
    #: Names of the future reservations to submit to Google. All others are drafts, which reserve nothing.
    submitted_reservations: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlatformFlavor:
    """A ResourceFlavor of the platform: its node pools, node labels, taints, tolerations and topology."""

    name: str
    pools: Sequence[str]
    node_labels: Mapping[str, str]
    node_taints: Sequence[Part]
    tolerations: Sequence[Part]
    topology: str


@dataclass(frozen=True, slots=True)
class Topology:
    """A Kueue Topology: its levels as node label keys, widest level first."""

    name: str
    levels: Sequence[str]


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A PriorityClass; for a WorkloadPriorityClass only name, value and description apply."""

    name: str
    value: int
    is_default: bool
    preemption_policy: str
    description: str


@dataclass(frozen=True, slots=True)
class AdmissionCheck:
    """An AdmissionCheck, with the name (`config_name`) and spec (`provisioning`) of its ProvisioningRequestConfig.

    Without a ProvisioningRequestConfig, these are '' and None.
    """

    name: str
    controller: str
    parameters: Part | None
    config_name: str
    provisioning: Part | None


@dataclass(frozen=True, slots=True)
class FlavorQuotas:
    """The quotas of a flavor by resource: `nominalQuota`, `borrowingLimit` and `lendingLimit`, as in Kueue."""

    name: str
    resources: Mapping[str, Part]


@dataclass(frozen=True, slots=True)
class Cohort:
    """A Kueue Cohort, optionally with quotas."""

    name: str
    parent: str
    fair_sharing: Part | None
    flavors: Sequence[FlavorQuotas]


@dataclass(frozen=True, slots=True)
class LocalQueue:
    """The namespace and name of a LocalQueue."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Queue:
    """A ClusterQueue with its LocalQueues, and with its flavors in the order in which Kueue tries them."""

    #: The path of the queue in the file: `spec.teams[0].queues[1]`.
    path: str
    name: str
    #: The name of the queue class; '' for a shared queue.
    class_name: str
    cohort: str
    flavors: Sequence[FlavorQuotas]
    local_queues: Sequence[LocalQueue]
    namespace_selector: Part
    admission_checks: Sequence[Part]
    #: Fields copied to the ClusterQueue's spec: queueingStrategy, preemption and others.
    spec: Part

    @property
    def is_stopped(self) -> bool:
        """Whether the file sets a stopPolicy other than None, so that the queue admits nothing and is not Active."""
        return bool(self.spec.get("stopPolicy", "None") != "None")


@dataclass(frozen=True, slots=True)
class UsersAndGroups:
    """Names of users and groups, as API server authentication returns them."""

    users: Sequence[str] = ()
    groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a team's pods: their ServiceAccount, and on GKE the Google service account."""

    name: str
    #: The ID of the Google service account: its email address before the @.
    google_name: str
    #: The Google service account's roles in the project, such as roles/bigquery.dataViewer.
    roles: Sequence[str]
    #: Buckets whose objects the Google service account may read and write.
    buckets: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlatformTeam:
    """A tenant of the platform: namespace, members, identity, queues and limits."""

    #: The path of the team in the file: `spec.teams[0]`.
    path: str
    name: str
    namespace: str
    cohort: str
    members: UsersAndGroups
    admins: UsersAndGroups
    identity: Identity
    queues: Sequence[Queue]
    #: The specs of the ResourceQuota, LimitRange and Budget; None: the team has none.
    resource_quota: Part | None
    limit_range: Part | None
    budget: Part | None
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class MonitoringStack:
    """The images of Prometheus, Grafana and kube-state-metrics in the cluster, and the retention of metrics in days."""

    prometheus_image: str
    grafana_image: str
    kube_state_metrics_image: str
    retention_days: int


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The monitoring of a platform: the collector, whether rules and dashboards are installed, the optional stack."""

    collector: MetricsCollector
    installs_rules: bool
    installs_dashboards: bool
    #: The monitoring stack in the cluster; None: the platform installs none.
    stack: MonitoringStack | None


@dataclass(frozen=True, slots=True)
class OperatorImage:
    """The image and the replica count of batchyard's operator; image '' means this version's image."""

    image: str
    replicas: int


@dataclass(frozen=True, slots=True)
class PlatformModel:
    """The content of a platform.yaml after defaulting."""

    name: str
    engine: PlatformEngine
    #: Versions that `engine: kueue` installs, such as v0.14.0; '' uses this version's defaults.
    kueue_version: str
    job_set_version: str
    #: Fields of Kueue's Configuration; empty: the release's Configuration.
    kueue: Part
    #: Whether fair sharing by weights is enabled.
    fair_sharing: bool
    google: GoogleSettings | None
    #: The complete Cluster with this platform's name, as for `simulate --cluster`; None: an existing cluster.
    cluster: Part | None
    flavors: Sequence[PlatformFlavor]
    topologies: Sequence[Topology]
    priorities: Sequence[PriorityClass]
    workload_priorities: Sequence[PriorityClass]
    admission_checks: Sequence[AdmissionCheck]
    cohorts: Sequence[Cohort]
    #: The names of the queue classes, in the order of the file.
    queue_classes: Sequence[str]
    #: Queues shared by teams; a team's own queues are in the team.
    shared_queues: Sequence[Queue]
    teams: Sequence[PlatformTeam]
    monitoring: Monitoring
    operator: OperatorImage

    @property
    def queues(self) -> Sequence[Queue]:
        """The platform's ClusterQueues: those of teams, then those that teams share."""
        return [*(queue for team in self.teams for queue in team.queues), *self.shared_queues]

    @property
    def region(self) -> str:
        """The cloud region of the cluster, by default that of its first zone; '' without a cluster."""
        if self.cluster is None:
            return ""
        spec = self.cluster["spec"]
        region: str = spec.get("region") or spec["zones"][0].rpartition("-")[0]
        return region

    @property
    def node_pools(self) -> Sequence[Part]:
        """The node pools in the Cluster's spec; empty without a cluster."""
        return [] if self.cluster is None else self.cluster["spec"].get("nodePools") or []
