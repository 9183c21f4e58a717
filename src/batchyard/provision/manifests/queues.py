"""Manifests of priorities, flavors, admission checks, cohorts and queues, and of teams: namespace, RBAC and limits."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pool_properties import zones_of
from batchyard.provision import model
from batchyard.provision.yaml_output import RenderedObject, make_platform_object

# Node labels and taints of a flavor: the labels and taints common to its pools, and the ones set on the flavor.
#
# GKE labels are included only for accelerators and provisioning. NoSchedule and NoExecute taints are included, except
# the taint of queued provisioning, which pods of ProvisioningRequests tolerate.


#: GKE's labels that distinguish nodes.
_DISTINGUISHING_LABELS: Final = (
    well_known.ACCELERATOR,
    well_known.TPU_ACCELERATOR,
    well_known.TPU_TOPOLOGY,
    well_known.PROVISIONING,
)
_REPELLING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def node_labels(flavor: model.PlatformFlavor, platform: model.PlatformModel) -> Mapping[str, str]:
    """Return the nodeLabels of a ResourceFlavor: labels common to its node pools, and labels set on the flavor.

    Of GKE's own labels, only those of accelerators and provisioning are used. If the flavor has one pool, and nodes of
    another pool have all these labels too, the label with the pool's name is added.
    """
    if not flavor.pools:
        return flavor.node_labels
    nodes = _template_nodes(platform)
    pool_nodes = [nodes[name] for name in flavor.pools]
    other_nodes = [node for name, node in nodes.items() if name not in flavor.pools]
    keys = {*_DISTINGUISHING_LABELS, *(key for row in platform.node_pools for key in row.get("labels") or ())}
    common_labels = {key: value for key, value in _labels(pool_nodes[0]).items() if key in keys}
    common_labels = {
        key: text for key, text in common_labels.items() if all(_labels(node).get(key) == text for node in pool_nodes)
    }
    selected_labels = {**common_labels, **flavor.node_labels}
    if len(pool_nodes) == 1 and any(selected_labels.items() <= _labels(node).items() for node in other_nodes):
        selected_labels = {**selected_labels, well_known.NODE_POOL: flavor.pools[0]}
    return dict(sorted(selected_labels.items()))


def node_taints(flavor: model.PlatformFlavor, platform: model.PlatformModel) -> Sequence[model.Part]:
    """Return the nodeTaints of a ResourceFlavor: those set on the flavor, and those common to its node pools.

    Of the pools' taints, PreferNoSchedule taints and GKE's taint for queued provisioning are left out.
    """
    if not flavor.pools:
        return flavor.node_taints
    nodes = _template_nodes(platform)
    pool_taints = [nodes[name]["spec"]["taints"] for name in flavor.pools]
    common_taints = [taint for taint in pool_taints[0] if all(taint in taints for taints in pool_taints)]
    flavor_taint_keys = [(taint["key"], taint["effect"]) for taint in flavor.node_taints]
    repelling_taints = [
        taint
        for taint in common_taints
        if taint["effect"] in _REPELLING_EFFECTS
        and taint["key"] != well_known.QUEUED
        and (taint["key"], taint["effect"]) not in flavor_taint_keys
    ]
    return sorted([*repelling_taints, *flavor.node_taints], key=lambda taint: (taint["key"], taint["effect"]))


def _labels(node: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"]["labels"]
    return labels


def _template_nodes(platform: model.PlatformModel) -> Mapping[str, Obj]:
    cluster = platform.cluster
    if cluster is None:
        return {}
    pools = [{"metadata": {"name": row["name"]}, "spec": row} for row in platform.node_pools]
    return {pool["metadata"]["name"]: node_template(pool, zones_of(pool, cluster)[0], cluster) for pool in pools}


def priority_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return the PriorityClasses, then the WorkloadPriorityClasses of the platform."""
    priority_classes = [_priority_class(each, platform) for each in platform.priorities]
    pod_classes = [RenderedObject(obj, f"spec.priorities[{index}]") for index, obj in enumerate(priority_classes)]
    workload_classes = [
        RenderedObject(_workload_priority_class(each, platform), f"spec.workloadPriorities[{index}]")
        for index, each in enumerate(platform.workload_priorities)
    ]
    return [*pod_classes, *workload_classes]


def flavor_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return the Topologies, then the ResourceFlavors of the platform."""
    topologies = [
        RenderedObject(
            make_platform_object(
                scheme.TOPOLOGY,
                platform.name,
                each.name,
                spec={"levels": [{"nodeLabel": level} for level in each.levels]},
            ),
            f"spec.topologies[{index}]",
        )
        for index, each in enumerate(platform.topologies)
    ]
    objects = [_flavor(each, platform) for each in platform.flavors]
    resource_flavors = [RenderedObject(obj, f"spec.flavors[{index}]") for index, obj in enumerate(objects)]
    return [*topologies, *resource_flavors]


def admission_check_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return each AdmissionCheck, after its ProvisioningRequestConfig if it has one."""
    return [
        RenderedObject(obj, f"spec.admissionChecks[{index}]")
        for index, check in enumerate(platform.admission_checks)
        for obj in _admission_check(check, platform)
    ]


def cohort_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return the Cohorts that the platform file lists; a Cohort that is named only in ClusterQueues needs no object."""
    objects = [_cohort(each, platform) for each in platform.cohorts]
    return [RenderedObject(obj, f"spec.cohorts[{index}]") for index, obj in enumerate(objects)]


def queue_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return every ClusterQueue, followed by its LocalQueues."""
    return [RenderedObject(obj, queue.path) for queue in platform.queues for obj in _objects_of_queue(queue, platform)]


def _priority_class(priority: model.PriorityClass, platform: model.PlatformModel) -> Obj:
    return make_platform_object(
        scheme.PRIORITY_CLASS,
        platform.name,
        priority.name,
        value=priority.value,
        globalDefault=priority.is_default,
        preemptionPolicy=priority.preemption_policy,
        **_description_field(priority),
    )


def _workload_priority_class(priority: model.PriorityClass, platform: model.PlatformModel) -> Obj:
    kind = scheme.WORKLOAD_PRIORITY_CLASS
    return make_platform_object(
        kind, platform.name, priority.name, value=priority.value, **_description_field(priority)
    )


def _description_field(priority: model.PriorityClass) -> dict[str, Any]:
    return {"description": priority.description} if priority.description else {}


def _flavor(flavor: model.PlatformFlavor, platform: model.PlatformModel) -> Obj:
    spec: dict[str, Any] = {
        "nodeLabels": dict(node_labels(flavor, platform)),
        "nodeTaints": list(node_taints(flavor, platform)),
        "tolerations": list(flavor.tolerations),
        "topologyName": flavor.topology,
    }
    nonempty_fields = {field: value for field, value in spec.items() if value}
    return make_platform_object(scheme.RESOURCE_FLAVOR, platform.name, flavor.name, spec=nonempty_fields)


def _admission_check(check: model.AdmissionCheck, platform: model.PlatformModel) -> Iterator[Obj]:
    parameters = check.parameters
    if check.provisioning is not None:
        kind = scheme.kind_info(scheme.PROVISIONING_REQUEST_CONFIG)
        yield make_platform_object(kind.constant, platform.name, check.config_name, spec=dict(check.provisioning))
        parameters = {"apiGroup": kind.group, "kind": kind.kind, "name": check.config_name}
    parameters_field = {"parameters": dict(parameters)} if parameters else {}
    spec = {"controllerName": check.controller, **parameters_field}
    yield make_platform_object(scheme.ADMISSION_CHECK, platform.name, check.name, spec=spec)


def _cohort(cohort: model.Cohort, platform: model.PlatformModel) -> Obj:
    spec: dict[str, Any] = {}
    if cohort.parent:
        spec["parentName"] = cohort.parent
    if cohort.fair_sharing is not None:
        spec["fairSharing"] = cohort.fair_sharing
    if cohort.flavors:
        spec["resourceGroups"] = _resource_groups(cohort.flavors)
    return make_platform_object(scheme.COHORT, platform.name, cohort.name, spec=spec)


def _objects_of_queue(queue: model.Queue, platform: model.PlatformModel) -> Iterator[Obj]:
    spec: dict[str, Any] = {"cohortName": queue.cohort} if queue.cohort else {}
    spec |= {**queue.spec, "namespaceSelector": queue.namespace_selector}
    if queue.admission_checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": list(queue.admission_checks)}
    spec["resourceGroups"] = _resource_groups(queue.flavors)
    yield make_platform_object(scheme.CLUSTER_QUEUE, platform.name, queue.name, spec=spec)
    for local_queue in queue.local_queues:
        local_queue_spec = {"clusterQueue": queue.name}
        yield make_platform_object(
            scheme.LOCAL_QUEUE, platform.name, local_queue.name, local_queue.namespace, spec=local_queue_spec
        )


def _resource_groups(flavors: Sequence[model.FlavorQuotas]) -> list[Mapping[str, Any]]:
    quotas_by_resources: dict[frozenset[str], list[model.FlavorQuotas]] = {}
    for flavor in flavors:
        quotas_by_resources.setdefault(frozenset(flavor.resources), []).append(flavor)
    return [_resource_group(members) for members in quotas_by_resources.values()]


def _resource_group(flavors: Sequence[model.FlavorQuotas]) -> Mapping[str, Any]:
    """Return a resource group with these flavors; all list their resources in the same order, as Kueue requires."""
    resource_names = list(flavors[0].resources)
    flavor_entries = [
        {"name": each.name, "resources": [{"name": name, **each.resources[name]} for name in resource_names]}
        for each in flavors
    ]
    return {"coveredResources": resource_names, "flavors": flavor_entries}


# Objects of a team: namespace, ServiceAccount, RBAC, limits and NetworkPolicy.
#
# Members submit, view and delete jobs in their namespace. Admins also manage its Secrets, and change Workloads. No team
# may change queues, quotas, RBAC or network policies.


#: The namespace that exists in every cluster.
_DEFAULT_NAMESPACE: Final = "default"
#: GKE's annotation of the Google service account that a ServiceAccount impersonates.
_GOOGLE_ACCOUNT_ANNOTATION: Final = "iam.gke.io/gcp-service-account"
TEAM_LABEL: Final = "platform.batchyard.dev/team"
_RBAC_GROUP: Final = "rbac.authorization.k8s.io"
_READ_VERBS: Final = ("get", "list", "watch")
_WRITE_VERBS: Final = (*_READ_VERBS, "create", "update", "patch", "delete")

#: Rows of API group, resources and verbs.
_RuleRow = tuple[str, Sequence[str], Sequence[str]]
_MEMBER_RULES: Final[Sequence[_RuleRow]] = (
    ("batch", ("jobs",), _WRITE_VERBS),
    ("jobset.x-k8s.io", ("jobsets",), _WRITE_VERBS),
    ("", ("pods",), (*_READ_VERBS, "delete")),
    ("", ("pods/log",), ("get",)),
    ("", ("pods/exec", "pods/attach", "pods/portforward"), ("get", "create")),
    ("", ("configmaps", "persistentvolumeclaims"), _WRITE_VERBS),
    ("", ("events", "resourcequotas", "limitranges", "services", "serviceaccounts"), _READ_VERBS),
    ("events.k8s.io", ("events",), _READ_VERBS),
    ("kueue.x-k8s.io", ("localqueues", "workloads"), _READ_VERBS),
    ("visibility.kueue.x-k8s.io", ("localqueues/pendingworkloads",), ("get", "list")),
    ("autoscaling.x-k8s.io", ("provisioningrequests",), _READ_VERBS),
)
#: Resources of the batchyard engine: costs, decisions, and the reason and forecast of pending jobs.
_ENGINE_READ_RULES: Final[Sequence[_RuleRow]] = (
    ("cost.batchyard.dev", ("budgets", "costrecords"), _READ_VERBS),
    ("batchyard.dev", ("decisions",), _READ_VERBS),
    ("kueue.x-k8s.io", ("workloads/why", "workloads/eta"), ("get",)),
    ("batch", ("jobs/why", "jobs/eta"), ("get",)),
    ("jobset.x-k8s.io", ("jobsets/why", "jobsets/eta"), ("get",)),
)
_ADMIN_RULES: Final[Sequence[_RuleRow]] = (
    ("", ("secrets",), _WRITE_VERBS),
    ("", ("pods",), ("deletecollection",)),
    ("batch", ("jobs",), ("deletecollection",)),
    ("jobset.x-k8s.io", ("jobsets",), ("deletecollection",)),
    ("kueue.x-k8s.io", ("workloads",), ("update", "patch")),
)
#: The platform's objects that all teams may read: queues, flavors and priorities.
_SHARED_READ_RULES: Final[Sequence[_RuleRow]] = (
    (
        "kueue.x-k8s.io",
        ("clusterqueues", "cohorts", "resourceflavors", "topologies", "workloadpriorityclasses"),
        _READ_VERBS,
    ),
    ("scheduling.k8s.io", ("priorityclasses",), _READ_VERBS),
)


def shared_rbac_objects(platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return a ClusterRole for reading queues, flavors and priorities, and its binding to the people of all teams.

    The result is empty if no team has members or admins.
    """
    subjects = [subject for team in platform.teams for subject in _rbac_subjects(team.members, team.admins)]
    if not subjects:
        return []
    name = f"{platform.name}-readers"
    role = make_platform_object(scheme.CLUSTER_ROLE, platform.name, name, rules=_policy_rules(_SHARED_READ_RULES))
    role_binding = make_platform_object(
        scheme.CLUSTER_ROLE_BINDING,
        platform.name,
        name,
        roleRef={"apiGroup": _RBAC_GROUP, "kind": "ClusterRole", "name": name},
        subjects=_deduplicate_subjects(subjects),
    )
    return [RenderedObject(role, "spec.teams"), RenderedObject(role_binding, "spec.teams")]


def team_objects(team: model.PlatformTeam, platform: model.PlatformModel) -> Sequence[RenderedObject]:
    """Return the objects of a team: Namespace, ServiceAccount, and RBAC, limits and NetworkPolicy as configured.

    The Namespace `default` is left out, because it exists in every cluster.
    """
    return [RenderedObject(_add_team_label(obj, team), team.path) for obj in _unlabelled_objects(team, platform)]


def _unlabelled_objects(team: model.PlatformTeam, platform: model.PlatformModel) -> Iterator[Obj]:
    if team.namespace != _DEFAULT_NAMESPACE:
        yield make_platform_object(scheme.NAMESPACE, platform.name, team.namespace)
    yield _service_account(team, platform)
    yield from _role_objects(team, platform)
    yield from _limit_objects(team, platform)
    if team.isolation is model.Isolation.ISOLATED:
        yield _network_policy(team, platform)


def _service_account(team: model.PlatformTeam, platform: model.PlatformModel) -> Obj:
    account = make_platform_object(scheme.SERVICE_ACCOUNT, platform.name, team.identity.name, team.namespace)
    if platform.google is None:
        return account
    annotations = {_GOOGLE_ACCOUNT_ANNOTATION: google_account(team, platform.google)}
    return {**account, "metadata": {**account["metadata"], "annotations": annotations}}


def google_account(team: model.PlatformTeam, google: model.GoogleSettings) -> str:
    """Return the email address of a team's Google service account."""
    return f"{team.identity.google_name}@{google.project}.iam.gserviceaccount.com"


def _role_objects(team: model.PlatformTeam, platform: model.PlatformModel) -> Iterator[Obj]:
    member_rules = [*_MEMBER_RULES, *(_ENGINE_READ_RULES if platform.engine is model.PlatformEngine.BATCHYARD else ())]
    admin_rules = [*member_rules, *_ADMIN_RULES]
    for name, people, rule_rows in (("members", team.members, member_rules), ("admins", team.admins, admin_rules)):
        subjects = _rbac_subjects(people)
        if subjects:
            role_name = f"{team.name}-{name}"
            yield make_platform_object(
                scheme.ROLE, platform.name, role_name, team.namespace, rules=_policy_rules(rule_rows)
            )
            ref = {"apiGroup": _RBAC_GROUP, "kind": "Role", "name": role_name}
            yield make_platform_object(
                scheme.ROLE_BINDING, platform.name, role_name, team.namespace, roleRef=ref, subjects=subjects
            )


def _limit_objects(team: model.PlatformTeam, platform: model.PlatformModel) -> Iterator[Obj]:
    limit_kinds = (scheme.RESOURCE_QUOTA, scheme.LIMIT_RANGE, scheme.BUDGET)
    for kind, spec in zip(limit_kinds, (team.resource_quota, team.limit_range, team.budget), strict=True):
        if spec is not None:
            yield make_platform_object(kind, platform.name, team.name, team.namespace, spec=dict(spec))


def _network_policy(team: model.PlatformTeam, platform: model.PlatformModel) -> Obj:
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": {}}]}]}
    return make_platform_object(scheme.NETWORK_POLICY, platform.name, "from-own-namespace", team.namespace, spec=spec)


def _rbac_subjects(*people: model.UsersAndGroups) -> list[Mapping[str, str]]:
    subjects = [
        {"apiGroup": _RBAC_GROUP, "kind": kind, "name": name}
        for each in people
        for kind, names in (("Group", each.groups), ("User", each.users))
        for name in names
    ]
    return _deduplicate_subjects(subjects)


def _deduplicate_subjects(subjects: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return list({(each["kind"], each["name"]): each for each in subjects}.values())


def _policy_rules(rule_rows: Sequence[_RuleRow]) -> list[Mapping[str, Any]]:
    return [{"apiGroups": [group], "resources": list(names), "verbs": list(verbs)} for group, names, verbs in rule_rows]


def _add_team_label(obj: Obj, team: model.PlatformTeam) -> Obj:
    metadata = obj["metadata"]
    return {**obj, "metadata": {**metadata, "labels": {**metadata["labels"], TEAM_LABEL: team.name}}}
