"""The `eta` subresource of Workloads, Jobs and JobSets: start forecasts, computed asynchronously in seconds."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.scheme import kind_info
from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.objects import Objects
from batchyard.apiserver.request import Refused, Request, bad_request
from batchyard.apiserver.resources import Answer, Resource, with_answers
from batchyard.apiserver.responses import Later

ETA: Final = "eta"
KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)
_SEED_DIGITS_MAX: Final = 9


class Question(NamedTuple):
    """A forecast request: subject, random seed, requesting user."""

    subject: Key
    seed: int
    user: User


class Forecaster(Protocol):
    """Computes forecasts asynchronously."""

    def ask(self, question: Question) -> Later:
        """Request a forecast; raises Refused if too many are pending."""


def may_see_workloads(authorizer: Authorizer, user: User, namespace: str) -> bool:
    """Report whether a user may see the names of a namespace's Workloads."""
    info = kind_info(scheme.WORKLOAD)
    return authorizer.decide(Attributes(user, "get", info.group, info.plural, namespace=namespace)).allowed


def with_forecasts(resources: Iterable[Resource], objects: Objects, forecaster: Forecaster) -> list[Resource]:
    """Return the resources with forecasts for the kinds that have a start."""
    served = list(resources)
    for kind in KINDS:
        info = kind_info(kind)
        answer = Answer("batchyard.dev", "v1alpha1", "Forecast", {"GET": _asking(kind, objects, forecaster)})
        served = with_answers(served, info.constant, {ETA: answer})
    return served


def _asking(kind: str, objects: Objects, forecaster: Forecaster) -> Callable[[Request, str, str], Later]:
    def ask(request: Request, namespace: str, name: str) -> Later:
        subject, info = Key(kind, namespace, name), kind_info(kind)
        if objects.get(subject) is None:
            title = f"{info.plural}.{info.group}"
            raise Refused(404, "NotFound", f'{title} "{name}" not found', {"name": name, "kind": info.plural})
        text = request.query.get("seed", "0")
        if not text.isdecimal() or not text.isascii() or len(text) > _SEED_DIGITS_MAX:
            raise bad_request(f"seed: {text!r} is not a number with at most {_SEED_DIGITS_MAX} digits")
        return forecaster.ask(Question(subject, int(text), request.user))

    return ask
