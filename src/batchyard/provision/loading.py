"""Platform loader: decodes a platform.yaml by its field tables, then checks the rules between fields (`rules`).

An error prints as `file:line: field.path: problem; remedy`. All errors are reported at once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj
from batchyard.api.yaml_documents import Document, DocumentLines, read_documents
from batchyard.cloud.cluster_objects import catalog_faults
from batchyard.provision import manifests
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
from batchyard.provision.rules import faults_of
from batchyard.provision.yaml_output import RenderedObject

# --- completion ---
#
# Conversion of a valid Platform spec to the model: dependent defaults, and queue classes merged into teams' queues.


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


# --- places ---
#
# Mapping of an object's fields to the platform's fields, for errors in generated objects.


#: Paths in resourceGroups: group, flavor, resource and the rest.
_GROUP: Final = re.compile(
    r"spec\.resourceGroups\[(\d+)\](?:\.flavors\[(\d+)\])?(?:\.resources\[(\d+)\](.*)|\.(?:coveredR|r)esources.*)"
)
_PATH: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*+)(?:\]|\Z)")
#: Platform fields that name an object, by kind; the default is `name`.
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "ClusterQueue": ("clusterQueue", "name"),
    "LocalQueue": ("localQueue", "name"),
    "Namespace": ("namespace", "name"),
    "ServiceAccount": ("serviceAccount", "name"),
}
#: Team fields whose value is an object's spec.
_SPECS: Final = {"ResourceQuota": "resourceQuota", "LimitRange": "limitRange", "Budget": "budget"}


def placed(made: RenderedObject, fault: FieldError, spec: Part) -> FieldError:
    """Map an error of an object to the platform field it comes from; by default to the part the object is made from."""
    path = _place(made, fault.path, spec)
    if path is not None:
        return fault._replace(path=path)
    name = f"{made.obj['kind']} {made.obj['metadata'].get('name', '')}"
    problem = f"{name}: {fault.path}: {fault.problem}" if fault.path else f"{name}: {fault.problem}"
    return FieldError(made.path, problem, fault.remedy)


def _place(made: RenderedObject, path: str, spec: Part) -> str | None:
    group, rows = _GROUP.fullmatch(path), list(_rows(made, spec))
    if path == "metadata.name":
        whole, row = rows[0]
        return next((f"{whole}.{field}" for field in _NAMES.get(made.obj["kind"], ("name",)) if field in row), None)
    wanted = path.removeprefix("spec.")
    for whole, row in rows:
        found = _quota(made.obj, group, row) if group else wanted if wanted and _has(row, wanted) else ""
        if found:
            return f"{whole}.{found}"
    return None


def _rows(made: RenderedObject, spec: Part) -> Iterator[tuple[str, Part]]:
    """Yield the parts of the file that an object is made from, with their paths; the overriding part comes first."""
    path = made.path
    own = _at({"spec": spec}, path)
    field = _SPECS.get(made.obj["kind"])
    if field is not None:
        path, own = f"{path}.{field}", own.get(field) or {}
    yield path, own
    for index, row in enumerate(spec.get("queueClasses") or ()):
        if made.obj["kind"] == "ClusterQueue" and row["name"] == own.get("class"):
            yield f"spec.queueClasses[{index}]", row


def _quota(obj: Mapping[str, Any], found: re.Match[str], row: Part) -> str:
    """Return the path of a flavor's quotas, or of one resource's quota, in a part; '' if it has none."""
    group, flavor, resource = (int(number or 0) for number in found.groups()[:3])
    entry = obj["spec"]["resourceGroups"][group]["flavors"][flavor]
    name = entry["resources"][resource]["name"] if found[3] else ""
    for index, each in enumerate(row.get("flavors") or ()):
        if each["name"] == entry["name"] and (not name or name in each["resources"]):
            return f"flavors[{index}].resources" + (f"[{name}]{found[4]}" if name else "")
    return ""


def _has(row: Part, path: str) -> bool:
    """Whether a part has the field, or the first field of its path."""
    first = _PATH.match(path)
    return first is not None and first[1] in row


def _at(value: Any, path: str) -> Part:
    """Return the part at a path such as `spec.teams[0].queues[1]`."""
    for name, index in _PATH.findall(path):
        value = value[name] if name else value[int(index)]
    found: Part = value if isinstance(value, Mapping) else {}
    return found


API_VERSION: Final = scheme.kind_info(scheme.PLATFORM).api_version
_EXAMPLE: Final = "write one with `batchyard platform init`"


class PlatformFault(NamedTuple):
    """An error with its file and line; line 0 means the whole file."""

    source: str
    line: int
    error: FieldError

    def __str__(self) -> str:
        """Format as `file:line: field.path: problem; remedy`."""
        return f"{self.source}:{self.line}: {self.error}" if self.line else f"{self.source}: {self.error}"


class InvalidPlatform(Exception):  # noqa: N818 - named like the API's Invalid
    """The file is not a valid platform; `faults` lists all errors."""

    def __init__(self, faults: Sequence[PlatformFault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class PlatformSource(NamedTuple):
    """The text of a platform file, and its display name."""

    name: str
    text: str


def read_platform(source: PlatformSource, project: str = "") -> PlatformModel:
    """Parse a platform; raise InvalidPlatform with all errors.

    `project` sets or overrides the Google Cloud project.
    """
    documents = list(read_documents(source.text))
    if len(documents) != 1:
        problem = "the file is empty" if not documents else f"the file has {len(documents)} documents"
        raise InvalidPlatform([PlatformFault(source.name, 0, FieldError("", problem, _EXAMPLE))])
    document = documents[0]
    platform, errors = _read(document, project)
    if platform is None or errors:
        raise InvalidPlatform([_placed(source.name, document, error) for error in errors])
    return platform


def _read(document: Document, project: str) -> tuple[PlatformModel | None, Sequence[FieldError]]:
    """Return the platform of a document, and the errors."""
    if document.faults:
        return None, document.faults
    error = _kind_error(document.value)
    if error is not None:
        return None, [error]
    decoded = decode(document.value)
    if decoded.obj is None:
        return None, decoded.faults
    name, spec = decoded.obj["metadata"].get("name") or "", decoded.obj["spec"]
    cluster, errors = _cluster(name, spec.get("cluster"))
    if errors:
        return None, errors
    platform = with_project(platform_of(name, spec, cluster), project)
    errors = list(faults_of(platform, spec))
    if not errors:
        errors = list(dict.fromkeys(placed(made, fault, spec) for made, fault in manifests.faults(platform)))
    return platform, errors


def with_project(platform: PlatformModel, project: str) -> PlatformModel:
    """Return the platform with a Google Cloud project; '' changes nothing."""
    if platform.google is None or not project:
        return platform
    return replace(platform, google=replace(platform.google, project=project))


def _kind_error(value: Any) -> FieldError | None:
    """Return the error of a document of another kind."""
    if not isinstance(value, dict):
        return FieldError("", "this is not an object", _EXAMPLE)
    kind = value.get("kind")
    if kind != "Platform" and isinstance(kind, str):
        return FieldError("kind", f"this is a {kind}, not a Platform", f"write kind: Platform of {API_VERSION}")
    return None


def _cluster(name: str, spec: Part | None) -> tuple[Obj | None, Sequence[FieldError]]:
    """Return the complete Cluster of a platform, or its errors with the platform's paths."""
    if spec is None:
        return None, ()
    kind = scheme.kind_info(scheme.CLUSTER)
    wanted = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    decoded = decode(wanted)
    faults = decoded.faults if decoded.obj is None else catalog_faults(decoded.obj)
    return decoded.obj, [_of_cluster(fault) for fault in faults]


def _of_cluster(fault: FieldError) -> FieldError:
    """Map an error of the Cluster to the platform's path."""
    path, remedy = (text.replace("spec.", "spec.cluster.", 1) for text in (fault.path, fault.remedy))
    return fault._replace(path=path, remedy=remedy)


def _placed(source: str, document: Document | None, error: FieldError) -> PlatformFault:
    number = error.path.removeprefix("line ")
    if number != error.path and number.isdecimal():
        return PlatformFault(source, int(number), error._replace(path=""))
    line = DocumentLines(document.text, document.line).of(error.path) if document and error.path else 0
    return PlatformFault(source, line, error)
