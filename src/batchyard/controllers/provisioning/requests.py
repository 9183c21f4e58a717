"""The objects that ask for capacity: a ProvisioningRequest, and a PodTemplate for each of its pod sets.

A template belongs to the Workload until the request is there, lest it be left behind, and then to the request.
Source: syncOwnedProvisionRequest and createPodTemplate of Kueue's provisioning controller. One thing is mended: there
a request with a parameter that its Workload says otherwise than the config is taken for outdated, for ever anew.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.meta import Obj, controller_of, controller_reference, with_metadata, with_path
from batchyard.controllers.jobs.podsets import Injection, inject
from batchyard.controllers.provisioning.config import Config
from batchyard.controllers.provisioning.names import template_name
from batchyard.controllers.provisioning.pod_sets import Group

_LABELS: Final = {well_known.MANAGED: "true"}


def provisioning_request(workload: Obj, name: str, config: Config, groups: Iterable[Group]) -> dict[str, Any]:
    """The request for a Workload's pod sets."""
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


def pod_template(workload: Obj, name: str, group: Group, injection: Injection) -> dict[str, Any]:
    """The template of pod sets, with what their flavors want; InvalidInjection if that contradicts what is there."""
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


def follows(request: Obj, config: Config, workload: Obj) -> bool:
    """Whether a request asks for what the config says, but for the parameters that the Workload says itself."""
    spec, own = request["spec"], _own_parameters(workload)
    parameters = spec.get("parameters") or {}
    same = all(parameters.get(name) == value for name, value in config.parameters.items() if name not in own)
    return same and bool(spec["provisioningClassName"] == config.class_name)


def is_controlled_by(obj: Obj, owner: Obj) -> bool:
    """Whether an object belongs to that very owner."""
    reference = controller_of(obj)
    return reference is not None and bool(reference["uid"] == owner["metadata"]["uid"])


def handed_over(template: Obj, workload: Obj, request: Obj) -> Obj:
    """A template of the Workload's, in the hands of the request; the same object if it is not the Workload's."""
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
    """What the annotations of a Workload's job add to the parameters, or say instead."""
    annotations = workload["metadata"].get("annotations") or {}
    prefix = well_known.PROVISIONING_PREFIX
    return {name.removeprefix(prefix): value for name, value in annotations.items() if name.startswith(prefix)}


def _with_requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """A container that asks for what it is limited to, where it does not say what it asks for."""
    resources = container.get("resources") or {}
    limits = resources.get("limits")
    if not limits:
        return container
    return {**container, "resources": {**resources, "requests": {**limits, **(resources.get("requests") or {})}}}
