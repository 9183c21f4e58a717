"""Objects as the rows `kubectl get` prints.

Columns of Kueue's and JobSet's kinds are the printer columns of their CRDs, all others those of Kubernetes's
pkg/printers. A column of priority 1 is printed only with `-o wide`. A CRD's cell without a value is empty; Kubernetes's
own kinds say `<none>` where nothing is chosen and `<unknown>` where nothing is known.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj, group_kind
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age

Cell: TypeAlias = Callable[[Obj, Instant], str]
Table: TypeAlias = list[list[str]]

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
PENDING: Final = "<pending>"

# A column is padded this much beyond its longest cell, and padded to the minimum in any case.
_PADDING: Final = 3
_WIDTH_MIN: Final = 6
_LINE_BREAK: Final = re.compile(r"[\f\n\r]")


class Column(NamedTuple):
    """A column: its name as the API has it (headers are its capitals), and when it is printed."""

    name: str
    priority: int = 0


def columns(kind: str, *, wide: bool) -> list[Column]:
    """The columns of a kind; name and age where nothing else is known of it."""
    return [column for column, _ in _printed(kind, wide)]


def row(obj: Obj, *, now: Instant, wide: bool) -> list[str]:
    """The cells of an object, one for each of its kind's columns."""
    return [cell(obj, now) for _, cell in _printed(group_kind(obj), wide)]


def table(kind: str, objs: Iterable[Obj], *, now: Instant, wide: bool, namespaces: bool) -> Table:
    """The header and a row for each object, in the order given; with `namespaces`, the first column says where."""
    header = [column.name.upper() for column in columns(kind, wide=wide)]
    rows = [(obj["metadata"].get("namespace") or "", row(obj, now=now, wide=wide)) for obj in objs]
    if not namespaces:
        return [header, *(cells for _, cells in rows)]
    return [["NAMESPACE", *header], *([namespace, *cells] for namespace, cells in rows)]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as kubectl lays it out: columns aligned on the left, the last one not padded, each line ended."""
    cells = [[_one_line(cell) for cell in cells] for cells in rows]
    widths = [max(_WIDTH_MIN, *(len(cell) + _PADDING for cell in column)) for column in zip(*cells, strict=True)]
    return "".join(_line(line, widths) for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False))
    return "".join((*padded, *cells[-1:], "\n"))


def _one_line(cell: str) -> str:
    """A cell up to its first line break, three dots for the rest, and control characters made harmless."""
    if cell.isprintable():
        return cell
    first, *rest = _LINE_BREAK.split(cell, maxsplit=1)
    printable = "".join(character if character.isprintable() else " " for character in first)
    return f"{printable}..." if rest else printable


# Cells.


def _printed(kind: str, wide: bool) -> list[tuple[Column, Cell]]:
    return [(column, cell) for column, cell in _TABLES.get(kind, _NAME_AND_AGE) if wide or column.priority == 0]


def _name(obj: Obj, _now: Instant) -> str:
    return str(obj["metadata"]["name"])


def _age(obj: Obj, now: Instant) -> str:
    created = obj["metadata"].get("creationTimestamp")
    return format_age(now - parse_time(created)) if created else UNKNOWN


def _at(*path: str, default: Any = None) -> Cell:
    """The cell of the value at a path, or of the default where there is none."""

    def cell(obj: Obj, _now: Instant) -> str:
        value = _value(obj, *path)
        return _text(default if value is None else value)

    return cell


def _condition(type_: str) -> Cell:
    """The cell of a condition's status: True, False, Unknown, or empty where there is no such condition."""
    return lambda obj, _now: _text((find_condition(obj, type_) or {}).get("status"))


def _count(*fields: str) -> Cell:
    """The cell of how many entries some fields have together."""
    return lambda obj, _now: str(sum(len(obj.get(field) or ()) for field in fields))


def _value(obj: Obj, *path: str) -> Any:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _text(value: object) -> str:
    """A JSON value in a cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


# Jobs. The duration runs from the start to the completion, and until now where there is none.


def _job_status(obj: Obj, _now: Instant) -> str:
    """The first that holds of Job's conditions in the order of Kubernetes, a deletion among them."""
    if is_true(obj, "Complete"):
        return "Complete"
    if is_true(obj, "Failed"):
        return "Failed"
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return next((type_ for type_ in _JOB_CONDITIONS if is_true(obj, type_)), "Running")


_JOB_CONDITIONS: Final = ("Suspended", "FailureTarget", "SuccessCriteriaMet")


def _job_completions(obj: Obj, _now: Instant) -> str:
    """How many pods succeeded, of how many wanted; without a number wanted, one success ends all."""
    succeeded = _value(obj, "status", "succeeded") or 0
    wanted, parallelism = _value(obj, "spec", "completions"), _value(obj, "spec", "parallelism") or 0
    if wanted is not None:
        return f"{succeeded}/{wanted}"
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(obj: Obj, now: Instant) -> str:
    start, end = _value(obj, "status", "startTime"), _value(obj, "status", "completionTime")
    if not start:
        return ""
    return format_age((parse_time(end) if end else now) - parse_time(start))


def _containers(field: str, *path: str) -> Cell:
    """The cell of one field of all containers of the pod template at a path."""

    def cell(obj: Obj, _now: Instant) -> str:
        return ",".join(str(container.get(field, "")) for container in _value(obj, *path, "containers") or ())

    return cell


# Labels and selectors.


def _labels(*path: str) -> Cell:
    return lambda obj, _now: format_labels(_value(obj, *path) or {})


def format_labels(labels: Mapping[str, str]) -> str:
    """Labels as kubectl prints them: `a=1,b=2`, by key."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def _selector(obj: Obj, _now: Instant) -> str:
    """A label selector in the words of kubectl's `--selector`, by key."""
    selector = _value(obj, "spec", "selector") or {}
    parts = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    parts += [(wanted["key"], _expression(wanted)) for wanted in selector.get("matchExpressions") or ()]
    return ",".join(text for _, text in sorted(parts)) or NONE


def _expression(wanted: Mapping[str, Any]) -> str:
    values = ",".join(sorted(wanted.get("values") or ()))
    match wanted["operator"]:
        case "In":
            return f"{wanted['key']} in ({values})"
        case "NotIn":
            return f"{wanted['key']} notin ({values})"
        case "DoesNotExist":
            return f"!{wanted['key']}"
    return str(wanted["key"])


# Services.


def _service_type(obj: Obj, _now: Instant) -> str:
    return _value(obj, "spec", "type") or "ClusterIP"


def _cluster_ip(obj: Obj, _now: Instant) -> str:
    given = _value(obj, "spec", "clusterIPs") or [_value(obj, "spec", "clusterIP")]
    return given[0] or NONE


def _external_ip(obj: Obj, now: Instant) -> str:
    """Where a Service is reached from outside."""
    external = list(_value(obj, "spec", "externalIPs") or ())
    match _service_type(obj, now):
        case "LoadBalancer":
            return ",".join([*_load_balancers(obj), *external]) or PENDING
        case "ExternalName":
            return _text(_value(obj, "spec", "externalName"))
    return ",".join(external) or NONE


def _load_balancers(obj: Obj) -> list[str]:
    ingress = _value(obj, "status", "loadBalancer", "ingress") or ()
    return sorted(dict.fromkeys(point.get("ip") or point["hostname"] for point in ingress))


def _ports(obj: Obj, _now: Instant) -> str:
    return ",".join(map(_port, _value(obj, "spec", "ports") or ())) or NONE


def _port(port: Mapping[str, Any]) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"


# The tables.

_NAME: Final = (Column("Name"), _name)
_AGE: Final = (Column("Age"), _age)
_NAME_AND_AGE: Final = (_NAME, _AGE)
_PENDING: Final = (Column("Pending Workloads"), _at("status", "pendingWorkloads"))
_ADMITTED: Final = _at("status", "admittedWorkloads")
_TEMPLATE: Final = ("spec", "template", "spec")

_TABLES: Final[Mapping[str, Sequence[tuple[Column, Cell]]]] = {
    scheme.CLUSTER_QUEUE: (
        _NAME,
        (Column("Cohort"), _at("spec", "cohortName")),
        (Column("Strategy", priority=1), _at("spec", "queueingStrategy")),
        _PENDING,
        (Column("Admitted Workloads", priority=1), _ADMITTED),
    ),
    scheme.LOCAL_QUEUE: (
        _NAME,
        (Column("ClusterQueue"), _at("spec", "clusterQueue")),
        _PENDING,
        (Column("Admitted Workloads"), _ADMITTED),
    ),
    scheme.WORKLOAD: (
        _NAME,
        (Column("Queue"), _at("spec", "queueName")),
        (Column("Reserved in"), _at("status", "admission", "clusterQueue")),
        (Column("Admitted"), _condition("Admitted")),
        (Column("Finished"), _condition("Finished")),
        _AGE,
    ),
    scheme.WORKLOAD_PRIORITY_CLASS: (_NAME, (Column("Value"), _at("value"))),
    scheme.MULTI_KUEUE_CLUSTER: (_NAME, (Column("Connected"), _condition("Active")), _AGE),
    scheme.JOB_SET: (
        _NAME,
        (Column("TerminalState"), _at("status", "terminalState")),
        (Column("Restarts"), _at("status", "restarts")),
        (Column("Completed"), _condition("Completed")),
        (Column("Suspended"), _at("spec", "suspend")),
        _AGE,
    ),
    scheme.JOB: (
        _NAME,
        (Column("Status"), _job_status),
        (Column("Completions"), _job_completions),
        (Column("Duration"), _job_duration),
        _AGE,
        (Column("Containers", priority=1), _containers("name", *_TEMPLATE)),
        (Column("Images", priority=1), _containers("image", *_TEMPLATE)),
        (Column("Selector", priority=1), _selector),
    ),
    scheme.NAMESPACE: (_NAME, (Column("Status"), _at("status", "phase")), _AGE),
    scheme.PRIORITY_CLASS: (
        _NAME,
        (Column("Value"), _at("value", default=0)),
        (Column("Global-Default"), _at("globalDefault", default=False)),
        _AGE,
        (Column("PreemptionPolicy"), _at("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    scheme.SERVICE: (
        _NAME,
        (Column("Type"), _service_type),
        (Column("Cluster-IP"), _cluster_ip),
        (Column("External-IP"), _external_ip),
        (Column("Port(s)"), _ports),
        _AGE,
        (Column("Selector", priority=1), _labels("spec", "selector")),
    ),
    scheme.CONFIG_MAP: (_NAME, (Column("Data"), _count("data", "binaryData")), _AGE),
    scheme.SECRET: (_NAME, (Column("Type"), _at("type", default="Opaque")), (Column("Data"), _count("data")), _AGE),
    scheme.SERVICE_ACCOUNT: (_NAME, (Column("Secrets"), _count("secrets")), _AGE),
    scheme.POD_TEMPLATE: (
        _NAME,
        (Column("Containers"), _containers("name", "template", "spec")),
        (Column("Images"), _containers("image", "template", "spec")),
        (Column("Pod Labels"), _labels("template", "metadata", "labels")),
    ),
}
