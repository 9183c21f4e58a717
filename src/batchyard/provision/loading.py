"""Loading of a platform.yaml: decodes the model, checks the rules between fields, and locates errors in the file.

An error prints as `file:line: field.path: problem; remedy`. All errors of one check (YAML, structure, Cluster, rules
between fields, rendered objects) are reported at once; a later check runs only if the earlier ones found no errors.
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
from batchyard.cloud.cluster_objects import catalog_errors
from batchyard.provision import manifests, model
from batchyard.provision.rules import platform_errors
from batchyard.provision.yaml_output import RenderedObject

# Convert a valid Platform spec to the model: set dependent defaults, and merge queue classes into teams' queues.


PROVISIONING_CONTROLLER: Final = "kueue.x-k8s.io/provisioning-request"
#: The fields of a queue that are copied to the ClusterQueue's spec.
_QUEUE_SPEC_FIELDS: Final = ("queueingStrategy", "preemption", "flavorFungibility", "fairSharing", "stopPolicy")
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_NO_FIELDS: Final[model.Part] = {}


def platform_of(name: str, spec: model.Part, cluster: model.Part | None) -> model.PlatformModel:
    """Return the model of a Platform's spec, whose structure must be valid; rules between fields are not checked.

    `cluster` is the decoded Cluster that the spec describes; None for an existing cluster.
    """
    google = _google_settings(name, spec["google"]) if "google" in spec else None
    teams = [_team(f"spec.teams[{index}]", row, spec) for index, row in enumerate(spec["teams"])]
    return model.PlatformModel(
        name=name,
        engine=model.PlatformEngine(spec["engine"]),
        kueue_version=spec["versions"].get("kueue", ""),
        job_set_version=spec["versions"].get("jobSet", ""),
        kueue=spec.get("kueue") or {},
        fair_sharing=spec.get("fairSharing", _has_weights(spec)),
        google=google,
        cluster=cluster,
        flavors=[_flavor(row) for row in spec["flavors"]],
        topologies=[_topology(row) for row in spec.get("topologies") or ()],
        priorities=[_priority_class(row) for row in spec.get("priorities") or ()],
        workload_priorities=[_priority_class(row) for row in spec.get("workloadPriorities") or ()],
        admission_checks=[_admission_check(row) for row in spec.get("admissionChecks") or ()],
        cohorts=[_cohort(row) for row in spec.get("cohorts") or ()],
        queue_classes=[row["name"] for row in spec.get("queueClasses") or ()],
        shared_queues=list(_shared_queues(spec.get("queues") or (), teams)),
        teams=teams,
        monitoring=_monitoring(spec, google),
        operator=model.OperatorImage(spec["operator"].get("image", ""), spec["operator"]["replicas"]),
    )


def _has_weights(spec: model.Part) -> bool:
    queue_rows = [row for field in ("queueClasses", "queues", "cohorts") for row in spec.get(field) or ()]
    queue_rows += [row for team in spec["teams"] for row in team.get("queues") or ()]
    return any("fairSharing" in row for row in queue_rows)


def _google_settings(name: str, row: model.Part) -> model.GoogleSettings:
    network, state, nodes = row["network"], row["state"], row["nodes"]
    return model.GoogleSettings(
        project=row.get("project", ""),
        network=model.Network(
            nodes=network["nodes"],
            pods=network["pods"],
            services=network["services"],
            control_plane=network["controlPlane"],
            private_endpoint=network["privateEndpoint"],
            authorized_networks=[(each["name"], each["cidr"]) for each in network.get("authorized") or ()],
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
        has_build_files=row["build"],
        dashboards=row["dashboards"],
        labels=row.get("labels") or {},
        submitted_reservations=row.get("submitReservations") or (),
    )


def _image(row: model.Part) -> model.JobImage:
    return model.JobImage(
        name=row["name"],
        copy_from=row.get("copyFrom", ""),
        build_from=row.get("buildFrom", ""),
        repository=row.get("repository", ""),
        location=row.get("location", ""),
    )


def _flavor(row: model.Part) -> model.PlatformFlavor:
    return model.PlatformFlavor(
        name=row["name"],
        pools=row.get("pools") or (),
        node_labels=row.get("nodeLabels") or {},
        node_taints=row.get("nodeTaints") or (),
        tolerations=row.get("tolerations") or (),
        topology=row.get("topologyName", ""),
    )


def _topology(row: model.Part) -> model.Topology:
    return model.Topology(row["name"], [level["nodeLabel"] for level in row["levels"]])


def _priority_class(row: model.Part) -> model.PriorityClass:
    return model.PriorityClass(
        name=row["name"],
        value=row["value"],
        is_default=row.get("default", False),
        preemption_policy=row.get("preemptionPolicy", "PreemptLowerPriority"),
        description=row.get("description", ""),
    )


def _admission_check(row: model.Part) -> model.AdmissionCheck:
    provisioning = row.get("provisioning")
    if provisioning is None:
        controller = row.get("controllerName", PROVISIONING_CONTROLLER)
        return model.AdmissionCheck(row["name"], controller, row.get("parameters"), "", None)
    spec = {field: value for field, value in provisioning.items() if field != "name"}
    config = provisioning.get("name", row["name"])
    return model.AdmissionCheck(row["name"], row.get("controllerName", PROVISIONING_CONTROLLER), None, config, spec)


def _cohort(row: model.Part) -> model.Cohort:
    quotas = _flavor_quotas(row.get("flavors") or ())
    return model.Cohort(row["name"], row.get("parentName", ""), row.get("fairSharing"), quotas)


def _flavor_quotas(flavor_rows: Sequence[model.Part]) -> Sequence[model.FlavorQuotas]:
    return [model.FlavorQuotas(row["name"], row["resources"]) for row in flavor_rows]


def _monitoring(spec: model.Part, google: model.GoogleSettings | None) -> model.Monitoring:
    row, default_collector = spec["monitoring"], model.MetricsCollector.NONE
    if google is not None and google.managed_prometheus:
        default_collector = model.MetricsCollector.POD_MONITORING
    collector = model.MetricsCollector(row.get("collector", default_collector))
    return model.Monitoring(collector, row["rules"], row["dashboards"], _monitoring_stack(row["stack"]))


def _monitoring_stack(row: model.Part) -> model.MonitoringStack | None:
    if not row["enabled"]:
        return None
    return model.MonitoringStack(
        prometheus_image=row["prometheusImage"],
        grafana_image=row["grafanaImage"],
        kube_state_metrics_image=row["kubeStateMetricsImage"],
        retention_days=row["retentionDays"],
    )


def _team(path: str, row: model.Part, spec: model.Part) -> model.PlatformTeam:
    name = row["name"]
    namespace, account_row = row.get("namespace", name), row["serviceAccount"]
    classes_by_name = {each["name"]: each for each in spec.get("queueClasses") or ()}
    queues = [
        _queue_of_class(f"{path}.queues[{index}]", row, each, classes_by_name.get(each["class"], _NO_FIELDS))
        for index, each in enumerate(row.get("queues") or ())
    ]
    return model.PlatformTeam(
        path=path,
        name=name,
        namespace=namespace,
        cohort=row.get("cohortName", ""),
        members=_parse_users_and_groups(row.get("members") or _NO_FIELDS),
        admins=_parse_users_and_groups(row.get("admins") or _NO_FIELDS),
        identity=model.Identity(
            name=account_row.get("name", f"{name}-ksa"),
            google_name=account_row.get("googleName", f"wi-{name}"),
            roles=account_row.get("roles") or (),
            buckets=account_row.get("buckets") or (),
        ),
        queues=queues,
        resource_quota=row.get("resourceQuota"),
        limit_range=row.get("limitRange"),
        budget=row.get("budget"),
        isolation=model.Isolation(row["networkPolicy"]),
    )


def _parse_users_and_groups(row: model.Part) -> model.UsersAndGroups:
    return model.UsersAndGroups(row.get("users") or (), row.get("groups") or ())


def _queue_of_class(path: str, team: model.Part, queue_row: model.Part, class_row: model.Part) -> model.Queue:
    name, namespace = f"{team['name']}-{queue_row['class']}", team.get("namespace", team["name"])
    flavors = _merge_quotas(class_row.get("flavors") or (), queue_row.get("flavors") or ())
    row = {**class_row, **queue_row, "flavors": flavors}
    return model.Queue(
        path=path,
        name=queue_row.get("clusterQueue", f"cq-{name}"),
        class_name=queue_row["class"],
        cohort=row.get("cohortName") or team.get("cohortName") or "",
        flavors=_flavor_quotas(row["flavors"]),
        local_queues=[model.LocalQueue(namespace, queue_row.get("localQueue", f"lq-{name}"))],
        namespace_selector={"matchLabels": {_NAMESPACE_NAME: namespace}},
        admission_checks=row.get("admissionChecks") or (),
        spec=_queue_spec(row),
    )


def _merge_quotas(class_rows: Sequence[model.Part], team_rows: Sequence[model.Part]) -> Sequence[model.Part]:
    merged_rows: dict[str, dict[str, Any]] = {row["name"]: dict(row) for row in class_rows}
    for row in team_rows:
        class_row: Mapping[str, Any] = merged_rows.get(row["name"], _NO_FIELDS)
        merged_rows[row["name"]] = {**row, "resources": {**class_row.get("resources", _NO_FIELDS), **row["resources"]}}
    return list(merged_rows.values())


def _shared_queues(queue_rows: Sequence[model.Part], teams: Sequence[model.PlatformTeam]) -> Iterator[model.Queue]:
    for index, row in enumerate(queue_rows):
        names = row.get("teams")
        sharing_teams = [team for team in teams if names is None or team.name in names]
        namespaces = list(dict.fromkeys(team.namespace for team in sharing_teams))
        selector = row.get("namespaceSelector")
        if selector is None:
            requirement = {"key": _NAMESPACE_NAME, "operator": "In", "values": namespaces}
            selector = {"matchExpressions": [requirement]}
        yield model.Queue(
            path=f"spec.queues[{index}]",
            name=row["name"],
            class_name="",
            cohort=row.get("cohortName", ""),
            flavors=_flavor_quotas(row["flavors"]),
            local_queues=[model.LocalQueue(namespace, row.get("localQueue", row["name"])) for namespace in namespaces],
            namespace_selector=selector,
            admission_checks=row.get("admissionChecks") or (),
            spec=_queue_spec(row),
        )


def _queue_spec(row: model.Part) -> model.Part:
    return {field: row[field] for field in _QUEUE_SPEC_FIELDS if field in row}


#: Matches field paths in resourceGroups: the indexes of group, flavor and resource, and the rest of the path.
_GROUP_PATTERN: Final = re.compile(
    r"spec\.resourceGroups\[(\d+)\](?:\.flavors\[(\d+)\])?(?:\.resources\[(\d+)\](.*)|\.(?:coveredR|r)esources.*)"
)
_PATH_PATTERN: Final = re.compile(r"([^.\[\]]+)|\[([^\]]*+)(?:\]|\Z)")
#: Platform fields that name an object, by kind; the default is `name`.
_NAME_FIELDS: Final[Mapping[str, Sequence[str]]] = {
    "ClusterQueue": ("clusterQueue", "name"),
    "LocalQueue": ("localQueue", "name"),
    "Namespace": ("namespace", "name"),
    "ServiceAccount": ("serviceAccount", "name"),
}
#: Team fields whose value is an object's spec.
_SPEC_FIELDS: Final = {"ResourceQuota": "resourceQuota", "LimitRange": "limitRange", "Budget": "budget"}


def locate_error(rendered_object: RenderedObject, fault: FieldError, spec: model.Part) -> FieldError:
    """Return a rendered object's error with the path of the platform file's field that caused the error.

    If no field matches, the path is that of the section which the object is rendered from, and the problem names the
    object.
    """
    path = _platform_path(rendered_object, fault.path, spec)
    if path is not None:
        return fault._replace(path=path)
    name = f"{rendered_object.obj['kind']} {rendered_object.obj['metadata'].get('name', '')}"
    problem = f"{name}: {fault.path}: {fault.problem}" if fault.path else f"{name}: {fault.problem}"
    return FieldError(rendered_object.path, problem, fault.remedy)


def _platform_path(rendered_object: RenderedObject, object_path: str, spec: model.Part) -> str | None:
    group_match, sections = _GROUP_PATTERN.fullmatch(object_path), list(_source_sections(rendered_object, spec))
    if object_path == "metadata.name":
        section_path, row = sections[0]
        fields = _NAME_FIELDS.get(rendered_object.obj["kind"], ("name",))
        return next((f"{section_path}.{field}" for field in fields if field in row), None)
    field_path = object_path.removeprefix("spec.")
    for section_path, row in sections:
        relative_path = (
            _quota_path(rendered_object.obj, group_match, row)
            if group_match
            else field_path
            if field_path and _has_field(row, field_path)
            else ""
        )
        if relative_path:
            return f"{section_path}.{relative_path}"
    return None


def _source_sections(rendered_object: RenderedObject, spec: model.Part) -> Iterator[tuple[str, model.Part]]:
    path = rendered_object.path
    section = _section_at({"spec": spec}, path)
    field = _SPEC_FIELDS.get(rendered_object.obj["kind"])
    if field is not None:
        path, section = f"{path}.{field}", section.get(field) or {}
    yield path, section
    for index, row in enumerate(spec.get("queueClasses") or ()):
        if rendered_object.obj["kind"] == "ClusterQueue" and row["name"] == section.get("class"):
            yield f"spec.queueClasses[{index}]", row


def _quota_path(obj: Mapping[str, Any], group_match: re.Match[str], row: model.Part) -> str:
    group_index, flavor_index, resource_index = (int(number or 0) for number in group_match.groups()[:3])
    flavor_quotas = obj["spec"]["resourceGroups"][group_index]["flavors"][flavor_index]
    name = flavor_quotas["resources"][resource_index]["name"] if group_match[3] else ""
    for index, each in enumerate(row.get("flavors") or ()):
        if each["name"] == flavor_quotas["name"] and (not name or name in each["resources"]):
            return f"flavors[{index}].resources" + (f"[{name}]{group_match[4]}" if name else "")
    return ""


def _has_field(row: model.Part, path: str) -> bool:
    field_match = _PATH_PATTERN.match(path)
    return field_match is not None and field_match[1] in row


def _section_at(value: Any, path: str) -> model.Part:
    for name, index in _PATH_PATTERN.findall(path):
        value = value[name] if name else value[int(index)]
    section: model.Part = value if isinstance(value, Mapping) else {}
    return section


API_VERSION: Final = scheme.kind_info(scheme.PLATFORM).api_version
_EXAMPLE_REMEDY: Final = "create a platform file with `batchyard platform init`"


class PlatformFault(NamedTuple):
    """An error in a platform file, with the file name and line; line 0 means the whole file."""

    source: str
    line: int
    error: FieldError

    def __str__(self) -> str:
        """Format as `file:line: field.path: problem; remedy`."""
        return f"{self.source}:{self.line}: {self.error}" if self.line else f"{self.source}: {self.error}"


class InvalidPlatformError(Exception):
    """Raised if a file is not a valid platform; `faults` lists the errors."""

    def __init__(self, errors: Sequence[PlatformFault]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.faults = errors


class PlatformSource(NamedTuple):
    """The text of a platform file, and the file's name for messages."""

    name: str
    text: str


def read_platform(source: PlatformSource, project: str = "") -> model.PlatformModel:
    """Return the platform that a platform file describes, parsed and validated.

    `project`, unless it is '', replaces the Google Cloud project of the file. Raises InvalidPlatformError with the
    errors of the first check that fails.
    """
    documents = list(read_documents(source.text))
    if len(documents) != 1:
        error = FieldError("", "the file is empty", _EXAMPLE_REMEDY)
        if documents:
            problem = f"the file has {len(documents)} YAML documents, not one"
            error = FieldError("", problem, "keep only the Platform in this file")
        raise InvalidPlatformError([PlatformFault(source.name, 0, error)])
    document = documents[0]
    platform, errors = _read_platform(document, project)
    if platform is None or errors:
        raise InvalidPlatformError([_fault_at_line(source.name, document, error) for error in errors])
    return platform


def _read_platform(document: Document, project: str) -> tuple[model.PlatformModel | None, Sequence[FieldError]]:
    if document.faults:
        return None, document.faults
    error = _kind_error(document.value)
    if error is not None:
        return None, [error]
    decoding = decode(document.value)
    if decoding.obj is None:
        return None, decoding.faults
    name, spec = decoding.obj["metadata"].get("name") or "", decoding.obj["spec"]
    cluster, errors = _decode_cluster(name, spec.get("cluster"))
    if errors:
        return None, errors
    platform = with_project(platform_of(name, spec, cluster), project)
    errors = list(platform_errors(platform, spec))
    if not errors:
        faults = manifests.faults(platform)
        errors = list(dict.fromkeys(locate_error(rendered_object, fault, spec) for rendered_object, fault in faults))
    return platform, errors


def with_project(platform: model.PlatformModel, project: str) -> model.PlatformModel:
    """Return the platform with this Google Cloud project; the same platform if `project` is '' or it is not on GKE."""
    if platform.google is None or not project:
        return platform
    return replace(platform, google=replace(platform.google, project=project))


def _kind_error(value: Any) -> FieldError | None:
    if not isinstance(value, dict):
        return FieldError("", "the document is not a YAML mapping", _EXAMPLE_REMEDY)
    kind = value.get("kind")
    if kind != "Platform" and isinstance(kind, str):
        return FieldError(
            "kind", f"the document is of kind {kind}, not Platform", f"use kind: Platform and apiVersion: {API_VERSION}"
        )
    return None


def _decode_cluster(name: str, spec: model.Part | None) -> tuple[Obj | None, Sequence[FieldError]]:
    if spec is None:
        return None, ()
    kind = scheme.kind_info(scheme.CLUSTER)
    cluster_object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec}
    decoding = decode(cluster_object)
    errors = decoding.faults if decoding.obj is None else catalog_errors(decoding.obj)
    return decoding.obj, [_relocate_cluster_error(fault) for fault in errors]


def _relocate_cluster_error(field_error: FieldError) -> FieldError:
    path, remedy = (text.replace("spec.", "spec.cluster.", 1) for text in (field_error.path, field_error.remedy))
    return field_error._replace(path=path, remedy=remedy)


def _fault_at_line(file_name: str, document: Document | None, error: FieldError) -> PlatformFault:
    if document is None or not (error.path or error.line):
        return PlatformFault(file_name, 0, error)
    return PlatformFault(file_name, *DocumentLines(document.text, document.line).locate(error))
