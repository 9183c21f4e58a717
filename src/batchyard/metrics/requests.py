"""API server request metrics, by the names of k8s.io/apiserver's pkg/endpoints/metrics."""

from collections.abc import Callable, Iterator
from typing import Final

from batchyard.apiserver.audit import AuditedRequest
from batchyard.apiserver.auth.authorization import verb_of
from batchyard.apiserver.request import Response
from batchyard.apiserver.responses import DeferredResponse
from batchyard.metrics.exposition import MetricGroup
from batchyard.metrics.registry import Labels

_TOTAL: Final = "apiserver_request_total"
_TIME: Final = "apiserver_request_duration_seconds"
_APPLY: Final = "application/apply-patch+yaml"
_VERBS: Final = {
    **{verb: verb.upper() for verb in ("get", "list", "watch", "patch", "delete", "deletecollection", "head")},
    "create": "POST",
    "update": "PUT",
    "post": "POST",
    "put": "PUT",
}


class RequestMetrics:
    """Counts and durations of API requests. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.begin = clock
        self._clock = clock
        self._kept = MetricGroup((_TOTAL, _TIME))
        #: The labels of the last answered request.
        self._labels: Labels = ()

    def note(self, audited: AuditedRequest) -> None:
        """Count an answered request. A deferred response is counted by its sender, when it is complete."""
        self._labels = _labels_of(audited)
        if not isinstance(audited.answer, DeferredResponse):
            self.count(self._labels, audited.answer.code if isinstance(audited.answer, Response) else 200)

    def count(self, labels: Labels, code: int) -> None:
        """Count a request that was answered with a status code."""
        self._kept.add(_TOTAL, (*labels, str(code)))

    @property
    def latest(self) -> Labels:
        """Return the labels of the last answered request."""
        return self._labels

    def settle(self, labels: Labels, began: float) -> None:
        """Observe the duration of a request whose response is durable now."""
        self._kept.observe(_TIME, labels, self._clock() - began)

    def texts(self) -> Iterator[str]:
        """Yield the text of all families."""
        return self._kept.texts()


def _labels_of(audited: AuditedRequest) -> Labels:
    """Return the labels of a request; unknown verbs and resources share fixed values to bound the series."""
    request, path = audited.acting, audited.path
    verb = verb_of(request, path)
    verb_label = _VERBS.get(verb, "OTHER")
    if verb_label == "PATCH" and request.headers.get("content-type") == _APPLY:
        verb_label = "APPLY"
    dry_run = "All" if request.query.get("dryRun") == "All" else ""
    if path is None or (
        path.subresource and path.answer is None and path.subresource not in path.resource.subresources
    ):
        return verb_label, dry_run, "", "", "", "", "", "apiserver"
    scope = "resource" if path.name or verb == "create" else ("namespace" if path.namespace else "cluster")
    return verb_label, dry_run, path.info.group, path.version, path.info.plural, path.subresource, scope, "apiserver"
