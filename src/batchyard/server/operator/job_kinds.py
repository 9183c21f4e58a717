"""Finds the custom kinds of jobs that the API server serves, at the start of an operator and then periodically.

A kind is found once its CustomResourceDefinition exists and the operator may list its objects. So an operator watches
no kind that the cluster lacks, and needs no restart when the cluster gets it. Without such kinds, a search is one
request. Source: waitForAPI in pkg/controller/jobframework/setup.go of Kueue.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Protocol

from batchyard.admission_plugins.built_in import JOB_KINDS_MAX, ManagedJobs
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import SECOND, Duration
from batchyard.client import transport
from batchyard.client.transport import HttpRequest, HttpResponse, api_version_path, decode_object, kind_path
from batchyard.server.clocks.wall import sleep_for

#: The time between two searches.
SEARCH_INTERVAL: Final[Duration] = 10 * SECOND
_FORBIDDEN: Final = 403


class DiscoveryClient(Protocol):
    """The client that JobKindDiscovery needs: it sends requests to an API server."""

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return the response."""


class JobKindDiscovery:
    """The described kinds of jobs and the JobKinds that the API server serves.

    A replica without informers gets the JobKinds of users by lists.

    `found_kinds` grows with each search. Other components hold the same list.
    """

    def __init__(self, api_client: DiscoveryClient, managed_jobs: ManagedJobs, report: Callable[[str], None]) -> None:
        self._client = api_client
        self._managed_jobs = managed_jobs
        self._report = report
        self.found_kinds: list[ServedKind] = []
        #: The kinds whose objects the operator may not list, as reported.
        self._forbidden: dict[str, None] = {}

    async def search(self, *, reads_job_kinds: bool) -> list[ServedKind]:
        """Search once, and return the new kinds. With `reads_job_kinds`, the JobKinds of users are listed too."""
        versions = await self._served_versions()
        job_kind = kind_info(scheme.JOB_KIND)
        if reads_job_kinds and (job_kind.group, job_kind.storage_version) in versions:
            await self._list_job_kinds(job_kind)
        new_kinds = [info for each in self._missing_kinds(versions) if (info := await self._find(each)) is not None]
        self.found_kinds += new_kinds
        return new_kinds

    async def search_periodically(
        self, on_found: Callable[[ServedKind], None], reads_job_kinds: Callable[[], bool]
    ) -> None:
        """Search until the task is cancelled, and call `on_found` with each new kind."""
        while True:
            await sleep_for(SEARCH_INTERVAL)
            for info in await self.search(reads_job_kinds=reads_job_kinds()):
                if info.constant != scheme.JOB_KIND:
                    self._report(f"batchyard: {info.group_resource} are served: jobs of this kind are queued now")
                on_found(info)

    async def _served_versions(self) -> Collection[tuple[str | None, str | None]]:
        """Return the pairs of API group and version that the server serves."""
        response = await self._client.send_request(HttpRequest("GET", "/apis"))
        groups = decode_object(response.body).get("groups") or () if response.code == 200 else ()
        return {(group.get("name"), each.get("version")) for group in groups for each in group.get("versions") or ()}

    async def _list_job_kinds(self, job_kind: ServedKind) -> None:
        path = f"{kind_path(job_kind, job_kind.storage_version)}?limit={JOB_KINDS_MAX}"
        response = await self._client.send_request(HttpRequest("GET", path))
        if response.code == 200:
            version = job_kind.storage_version
            items = decode_object(response.body).get("items") or ()
            job_kinds = [transport.to_storage_version(job_kind, version, item) for item in items]
            self._managed_jobs.job_kinds.clear()
            self._managed_jobs.job_kinds.update({_kind_of(each): each for each in job_kinds})

    def _missing_kinds(self, versions: Collection[tuple[str | None, str | None]]) -> Iterator[ServedKind]:
        """Yield the kinds that were not found yet if the server serves their version, JobKinds first."""
        found = {info.constant for info in self.found_kinds}
        job_kind = kind_info(scheme.JOB_KIND)
        if job_kind.constant not in found and (job_kind.group, job_kind.storage_version) in versions:
            yield job_kind
        served_groups = {group for group, _ in versions}
        kinds = [*self._managed_jobs.kinds, *self._managed_jobs.job_kinds]
        for kind in kinds:
            if kind in found or scheme.is_built_in(kind) or kind.partition(".")[2] not in served_groups:
                continue
            info = described_kind(kind, self._managed_jobs.job_kinds)
            if info is not None and (info.group, info.storage_version) in versions:
                yield info

    async def _find(self, described: ServedKind) -> ServedKind | None:
        """Return a kind with the names that the server has for it; None if its objects cannot be listed."""
        response = await self._client.send_request(
            HttpRequest("GET", api_version_path(described.group, described.storage_version))
        )
        resources = decode_object(response.body).get("resources") or () if response.code == 200 else ()
        names = [each.get("name") for each in resources if each.get("kind") == described.kind]
        if described.plural not in names:
            return None
        request = HttpRequest("GET", f"{kind_path(described, described.storage_version)}?limit=1")
        response = await self._client.send_request(request)
        if response.code == _FORBIDDEN and described.constant not in self._forbidden:
            self._forbidden[described.constant] = None
            remedy = f"permit list, watch, patch and delete of {described.group_resource}"
            reason = transport.failure_reason(response)
            kind_text = "of JobKinds" if described.constant == scheme.JOB_KIND else f"of the kind {described.kind}"
            self._report(f"batchyard: jobs {kind_text} are not queued: {reason}; {remedy}")
        return described if response.code == 200 else None


def described_kind(kind: str, job_kinds: Mapping[str, Obj]) -> ServedKind | None:
    """Return the names of a custom kind of jobs as described; None if nothing describes it."""
    if kind not in job_kinds:
        return scheme.DESCRIBED_KINDS.get(kind)
    spec = job_kinds[kind]["spec"]
    return scheme.custom_job_kind(spec["kind"], spec["group"], spec["version"], spec["resource"])


def _kind_of(job_kind: Mapping[str, Any]) -> str:
    return f"{job_kind['spec']['kind']}.{job_kind['spec']['group']}"
