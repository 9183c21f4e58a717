"""What the API answers about queueing: decisions, forecasts, explanations (why), and Kueue's visibility API.

A list of decisions ends with the latest ones, at most `limit`. Besides field selectors the query accepts
`about=KIND/NAME` (which for a Job or JobSet includes its Workload), and `since` and `until` as times.
Names of Workloads in other namespaces are shown only to users with access to them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.conversion import metadata_in_whole_seconds
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column, at, value
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import WorkloadView
from batchyard.apiserver.auth.authorization import ETA, Attributes, Authorizer
from batchyard.apiserver.request import (
    ApiRequest,
    DeferredResponse,
    Response,
    StatusError,
    UserInfo,
    bad_request,
    method_not_allowed,
)
from batchyard.apiserver.resources import (
    ApiObjectStore,
    EndpointHandlers,
    Resource,
    ResourcePath,
    not_found,
    with_answers,
)
from batchyard.apiserver.selection import Selection, selection_of
from batchyard.apiserver.serialization import Representation
from batchyard.apiserver.virtual_resources import ComputedStrategy, unstored, unstored_kind
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.controller import DecisionLedger, DecisionRecord, LedgerQuery, LedgerUnreadable, QueryTooBroad

GROUP: Final = "batchyard.dev"
VERSION: Final = "v1alpha1"
_API_VERSION: Final = f"{GROUP}/{VERSION}"
_KIND: Final = "Decision"
_LIMIT: Final = 500
_LIMIT_MAX: Final = 10_000
#: The wildcard for the hash suffix of a Workload name that Kueue derives from a job.
_HASH: Final = "-?????"
_FIELDS: Final = ("regarding.kind", "regarding.name", "reason", "type", "component")
_DEFAULT: Final = "default"
#: The field in decision details that names a Workload, as `namespace/name`.
_NAME: Final = "workload"
_WORKLOADS: Final = scheme.kind_info(scheme.WORKLOAD)
_KINDS_BY_CONSTANT: Final = {info.constant: info for info in scheme.KINDS}


def decisions(ledger: DecisionLedger, authorizer: Authorizer, now: Callable[[], Instant]) -> Resource:
    """Return the ledger entries as a resource."""
    info = unstored_kind(GROUP, VERSION, _KIND, "decisions", "decision", namespaced=True)
    info = replace(info, selectable_fields=_FIELDS)

    def get(request: ApiRequest, namespace: str, name: str) -> Response:
        if request.flag("watch") and not name:
            raise method_not_allowed()
        path = ResourcePath(resource, VERSION, namespace, name, "", _API_VERSION)
        shown = Representation(request, path, now())
        if name:
            with _ledger_errors():
                record = ledger.get(int(name)) if name.isdecimal() and len(name) < 19 else None
            if record is None or (record.regarding.namespace or _DEFAULT) != namespace:
                raise not_found(path)
            return Response(200, shown.one(reported(request, record)))
        selection = selection_of(request, info)
        with _ledger_errors():
            records = ledger.find(_query(request, selection, namespace))
        found = [reported(request, record) for record in records]
        return Response(200, shown.many([obj for obj in found if selection.accepts(obj)], {}))

    def reported(request: ApiRequest, record: DecisionRecord) -> Obj:
        def is_hidden(namespace: str) -> bool:
            asked = Attributes(request.user, "get", _WORKLOADS.group, _WORKLOADS.plural, "", namespace)
            return namespace != record.regarding.namespace and not authorizer.decide(asked).allowed

        return _decision_object(record, _without_names(record.details, is_hidden))

    answer = EndpointHandlers(GROUP, VERSION, _KIND, {"GET": get})
    resource = unstored(info, {"": answer})._replace(strategy=ComputedStrategy(info, _TABLE))
    return resource


def _object(obj: Obj, _now: Instant) -> str:
    regarding = obj["regarding"]
    return f"{regarding['kind'].lower()}/{regarding['name']}"


def _last_seen(obj: Obj, now: Instant) -> str:
    return format_age(now - parse_time(obj["time"]))


_TABLE: Final = (
    (Column("Name"), cells.name),
    (Column("Age"), _last_seen),
    (Column("Object"), _object),
    (Column("Reason"), at("reason")),
    (Column("Component", priority=1), at("component")),
    (Column("Cycle", priority=1), lambda obj, _now: str(value(obj, "details", "cycle") or "")),
    (Column("Message"), at("message")),
)


def _without_names(value: Any, is_hidden: Callable[[str], bool]) -> Any:
    """Return decision details without the names of Workloads in hidden namespaces."""
    if isinstance(value, Mapping):
        reported = {name: _without_names(each, is_hidden) for name, each in value.items()}
        if _NAME in reported and is_hidden(str(reported[_NAME]).partition("/")[0]):
            reported = {name: each for name, each in reported.items() if name not in (_NAME, "uid")}
        return reported
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_names(each, is_hidden) for each in value]
    return value


def _decision_object(record: DecisionRecord, details: Mapping[str, Any]) -> Obj:
    """Return an entry as an object."""
    key = record.regarding
    info = _KINDS_BY_CONSTANT.get(key.kind)
    api_version = "" if info is None else info.api_version
    regarding = {"apiVersion": api_version, "kind": key.kind.partition(".")[0], "namespace": key.namespace}
    metadata = {"name": str(record.number), "namespace": key.namespace or _DEFAULT}
    time = format_time(record.at)
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "metadata": {**metadata, "creationTimestamp": format_time(record.at // SECOND * SECOND)},
        "time": time,
        "regarding": {**{name: text for name, text in regarding.items() if text}, "name": key.name},
        "component": record.component,
        "type": record.type,
        "reason": record.reason,
        "message": record.message,
        **({"details": details} if details else {}),
    }


@contextmanager
def _ledger_errors() -> Iterator[None]:
    """Convert ledger errors to API errors."""
    try:
        yield
    except QueryTooBroad:
        why = "the query would scan too many decisions"
        raise bad_request(f"{why}; set since or about") from None
    except LedgerUnreadable as error:
        raise StatusError(500, "InternalError", str(error)) from None


def _query(request: ApiRequest, selection: Selection, namespace: str) -> LedgerQuery:
    """Return the ledger query of a request, limited to what the ledger can filter by."""
    exact = {path: text for path, is_wanted, text in selection.fields if is_wanted}
    namespace = namespace or exact.get("metadata.namespace", "")
    about = request.query.get("about", "")
    return LedgerQuery(
        about=tuple(_keys_of(about, namespace)) if about else (),
        namespace=namespace,
        name=exact.get("regarding.name", ""),
        reason=exact.get("reason", ""),
        since=_instant(request, "since"),
        until=_instant(request, "until"),
        limit=_limit(request),
    )


def _keys_of(about: str, namespace: str) -> Iterator[Key]:
    """Yield the keys that a text such as `job/train` can mean, including the Workloads of jobs."""
    plural, slash, name = about.partition("/")
    info = next((info for info in scheme.KINDS if plural.lower() in _names(info)), None)
    if not slash or not name or info is None:
        raise bad_request(f"about={about}: write it as KIND/NAME, such as workload/job-train-1f2e3")
    if set(name) & set("*?["):
        raise bad_request(f"about={about}: {name} is not a name")
    if info.namespaced and not namespace:
        raise bad_request(f"about={about}: the kind is namespaced; query a namespace")
    yield Key(info.constant, namespace if info.namespaced else "", name)
    if info.constant in {scheme.JOB, scheme.JOB_SET}:
        yield Key(scheme.WORKLOAD, namespace, f"{info.kind.lower()}-{name}{_HASH}")


def _names(info: ServedKind) -> Sequence[str]:
    return (info.plural, info.singular or info.kind.lower(), *info.short_names)


def _instant(request: ApiRequest, name: str) -> Instant | None:
    text = request.query.get(name)
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise bad_request(f"{name}={text}: write it as 2026-01-31T12:00:00Z") from None


def _limit(request: ApiRequest) -> int:
    text = request.query.get("limit") or str(_LIMIT)
    if not text.isdecimal() or len(text) > 9:
        raise bad_request(f"limit={text} is not a number")
    return min(int(text) or _LIMIT, _LIMIT_MAX)


# --- forecasts ---
#
# The `eta` subresource of Workloads, Jobs and JobSets: start forecasts, computed asynchronously in seconds.


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


# --- why ---
#
# The `why` subresource of Workloads, jobs, pods and ClusterQueues: why they are pending or in their state.
#
# Readers of the subresource get the explanation. Names of Workloads that the user may not get are left out.


PART: Final = "why"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_GROUP: Final = "batchyard.dev"
_VERSION: Final = "v1alpha1"
_EXPLANATION_KIND: Final = "Explanation"
_WHY_WORKLOADS: Final = ("kueue.x-k8s.io", "workloads")


class Explanations(Protocol):
    """Provides explanations."""

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool]) -> Mapping[str, Any] | None:
        """Return the explanation of an object; None if the object does not exist.

        `may_read` reports whether the user may get the Workloads of a namespace.
        """


class WhyHandler:
    """The handlers of `why`."""

    def __init__(self, explanations: Explanations, now: Callable[[], Instant]) -> None:
        self._explanations = explanations
        self._now = now
        #: Decides which Workloads a user may get; without one, none.
        self.authorizer: Authorizer | None = None

    def with_parts(self, resources: Iterable[Resource]) -> list[Resource]:
        """Return the resources, with `why` on the supported kinds."""
        return [
            each._replace(answers={**each.answers, PART: self._answer(each)}) if each.info.constant in _KINDS else each
            for each in resources
        ]

    def _answer(self, resource: Resource) -> EndpointHandlers:
        return EndpointHandlers(_GROUP, _VERSION, _EXPLANATION_KIND, {"GET": partial(self._get, resource)})

    def _get(self, resource: Resource, request: ApiRequest, namespace: str, name: str) -> Response:
        key = Key(resource.info.constant, namespace, name)
        found = self._explanations.why(key, self._now(), partial(self._may_read, request.user))
        if found is None:
            details = {"name": name, "group": resource.info.group, "kind": resource.info.plural}
            raise StatusError(404, "NotFound", f'{resource.title} "{name}" not found', details)
        return Response(200, found)

    def _may_read(self, user: UserInfo, namespace: str) -> bool:
        if self.authorizer is None:
            return False
        group, plural = _WHY_WORKLOADS
        return self.authorizer.decide(Attributes(user, "get", group, plural, "", namespace)).allowed


# --- visibility ---
#
# Kueue's visibility API: pending Workloads of a queue in scheduling order.
#
# Sources: Kueue's apis/visibility and pkg/visibility/storage. As there, an unknown queue is an error, and the summary
# of an empty queue has no items.


VISIBILITY_GROUP: Final = "visibility.kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
_VISIBILITY_KIND: Final = "PendingWorkloadsSummary"
_PART: Final = "pendingworkloads"
_VISIBILITY_LIMIT: Final = 1000
_VISIBILITY_LIMIT_MAX: Final = 100_000
_OWNER: Final = ("apiVersion", "kind", "name", "uid")


class PendingQueues(Protocol):
    """The pending Workloads by queue."""

    def pending_in(self, cluster_queue: str) -> Sequence[WorkloadView] | None:
        """Return the pending Workloads of a ClusterQueue in scheduling order; None if the queue does not exist."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue; None if the LocalQueue does not exist."""


class Visibility:
    """The visibility resources."""

    def __init__(self, pending: PendingQueues, objects: ObjectReader) -> None:
        self._pending = pending
        self._objects = objects

    def resources(self) -> list[Resource]:
        """Return the queue resources, which have only this subresource."""
        return [resource for version in VERSIONS for resource in self._of(version)]

    def _of(self, version: str) -> list[Resource]:
        about = {"kind": _VISIBILITY_KIND, "apiVersion": f"{VISIBILITY_GROUP}/{version}", "metadata": {}}

        def answers(get: Callable[[ApiRequest, str, str], Sequence[dict[str, Any]]]) -> Mapping[str, EndpointHandlers]:
            def respond(request: ApiRequest, namespace: str, name: str) -> Response:
                return Response(200, {**about, "items": get(request, namespace, name)})

            return {
                "": EndpointHandlers(VISIBILITY_GROUP, version, _VISIBILITY_KIND, {}),
                _PART: EndpointHandlers(VISIBILITY_GROUP, version, _VISIBILITY_KIND, {"GET": respond}),
            }

        cluster = unstored_kind(
            VISIBILITY_GROUP, version, _VISIBILITY_KIND, "clusterqueues", "clusterqueue", namespaced=False
        )
        local = unstored_kind(VISIBILITY_GROUP, version, _VISIBILITY_KIND, "localqueues", "localqueue", namespaced=True)
        return [unstored(cluster, answers(self._in_cluster_queue)), unstored(local, answers(self._in_local_queue))]

    def _in_cluster_queue(self, request: ApiRequest, _namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _bounds(request)
        found = self._pending.pending_in(name)
        if found is None:
            raise _not_found("clusterqueue", name)
        positions: dict[str, int] = {}
        reported = []
        for place, view in enumerate(islice(found, offset + limit)):
            in_local = positions[view.queue] = positions.get(view.queue, -1) + 1
            if place >= offset:
                reported.append(self._reported(view, place, in_local))
        return reported

    def _in_local_queue(self, request: ApiRequest, namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _bounds(request)
        cluster_queue = self._pending.cluster_queue_of(namespace, name)
        if cluster_queue is None:
            raise _not_found("localqueue", name)
        queue, found = f"{namespace}/{name}", self._pending.pending_in(cluster_queue) or ()
        own = ((place, view) for place, view in enumerate(found) if view.queue == queue)
        wanted = islice(enumerate(own), offset, offset + limit)
        return [self._reported(view, place, in_local) for in_local, (place, view) in wanted]

    def _reported(self, view: WorkloadView, in_cluster: int, in_local: int) -> dict[str, Any]:
        """Return a pending Workload with its positions."""
        workload = self._objects.get(Key(scheme.WORKLOAD, view.namespace, view.name)) or {"metadata": {}}
        found = metadata_in_whole_seconds(workload["metadata"])
        metadata = {"name": view.name, "namespace": view.namespace, "creationTimestamp": found.get("creationTimestamp")}
        owners = [{field: each[field] for field in _OWNER} for each in found.get("ownerReferences") or ()]
        return {
            "metadata": {**metadata, "ownerReferences": owners} if owners else metadata,
            "priority": view.priority,
            "localQueueName": view.queue.partition("/")[2],
            "positionInClusterQueue": in_cluster,
            "positionInLocalQueue": in_local,
        }


def _bounds(request: ApiRequest) -> tuple[int, int]:
    """Return limit and offset of a request; without a limit the default."""
    limit, offset = (_whole(request, name) for name in ("limit", "offset"))
    return min(max(limit or _VISIBILITY_LIMIT, 0), _VISIBILITY_LIMIT_MAX), max(offset, 0)


def _whole(request: ApiRequest, name: str) -> int:
    text = request.query.get(name) or "0"
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'{name}: "{text}" is not a number')
    return int(text)


def _not_found(resource: str, name: str) -> StatusError:
    details = {"name": name, "group": VISIBILITY_GROUP, "kind": resource}
    return StatusError(404, "NotFound", f'{resource}.{VISIBILITY_GROUP} "{name}" not found', details)
