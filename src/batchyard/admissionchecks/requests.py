"""ProvisioningRequests, and the PodTemplates of their pod sets.

A template is owned by the Workload until the request exists, so that it is garbage-collected, and then by the request.
Source: syncOwnedProvisionRequest and createPodTemplate of Kueue's provisioning controller. One upstream defect is
fixed: there, a request whose parameter is overridden by its Workload counts as outdated and is recreated forever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Final

from batchyard.admissionchecks.config import ProvisioningConfig
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, controller_of, controller_reference, with_metadata, with_path
from batchyard.api.quantity import canonical
from batchyard.api.schema import meaning_of
from batchyard.jobframework.podsets import PodSetInfo, inject
from batchyard.scheduling.workload.lifecycle import admission_of

# --- pod sets ---
#
# The pod sets of a Workload that need capacity, and which of them may share a template.
#
# Source: reqIsNeeded and mergePodSets of Kueue's provisioning controller.


_SCHEDULING_FIELDS: Final = ("resources", "nodeSelector", "tolerations", "affinity", "resourceClaims")
_CONTAINERS: Final = ("initContainers", "containers")
_NOTHING: Final[Mapping[str, Any]] = {}

PodSet = Mapping[str, Any]


@dataclass(slots=True)
class TemplateGroup:
    """Pod sets with one template, that of the first."""

    pod_set: PodSet
    assignment: Mapping[str, Any]
    #: Their total number of pods.
    count: int
    #: The names of all of them.
    members: list[str]

    @property
    def name(self) -> str:
        """The name of the first pod set."""
        return str(self.pod_set["name"])


def groups_needed(workload: Obj, config: ProvisioningConfig) -> list[TemplateGroup]:
    """Return the groups to request capacity for; empty if no pod set needs any."""
    groups: list[TemplateGroup] = []
    for pod_set, assignment in _admitted(workload):
        count = assignment.get("count", pod_set["count"])
        if pod_set["count"] <= 0 or count <= 0 or not _is_managed(pod_set, config.managed_resources):
            continue
        like = next((g for g in groups if _may_share(g.pod_set, pod_set, config.merge_policy)), None)
        if like is None:
            groups.append(TemplateGroup(pod_set, assignment, count, [pod_set["name"]]))
        else:
            like.count += count
            like.members.append(pod_set["name"])
    return groups


def _admitted(workload: Obj) -> Iterator[tuple[PodSet, Mapping[str, Any]]]:
    """Yield its pod sets with their assignments."""
    assignments = {a["name"]: a for a in admission_of(workload).get("podSetAssignments") or ()}
    for pod_set in workload["spec"]["podSets"]:
        if pod_set["name"] in assignments:
            yield pod_set, assignments[pod_set["name"]]


def _is_managed(pod_set: PodSet, resources: Sequence[str]) -> bool:
    if not resources:
        return True
    asked = [
        container.get("resources") or _NOTHING for kind in _CONTAINERS for container in _spec(pod_set).get(kind) or ()
    ]
    return any(
        name in (each.get(part) or ()) for each in asked for part in ("requests", "limits") for name in resources
    )


def _may_share(first: PodSet, second: PodSet, policy: str) -> bool:
    if policy == "IdenticalPodTemplates":
        return meaning_of(scheme.WORKLOAD).is_same_field("Workload.spec.podSets", "template", first, second)
    return policy == "IdenticalWorkloadSchedulingRequirements" and _requirements(first) == _requirements(second)


def _requirements(pod_set: PodSet) -> list[Any]:
    """Return the fields of a pod set that affect where its pods may run."""
    spec = _spec(pod_set)
    requests = [[_requests(container) for container in spec.get(kind) or ()] for kind in _CONTAINERS]
    return [requests, [spec.get(field) or None for field in _SCHEDULING_FIELDS]]


def _requests(container: Mapping[str, Any]) -> dict[str, str]:
    requests = (container.get("resources") or _NOTHING).get("requests") or _NOTHING
    return {name: canonical(amount) for name, amount in requests.items()}


def _spec(pod_set: PodSet) -> Mapping[str, Any]:
    return (pod_set.get("template") or _NOTHING).get("spec") or _NOTHING


# --- names ---
#
# Names of ProvisioningRequests and their templates. Source: provisioning.go beside Kueue's controller.


_HASH_LENGTH: Final = 5
_PREFIX_MAX: Final = 252 - _HASH_LENGTH
_ATTEMPTS_MAX: Final = 1000
_DIGITS_MAX: Final = len(str(_ATTEMPTS_MAX))


def request_name(workload: str, check: str, attempt: int) -> str:
    """Return the name of a Workload's request for a check at an attempt."""
    return _limited(f"{workload}-{check}-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    """Return the name of the template of a pod set."""
    return _limited(f"ppt-{request}-{pod_set}")


def attempt_of(request: str, workload: str, check: str) -> int | None:
    """Return the attempt of a request; None if it belongs to another Workload or check.

    In a truncated name the attempt is part of the hash, so all attempts are tried.
    """
    prefix = f"{workload}-{check}-"
    number = request.removeprefix(prefix)
    if number != request and number.isdecimal():
        return int(number)
    if len(prefix) < _PREFIX_MAX - _DIGITS_MAX:
        return None
    return next((n for n in range(1, _ATTEMPTS_MAX) if request_name(workload, check, n) == request), None)


def _limited(name: str) -> str:
    """Truncate a long name, and append a hash."""
    if len(name) <= _PREFIX_MAX:
        return name
    return f"{name[:_PREFIX_MAX]}-{sha1(name.encode(), usedforsecurity=False).hexdigest()[:_HASH_LENGTH]}"


_LABELS: Final = {well_known.MANAGED: "true"}


def provisioning_request(
    workload: Obj, name: str, config: ProvisioningConfig, groups: Iterable[TemplateGroup]
) -> dict[str, Any]:
    """Build the request for a Workload's pod sets."""
    pod_sets = [{"podTemplateRef": {"name": template_name(name, g.name)}, "count": g.count} for g in groups]
    spec: dict[str, Any] = {"provisioningClassName": config.class_name, "podSets": pod_sets}
    parameters = {**config.parameters, **_own_parameters(workload)}
    if parameters:
        spec["parameters"] = parameters
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": _metadata(workload, name),
        "spec": spec,
    }


def pod_template(workload: Obj, name: str, group: TemplateGroup, injection: PodSetInfo) -> dict[str, Any]:
    """Build the template of a group, with the directives of its flavors. Raise InvalidInjection on a conflict."""
    template: Mapping[str, Any] = inject(group.pod_set.get("template") or {}, injection)
    for kind in ("initContainers", "containers"):
        if containers := (template.get("spec") or {}).get(kind):
            template = with_path(template, ("spec", kind), [_with_requests(container) for container in containers])
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": _metadata(workload, name),
        "template": template,
    }


def follows(request: Obj, config: ProvisioningConfig, workload: Obj) -> bool:
    """Report whether a request matches the config, except for parameters that the Workload overrides."""
    spec, own = request["spec"], _own_parameters(workload)
    parameters = spec.get("parameters") or {}
    same = all(parameters.get(name) == value for name, value in config.parameters.items() if name not in own)
    return same and bool(spec["provisioningClassName"] == config.class_name)


def is_controlled_by(obj: Obj, owner: Obj) -> bool:
    """Report whether an object is controlled by this owner."""
    reference = controller_of(obj)
    return reference is not None and bool(reference["uid"] == owner["metadata"]["uid"])


def handed_over(template: Obj, workload: Obj, request: Obj) -> Obj:
    """Return a template with the request as its owner; the same object if the Workload does not own it."""
    if not is_controlled_by(template, workload):
        return template
    uid = workload["metadata"]["uid"]
    others = [owner for owner in template["metadata"]["ownerReferences"] if owner["uid"] != uid]
    return with_metadata(template, ownerReferences=[*others, controller_reference(request)])


def _metadata(workload: Obj, name: str) -> dict[str, Any]:
    namespace = workload["metadata"].get("namespace", "")
    return {
        "name": name,
        "namespace": namespace,
        "labels": _LABELS,
        "ownerReferences": [controller_reference(workload)],
    }


def _own_parameters(workload: Obj) -> dict[str, str]:
    """Return the parameters that annotations of a Workload's job add or override."""
    annotations = workload["metadata"].get("annotations") or {}
    prefix = well_known.PROVISIONING_PREFIX
    return {name.removeprefix(prefix): value for name, value in annotations.items() if name.startswith(prefix)}


def _with_requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container whose requests default to its limits."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}
