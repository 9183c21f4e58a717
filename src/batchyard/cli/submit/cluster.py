"""The cluster that a Job is submitted to: what is there, making the Job, and deleting what came to nothing."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from batchyard.api import scheme
from batchyard.api.conditions import last_told
from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.cli.submit.manifests import Asked, owned
from batchyard.client.resource_paths import path_of, path_of_kind
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.server.operator.aiohttp_transport import HttpTransport

_VISIBILITY: Final = "/apis/visibility.kueue.x-k8s.io"
_VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")
_BACKGROUND: Final = msgspec.json.encode(
    {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
)
_NOT_THERE: Final = 404
_FORBIDDEN: Final = 403


class SubmitError(Exception):
    """A Job cannot be submitted; says why and what to do."""


class Cluster:
    """See the module."""

    def __init__(self, wire: HttpTransport, url: str) -> None:
        self.wire = wire
        self.url = url
        self._visibility: Sequence[str] = _VISIBILITY_VERSIONS

    async def check(self, asked: Asked) -> None:
        """SubmitError where the queue or the priority is not there; who may not look is not told."""
        queues = await self._names(scheme.LOCAL_QUEUE, asked.namespace)
        if queues is not None and asked.queue not in queues:
            everywhere = await self._items(scheme.LOCAL_QUEUE) or ()
            raise SubmitError(_no_queue(asked, queues, everywhere))
        if asked.priority:
            classes = await self._names(scheme.WORKLOAD_PRIORITY_CLASS)
            if classes is not None and asked.priority not in classes:
                there = ", ".join(classes) or "none"
                raise SubmitError(f"there is no WorkloadPriorityClass {asked.priority}; there are: {there}")

    async def create(self, job: Obj, parts: Sequence[Obj]) -> Mapping[str, Any]:
        """Make a Job and what it takes along, or nothing of it; the Job as the server has it."""
        for part in parts[:1]:  # who may not make these shall not have to delete the Job again
            await self._created(scheme.CONFIG_MAP, part, "?dryRun=All")
        created = await self._created(scheme.JOB, job)
        try:
            for part in parts:
                await self._created(scheme.CONFIG_MAP, owned(part, created))
        except (SubmitError, asyncio.CancelledError):  # refused, or interrupted
            await self._take_back(created)
            raise
        return created

    async def place(self, asked: Asked, uid: str) -> tuple[int, int] | None:
        """How many are before a Job in its queue, and how many wait there; None if that is not to be known."""
        if not self._visibility:
            return None
        part = f"namespaces/{asked.namespace}/localqueues/{asked.queue}/pendingworkloads"
        answer = await self.wire.ask(HttpRequest("GET", f"{_VISIBILITY}/{self._visibility[0]}/{part}"))
        if answer.code in {_NOT_THERE, _FORBIDDEN}:  # not served in that version, or not for us
            self._visibility = self._visibility[1:]
            return None
        items = _items_of(answer)
        for item in items:
            owners = item["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == uid for owner in owners):
                return item.get("positionInLocalQueue", 0), len(items)
        return None

    async def pods(self, namespace: str, selector: str) -> Sequence[Obj]:
        """The pods that a selector takes, as they are now."""
        path = path_of(kind_info(scheme.POD), "v1", namespace)
        answer = await self.wire.ask(HttpRequest("GET", f"{path}?{selector}"))
        return _items_of(answer)

    async def warning(self, pod: Obj) -> tuple[str, str] | None:
        """Reason and message of the latest warning about a pod; None if there is none, or we may not look."""
        metadata = pod["metadata"]
        path = path_of(kind_info(scheme.EVENT), "v1", metadata["namespace"])
        selector = quote(f"involvedObject.uid={metadata['uid']},type=Warning")
        answer = await self.wire.ask(HttpRequest("GET", f"{path}?fieldSelector={selector}"))
        told = [(last_told(each), each) for each in _items_of(answer)]
        if not told:
            return None
        _, latest = max(told, key=lambda each: each[0])
        return latest.get("reason") or "", latest.get("message") or ""

    async def follow_log(
        self, namespace: str, pod: str, container: str, since: str, told: Callable[[Sequence[bytes]], None]
    ) -> HttpAnswer:
        """Tell of the lines of a log as they come, each after its time; how that ended."""
        path = path_of(kind_info(scheme.POD), "v1", namespace, pod, "log")
        from_then = f"&sinceTime={since.replace('+', '%2B')}" if since else ""
        query = f"container={container}&follow=true&timestamps=true{from_then}"
        return await self.wire.stream(HttpRequest("GET", f"{path}?{query}", accept="*/*"), told, to_the_end=True)

    async def _take_back(self, job: Mapping[str, Any]) -> None:
        """Delete a Job that lacks what it was to take along; SubmitError where it stays."""
        answer = await self.wire.ask(HttpRequest("DELETE", _path(scheme.JOB, job), _BACKGROUND))
        if not 200 <= answer.code < 300 and answer.code != _NOT_THERE:
            name = job["metadata"]["name"]
            raise SubmitError(f"Job {name} lacks its files and cannot be deleted: {trouble_of(answer)}")

    async def _created(self, kind: str, obj: Obj, query: str = "") -> Mapping[str, Any]:
        path = path_of(kind_info(kind), "v1", obj["metadata"]["namespace"]) + query
        answer = await self.wire.ask(HttpRequest("POST", path, msgspec.json.encode(obj)))
        if not 200 <= answer.code < 300:
            raise SubmitError(f"{obj['kind']} {obj['metadata']['name']}: {trouble_of(answer)}")
        return decoded(answer.body)

    async def _names(self, kind: str, namespace: str = "") -> Sequence[str] | None:
        items = await self._items(kind, namespace)
        return None if items is None else [item["metadata"]["name"] for item in items]

    async def _items(self, kind: str, namespace: str = "") -> Sequence[Obj] | None:
        """All objects of a kind; None where we may not look, SubmitError where there is no such kind."""
        info = kind_info(kind)
        for version in reversed(info.versions):
            path = path_of(info, version, namespace) if namespace else path_of_kind(info, version)
            answer = await self.wire.ask(HttpRequest("GET", path))
            if answer.code == 200:
                return _items_of(answer)
            if answer.code == _FORBIDDEN:
                return None
            if answer.code != _NOT_THERE:
                raise SubmitError(f"{self.url}: {trouble_of(answer)}")
        raise SubmitError(f"{self.url}: it serves no {info.plural}.{info.group}: Kueue is not there")


def _items_of(answer: HttpAnswer) -> Sequence[Obj]:
    items: Sequence[Obj] = decoded(answer.body).get("items") or ()
    return items


def _path(kind: str, obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return path_of(kind_info(kind), "v1", metadata["namespace"], metadata["name"])


def _no_queue(asked: Asked, here: Sequence[str], everywhere: Sequence[Obj]) -> str:
    """That there is no such queue, and which there are."""
    told = f"there is no LocalQueue {asked.queue} in namespace {asked.namespace}"
    homes = [each["metadata"]["namespace"] for each in everywhere if each["metadata"]["name"] == asked.queue]
    if homes:
        return f"{told}; it is in {', '.join(homes)}: say --namespace {homes[0]}"
    if here:
        return f"{told}; there are: {', '.join(here)}"
    if everywhere:
        named = (f"{each['metadata']['namespace']}/{each['metadata']['name']}" for each in everywhere)
        return f"{told}; there are, with their namespaces: {', '.join(named)}"
    return f"{told}, nor any other; make a ResourceFlavor, a ClusterQueue and a LocalQueue first"
