"""The pods that a ProvisioningRequest is for, made of its templates; and what GKE adds to those that come then.

Sources: kubernetes-sigs/cluster-autoscaler, pkg/provisioningrequest/pods; GKE's autoscaler,
pkg/provisioningrequests/pods and pkg/cloudprovider/gke/gceclient/resizerequest (ResizeRequestName).
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.admission.pods import extended_resource_toleration
from batchyard.api.defaults.pod import pod_defaults
from batchyard.api.meta import Obj, annotation, with_path
from batchyard.api.views.pods import PodView
from batchyard.core.scaling.request_states import QUEUED_CLASS

_NAME_MAX: Final = 20
_HASH_LENGTH: Final = 16
_QUEUED_TOLERATION: Final = {
    "key": well_known.QUEUED,
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}


def resize_request_name(namespace: str, request: str) -> str:
    """The name of the ResizeRequest for a ProvisioningRequest."""
    digits = sha256(f"{namespace}/{request}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"gke-{namespace[:_NAME_MAX]}-{request[:_NAME_MAX]}-{digits}"


def consumed_request(pod: Obj) -> str:
    """The name of the ProvisioningRequest whose capacity a pod is for; '' if there is none."""
    new = annotation(pod, well_known.CONSUME_PROVISIONING_REQUEST)
    return new or annotation(pod, well_known.OLD_CONSUME_PROVISIONING_REQUEST) or ""


def admit_queued_pod(pod: Obj) -> Obj:
    """A new pod as GKE's webhook leaves it: one that consumes a queued request goes to the nodes of that alone."""
    request = consumed_request(pod)
    named = annotation(pod, well_known.PROVISIONING_CLASS) or annotation(pod, well_known.OLD_PROVISIONING_CLASS)
    if not request or named != QUEUED_CLASS:
        return pod
    name = resize_request_name(pod["metadata"].get("namespace") or "", request)
    return _tolerating(with_path(pod, ("spec", "nodeSelector", well_known.NODE_PROVISIONING_REQUEST), name))


def pods_of(request: Obj, templates: Sequence[Obj]) -> list[PodView]:
    """The pods of a request, whose templates are given in the order of its pod sets."""
    return [
        PodView(_pod(request, template, f"{set_index}-{index}"))
        for set_index, (pod_set, template) in enumerate(zip(request["spec"]["podSets"], templates, strict=True))
        for index in range(pod_set["count"])
    ]


def _pod(request: Obj, template: Obj, index: str) -> Obj:
    metadata, given = request["metadata"], template["template"]
    name = f"{metadata['name']}-{index}"
    spec: Mapping[str, Any] = given["spec"]
    selector = {k: v for k, v in (spec.get("nodeSelector") or {}).items() if k != well_known.NODE_PROVISIONING_REQUEST}
    pod = {
        "metadata": {
            **(given.get("metadata") or {}),
            "name": name,
            "namespace": metadata["namespace"],
            "uid": f"{metadata['namespace']}/{name}",
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {**spec, "nodeSelector": selector},
    }
    is_queued = request["spec"]["provisioningClassName"] == QUEUED_CLASS
    return extended_resource_toleration(pod_defaults(_tolerating(pod) if is_queued else pod))


def _tolerating(pod: Obj) -> Obj:
    tolerations = pod["spec"].get("tolerations") or []
    if _QUEUED_TOLERATION in tolerations:
        return pod
    return with_path(pod, ("spec", "tolerations"), [*tolerations, _QUEUED_TOLERATION])
