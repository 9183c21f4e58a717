"""The cluster of a submitted Job: checks, creation with rollback, queue position, warnings and logs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Obj, event_last_time
from batchyard.api.scheme import kind_info
from batchyard.cli.submit.manifests import JobRequest, owned
from batchyard.client.transport import HttpAnswer, HttpRequest, decoded, failure_reason, path_of, path_of_kind
from batchyard.server.operator.aiohttp_transport import HttpTransport

_VISIBILITY: Final = "/apis/visibility.kueue.x-k8s.io"
_VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")
_BACKGROUND: Final = msgspec.json.encode(
    {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
)
_NOT_THERE: Final = 404
_FORBIDDEN: Final = 403


class SubmitError(Exception):
    """A Job cannot be submitted; the message has the reason and the remedy."""


class Cluster:
    """A cluster reached over HTTP, and the visibility API versions it may serve."""

    def __init__(self, wire: HttpTransport, url: str) -> None:
        self.wire = wire
        self.url = url
        self._visibility: Sequence[str] = _VISIBILITY_VERSIONS

    async def check(self, asked: JobRequest) -> None:
        """SubmitError if the queue or priority class does not exist; skipped without the permission to list."""
        queues = await self._names(scheme.LOCAL_QUEUE, asked.namespace)
        if queues is not None and asked.queue not in queues:
            everywhere = await self._items(scheme.LOCAL_QUEUE) or ()
            raise SubmitError(_no_queue(asked, queues, everywhere))
        if asked.priority:
            classes = await self._names(scheme.WORKLOAD_PRIORITY_CLASS)
            if classes is not None and asked.priority not in classes:
                there = ", ".join(classes) or "none"
                raise SubmitError(f"WorkloadPriorityClass {asked.priority} not found; available: {there}")

    async def create(self, job: Obj, parts: Sequence[Obj]) -> Mapping[str, Any]:
        """Create a Job and its ConfigMaps, or none of them; return the Job as created."""
        for part in parts[:1]:  # a dry run, so that missing rights do not leave a Job behind
            await self._created(scheme.CONFIG_MAP, part, "?dryRun=All")
        created = await self._created(scheme.JOB, job)
        try:
            for part in parts:
                await self._created(scheme.CONFIG_MAP, owned(part, created))
        except (SubmitError, asyncio.CancelledError):  # rejected, or interrupted
            await self._take_back(created)
            raise
        return created

    async def place(self, asked: JobRequest, uid: str) -> tuple[int, int] | None:
        """How many Workloads are ahead of a Job in its queue, and how many wait; None if unknown."""
        if not self._visibility:
            return None
        part = f"namespaces/{asked.namespace}/localqueues/{asked.queue}/pendingworkloads"
        answer = await self.wire.ask(HttpRequest("GET", f"{_VISIBILITY}/{self._visibility[0]}/{part}"))
        if answer.code in {_NOT_THERE, _FORBIDDEN}:  # not served in this version, or no permission
            self._visibility = self._visibility[1:]
            return None
        items = _items_of(answer)
        for item in items:
            owners = item["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners):
                return item.get("positionInLocalQueue", 0), len(items)
        return None

    async def pods(self, namespace: str, selector: str) -> Sequence[Obj]:
        """The pods that match a selector, freshly listed."""
        path = path_of(kind_info(scheme.POD), "v1", namespace)
        answer = await self.wire.ask(HttpRequest("GET", f"{path}?{selector}"))
        return _items_of(answer)

    async def warning(self, pod: Obj) -> tuple[str, str] | None:
        """Reason and message of the latest warning about a pod; None if there is none or without permission."""
        metadata = pod["metadata"]
        path = path_of(kind_info(scheme.EVENT), "v1", metadata["namespace"])
        selector = quote(f"involvedObject.uid={metadata['uid']},type=Warning")
        answer = await self.wire.ask(HttpRequest("GET", f"{path}?fieldSelector={selector}"))
        reported = [(event_last_time(each), each) for each in _items_of(answer)]
        if not reported:
            return None
        _, latest = max(reported, key=lambda each: each[0])
        return latest.get("reason") or "", latest.get("message") or ""

    async def follow_log(
        self, namespace: str, pod: str, container: str, since: str, reported: Callable[[Sequence[bytes]], None]
    ) -> HttpAnswer:
        """Pass the lines of a log, each with its time, to `reported`; return how the stream ended."""
        path = path_of(kind_info(scheme.POD), "v1", namespace, pod, "log")
        from_then = f"&sinceTime={since.replace('+', '%2B')}" if since else ""
        query = f"container={container}&follow=true&timestamps=true{from_then}"
        return await self.wire.stream(HttpRequest("GET", f"{path}?{query}", accept="*/*"), reported, to_the_end=True)

    async def _take_back(self, job: Mapping[str, Any]) -> None:
        """Delete a Job whose ConfigMaps could not be created; SubmitError if that fails."""
        answer = await self.wire.ask(HttpRequest("DELETE", _path(scheme.JOB, job), _BACKGROUND))
        if not 200 <= answer.code < 300 and answer.code != _NOT_THERE:
            name = job["metadata"]["name"]
            raise SubmitError(
                f"Job {name} was created without its files and cannot be deleted: {failure_reason(answer)}"
            )

    async def _created(self, kind: str, obj: Obj, query: str = "") -> Mapping[str, Any]:
        path = path_of(kind_info(kind), "v1", obj["metadata"]["namespace"]) + query
        answer = await self.wire.ask(HttpRequest("POST", path, msgspec.json.encode(obj)))
        if not 200 <= answer.code < 300:
            raise SubmitError(f"{obj['kind']} {obj['metadata']['name']}: {failure_reason(answer)}")
        return decoded(answer.body)

    async def _names(self, kind: str, namespace: str = "") -> Sequence[str] | None:
        items = await self._items(kind, namespace)
        return None if items is None else [item["metadata"]["name"] for item in items]

    async def _items(self, kind: str, namespace: str = "") -> Sequence[Obj] | None:
        """All objects of a kind; None without permission, SubmitError if the kind is not served."""
        info = kind_info(kind)
        for version in reversed(info.versions):
            path = path_of(info, version, namespace) if namespace else path_of_kind(info, version)
            answer = await self.wire.ask(HttpRequest("GET", path))
            if answer.code == 200:
                return _items_of(answer)
            if answer.code == _FORBIDDEN:
                return None
            if answer.code != _NOT_THERE:
                raise SubmitError(f"{self.url}: {failure_reason(answer)}")
        raise SubmitError(f"{self.url}: does not serve {info.plural}.{info.group}: Kueue is not installed")


def _items_of(answer: HttpAnswer) -> Sequence[Obj]:
    items: Sequence[Obj] = decoded(answer.body).get("items") or ()
    return items


def _path(kind: str, obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return path_of(kind_info(kind), "v1", metadata["namespace"], metadata["name"])


def _no_queue(asked: JobRequest, here: Sequence[str], everywhere: Sequence[Obj]) -> str:
    """The error message for a missing queue, with the queues that exist."""
    message = f"LocalQueue {asked.queue} not found in namespace {asked.namespace}"
    homes = [each["metadata"]["namespace"] for each in everywhere if each["metadata"]["name"] == asked.queue]
    if homes:
        return f"{message}; found in {', '.join(homes)}: use --namespace {homes[0]}"
    if here:
        return f"{message}; available: {', '.join(here)}"
    if everywhere:
        named = (f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in everywhere)
        return f"{message}; available in other namespaces: {', '.join(named)}"
    return f"{message}, nor any other LocalQueue; create a ResourceFlavor, a ClusterQueue and a LocalQueue first"
