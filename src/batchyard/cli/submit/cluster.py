"""API requests of `batchyard submit`: checks, creation of the Job, its queue position, Events and pod logs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Obj, event_last_time
from batchyard.api.scheme import kind_info
from batchyard.cli.submit.manifests import JobRequest, with_job_owner
from batchyard.client.transport import HttpRequest, HttpResponse, decode_object, failure_reason, kind_path, object_path
from batchyard.server.operator.aiohttp_transport import HttpTransport

_VISIBILITY_PATH: Final = "/apis/visibility.kueue.x-k8s.io"
_VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")
_DELETION: Final = msgspec.json.encode({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"})
_NOT_FOUND_CODE: Final = 404
_FORBIDDEN_CODE: Final = 403


class SubmitError(Exception):
    """The Job cannot be created; the message has the reason and the remedy."""


class Cluster:
    """The cluster that receives the Job: an HTTP client, its URL, and the versions of Kueue's visibility API to try."""

    def __init__(self, transport: HttpTransport, url: str) -> None:
        self.transport = transport
        self.url = url
        self._versions: Sequence[str] = _VISIBILITY_VERSIONS

    async def check(self, job_request: JobRequest) -> None:
        """Raise SubmitError if the LocalQueue or priority class is missing; skip checks that the user may not do."""
        queue_names = await self._list_names(scheme.LOCAL_QUEUE, job_request.namespace)
        if queue_names is not None and job_request.queue not in queue_names:
            all_queues = await self._list_items(scheme.LOCAL_QUEUE) or ()
            raise SubmitError(_missing_queue_message(job_request, queue_names, all_queues))
        if job_request.priority:
            priority_class_names = await self._list_names(scheme.WORKLOAD_PRIORITY_CLASS)
            if priority_class_names is not None and job_request.priority not in priority_class_names:
                available = ", ".join(priority_class_names) or "none"
                raise SubmitError(f"WorkloadPriorityClass {job_request.priority} not found; available: {available}")

    async def create(self, job: Obj, config_maps: Sequence[Obj]) -> Mapping[str, Any]:
        """Create the Job and its ConfigMaps and return the Job; if a ConfigMap is rejected, delete the Job again."""
        for config_map in config_maps[:1]:  # a dry run, so that missing permissions do not leave a Job behind
            await self._create_object(scheme.CONFIG_MAP, config_map, "?dryRun=All")
        created_job = await self._create_object(scheme.JOB, job)
        try:
            for config_map in config_maps:
                await self._create_object(scheme.CONFIG_MAP, with_job_owner(config_map, created_job))
        except (SubmitError, asyncio.CancelledError):  # rejected, or interrupted
            await self._delete_job(created_job)
            raise
        return created_job

    async def queue_position(self, job_request: JobRequest, uid: str) -> tuple[int, int] | None:
        """Return the number of Workloads before the Job in its LocalQueue, and of all pending ones; None if unknown."""
        if not self._versions:
            return None
        queue_path = f"namespaces/{job_request.namespace}/localqueues/{job_request.queue}/pendingworkloads"
        response = await self.transport.ask(HttpRequest("GET", f"{_VISIBILITY_PATH}/{self._versions[0]}/{queue_path}"))
        if response.code in {_NOT_FOUND_CODE, _FORBIDDEN_CODE}:  # not served in this version, or no permission
            self._versions = self._versions[1:]
            return None
        pending_workloads = _items_in_response(response)
        for item in pending_workloads:
            owner_references = item["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owner_references):
                return item.get("positionInLocalQueue", 0), len(pending_workloads)
        return None

    async def list_pods(self, namespace: str, selector: str) -> Sequence[Obj]:
        """Request the pods that match a label selector from the API server."""
        path = object_path(kind_info(scheme.POD), "v1", namespace)
        response = await self.transport.ask(HttpRequest("GET", f"{path}?{selector}"))
        return _items_in_response(response)

    async def latest_warning(self, pod: Obj) -> tuple[str, str] | None:
        """Return the reason and message of a pod's latest warning Event; None if it has none or they are forbidden."""
        metadata = pod["metadata"]
        path = object_path(kind_info(scheme.EVENT), "v1", metadata["namespace"])
        field_selector = quote(f"involvedObject.uid={metadata['uid']},type=Warning")
        response = await self.transport.ask(HttpRequest("GET", f"{path}?fieldSelector={field_selector}"))
        events = [(event_last_time(event), event) for event in _items_in_response(response)]
        if not events:
            return None
        _, latest_event = max(events, key=lambda event: event[0])
        return latest_event.get("reason") or "", latest_event.get("message") or ""

    async def follow_log(
        self, namespace: str, pod: str, container: str, since_time: str, handle_lines: Callable[[Sequence[bytes]], None]
    ) -> HttpResponse:
        """Stream a container's log with timestamps to `handle_lines`; return the response when the stream ends."""
        path = object_path(kind_info(scheme.POD), "v1", namespace, pod, "log")
        since_query = f"&sinceTime={since_time.replace('+', '%2B')}" if since_time else ""
        log_query = f"container={container}&follow=true&timestamps=true{since_query}"
        return await self.transport.stream(
            HttpRequest("GET", f"{path}?{log_query}", accept="*/*"), handle_lines, deliver_incomplete_line=True
        )

    async def _delete_job(self, job: Mapping[str, Any]) -> None:
        """Delete a Job whose ConfigMaps could not be created; raise SubmitError if the deletion fails."""
        response = await self.transport.ask(HttpRequest("DELETE", _object_path(scheme.JOB, job), _DELETION))
        if not 200 <= response.code < 300 and response.code != _NOT_FOUND_CODE:
            name = job["metadata"]["name"]
            raise SubmitError(
                f"Job {name} was created without its files and cannot be deleted: {failure_reason(response)}"
            )

    async def _create_object(self, kind: str, obj: Obj, query: str = "") -> Mapping[str, Any]:
        path = object_path(kind_info(kind), "v1", obj["metadata"]["namespace"]) + query
        response = await self.transport.ask(HttpRequest("POST", path, msgspec.json.encode(obj)))
        if not 200 <= response.code < 300:
            raise SubmitError(f"{obj['kind']} {obj['metadata']['name']}: {failure_reason(response)}")
        return decode_object(response.body)

    async def _list_names(self, kind: str, namespace: str = "") -> Sequence[str] | None:
        objects = await self._list_items(kind, namespace)
        return None if objects is None else [item["metadata"]["name"] for item in objects]

    async def _list_items(self, kind: str, namespace: str = "") -> Sequence[Obj] | None:
        """Return all objects of a kind, or None if forbidden; raise SubmitError if the kind is not served."""
        served_kind = kind_info(kind)
        for version in reversed(served_kind.versions):
            path = object_path(served_kind, version, namespace) if namespace else kind_path(served_kind, version)
            response = await self.transport.ask(HttpRequest("GET", path))
            if response.code == 200:
                return _items_in_response(response)
            if response.code == _FORBIDDEN_CODE:
                return None
            if response.code != _NOT_FOUND_CODE:
                raise SubmitError(f"{self.url}: {failure_reason(response)}")
        raise SubmitError(f"{self.url} does not serve {served_kind.plural}.{served_kind.group}: install Kueue first")


def _items_in_response(response: HttpResponse) -> Sequence[Obj]:
    items: Sequence[Obj] = decode_object(response.body).get("items") or ()
    return items


def _object_path(kind: str, obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return object_path(kind_info(kind), "v1", metadata["namespace"], metadata["name"])


def _missing_queue_message(request: JobRequest, names_in_namespace: Sequence[str], all_queues: Sequence[Obj]) -> str:
    """Return the error message for a missing LocalQueue, with the LocalQueues that exist."""
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
