"""Conversion of a valid Platform spec to the model: dependent defaults, and queue classes merged into teams' queues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.provision.model import (
    AdmissionCheck,
    Cohort,
    FlavorQuotas,
    Google,
    Identity,
    Isolation,
    JobImage,
    LocalQueue,
    MetricsCollector,
    Monitoring,
    MonitoringStack,
    Network,
    OperatorImage,
    Part,
    People,
    PlatformEngine,
    PlatformFlavor,
    PlatformModel,
    PlatformTeam,
    PriorityClass,
    Queue,
    Topology,
)

PROVISIONING_CONTROLLER: Final = "kueue.x-k8s.io/provisioning-request"
#: Fields copied to a ClusterQueue's spec.
_TAKEN: Final = ("queueingStrategy", "preemption", "flavorFungibility", "fairSharing", "stopPolicy")
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_NOTHING: Final[Part] = {}


def platform_of(name: str, spec: Part, cluster: Part | None) -> PlatformModel:
    """Return the model of a structurally valid spec; the rules between fields are not checked yet."""
    google = _google(name, spec["google"]) if "google" in spec else None
    teams = [_team(f"spec.teams[{index}]", row, spec) for index, row in enumerate(spec["teams"])]
    return PlatformModel(
        name=name,
        engine=PlatformEngine(spec["engine"]),
        kueue_version=spec["versions"].get("kueue", ""),
        job_set_version=spec["versions"].get("jobSet", ""),
        kueue=spec.get("kueue") or {},
        fair_sharing=spec.get("fairSharing", _has_weights(spec)),
        google=google,
        cluster=cluster,
        flavors=[_flavor(row) for row in spec["flavors"]],
        topologies=[_topology(row) for row in spec.get("topologies") or ()],
        priorities=[_priority(row) for row in spec.get("priorities") or ()],
        workload_priorities=[_priority(row) for row in spec.get("workloadPriorities") or ()],
        admission_checks=[_check(row) for row in spec.get("admissionChecks") or ()],
        cohorts=[_cohort(row) for row in spec.get("cohorts") or ()],
        queue_classes=[row["name"] for row in spec.get("queueClasses") or ()],
        shared_queues=list(_shared_queues(spec.get("queues") or (), teams)),
        teams=teams,
        monitoring=_monitoring(spec, google),
        operator=OperatorImage(spec["operator"].get("image", ""), spec["operator"]["replicas"]),
    )


def _has_weights(spec: Part) -> bool:
    """Whether a fair sharing weight is set, which enables fair sharing by default."""
    rows = [row for field in ("queueClasses", "queues", "cohorts") for row in spec.get(field) or ()]
    rows += [row for team in spec["teams"] for row in team.get("queues") or ()]
    return any("fairSharing" in row for row in rows)


def _google(name: str, row: Part) -> Google:
    network, state, nodes = row["network"], row["state"], row["nodes"]
    return Google(
        project=row.get("project", ""),
        network=Network(
            nodes=network["nodes"],
            pods=network["pods"],
            services=network["services"],
            control_plane=network["controlPlane"],
            private_endpoint=network["privateEndpoint"],
            authorized=[(each["name"], each["cidr"]) for each in network.get("authorized") or ()],
        ),
        release_channel=row["releaseChannel"],
        state_bucket=state.get("bucket", ""),
        state_prefix=state.get("prefix", name),
        image_streaming=row["imageStreaming"],
        managed_prometheus=row["managedPrometheus"],
        cost_allocation=row["costAllocation"],
        deletion_protection=row["deletionProtection"],
        gpu_driver=row["gpuDriver"],
        disk_size_gb=nodes["diskSizeGb"],
        disk_type=nodes["diskType"],
        filestore=row["filestore"],
        repository=row.get("repository", name),
        images=[_image(each) for each in row.get("images") or ()],
        keep_repository=row["keepRepository"],
        build=row["build"],
        dashboards=row["dashboards"],
        labels=row.get("labels") or {},
        submitted=row.get("submitReservations") or (),
    )


def _image(row: Part) -> JobImage:
    return JobImage(
        name=row["name"],
        copy_from=row.get("copyFrom", ""),
        build_from=row.get("buildFrom", ""),
        repository=row.get("repository", ""),
        location=row.get("location", ""),
    )


def _flavor(row: Part) -> PlatformFlavor:
    return PlatformFlavor(
        name=row["name"],
        pools=row.get("pools") or (),
        node_labels=row.get("nodeLabels") or {},
        node_taints=row.get("nodeTaints") or (),
        tolerations=row.get("tolerations") or (),
        topology=row.get("topologyName", ""),
    )


def _topology(row: Part) -> Topology:
    return Topology(row["name"], [level["nodeLabel"] for level in row["levels"]])


def _priority(row: Part) -> PriorityClass:
    return PriorityClass(
        name=row["name"],
        value=row["value"],
        is_default=row.get("default", False),
        preemption_policy=row.get("preemptionPolicy", "PreemptLowerPriority"),
        description=row.get("description", ""),
    )


def _check(row: Part) -> AdmissionCheck:
    provisioning = row.get("provisioning")
    if provisioning is None:
        controller = row.get("controllerName", PROVISIONING_CONTROLLER)
        return AdmissionCheck(row["name"], controller, row.get("parameters"), "", None)
    spec = {field: value for field, value in provisioning.items() if field != "name"}
    config = provisioning.get("name", row["name"])
    return AdmissionCheck(row["name"], row.get("controllerName", PROVISIONING_CONTROLLER), None, config, spec)


def _cohort(row: Part) -> Cohort:
    return Cohort(row["name"], row.get("parentName", ""), row.get("fairSharing"), _quotas(row.get("flavors") or ()))


def _quotas(rows: Sequence[Part]) -> Sequence[FlavorQuotas]:
    return [FlavorQuotas(row["name"], row["resources"]) for row in rows]


def _monitoring(spec: Part, google: Google | None) -> Monitoring:
    """Return the monitoring settings. The default collector is Google's managed Prometheus if the cluster has it."""
    row, usual = spec["monitoring"], MetricsCollector.NONE
    if google is not None and google.managed_prometheus:
        usual = MetricsCollector.POD_MONITORING
    return Monitoring(
        MetricsCollector(row.get("collector", usual)), row["rules"], row["dashboards"], _stack(row["stack"])
    )


def _stack(row: Part) -> MonitoringStack | None:
    if not row["enabled"]:
        return None
    return MonitoringStack(
        prometheus_image=row["prometheusImage"],
        grafana_image=row["grafanaImage"],
        kube_state_metrics_image=row["kubeStateMetricsImage"],
        retention_days=row["retentionDays"],
    )


# --- teams and queues ---


def _team(path: str, row: Part, spec: Part) -> PlatformTeam:
    name = row["name"]
    namespace, account = row.get("namespace", name), row["serviceAccount"]
    classes = {each["name"]: each for each in spec.get("queueClasses") or ()}
    queues = [
        _queue_of_class(f"{path}.queues[{index}]", row, each, classes.get(each["class"], _NOTHING))
        for index, each in enumerate(row.get("queues") or ())
    ]
    return PlatformTeam(
        path=path,
        name=name,
        namespace=namespace,
        cohort=row.get("cohortName", ""),
        members=_people(row.get("members") or _NOTHING),
        admins=_people(row.get("admins") or _NOTHING),
        identity=Identity(
            name=account.get("name", f"{name}-ksa"),
            google_name=account.get("googleName", f"wi-{name}"),
            roles=account.get("roles") or (),
            buckets=account.get("buckets") or (),
        ),
        queues=queues,
        resource_quota=row.get("resourceQuota"),
        limit_range=row.get("limitRange"),
        budget=row.get("budget"),
        isolation=Isolation(row["networkPolicy"]),
    )


def _people(row: Part) -> People:
    return People(row.get("users") or (), row.get("groups") or ())


def _queue_of_class(path: str, team: Part, own: Part, of_class: Part) -> Queue:
    """Return a team's queue of a class; the team's fields override the class's."""
    name, namespace = f"{team['name']}-{own['class']}", team.get("namespace", team["name"])
    row = {**of_class, **own, "flavors": _merged(of_class.get("flavors") or (), own.get("flavors") or ())}
    return Queue(
        path=path,
        name=own.get("clusterQueue", f"cq-{name}"),
        of_class=own["class"],
        cohort=row.get("cohortName") or team.get("cohortName") or "",
        flavors=_quotas(row["flavors"]),
        local_queues=[LocalQueue(namespace, own.get("localQueue", f"lq-{name}"))],
        namespace_selector={"matchLabels": {_NAMESPACE_NAME: namespace}},
        admission_checks=row.get("admissionChecks") or (),
        spec=_taken(row),
    )


def _merged(of_class: Sequence[Part], own: Sequence[Part]) -> Sequence[Part]:
    """Merge a class's quotas with a team's, resource by resource; new flavors come last."""
    rows: dict[str, dict[str, Any]] = {row["name"]: dict(row) for row in of_class}
    for row in own:
        known: Mapping[str, Any] = rows.get(row["name"], _NOTHING)
        rows[row["name"]] = {**row, "resources": {**known.get("resources", _NOTHING), **row["resources"]}}
    return list(rows.values())


def _shared_queues(rows: Sequence[Part], teams: Sequence[PlatformTeam]) -> Iterator[Queue]:
    """Yield the shared queues; without named teams all teams share a queue."""
    for index, row in enumerate(rows):
        names = row.get("teams")
        sharing = [team for team in teams if names is None or team.name in names]
        namespaces = list(dict.fromkeys(team.namespace for team in sharing))
        selector = row.get("namespaceSelector")
        if selector is None:
            within = {"key": _NAMESPACE_NAME, "operator": "In", "values": namespaces}
            selector = {"matchExpressions": [within]}
        yield Queue(
            path=f"spec.queues[{index}]",
            name=row["name"],
            of_class="",
            cohort=row.get("cohortName", ""),
            flavors=_quotas(row["flavors"]),
            local_queues=[LocalQueue(namespace, row.get("localQueue", row["name"])) for namespace in namespaces],
            namespace_selector=selector,
            admission_checks=row.get("admissionChecks") or (),
            spec=_taken(row),
        )


def _taken(row: Part) -> Part:
    return {field: row[field] for field in _TAKEN if field in row}
