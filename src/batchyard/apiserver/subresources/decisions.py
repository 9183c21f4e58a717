"""The decision ledger as a virtual resource: `kubectl get decisions`, with the inputs of each decision.

A list ends with the latest decisions, at most `limit`. Besides field selectors the query accepts
`about=KIND/NAME` (which for a Job or JobSet includes its Workload), and `since` and `until` as times.
Names of Workloads in other namespaces are shown only to users with access to them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column, at, value
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver.auth.authorization import Attributes, Authorizer
from batchyard.apiserver.content_negotiation import Representation
from batchyard.apiserver.request import ApiRequest, Response, StatusError, bad_request, method_not_allowed
from batchyard.apiserver.resources import EndpointHandlers, Resource, ResourcePath
from batchyard.apiserver.selection import Selection, selection_of
from batchyard.apiserver.status_errors import not_found
from batchyard.apiserver.virtual_resources import ComputedStrategy, unstored, unstored_kind
from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.interfaces.observers import DecisionLedger, DecisionRecord, LedgerQuery, LedgerUnreadable, QueryTooBroad

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
