"""`pods/NAME/eviction`: a pod is asked to go, as `kubectl drain` asks; its disruption budget may say no.

What is running is first marked as disrupted, so that its Job need not count it as failed. Source: Kubernetes's
pkg/registry/core/pod/storage/eviction.go.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.bodies import read_body
from batchyard.apiserver.objects import Objects
from batchyard.apiserver.options import DeleteOptions, delete_options, write_options
from batchyard.apiserver.pod_containers import pod_not_found
from batchyard.apiserver.request import Refused, Request, Response, bad_request
from batchyard.apiserver.resources import Answer
from batchyard.base.instant import Instant
from batchyard.core.lifecycle import pod as lifecycle
from batchyard.core.lifecycle.budgets import Refusal, verdict
from batchyard.ports.client import Delete, Propagation, UpdateStatus, Write

_GROUP: Final = "policy"
_KIND: Final = "Eviction"
#: The older form is taken still, as Kubernetes takes it.
_VERSIONS: Final = ("policy/v1", "policy/v1beta1")


class Evictions:
    """See the module."""

    def __init__(self, objects: Objects, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now

    def answer(self) -> Answer:
        """Who answers there."""
        return Answer(_GROUP, "v1", _KIND, {"POST": self._create})

    def _create(self, request: Request, namespace: str, name: str) -> Response:
        sent = _sent(request, namespace, name)
        asked = sent.get("deleteOptions")
        options = delete_options(request, {} if asked is None else asked)
        # Whoever says in the query that it is a dry run says nothing else in the body by saying nothing there.
        options = options._replace(dry_run=options.dry_run or write_options(request).dry_run)
        pod = self._objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise pod_not_found(name)
        if unmet := options.unmet(pod):
            raise _conflict(name, unmet)
        self._evict(pod, options)
        return Response(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})

    def _evict(self, pod: Obj, options: DeleteOptions) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        judged = verdict(pod, self._objects.list(scheme.POD_DISRUPTION_BUDGET, namespace), self._now())
        if judged.refusal is not None:
            raise _refused(judged.refusal)
        if judged.spent is not None:
            self._done(UpdateStatus(judged.spent), name, dry_run=options.dry_run)
        if not lifecycle.is_terminal(pod) and not lifecycle.is_terminating(pod):
            disrupted = lifecycle.disrupted(pod, lifecycle.BY_EVICTION, self._now())
            self._done(UpdateStatus(disrupted), name, dry_run=options.dry_run)
        gone = Delete(Key(scheme.POD, namespace, name), options.grace, Propagation.BACKGROUND, options.uid)
        self._done(gone, name, dry_run=options.dry_run)

    def _done(self, write: Write, name: str, *, dry_run: bool) -> None:
        error = self._objects.attempt(write, dry_run=dry_run).error
        if error is not None:
            raise _conflict(name, str(error))


def _sent(request: Request, namespace: str, name: str) -> Mapping[str, Any]:
    """The Eviction that is sent; Refused where it is none, or of another pod."""
    sent = read_body(request).value
    if not isinstance(sent, Mapping) or (sent.get("kind") or _KIND) != _KIND:
        raise bad_request("the body of the request is no Eviction")
    version = sent.get("apiVersion") or _VERSIONS[0]
    if version not in _VERSIONS:
        told = f"the API version in the data ({version}) does not match the expected API version ({_VERSIONS[0]})"
        raise bad_request(told)
    metadata = sent.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    if (metadata.get("namespace") or namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if metadata.get("name") != name:
        raise bad_request("name in URL does not match name in Eviction object")
    return sent


def _refused(refusal: Refusal) -> Refused:
    details: dict[str, Any] = {}
    if refusal.cause:
        details["causes"] = [{"reason": "DisruptionBudget", "message": refusal.cause}]
    if refusal.retry_after:
        details["retryAfterSeconds"] = refusal.retry_after
    return Refused(refusal.code, refusal.reason, refusal.message, details)


def _conflict(name: str, why: str) -> Refused:
    return Refused(409, "Conflict", f'Operation cannot be fulfilled on pods "{name}": {why}')
