"""Validation of Pods by the rules of Kubernetes and of Kueue's pod webhook: groups, and Kueue's labels on pods.

Source: pkg/controller/jobs/pod/pod_webhook.go of Kueue at its default feature gates.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api import meta, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation import pods, rules, topology
from batchyard.api.validation.job import queue_settings_errors, queue_settings_update_errors
from batchyard.api.views import queued_pods

#: The name of Kueue's webhook.
VALIDATING_WEBHOOK: Final = "vpod.kb.io"
_KUEUE_PREFIX: Final = "kueue.x-k8s.io/"
_COUNT_PATH: Final = f"metadata.annotations[{well_known.POD_GROUP_COUNT}]"
#: The size of slices is not limited, because a group may have any number of pods.
_INT32_MAX: Final = 2**31 - 1
_RECREATE_REMEDY: Final = "delete the pod and create it again"


def pod_errors(pod: Obj) -> Iterator[FieldError]:
    """Validate a Pod by the rules of Kubernetes and of Kueue's webhook."""
    yield from pods.pod_errors(pod)
    if _kueue_settings(pod):
        yield from rules.attribute_to_webhook(VALIDATING_WEBHOOK, queued_pod_errors(pod))


def pod_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate an update of a Pod; Kueue's rules apply if a label or annotation of Kueue changes."""
    yield from pods.pod_update_errors(new, old)
    yield from rules.attribute_to_webhook(VALIDATING_WEBHOOK, queued_pod_update_errors(new, old))


def queued_pod_errors(pod: Obj) -> Iterator[FieldError]:
    """Validate the queue settings, the group and the topology request of a pod."""
    yield from queue_settings_errors(pod)
    yield from _metadata_errors(pod)


def queued_pod_update_errors(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Validate a change of Kueue's labels and annotations on a pod, most of which are immutable while it runs."""
    if _kueue_settings(new) == _kueue_settings(old):
        return
    for error in queue_settings_update_errors(new, old):
        yield error._replace(remedy=_RECREATE_REMEDY)
    yield from _metadata_errors(new)
    name, old_name = queued_pods.group_name(new), queued_pods.group_name(old)
    if name and queued_pods.is_unretriable(old) and not queued_pods.is_unretriable(new):
        path = f"metadata.annotations[{well_known.RETRIABLE_IN_GROUP}]"
        message = "unretriable pod group can't be converted to retriable"
        yield rules.forbidden(path, message, "keep the value false")
    if old_name and name != old_name:
        yield rules.immutable(_group_path(new), name, _RECREATE_REMEDY)


def _kueue_settings(pod: Obj) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = pod["metadata"]
    labels, annotations = (
        {name: value for name, value in (metadata.get(field) or {}).items() if name.startswith(_KUEUE_PREFIX)}
        for field in ("labels", "annotations")
    )
    return (labels, annotations) if labels or annotations else _NO_SETTINGS


_NO_SETTINGS: Final[Any] = ()


def _metadata_errors(pod: Obj) -> Iterator[FieldError]:
    metadata: Mapping[str, Any] = pod["metadata"]
    managed = (metadata.get("labels") or {}).get(well_known.MANAGED)
    if managed is not None and managed != queued_pods.ENABLED:
        path = f"metadata.labels[{well_known.MANAGED}]"
        yield rules.forbidden(path, "managed label value can only be 'true'", "remove the label: Kueue sets it")
    yield from _group_errors(pod)
    yield from topology.topology_request_errors(metadata.get("annotations") or {}, "metadata.annotations", _INT32_MAX)
    name = queued_pods.group_name(pod)
    prebuilt = (meta.annotation(pod, well_known.PREBUILT_WORKLOAD), meta.label(pod, well_known.PREBUILT_WORKLOAD))
    prebuilt_name = prebuilt[0] or prebuilt[1]
    if name and prebuilt_name and prebuilt_name != name:
        path = f"metadata.{'annotations' if prebuilt[0] else 'labels'}[{well_known.PREBUILT_WORKLOAD}]"
        message = "prebuilt workload and pod group should be equal"
        yield rules.invalid(path, prebuilt_name, message, f"use {name}, or remove one of the two names")


def _group_errors(pod: Obj) -> Iterator[FieldError]:
    name, count_text = queued_pods.group_name(pod), meta.annotation(pod, well_known.POD_GROUP_COUNT)
    noun = "annotation" if meta.annotation(pod, well_known.POD_GROUP_NAME) else "label"
    count_part = f"both the '{well_known.POD_GROUP_COUNT}' annotation"
    message = f"{count_part} and the '{well_known.POD_GROUP_NAME}' {noun} should be set"
    if not name:
        if count_text is not None:
            yield rules.required(_group_path(pod), message, "name the group, or remove the annotation")
        return
    if messages := rules.dns_subdomain_errors(name):
        remedy = "use a valid name: lowercase letters, digits, '-' and '.'"
        yield rules.invalid(_group_path(pod), name, ",".join(messages), remedy)
    if count_text is None:
        yield rules.required(_COUNT_PATH, message, "set it to the number of pods in the group")
        return
    count = queued_pods.parse_group_count(count_text)
    if isinstance(count, str):
        yield rules.invalid(_COUNT_PATH, count_text, count, "set it to the number of pods in the group")


def _group_path(pod: Obj) -> str:
    field = "annotations" if meta.annotation(pod, well_known.POD_GROUP_NAME) else "labels"
    return f"metadata.{field}[{well_known.POD_GROUP_NAME}]"
