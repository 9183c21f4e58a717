"""The `eta` subresource of Workloads, Jobs and JobSets: start forecasts, computed asynchronously in seconds."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.scheme import kind_info
from batchyard.apiserver.auth.authentication import UserInfo
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.objects import ApiObjectStore
from batchyard.apiserver.request import ApiRequest, StatusError, bad_request
from batchyard.apiserver.resources import EndpointHandlers, Resource, with_answers
from batchyard.apiserver.responses import DeferredResponse

ETA: Final = "eta"
KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)
_SEED_DIGITS_MAX: Final = 9


class ForecastRequest(NamedTuple):
    """A forecast request: subject, random seed, requesting user."""

    subject: Key
    seed: int
    user: UserInfo


class ForecastService(Protocol):
    """Computes forecasts asynchronously."""

    def ask(self, question: ForecastRequest) -> DeferredResponse:
        """Request a forecast; raises Refused if too many are pending."""


def may_see_workloads(authorizer: Authorizer, user: UserInfo, namespace: str) -> bool:
    """Report whether a user may see the names of a namespace's Workloads."""
    info = kind_info(scheme.WORKLOAD)
    return authorizer.decide(Attributes(user, "get", info.group, info.plural, namespace=namespace)).allowed


def with_forecasts(
    resources: Iterable[Resource], objects: ApiObjectStore, forecaster: ForecastService
) -> list[Resource]:
    """Return the resources with forecasts for the kinds that have a start."""
    served = list(resources)
    for kind in KINDS:
        info = kind_info(kind)
        answer = EndpointHandlers("batchyard.dev", "v1alpha1", "Forecast", {"GET": _asking(kind, objects, forecaster)})
        served = with_answers(served, info.constant, {ETA: answer})
    return served


def _asking(
    kind: str, objects: ApiObjectStore, forecaster: ForecastService
) -> Callable[[ApiRequest, str, str], DeferredResponse]:
    def ask(request: ApiRequest, namespace: str, name: str) -> DeferredResponse:
        subject, info = Key(kind, namespace, name), kind_info(kind)
        if objects.get(subject) is None:
            title = f"{info.plural}.{info.group}"
            raise StatusError(404, "NotFound", f'{title} "{name}" not found', {"name": name, "kind": info.plural})
        text = request.query.get("seed", "0")
        if not text.isdecimal() or not text.isascii() or len(text) > _SEED_DIGITS_MAX:
            raise bad_request(f"seed: {text!r} is not a number with at most {_SEED_DIGITS_MAX} digits")
        return forecaster.ask(ForecastRequest(subject, int(text), request.user))

    return ask
