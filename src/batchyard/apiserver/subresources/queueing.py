"""Queueing in the API: scheduling decisions, start forecasts (`eta`), explanations (`why`), Kueue's visibility API.

A list of `decisions` returns the latest ones, at most `limit`, the oldest first. Besides field selectors it accepts the
query parameters `about=KIND/NAME` (for a Job or JobSet also its Workload), and `since` and `until` as times. Names of
Workloads in other namespaces are shown only to users with access to them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.conversion import cut_metadata_times_to_seconds
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column, value_at, value_cell
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import WorkloadView
from batchyard.apiserver.auth.authorization import ETA_SUBRESOURCE, Authorizer, RequestAttributes
from batchyard.apiserver.request import (
    ApiRequest,
    DeferredResponse,
    Response,
    StatusError,
    UserInfo,
    bad_request,
    method_not_allowed_error,
)
from batchyard.apiserver.resources import (
    ApiObjectStore,
    EndpointHandlers,
    Resource,
    ResourcePath,
    not_found_error,
    with_subresource_handlers,
)
from batchyard.apiserver.selection import Selection, parse_selection
from batchyard.apiserver.serialization import Representation
from batchyard.apiserver.virtual_resources import ComputedStrategy, virtual_kind, virtual_resource
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.controller import DecisionLedger, DecisionRecord, LedgerQuery, LedgerUnreadable, QueryTooBroad

DECISIONS_GROUP: Final = "batchyard.dev"
DECISIONS_VERSION: Final = "v1alpha1"
_API_VERSION: Final = f"{DECISIONS_GROUP}/{DECISIONS_VERSION}"
_DECISION_KIND: Final = "Decision"
_DECISIONS_DEFAULT_LIMIT: Final = 500
_DECISIONS_LIMIT_MAX: Final = 10_000
#: The wildcard for the hash suffix of a Workload name that Kueue derives from a job.
_HASH_WILDCARD: Final = "-?????"
_SELECTABLE_FIELDS: Final = ("regarding.kind", "regarding.name", "reason", "type", "component")
_DEFAULT_NAMESPACE: Final = "default"
#: The field in decision details that names a Workload, as `namespace/name`.
_WORKLOAD_FIELD: Final = "workload"
_WORKLOADS: Final = scheme.kind_info(scheme.WORKLOAD)
_KINDS_BY_CONSTANT: Final = {served_kind.constant: served_kind for served_kind in scheme.KINDS}


def decisions_resource(ledger: DecisionLedger, authorizer: Authorizer, now: Callable[[], Instant]) -> Resource:
    """Return the resource `decisions`, which serves the recorded scheduling decisions (the decision ledger)."""
    served_kind = virtual_kind(
        DECISIONS_GROUP, DECISIONS_VERSION, _DECISION_KIND, "decisions", "decision", namespaced=True
    )
    served_kind = replace(served_kind, selectable_fields=_SELECTABLE_FIELDS)

    def get(request: ApiRequest, namespace: str, name: str) -> Response:
        if request.has_flag("watch") and not name:
            raise method_not_allowed_error()
        path = ResourcePath(resource, DECISIONS_VERSION, namespace, name, "", _API_VERSION)
        representation = Representation(request, path, now())
        if name:
            with _ledger_errors_as_api_errors():
                record = ledger.get(int(name)) if name.isdecimal() and len(name) < 19 else None
            if record is None or (record.regarding.namespace or _DEFAULT_NAMESPACE) != namespace:
                raise not_found_error(served_kind, name)
            return Response(200, representation.render_object(decision_object(request, record)))
        selection = parse_selection(request, served_kind)
        with _ledger_errors_as_api_errors():
            records = ledger.find(_ledger_query(request, selection, namespace))
        objs = [decision_object(request, record) for record in records]
        return Response(200, representation.render_list([obj for obj in objs if selection.accepts(obj)], {}))

    def decision_object(request: ApiRequest, record: DecisionRecord) -> Obj:
        def is_namespace_hidden(namespace: str) -> bool:
            attributes = RequestAttributes(request.user, "get", _WORKLOADS.group, _WORKLOADS.plural, "", namespace)
            return namespace != record.regarding.namespace and not authorizer.decide(attributes).allowed

        return _decision_object(record, _hide_workload_names(record.details, is_namespace_hidden))

    handlers = EndpointHandlers(DECISIONS_GROUP, DECISIONS_VERSION, _DECISION_KIND, {"GET": get})
    resource = virtual_resource(served_kind, {"": handlers})._replace(
        strategy=ComputedStrategy(served_kind, _DECISION_TABLE)
    )
    return resource


def _regarding_cell(obj: Obj, _now: Instant) -> str:
    object_reference = obj["regarding"]
    return f"{object_reference['kind'].lower()}/{object_reference['name']}"


def _age_cell(obj: Obj, now: Instant) -> str:
    return format_age(now - parse_time(obj["time"]))


_DECISION_TABLE: Final = (
    (Column("Name"), cells.name),
    (Column("Age"), _age_cell),
    (Column("Object"), _regarding_cell),
    (Column("Reason"), value_cell("reason")),
    (Column("Component", priority=1), value_cell("component")),
    (Column("Cycle", priority=1), lambda obj, _now: str(value_at(obj, "details", "cycle") or "")),
    (Column("Message"), value_cell("message")),
)


def _hide_workload_names(value: Any, is_namespace_hidden: Callable[[str], bool]) -> Any:
    if isinstance(value, Mapping):
        details = {name: _hide_workload_names(each, is_namespace_hidden) for name, each in value.items()}
        if _WORKLOAD_FIELD in details and is_namespace_hidden(str(details[_WORKLOAD_FIELD]).partition("/")[0]):
            details = {name: each for name, each in details.items() if name not in (_WORKLOAD_FIELD, "uid")}
        return details
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_hide_workload_names(each, is_namespace_hidden) for each in value]
    return value


def _decision_object(record: DecisionRecord, details: Mapping[str, Any]) -> Obj:
    key = record.regarding
    served_kind = _KINDS_BY_CONSTANT.get(key.kind)
    api_version = "" if served_kind is None else served_kind.api_version
    object_reference = {"apiVersion": api_version, "kind": key.kind.partition(".")[0], "namespace": key.namespace}
    metadata = {"name": str(record.number), "namespace": key.namespace or _DEFAULT_NAMESPACE}
    event_time = format_time(record.at)
    return {
        "apiVersion": _API_VERSION,
        "kind": _DECISION_KIND,
        "metadata": {**metadata, "creationTimestamp": format_time(record.at // SECOND * SECOND)},
        "time": event_time,
        "regarding": {**{name: text for name, text in object_reference.items() if text}, "name": key.name},
        "component": record.component,
        "type": record.type,
        "reason": record.reason,
        "message": record.message,
        **({"details": details} if details else {}),
    }


@contextmanager
def _ledger_errors_as_api_errors() -> Iterator[None]:
    try:
        yield
    except QueryTooBroad:
        message = "the query would scan too many decisions"
        raise bad_request(f"{message}; set since, or a later one, or about") from None
    except LedgerUnreadable as error:
        raise StatusError(500, "InternalError", str(error)) from None


def _ledger_query(request: ApiRequest, selection: Selection, namespace: str) -> LedgerQuery:
    exact_fields = {path: text for path, is_equality, text in selection.fields if is_equality}
    namespace = namespace or exact_fields.get("metadata.namespace", "")
    subject = request.query.get("about", "")
    return LedgerQuery(
        regarding=tuple(_keys_about_subject(subject, namespace)) if subject else (),
        namespace=namespace,
        name=exact_fields.get("regarding.name", ""),
        reason=exact_fields.get("reason", ""),
        since=_time_parameter(request, "since"),
        until=_time_parameter(request, "until"),
        limit=_limit_parameter(request),
    )


def _keys_about_subject(subject: str, namespace: str) -> Iterator[Key]:
    """Yield the key of an object such as `job/train`.

    For a Job or JobSet, also yield the key of its Workload, with wildcards for the hash in the name. Raise StatusError
    if `subject` is not KIND/NAME of a known kind, or if `namespace` is '' for a namespaced kind.
    """
    plural, separator, name = subject.partition("/")
    served_kind = next(
        (served_kind for served_kind in scheme.KINDS if plural.lower() in _resource_names(served_kind)), None
    )
    if not separator or not name or served_kind is None:
        raise bad_request(f"about={subject}: name the object as KIND/NAME, such as workload/job-train-1f2e3")
    if set(name) & set("*?["):
        raise bad_request(f"about={subject}: {name} is not a valid name; wildcards are not supported")
    if served_kind.namespaced and not namespace:
        raise bad_request(f"about={subject}: the kind is namespaced; select one namespace for the query")
    yield Key(served_kind.constant, namespace if served_kind.namespaced else "", name)
    if served_kind.constant in {scheme.JOB, scheme.JOB_SET}:
        yield Key(scheme.WORKLOAD, namespace, f"{served_kind.kind.lower()}-{name}{_HASH_WILDCARD}")


def _resource_names(served_kind: ServedKind) -> Sequence[str]:
    return (served_kind.plural, served_kind.singular or served_kind.kind.lower(), *served_kind.short_names)


def _time_parameter(request: ApiRequest, name: str) -> Instant | None:
    text = request.query.get(name)
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise bad_request(f"{name}={text}: write the time as 2026-01-31T12:00:00Z") from None


def _limit_parameter(request: ApiRequest) -> int:
    text = request.query.get("limit") or str(_DECISIONS_DEFAULT_LIMIT)
    if not text.isdecimal() or len(text) > 9:
        raise bad_request(f"limit={text}: must be a number of at most 9 digits, such as 100")
    return min(int(text) or _DECISIONS_DEFAULT_LIMIT, _DECISIONS_LIMIT_MAX)


# The `eta` subresource of Workloads, Jobs and JobSets: start forecasts, computed asynchronously in seconds.


FORECAST_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)
_SEED_DIGITS_MAX: Final = 9


class ForecastRequest(NamedTuple):
    """A request to predict when an object starts: the object, a random seed and the requesting user."""

    subject: Key
    seed: int
    user: UserInfo


class ForecastService(Protocol):
    """Computes start forecasts asynchronously."""

    def request_forecast(self, forecast_request: ForecastRequest) -> DeferredResponse:
        """Start a forecast and return the deferred response with it. Raises StatusError if too many are pending."""


def may_see_workloads(authorizer: Authorizer, user: UserInfo, namespace: str) -> bool:
    """Return whether a user may see the names of a namespace's Workloads."""
    served_kind = kind_info(scheme.WORKLOAD)
    return authorizer.decide(
        RequestAttributes(user, "get", served_kind.group, served_kind.plural, namespace=namespace)
    ).allowed


def with_forecasts(resources: Iterable[Resource], objects: ApiObjectStore, service: ForecastService) -> list[Resource]:
    """Return the resources, with the subresource `eta` on Workloads, Jobs and JobSets."""
    served_resources = list(resources)
    for kind in FORECAST_KINDS:
        served_kind = kind_info(kind)
        methods = {"GET": _forecast_handler(kind, objects, service)}
        handlers = EndpointHandlers("batchyard.dev", "v1alpha1", "Forecast", methods)
        served_resources = with_subresource_handlers(
            served_resources, served_kind.constant, {ETA_SUBRESOURCE: handlers}
        )
    return served_resources


def _forecast_handler(
    kind: str, objects: ApiObjectStore, forecaster: ForecastService
) -> Callable[[ApiRequest, str, str], DeferredResponse]:
    def start_forecast(request: ApiRequest, namespace: str, name: str) -> DeferredResponse:
        subject_key, served_kind = Key(kind, namespace, name), kind_info(kind)
        if objects.get(subject_key) is None:
            raise not_found_error(served_kind, name)
        text = request.query.get("seed", "0")
        if not text.isdecimal() or not text.isascii() or len(text) > _SEED_DIGITS_MAX:
            raise bad_request(f"seed: {text!r} is not a number with at most {_SEED_DIGITS_MAX} digits")
        return forecaster.request_forecast(ForecastRequest(subject_key, int(text), request.user))

    return start_forecast


# The `why` subresource of Workloads, jobs, pods and ClusterQueues: why they are pending or in their state.
#
# Readers of the subresource get the explanation. Names of Workloads that the user may not get are left out.


WHY_SUBRESOURCE: Final = "why"
_EXPLAINED_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_GROUP: Final = "batchyard.dev"
_VERSION: Final = "v1alpha1"
_EXPLANATION_KIND: Final = "Explanation"
_WORKLOADS_RESOURCE: Final = ("kueue.x-k8s.io", "workloads")


class Explanations(Protocol):
    """Explains why an object is pending, or in its current state."""

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool]) -> Mapping[str, Any] | None:
        """Return the explanation of an object; None if the object does not exist.

        `may_read` reports whether the user may get the Workloads of a namespace.
        """


class WhyHandler:
    """The handlers of the subresource `why`: it returns the Explanation of a Workload, job, pod or ClusterQueue."""

    def __init__(self, explanations: Explanations, now: Callable[[], Instant]) -> None:
        self._explanations = explanations
        self._now = now
        #: Decides which Workloads a user may get. Without an authorizer, no user may get any.
        self.authorizer: Authorizer | None = None

    def with_why_subresource(self, resources: Iterable[Resource]) -> list[Resource]:
        """Return the resources, with the subresource `why` on the supported kinds."""
        return [
            each._replace(handlers={**each.handlers, WHY_SUBRESOURCE: self._handlers(each)})
            if each.served_kind.constant in _EXPLAINED_KINDS
            else each
            for each in resources
        ]

    def _handlers(self, resource: Resource) -> EndpointHandlers:
        return EndpointHandlers(_GROUP, _VERSION, _EXPLANATION_KIND, {"GET": partial(self._get, resource)})

    def _get(self, resource: Resource, request: ApiRequest, namespace: str, name: str) -> Response:
        key = Key(resource.served_kind.constant, namespace, name)
        explanation = self._explanations.why(key, self._now(), partial(self._may_read, request.user))
        if explanation is None:
            raise not_found_error(resource.served_kind, name)
        return Response(200, explanation)

    def _may_read(self, user: UserInfo, namespace: str) -> bool:
        if self.authorizer is None:
            return False
        group, plural = _WORKLOADS_RESOURCE
        return self.authorizer.decide(RequestAttributes(user, "get", group, plural, "", namespace)).allowed


# Kueue's visibility API: pending Workloads of a queue in scheduling order.
#
# Sources: Kueue's apis/visibility and pkg/visibility/storage. As there, an unknown queue is an error, and the summary
# of an empty queue has no items.


VISIBILITY_GROUP: Final = "visibility.kueue.x-k8s.io"
VISIBILITY_VERSIONS: Final = ("v1beta2", "v1beta1")
_VISIBILITY_KIND: Final = "PendingWorkloadsSummary"
_PENDING_WORKLOADS: Final = "pendingworkloads"
_VISIBILITY_LIMIT: Final = 1000
_VISIBILITY_LIMIT_MAX: Final = 100_000
_OWNER_FIELDS: Final = ("apiVersion", "kind", "name", "uid")


class PendingQueues(Protocol):
    """Access to the pending Workloads by queue."""

    def pending_in(self, cluster_queue: str) -> Sequence[WorkloadView] | None:
        """Return the pending Workloads of a ClusterQueue in scheduling order; None if the queue does not exist."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the name of a LocalQueue's ClusterQueue; None if the LocalQueue does not exist."""


class VisibilityResources:
    """The resources of Kueue's visibility API."""

    def __init__(self, pending_queues: PendingQueues, objects: ObjectReader) -> None:
        self._pending = pending_queues
        self._objects = objects

    def resources(self) -> list[Resource]:
        """Return `clusterqueues` and `localqueues` of each version, with only the subresource `pendingworkloads`."""
        return [resource for version in VISIBILITY_VERSIONS for resource in self._resources_of_version(version)]

    def _resources_of_version(self, version: str) -> list[Resource]:
        summary_fields = {"kind": _VISIBILITY_KIND, "apiVersion": f"{VISIBILITY_GROUP}/{version}", "metadata": {}}

        def read_handlers(
            get: Callable[[ApiRequest, str, str], Sequence[dict[str, Any]]],
        ) -> Mapping[str, EndpointHandlers]:
            def respond(request: ApiRequest, namespace: str, name: str) -> Response:
                return Response(200, {**summary_fields, "items": get(request, namespace, name)})

            return {
                "": EndpointHandlers(VISIBILITY_GROUP, version, _VISIBILITY_KIND, {}),
                _PENDING_WORKLOADS: EndpointHandlers(VISIBILITY_GROUP, version, _VISIBILITY_KIND, {"GET": respond}),
            }

        cluster_queues = virtual_kind(
            VISIBILITY_GROUP, version, _VISIBILITY_KIND, "clusterqueues", "clusterqueue", namespaced=False
        )
        queues = virtual_kind(VISIBILITY_GROUP, version, _VISIBILITY_KIND, "localqueues", "localqueue", namespaced=True)
        return [
            virtual_resource(cluster_queues, read_handlers(self._pending_in_cluster_queue)),
            virtual_resource(queues, read_handlers(self._pending_in_local_queue)),
        ]

    def _pending_in_cluster_queue(self, request: ApiRequest, _namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _limit_and_offset(request)
        pending_workloads = self._pending.pending_in(name)
        if pending_workloads is None:
            raise _queue_not_found_error("clusterqueue", name)
        local_queue_positions: dict[str, int] = {}
        pending_entries = []
        for position, view in enumerate(islice(pending_workloads, offset + limit)):
            local_position = local_queue_positions[view.queue] = local_queue_positions.get(view.queue, -1) + 1
            if position >= offset:
                pending_entries.append(self._pending_workload(view, position, local_position))
        return pending_entries

    def _pending_in_local_queue(self, request: ApiRequest, namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _limit_and_offset(request)
        cluster_queue = self._pending.cluster_queue_of(namespace, name)
        if cluster_queue is None:
            raise _queue_not_found_error("localqueue", name)
        queue, pending_workloads = f"{namespace}/{name}", self._pending.pending_in(cluster_queue) or ()
        queue_workloads = ((position, view) for position, view in enumerate(pending_workloads) if view.queue == queue)
        page = islice(enumerate(queue_workloads), offset, offset + limit)
        return [self._pending_workload(view, position, local_position) for local_position, (position, view) in page]

    def _pending_workload(self, view: WorkloadView, cluster_position: int, local_position: int) -> dict[str, Any]:
        workload = self._objects.get(Key(scheme.WORKLOAD, view.namespace, view.name)) or {"metadata": {}}
        meta = cut_metadata_times_to_seconds(workload["metadata"])
        metadata = {"name": view.name, "namespace": view.namespace, "creationTimestamp": meta.get("creationTimestamp")}
        owners = [{field: each[field] for field in _OWNER_FIELDS} for each in meta.get("ownerReferences") or ()]
        return {
            "metadata": {**metadata, "ownerReferences": owners} if owners else metadata,
            "priority": view.priority,
            "localQueueName": view.queue.partition("/")[2],
            "positionInClusterQueue": cluster_position,
            "positionInLocalQueue": local_position,
        }


def _limit_and_offset(request: ApiRequest) -> tuple[int, int]:
    limit, offset = (_integer_parameter(request, name) for name in ("limit", "offset"))
    return min(max(limit or _VISIBILITY_LIMIT, 0), _VISIBILITY_LIMIT_MAX), max(offset, 0)


def _integer_parameter(request: ApiRequest, name: str) -> int:
    text = request.query.get(name) or "0"
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'{name}: "{text}" is not a number')
    return int(text)


def _queue_not_found_error(resource: str, name: str) -> StatusError:
    details = {"name": name, "group": VISIBILITY_GROUP, "kind": resource}
    return StatusError(404, "NotFound", f'{resource}.{VISIBILITY_GROUP} "{name}" not found', details)
