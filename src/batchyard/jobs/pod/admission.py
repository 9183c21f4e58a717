"""Kueue's mutating webhook for pods: a new pod in a queue gets the scheduling gates, finalizer and role.

Source: pkg/controller/jobs/pod/pod_webhook.go of Kueue.
"""

from typing import Final

from batchyard.admission_plugins import built_in
from batchyard.admission_plugins.built_in import FindObject, ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj
from batchyard.api.views import queued_pods

_MUTATING_WEBHOOK: Final = "mpod.kb.io"


def queue_pod(pod: Obj, find_object: FindObject, managed_jobs: ManagedJobs, *, gates_topology: bool = True) -> Obj:
    """Return a new pod as Kueue's webhook completes it; the same object if no queue manages it.

    A pod is queued if it names a queue, or if pods need none. It is left unchanged if its Namespace is not managed, or
    if a queue manages one of its owners. A pod that another controller queues gets gates, but no finalizer. The
    WorkloadPriorityClass `default` is set only on pods in queues. Raises Forbidden if an owner is missing.
    """
    if scheme.POD not in managed_jobs.kinds:
        return pod
    if meta.annotation(pod, well_known.SUSPENDING_PARENT) is not None:
        return _gate_pod(pod, gates_topology=gates_topology)
    queued_pod = built_in.with_default_labels(pod, find_object, managed_jobs)
    namespace = pod["metadata"].get("namespace", "")
    if not managed_jobs.names(queued_pod) or not built_in.is_managed_namespace(
        namespace, managed_jobs.namespaces, find_object
    ):
        return pod
    if meta.controller_of(pod) is not None:
        search = built_in.find_managed_ancestor(pod, find_object, managed_jobs)
        if search.problem:
            raise Forbidden(f'admission webhook "{_MUTATING_WEBHOOK}" denied the request: {search.problem}')
        if search.managed_key is not None:
            return pod
    labels = {**(queued_pod["metadata"].get("labels") or {}), well_known.MANAGED: queued_pods.ENABLED}
    managed_pod = meta.with_finalizer(meta.with_metadata(queued_pod, labels=labels), well_known.MANAGED)
    return _gate_pod(managed_pod, gates_topology=gates_topology)


def _gate_pod(pod: Obj, *, gates_topology: bool) -> Obj:
    gate_names = queued_pods.QUEUE_GATES if gates_topology else queued_pods.QUEUE_GATES[:1]
    gates = list(pod["spec"].get("schedulingGates") or ())
    known_names = [gate["name"] for gate in gates]
    gates += [{"name": name} for name in gate_names if name not in known_names]
    annotations = {**(pod["metadata"].get("annotations") or {})}
    index_label = annotations.get(well_known.POD_GROUP_INDEX_LABEL)
    if gates_topology and index_label is not None:
        labels = pod["metadata"].get("labels") or {}
        pod = meta.with_metadata(pod, labels={**labels, well_known.POD_GROUP_INDEX: labels.get(index_label, "")})
    annotations[well_known.ROLE_HASH] = queued_pods.role_of(pod)
    return meta.with_path(meta.with_metadata(pod, annotations=annotations), ("spec", "schedulingGates"), gates)
