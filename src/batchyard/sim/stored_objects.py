"""Converts objects that an API server stored to the manifests that users wrote.

`kubectl get --output yaml` prints stored objects: with a status, and with fields of the server and of controllers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, controller_of, group_kind

#: kubectl's annotation with the manifest that it applied last.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KEPT_METADATA: Final = ("name", "namespace", "labels", "annotations")
#: The labels and annotations that the Job controller and Kueue add to pod templates.
_INJECTED_KEYS: Final = frozenset(
    {
        *("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"),
        *(well_known.POD_SET, well_known.LOCAL_QUEUE, well_known.CLUSTER_QUEUE, well_known.WORKLOAD),
    }
)


def as_user_manifest(obj: Obj) -> dict[str, Any]:
    """Return a stored object without its status (except a Node's) and without metadata that the server sets.

    A JobSet, and a Job without `manualSelector`, also lose `suspend` and the pod labels that controllers add.
    """
    kind = group_kind(obj)
    metadata = {field: obj["metadata"][field] for field in _KEPT_METADATA if obj["metadata"].get(field)}
    all_annotations: Mapping[str, str] = metadata.pop("annotations", None) or {}
    annotations = {name: text for name, text in all_annotations.items() if name != LAST_APPLIED}
    manifest = {field: value for field, value in obj.items() if field != "status" or kind == scheme.NODE}
    if kind == scheme.JOB:
        manifest["spec"] = _user_job_spec(obj["spec"])
    elif kind == scheme.JOB_SET:
        manifest["spec"] = _user_job_set_spec(obj["spec"])
    return {**manifest, "metadata": {**metadata, **({"annotations": annotations} if annotations else {})}}


def as_user_manifests(manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    """Yield manifests, with each stored object converted to the manifest that a user wrote.

    A stored object whose controller is in the manifests is left out, such as the Workload of a Job.
    """
    identities = {_identity_of(each.obj["kind"], each.obj, each.obj["metadata"].get("name")) for each in manifests}
    for manifest in manifests:
        obj = manifest.obj
        if not obj["metadata"].get("resourceVersion"):
            yield manifest
            continue
        owner = controller_of(obj)
        if owner is None or _identity_of(owner["kind"], obj, owner["name"]) not in identities:
            yield replace(manifest, obj=as_user_manifest(obj))


def _identity_of(kind: str, obj: Obj, name: str | None) -> tuple[str, str, str | None]:
    return kind, obj["metadata"].get("namespace") or "", name


def _user_job_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    if spec.get("manualSelector"):
        return dict(spec)
    kept_fields = {name: value for name, value in spec.items() if name not in {"selector", "suspend"}}
    return {**kept_fields, "template": _user_pod_template(spec["template"])}


def _user_job_set_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    replicated_jobs = []
    for replicated_job in spec.get("replicatedJobs") or ():
        job = replicated_job["template"]
        job_spec = {**job["spec"], "template": _user_pod_template(job["spec"]["template"])}
        replicated_jobs.append({**replicated_job, "template": {**job, "spec": job_spec}})
    return {**{name: value for name, value in spec.items() if name != "suspend"}, "replicatedJobs": replicated_jobs}


def _user_pod_template(template: Obj) -> dict[str, Any]:
    metadata = dict(template.get("metadata") or {})
    for field in ("labels", "annotations"):
        if field in metadata:
            metadata[field] = {key: text for key, text in (metadata[field] or {}).items() if key not in _INJECTED_KEYS}
    return {**template, "metadata": metadata}
