"""Builds ProvisioningRequests and their PodTemplates for Workloads, and parses ProvisioningRequestConfigs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme, well_known
from batchyard.api.schema import semantic_equality
from batchyard.base.instant import SECOND, Duration
from batchyard.interfaces.client import Reader
from batchyard.jobframework.workloads import PodSetInfo, inject_pod_set_info
from batchyard.scheduling.workload.lifecycle import admission_of

_CONFIG_API_GROUP: Final = "kueue.x-k8s.io"
_CONFIG_KIND: Final = "ProvisioningRequestConfig"
_NO_FIELDS: Final[Mapping[str, Any]] = {}


class NodeSelectorUpdate(NamedTuple):
    """A node selector key for provisioned pods, and the key in provisioningClassDetails whose value it gets."""

    key: str
    class_detail: str


@dataclass(frozen=True, slots=True)
class ProvisioningConfig:
    """The parsed spec of a ProvisioningRequestConfig."""

    class_name: str
    parameters: Mapping[str, str]
    #: Pod sets that request none of these need no capacity; if empty, all pod sets need it.
    managed_resources: tuple[str, ...]
    retries_max: int
    backoff_base: Duration
    backoff_max: Duration
    #: Which pod sets share a template: IdenticalPodTemplates, IdenticalWorkloadSchedulingRequirements, '' for none.
    merge_policy: str
    node_selector: tuple[NodeSelectorUpdate, ...]


class InvalidConfig(NamedTuple):
    """Kueue's message about why an AdmissionCheck has no usable ProvisioningRequestConfig."""

    message: str


def find_config(check: meta.Obj, reader: Reader) -> ProvisioningConfig | InvalidConfig:
    """Return the parsed ProvisioningRequestConfig that an AdmissionCheck references, or why it cannot be used."""
    name = config_name(check)
    if isinstance(name, InvalidConfig):
        return name
    config_object = reader.get(meta.Key(scheme.PROVISIONING_REQUEST_CONFIG, "", name))
    if config_object is None:
        return InvalidConfig(f'{scheme.PROVISIONING_REQUEST_CONFIG} "{name}" not found')
    return _parse_config(config_object["spec"])


def config_name(check: meta.Obj) -> str | InvalidConfig:
    """Return the ProvisioningRequestConfig name that an AdmissionCheck references, or why the reference is invalid."""
    config_reference = check["spec"].get("parameters")
    if config_reference is None:
        return InvalidConfig("missing parameters reference")
    name, api_group, kind = (config_reference.get(field) or "" for field in ("name", "apiGroup", "kind"))
    if not name:
        return InvalidConfig("empty name: bad parameters reference")
    if api_group != _CONFIG_API_GROUP:
        return InvalidConfig(f'wrong group "{api_group}", expecting "{_CONFIG_API_GROUP}": bad parameters reference')
    if kind != _CONFIG_KIND:
        return InvalidConfig(f'wrong kind "{kind}", expecting "{_CONFIG_KIND}": bad parameters reference')
    return str(name)


def _parse_config(spec: Mapping[str, Any]) -> ProvisioningConfig:
    retry_strategy = spec.get("retryStrategy") or _NO_FIELDS
    updates = (spec.get("podSetUpdates") or _NO_FIELDS).get("nodeSelector") or ()
    return ProvisioningConfig(
        class_name=spec.get("provisioningClassName", ""),
        parameters=spec.get("parameters") or _NO_FIELDS,
        managed_resources=tuple(spec.get("managedResources") or ()),
        retries_max=retry_strategy.get("backoffLimitCount", 3),
        backoff_base=retry_strategy.get("backoffBaseSeconds", 60) * SECOND,
        backoff_max=retry_strategy.get("backoffMaxSeconds", 1800) * SECOND,
        merge_policy=spec.get("podSetMergePolicy") or "",
        node_selector=tuple(NodeSelectorUpdate(u["key"], u["valueFromProvisioningClassDetail"]) for u in updates),
    )


_SCHEDULING_FIELDS: Final = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")
_CONTAINER_FIELDS: Final = ("initContainers", "containers")


PodSet = Mapping[str, Any]


@dataclass(slots=True)
class TemplateGroup:
    """Pod sets of a ProvisioningRequest that share one PodTemplate: the template of the first pod set."""

    pod_set: PodSet
    assignment: Mapping[str, Any]
    #: The total number of pods of the pod sets.
    count: int
    #: The names of all pod sets of the group.
    member_names: list[str]

    @property
    def name(self) -> str:
        """The name of the first pod set of the group."""
        return str(self.pod_set["name"])


def groups_needing_capacity(workload: meta.Obj, config: ProvisioningConfig) -> list[TemplateGroup]:
    """Return the admitted pod sets of a Workload that need machines, grouped by the PodTemplate that they may share."""
    groups: list[TemplateGroup] = []
    for pod_set, assignment in _admitted_pod_sets(workload):
        pod_count = assignment.get("count", pod_set["count"])
        if pod_set["count"] <= 0 or pod_count <= 0 or not _requests_managed_resource(pod_set, config.managed_resources):
            continue
        matching_group = next((g for g in groups if _may_share_template(g.pod_set, pod_set, config.merge_policy)), None)
        if matching_group is None:
            groups.append(TemplateGroup(pod_set, assignment, pod_count, [pod_set["name"]]))
        else:
            matching_group.count += pod_count
            matching_group.member_names.append(pod_set["name"])
    return groups


def _admitted_pod_sets(workload: meta.Obj) -> Iterator[tuple[PodSet, Mapping[str, Any]]]:
    assignment_by_name = {a["name"]: a for a in admission_of(workload).get("podSetAssignments") or ()}
    for pod_set in workload["spec"]["podSets"]:
        if pod_set["name"] in assignment_by_name:
            yield pod_set, assignment_by_name[pod_set["name"]]


def _requests_managed_resource(pod_set: PodSet, managed_resources: Sequence[str]) -> bool:
    if not managed_resources:
        return True
    resource_requirements = [
        container.get("resources") or _NO_FIELDS
        for kind in _CONTAINER_FIELDS
        for container in _pod_spec(pod_set).get(kind) or ()
    ]
    return any(
        name in (each.get(part) or ())
        for each in resource_requirements
        for part in ("requests", "limits")
        for name in managed_resources
    )


def _may_share_template(a: PodSet, b: PodSet, merge_policy: str) -> bool:
    if merge_policy == "IdenticalPodTemplates":
        return semantic_equality(scheme.WORKLOAD).is_same_field("Workload.spec.podSets", "template", a, b)
    ignores_other_fields = merge_policy == "IdenticalWorkloadSchedulingRequirements"
    return ignores_other_fields and _scheduling_requirements(a) == _scheduling_requirements(b)


def _scheduling_requirements(pod_set: PodSet) -> list[Any]:
    """Return the requests and scheduling fields of a pod set; pod sets with equal values may share a PodTemplate."""
    spec = _pod_spec(pod_set)
    requests = [[_canonical_requests(container) for container in spec.get(kind) or ()] for kind in _CONTAINER_FIELDS]
    return [requests, [spec.get(field) or None for field in _SCHEDULING_FIELDS]]


def _canonical_requests(container: Mapping[str, Any]) -> dict[str, str]:
    requests = (container.get("resources") or _NO_FIELDS).get("requests") or _NO_FIELDS
    return {name: meta.canonical_quantity(amount) for name, amount in requests.items()}


def _pod_spec(pod_set: PodSet) -> Mapping[str, Any]:
    return (pod_set.get("template") or _NO_FIELDS).get("spec") or _NO_FIELDS


_HASH_LENGTH: Final = 5
_NAME_PREFIX_MAX: Final = 252 - _HASH_LENGTH
_ATTEMPTS_MAX: Final = 1000
_ATTEMPT_DIGITS_MAX: Final = len(str(_ATTEMPTS_MAX))


def request_name(workload: str, check_name: str, attempt: int) -> str:
    """Return the name of the ProvisioningRequest of a Workload for an admission check and an attempt number."""
    return _limit_name_length(f"{workload}-{check_name}-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    """Return the name of the PodTemplate that a ProvisioningRequest references for a pod set."""
    return _limit_name_length(f"ppt-{request}-{pod_set}")


def attempt_of(request: str, workload: str, check_name: str) -> int | None:
    """Return the attempt number in the name `request`; None if the name is of another Workload or admission check.

    In a truncated name the attempt is part of the hash, so the attempt numbers below 1000 are tried.
    """
    prefix = f"{workload}-{check_name}-"
    attempt_text = request.removeprefix(prefix)
    if attempt_text != request and attempt_text.isdecimal():
        return int(attempt_text)
    if len(prefix) < _NAME_PREFIX_MAX - _ATTEMPT_DIGITS_MAX:
        return None
    return next((n for n in range(1, _ATTEMPTS_MAX) if request_name(workload, check_name, n) == request), None)


def _limit_name_length(name: str) -> str:
    if len(name) <= _NAME_PREFIX_MAX:
        return name
    return f"{name[:_NAME_PREFIX_MAX]}-{sha1(name.encode(), usedforsecurity=False).hexdigest()[:_HASH_LENGTH]}"


_MANAGED_LABELS: Final = {well_known.MANAGED: "true"}


def provisioning_request(
    workload: meta.Obj, name: str, config: ProvisioningConfig, template_groups: Iterable[TemplateGroup]
) -> dict[str, Any]:
    """Return a new ProvisioningRequest object for groups of a Workload's pod sets, owned by the Workload."""
    pod_sets = [{"podTemplateRef": {"name": template_name(name, g.name)}, "count": g.count} for g in template_groups]
    spec: dict[str, Any] = {"provisioningClassName": config.class_name, "podSets": pod_sets}
    parameters = {**config.parameters, **_annotated_parameters(workload)}
    if parameters:
        spec["parameters"] = parameters
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": _make_metadata(workload, name),
        "spec": spec,
    }


def pod_template(workload: meta.Obj, name: str, group: TemplateGroup, injection: PodSetInfo) -> dict[str, Any]:
    """Return a new PodTemplate for a group of pod sets, with `injection` applied and missing requests set to limits.

    Raises InvalidPodSetInfo if `injection` conflicts with the template.
    """
    template: Mapping[str, Any] = inject_pod_set_info(group.pod_set.get("template") or {}, injection)
    for kind in ("initContainers", "containers"):
        if containers := (template.get("spec") or {}).get(kind):
            template = meta.with_path(template, ("spec", kind), [_with_default_requests(c) for c in containers])
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": _make_metadata(workload, name), "template": template}


def matches_config(request: meta.Obj, config: ProvisioningConfig, workload: meta.Obj) -> bool:
    """Return whether a ProvisioningRequest has the class and parameters of a config.

    Parameters that the Workload's annotations override are not compared.
    """
    spec, overridden_parameters = request["spec"], _annotated_parameters(workload)
    parameters = spec.get("parameters") or {}
    has_same_parameters = all(
        parameters.get(name) == value for name, value in config.parameters.items() if name not in overridden_parameters
    )
    return has_same_parameters and bool(spec["provisioningClassName"] == config.class_name)


def is_controlled_by(obj: meta.Obj, owner: meta.Obj) -> bool:
    """Return whether an object's controller ownerReference points to `owner`."""
    controller_reference = meta.controller_of(obj)
    return controller_reference is not None and bool(controller_reference["uid"] == owner["metadata"]["uid"])


def with_request_owner(template: meta.Obj, workload: meta.Obj, provisioning_request: meta.Obj) -> meta.Obj:
    """Return a PodTemplate with the ProvisioningRequest as its controller instead of the Workload.

    A PodTemplate that the Workload does not control is returned unchanged.
    """
    if not is_controlled_by(template, workload):
        return template
    uid = workload["metadata"]["uid"]
    other_owners = [owner for owner in template["metadata"]["ownerReferences"] if owner["uid"] != uid]
    return meta.with_metadata(
        template, ownerReferences=[*other_owners, meta.controller_reference(provisioning_request)]
    )


def _make_metadata(workload: meta.Obj, name: str) -> dict[str, Any]:
    namespace = workload["metadata"].get("namespace", "")
    owner_references = [meta.controller_reference(workload)]
    return {"name": name, "namespace": namespace, "labels": _MANAGED_LABELS, "ownerReferences": owner_references}


def _annotated_parameters(workload: meta.Obj) -> dict[str, str]:
    annotations = workload["metadata"].get("annotations") or {}
    prefix = well_known.PROVISIONING_PREFIX
    return {name.removeprefix(prefix): value for name, value in annotations.items() if name.startswith(prefix)}


def _with_default_requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}
