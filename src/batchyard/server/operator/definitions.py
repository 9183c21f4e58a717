"""Installs missing CustomResourceDefinitions, finds external kinds, and reports errors of the informers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from batchyard.api.custom_kinds import ESTABLISHED
from batchyard.api.meta import is_true
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.apiserver.openapi_definitions import definition_of
from batchyard.base.instant import SECOND
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
