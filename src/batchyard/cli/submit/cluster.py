"""API requests of `batchyard submit`: checks, creation of the Job, its queue position, Events and pod logs."""

import asyncio
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, event_last_time
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.views.node import FlavorView, PodTemplate, Taint, flavor_view, parse_pod_template
from batchyard.api.views.workload import ClusterQueueView, cluster_queue_view
from batchyard.cli.daily.cluster import ClusterClient
from batchyard.cli.submit.manifests import JobRequest, job_manifest, with_job_owner
from batchyard.client.transport import (
    HttpRequest,
    HttpResponse,
    api_version_path,
    decode_object,
    failure_reason,
    object_path,
)
from batchyard.scheduling.cluster_queue import TAINT_MISMATCH, flavor_mismatch, mismatch_rule

_DELETION: Final = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
_NOT_FOUND_CODE: Final = 404
_MODELS_SHOWN_MAX: Final = 10
#: The labels that hold a GPU model: of GKE, NVIDIA's feature discovery, and others with such names.
_GPU_LABEL: Final = re.compile(r"gpu[-.](product|model|type)$|accelerator$")


class SubmitError(Exception):
    """The Job cannot be created; the message has the reason and the remedy."""


class _QueueFlavors(NamedTuple):
    cluster_queue: ClusterQueueView
    flavors: Mapping[str, FlavorView]


class Cluster:
    """The cluster that receives the Job, and the requests of `batchyard submit` to this cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self.client = client

    async def prepare(self, job_request: JobRequest) -> tuple[JobRequest, Sequence[str]]:
        """Return the request with its queue and node selector, and remarks on the chosen values.

        Raises SubmitError if the LocalQueue, priority class or GPU model is missing or ambiguous, or if no flavor
        accepts the Job. Checks of objects that the user may not list are skipped.
        """
        remarks = []
        queues = await self.client.list_objects(scheme.LOCAL_QUEUE, job_request.namespace)
        if not job_request.queue:
            job_request = replace(job_request, queue=_only_queue(job_request.namespace, queues))
            remarks.append(f"queue {job_request.queue}, the only one in namespace {job_request.namespace}")
        queue = next((each for each in queues or () if each["metadata"]["name"] == job_request.queue), None)
        if queues is not None and queue is None:
            all_queues = await self.client.list_objects(scheme.LOCAL_QUEUE) or ()
            names = [each["metadata"]["name"] for each in queues]
            raise SubmitError(_missing_queue_message(job_request, names, all_queues))
        await self._check_priority(job_request.priority)
        queue_flavors = None if queue is None else await self._read_flavors(queue)
        if job_request.gpu_model:
            nodes = await self.client.list_objects(scheme.NODE)
            match = match_gpu_model(job_request, queue_flavors and queue_flavors.flavors, nodes)
            remarks.append(match.remark)
            job_request = replace(job_request, node_selector={**match.node_selector, **job_request.node_selector})
        if queue_flavors is not None:
            check_flavors(job_request, queue_flavors.cluster_queue, queue_flavors.flavors)
        return job_request, remarks

    async def _check_priority(self, name: str) -> None:
        classes = await self.client.list_objects(scheme.WORKLOAD_PRIORITY_CLASS) if name else None
        if classes is not None and name not in [each["metadata"]["name"] for each in classes]:
            available = ", ".join(each["metadata"]["name"] for each in classes) or "none"
            remedy = "use one of them, or remove --priority"
            raise SubmitError(f"WorkloadPriorityClass {name} not found; available: {available}; {remedy}")

    async def _read_flavors(self, queue: Obj) -> _QueueFlavors | None:
        cluster_queues = await self.client.list_objects(scheme.CLUSTER_QUEUE) or ()
        flavors = await self.client.list_objects(scheme.RESOURCE_FLAVOR)
        name = queue["spec"].get("clusterQueue")
        cluster_queue = next((each for each in cluster_queues if each["metadata"]["name"] == name), None)
        if cluster_queue is None or flavors is None:
            return None
        view = cluster_queue_view(cluster_queue)
        views = [flavor_view(each) for each in flavors]
        return _QueueFlavors(view, {each.name: each for each in views if each.name in view.flavors})

    async def check_installed(self, kind: ServedKind, remedy: str) -> None:
        """Raise SubmitError if the cluster does not serve a kind; `remedy` describes how to install it."""
        version = kind.versions[0]
        response = await self.client.transport.send_request(HttpRequest("GET", api_version_path(kind.group, version)))
        resources = decode_object(response.body).get("resources") or () if response.code == 200 else ()
        if response.code not in {200, _NOT_FOUND_CODE}:
            raise SubmitError(f"the kinds of {kind.group}/{version} cannot be read: {failure_reason(response)}")
        if all(each["name"] != kind.plural for each in resources):
            raise SubmitError(f"this cluster has no kind {kind.kind} ({kind.group}/{version}): {remedy}")

    async def create(self, kind: ServedKind, job: Obj, config_maps: Sequence[Obj]) -> Mapping[str, Any]:
        """Create the job and its ConfigMaps and return the job; raise SubmitError if one is rejected.

        If a ConfigMap is rejected, or the cluster ignores the job's dependencies, the job is deleted again.
        """
        for config_map in config_maps[:1]:  # a dry run, so that missing permissions do not leave a Job behind
            await self._create_object(kind_info(scheme.CONFIG_MAP), config_map, "?dryRun=All")
        created_job = await self._create_object(kind, job)
        try:
            _check_dependencies(job, created_job)
            for config_map in config_maps:
                await self._create_object(kind_info(scheme.CONFIG_MAP), with_job_owner(config_map, created_job))
        except (SubmitError, asyncio.CancelledError):  # rejected, or interrupted
            await self._delete_job(kind, created_job)
            raise
        return created_job

    async def queue_position(self, job_request: JobRequest, uid: str) -> tuple[int, int] | None:
        """Return the number of Workloads before the Job in its LocalQueue, and that of all pending Workloads there.

        None if they are unknown.
        """
        path = f"namespaces/{job_request.namespace}/localqueues/{job_request.queue}"
        pending_workloads = (await self.client.list_pending(path)).items
        for item in pending_workloads:
            owner_references = item["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owner_references):
                return item.get("positionInLocalQueue", 0), len(pending_workloads)
        return None

    async def list_pods(self, namespace: str, selector: str) -> Sequence[Obj]:
        """Request the pods that match `selector`, a URL query, from the API server; empty if that fails."""
        path = object_path(kind_info(scheme.POD), "v1", namespace)
        response = await self.client.transport.send_request(HttpRequest("GET", f"{path}?{selector}"))
        return _items_in_response(response)

    async def latest_warning(self, pod: Obj) -> tuple[str, str] | None:
        """Return the reason and message of a pod's latest warning Event; None without one, or if the request fails."""
        metadata = pod["metadata"]
        path = object_path(kind_info(scheme.EVENT), "v1", metadata["namespace"])
        field_selector = quote(f"involvedObject.uid={metadata['uid']},type=Warning")
        response = await self.client.transport.send_request(
            HttpRequest("GET", f"{path}?fieldSelector={field_selector}")
        )
        events = [(event_last_time(event), event) for event in _items_in_response(response)]
        if not events:
            return None
        _, latest_event = max(events, key=lambda event: event[0])
        return latest_event.get("reason") or "", latest_event.get("message") or ""

    async def follow_log(
        self, namespace: str, pod: str, container: str, since_time: str, handle_lines: Callable[[Sequence[bytes]], None]
    ) -> HttpResponse:
        """Stream a container's log with timestamps to `handle_lines`; return the response when the stream ends."""
        path = object_path(kind_info(scheme.POD), "v1", namespace, pod)
        return await self.client.stream_log(path, f"container={container}&follow=true", since_time, handle_lines)

    async def _delete_job(self, kind: ServedKind, job: Mapping[str, Any]) -> None:
        metadata = job["metadata"]
        path = object_path(kind, kind.versions[0], metadata["namespace"], metadata["name"])
        response = await self.client.transport.send_request(HttpRequest("DELETE", path, _DELETION))
        if not 200 <= response.code < 300 and response.code != _NOT_FOUND_CODE:
            name = job["metadata"]["name"]
            problem = f"{kind.kind} {name} was created incompletely and cannot be deleted: {failure_reason(response)}"
            raise SubmitError(
                f"{problem}: run: kubectl delete {kind.singular} {name} -n {job['metadata']['namespace']}"
            )

    async def _create_object(self, kind: ServedKind, obj: Obj, query: str = "") -> Mapping[str, Any]:
        path = object_path(kind, obj["apiVersion"].rpartition("/")[2], obj["metadata"]["namespace"]) + query
        response = await self.client.transport.send_request(HttpRequest("POST", path, msgspec.json.encode(obj)))
        if not 200 <= response.code < 300:
            raise SubmitError(f"{obj['kind']} {obj['metadata']['name']} cannot be created: {failure_reason(response)}")
        return decode_object(response.body)


def _items_in_response(response: HttpResponse) -> Sequence[Obj]:
    items: Sequence[Obj] = decode_object(response.body).get("items") or ()
    return items


def _check_dependencies(job: Obj, created_job: Obj) -> None:
    """Raise SubmitError if a job has dependencies, and the cluster did not give it the gate that holds it back."""
    if annotation(job, well_known.AFTER) and well_known.AFTER not in (
        annotation(created_job, well_known.ADMISSION_GATED_BY) or ""
    ):
        message = "this cluster ignores the dependencies of jobs, so the job would start at once"
        raise SubmitError(f"{message}: use `batchyard up`, or the operator with its webhooks")


def _missing_queue_message(request: JobRequest, names_in_namespace: Sequence[str], all_queues: Sequence[Obj]) -> str:
    message = f"LocalQueue {request.queue} not found in namespace {request.namespace}"
    namespaces = [queue["metadata"]["namespace"] for queue in all_queues if queue["metadata"]["name"] == request.queue]
    if namespaces:
        return f"{message}; found in {', '.join(namespaces)}: use --namespace {namespaces[0]}"
    if names_in_namespace:
        return f"{message}; available: {', '.join(names_in_namespace)}"
    if all_queues:
        namespaced_names = (f"{queue['metadata']['namespace']}/{queue['metadata']['name']}" for queue in all_queues)
        return f"{message}; available in other namespaces: {', '.join(namespaced_names)}"
    return f"{message}, nor any other LocalQueue; create a ResourceFlavor, a ClusterQueue and a LocalQueue first"


def _only_queue(namespace: str, queues: Sequence[Obj] | None) -> str:
    if queues is None:
        raise SubmitError(f"no permission to list the LocalQueues of namespace {namespace}: add --queue QUEUE")
    names: Sequence[str] = [queue["metadata"]["name"] for queue in queues]
    if len(names) == 1:
        return names[0]
    if names:
        raise SubmitError(
            f"namespace {namespace} has {len(names)} LocalQueues: add --queue with one of {', '.join(names)}"
        )
    raise SubmitError(f"namespace {namespace} has no LocalQueue: select a namespace with -n NS, or create a LocalQueue")


# GPU models as node selectors, and the taints of flavors.


class GpuMatch(NamedTuple):
    """The node labels that select the nodes of a GPU model, and a remark that names them."""

    node_selector: Mapping[str, str]
    remark: str


def match_gpu_model(
    job_request: JobRequest, flavors: Mapping[str, FlavorView] | None, nodes: Sequence[Obj] | None
) -> GpuMatch:
    """Return the labels that select a GPU model such as `a100`, from those of the queue's flavors or else of nodes.

    `flavors` or `nodes` is None if the user may not read them. Raises SubmitError if no label contains the model, or
    if the matching labels differ.
    """
    gpu_model = job_request.gpu_model
    if flavors is None and nodes is None:
        message = f"no permission to list ResourceFlavors and Nodes, so the GPU model {gpu_model} cannot be found"
        raise SubmitError(f"{message}: use --gpus N --node-selector NAME=VALUE")
    flavor_labels = {f"flavor {name}": flavor.labels for name, flavor in (flavors or {}).items()}
    node_labels = {f"node {node['metadata']['name']}": node["metadata"].get("labels") or {} for node in nodes or ()}
    for labels_by_source in (flavor_labels, node_labels):
        matches = _group_by_matching_labels(gpu_model, labels_by_source)
        if len(matches) == 1:
            selector, sources = next(iter(matches.items()))
            source = sources[0] if len(sources) == 1 else f"{sources[0]} and {len(sources) - 1} more"
            return GpuMatch(dict(selector), f"GPU model {gpu_model}: {source}, node label {_format_labels(selector)}")
        if matches:
            models = "; ".join(f"{_format_labels(labels)} ({sources[0]})" for labels, sources in matches.items())
            raise SubmitError(f"GPU model {gpu_model} is ambiguous: {models}: use more of the name, as in MODEL-80gb:N")
    values = _gpu_values([*flavor_labels.values(), *node_labels.values()])
    available = ", ".join(values[:_MODELS_SHOWN_MAX]) or (
        "none has a label with a GPU model: use --gpus N, if needed with --node-selector NAME=VALUE"
    )
    searched = f"the flavors of queue {job_request.queue} and the nodes"
    unread_kind = "ResourceFlavors" if flavors is None else "Nodes" if nodes is None else ""
    if unread_kind:
        searched = "the nodes" if flavors is None else f"the flavors of queue {job_request.queue}"
        searched = f"{searched} (no permission to list {unread_kind})"
    raise SubmitError(f"GPU model {gpu_model} not found in the labels of {searched}; available: {available}")


def _group_by_matching_labels(
    gpu_model: str, labels_by_source: Mapping[str, Mapping[str, str]]
) -> Mapping[tuple[tuple[str, str], ...], Sequence[str]]:
    """Group flavors or nodes by their labels whose values contain the GPU model; return only exact matches, if any."""
    sources_by_labels: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for source, labels in labels_by_source.items():
        pairs = [
            pair for pair in labels.items() if pair[0] != well_known.HOSTNAME and _contains_words(pair[1], gpu_model)
        ]
        matching_labels = tuple([pair for pair in pairs if _GPU_LABEL.search(pair[0])] or pairs)
        if matching_labels:
            sources_by_labels.setdefault(matching_labels, []).append(source)
    exact_matches = {
        labels: sources
        for labels, sources in sources_by_labels.items()
        if any(value.lower() == gpu_model.lower() for _, value in labels)
    }
    return exact_matches or sources_by_labels


def _contains_words(value: str, gpu_model: str) -> bool:
    """Return whether a label value contains a model as whole words: a100 is in nvidia-tesla-a100."""
    words, model_words = (re.split(r"[^a-z0-9]+", text.lower()) for text in (value, gpu_model))
    return f" {' '.join(model_words)} " in f" {' '.join(words)} "


def _gpu_values(all_labels: Sequence[Mapping[str, str]]) -> Sequence[str]:
    pairs = (pair for labels in all_labels for pair in labels.items())
    return list(dict.fromkeys(value for key, value in pairs if _GPU_LABEL.search(key)))


def _format_labels(labels: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels)


def check_flavors(job_request: JobRequest, cluster_queue: ClusterQueueView, flavors: Mapping[str, FlavorView]) -> None:
    """Raise SubmitError if the Job's pods request resources of a resource group that has no flavor they may use."""
    template = parse_pod_template(job_manifest(job_request, None)["spec"]["template"]["spec"])
    requested = {resource for resource, _ in template.requests}
    for group in cluster_queue.groups:
        if not requested.intersection(group.resources):
            continue
        mismatches = {name: flavor_mismatch(template, name, flavors.get(name)) for name in group.flavors}
        if all(mismatches.values()):
            raise SubmitError(_unusable_flavors_message(template, cluster_queue.name, mismatches, flavors))


def _unusable_flavors_message(
    template: PodTemplate, cluster_queue: str, mismatches: Mapping[str, str], flavors: Mapping[str, FlavorView]
) -> str:
    causes, remedies = [], []
    for name, mismatch in mismatches.items():
        if mismatch_rule(mismatch) == TAINT_MISMATCH:
            flavor = flavors[name]
            tolerations = (*template.tolerations, *flavor.tolerations)
            taints = [_format_taint(t) for t in flavor.taints if not any(each.tolerates(t) for each in tolerations)]
            causes.append(f"flavor {name} has the taint {', '.join(taints)}")
            remedies.append(" ".join(f"--toleration {shlex.quote(taint)}" for taint in taints))
        else:
            causes.append(mismatch)
    remedy = " or ".join(dict.fromkeys(remedies)) or "another --node-selector or --queue"
    verb = "add" if remedies else "use"
    return f"no flavor of ClusterQueue {cluster_queue} accepts the Job: {'; '.join(causes)}; {verb} {remedy}"


def _format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
