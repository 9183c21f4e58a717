"""Installs missing CustomResourceDefinitions, finds custom kinds of jobs, and reports errors of the informers."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from batchyard.admission_plugins.built_in import JOB_KINDS_MAX, ManagedJobs
from batchyard.api import scheme
from batchyard.api.custom_kinds import ESTABLISHED
from batchyard.api.meta import Obj, is_true
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.apiserver.openapi_definitions import definition_of
from batchyard.base.instant import SECOND, Duration
from batchyard.client import transport
from batchyard.client.informer import Informer
from batchyard.client.transport import HttpRequest, HttpResponse, api_version_path, decode_object, kind_path
from batchyard.server.clocks.wall import sleep_for

_CRDS_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
#: API groups of Kubernetes itself have no dot or this suffix. They are never installed.
_NATIVE_GROUP_SUFFIXES: Final = (".k8s.io",)
_POLLS_MAX: Final = 50
_POLL_INTERVAL: Final = SECOND // 5
_ALREADY_EXISTS: Final = 409


class DefinitionsClient(Protocol):
    """The client that `install_definitions` needs: it sends requests to an API server."""

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return the response."""


async def install_definitions(api_client: DefinitionsClient, kinds: Sequence[str]) -> Sequence[str]:
    """Install the CustomResourceDefinitions of those custom `kinds` for which the server returns 404.

    Return one message for each of these kinds: success or failure. Kubernetes' own kinds are ignored.
    """
    unserved_kinds = [info for info in _installable_kinds(kinds) if not await _is_served(api_client, info)]
    return [await _install_definition(api_client, info) for info in unserved_kinds]


def _installable_kinds(kinds: Sequence[str]) -> Iterator[ServedKind]:
    for kind in kinds:
        served_kind = kind_info(kind)
        if "." in served_kind.group and not served_kind.group.endswith(_NATIVE_GROUP_SUFFIXES):
            yield served_kind


async def _is_served(api_client: DefinitionsClient, served_kind: ServedKind) -> bool:
    for version in served_kind.versions:
        response = await api_client.send_request(HttpRequest("GET", f"{kind_path(served_kind, version)}?limit=1"))
        if response.code != 404:
            return True
    return False


async def _install_definition(api_client: DefinitionsClient, served_kind: ServedKind) -> str:
    definition = definition_of(served_kind)
    name = definition["metadata"]["name"]
    response = await api_client.send_request(HttpRequest("POST", _CRDS_PATH, msgspec.json.encode(definition)))
    if response.code not in {201, _ALREADY_EXISTS}:
        error_reason = decode_object(response.body).get("message") or response.trouble or response.code
        problem = f"batchyard: CustomResourceDefinition {name} could not be installed: {error_reason}"
        remedy = "; permit the operator to create it, or create it yourself" if response.code == 403 else ""
        return f"{problem}{remedy}"
    for _ in range(_POLLS_MAX):
        stored_definition = decode_object(
            (await api_client.send_request(HttpRequest("GET", f"{_CRDS_PATH}/{name}"))).body
        )
        if is_true(stored_definition, ESTABLISHED):
            return f"batchyard: CustomResourceDefinition {name} installed, version {served_kind.storage_version}"
        await sleep_for(_POLL_INTERVAL)
    return f"batchyard: CustomResourceDefinition {name} installed; the server does not serve it yet"


# Kinds of jobs that other controllers manage in queues (`integrations.externalFrameworks`).


async def find_external_kinds(
    api_client: DefinitionsClient, external_kinds: Sequence[tuple[str, str]]
) -> Sequence[ServedKind]:
    """Return the served kinds for pairs of apiVersion and kind, with the names that the API server has for them.

    If the server does not serve a kind (yet), its plural is the kind in lower case with an `s`.
    """
    return [await _find_external_kind(api_client, *each) for each in external_kinds]


async def _find_external_kind(api_client: DefinitionsClient, api_version: str, kind: str) -> ServedKind:
    group, _, version = api_version.partition("/")
    response = await api_client.send_request(HttpRequest("GET", api_version_path(group, version)))
    served_resources = decode_object(response.body).get("resources") or () if response.code == 200 else ()
    plural, singular = f"{kind.lower()}s", kind.lower()
    for resource in served_resources:
        if resource.get("kind") == kind and "/" not in resource["name"]:
            plural = resource["name"]
    return ServedKind(f"{kind}.{group}", kind, group, (version,), version, plural, singular, namespaced=True)


# Custom kinds of jobs that the API server serves, at the start of an operator and then periodically.
#
# A kind is found once its CustomResourceDefinition exists and the operator may list its objects. So an operator watches
# no kind that the cluster lacks, and needs no restart when the cluster gets it. Without such kinds, a search is one
# request. Source: waitForAPI in pkg/controller/jobframework/setup.go of Kueue.


#: The time between two searches.
SEARCH_INTERVAL: Final[Duration] = 10 * SECOND
_FORBIDDEN: Final = 403


class JobKindDiscovery:
    """The described kinds of jobs and the JobKinds that the API server serves.

    A replica without informers gets the JobKinds of users by lists.

    `found_kinds` grows with each search. Other components hold the same list.
    """

    def __init__(self, api_client: DefinitionsClient, managed_jobs: ManagedJobs, report: Callable[[str], None]) -> None:
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
                if info.constant != scheme.JOB_KIND and info.constant not in scheme.REFERENCED_KINDS:
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
        job_groups = {kind.partition(".")[2] for kind in kinds}
        kinds += [kind for kind, info in scheme.REFERENCED_KINDS.items() if info.group in job_groups]
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
        return scheme.DESCRIBED_KINDS.get(kind) or scheme.REFERENCED_KINDS.get(kind)
    spec = job_kinds[kind]["spec"]
    return scheme.custom_job_kind(spec["kind"], spec["group"], spec["version"], spec["resource"])


def _kind_of(job_kind: Mapping[str, Any]) -> str:
    return f"{job_kind['spec']['kind']}.{job_kind['spec']['group']}"


# Reports errors of lists and watches: each error once while it lasts, and the recovery from all errors.
#
# A kind that is not served does not recover by itself. The other kinds work without it.


class WatchErrorLog:
    """Selects the informers' errors to report: each is reported once while it lasts.

    `remedy` is the advice for kinds that the API server does not serve.
    """

    def __init__(self, remedy: str = "") -> None:
        self._remedy = remedy
        #: The errors that were reported and may still last.
        self._reported: dict[str, None] = {}

    def new_message(self, informer: Informer, all_informers: Iterable[Informer]) -> str:
        """Return the error or recovery to report after an informer got a response, and record it as reported.

        Return '' if there is nothing new.
        """
        if informer.trouble:
            if informer.trouble in self._reported:
                return ""
            self._reported[informer.trouble] = None
            return self._error_message(informer)
        if not self._reported:
            return ""
        lasting_errors = {other.trouble: other.is_served for other in all_informers if other.trouble}
        if any(lasting_errors.values()) or self._reported.keys() == lasting_errors.keys():
            return ""
        self._reported = dict.fromkeys(lasting_errors)
        return "recovered: all lists and watches work again"

    def _error_message(self, informer: Informer) -> str:
        if informer.is_served:
            return informer.trouble
        text = f"{informer.trouble}; until it does, the kind counts as having no objects"
        return f"{text}; {self._remedy}" if self._remedy else text
