"""Cells of controllers of pods that are no Jobs, of budgets and quotas. Source: Kubernetes's pkg/printers."""

from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.tables import cells
from batchyard.api.tables.cells import NONE, Cell, Column, at, text, value
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age

NAME: Final = (Column("Name"), cells.name)
AGE: Final = (Column("Age"), cells.age)
_TEMPLATE: Final = ("spec", "template", "spec")
_NOT_AVAILABLE: Final = "N/A"


def _ready_of_wanted(obj: Obj, _now: Instant) -> str:
    wanted = value(obj, "spec", "replicas")
    return f"{value(obj, 'status', 'readyReplicas') or 0}/{1 if wanted is None else wanted}"


def _in_status(field: str) -> Cell:
    return at("status", field, default=0)


def _or_not_available(field: str) -> Cell:
    return at("spec", field, default=_NOT_AVAILABLE)


def _last_schedule(obj: Obj, now: Instant) -> str:
    last = value(obj, "status", "lastScheduleTime")
    return format_age(now - parse_time(last)) if last else NONE


def _used(obj: Obj, is_limit: bool) -> str:
    """What is used of what there may be, of limits or of all else: `requests.cpu: 1/4, pods: 2/10`."""
    hard, used = value(obj, "status", "hard") or {}, value(obj, "status", "used") or {}
    names = sorted(name for name in hard if name.startswith("limits") is is_limit)
    return ", ".join(f"{name}: {text(used.get(name, 0))}/{text(hard[name])}" for name in names)


def _containers(*path: str) -> tuple[tuple[Column, Cell], ...]:
    return (
        (Column("Containers", priority=1), cells.containers("name", *path)),
        (Column("Images", priority=1), cells.containers("image", *path)),
    )


_SELECTOR: Final = (Column("Selector", priority=1), cells.selector())

DEPLOYMENTS: Final = (
    NAME,
    (Column("Ready"), _ready_of_wanted),
    (Column("Up-to-date", counts=True), _in_status("updatedReplicas")),
    (Column("Available", counts=True), _in_status("availableReplicas")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
REPLICA_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), at("spec", "replicas", default=1)),
    (Column("Current", type="integer"), _in_status("replicas")),
    (Column("Ready", type="integer"), _in_status("readyReplicas")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
REPLICATION_CONTROLLERS: Final = (
    *REPLICA_SETS[:-1],
    (Column("Selector", priority=1), cells.labels("spec", "selector")),
)
STATEFUL_SETS: Final = (NAME, (Column("Ready"), _ready_of_wanted), AGE, *_containers(*_TEMPLATE))
DAEMON_SETS: Final = (
    NAME,
    (Column("Desired", type="integer"), _in_status("desiredNumberScheduled")),
    (Column("Current", type="integer"), _in_status("currentNumberScheduled")),
    (Column("Ready", type="integer"), _in_status("numberReady")),
    (Column("Up-to-date", type="integer"), _in_status("updatedNumberScheduled")),
    (Column("Available", type="integer"), _in_status("numberAvailable")),
    (Column("Node Selector"), cells.labels(*_TEMPLATE, "nodeSelector")),
    AGE,
    *_containers(*_TEMPLATE),
    _SELECTOR,
)
CRON_JOBS: Final = (
    NAME,
    (Column("Schedule"), at("spec", "schedule")),
    (Column("Timezone"), at("spec", "timeZone", default=NONE)),
    (Column("Suspend", type="boolean"), lambda obj, _now: str(bool(value(obj, "spec", "suspend")))),
    (Column("Active", type="integer"), cells.count_at("status", "active")),
    (Column("Last Schedule"), _last_schedule),
    AGE,
    *_containers("spec", "jobTemplate", *_TEMPLATE),
    (Column("Selector", priority=1), cells.selector("spec", "jobTemplate", "spec", "selector")),
)
DISRUPTION_BUDGETS: Final = (
    NAME,
    (Column("Min Available"), _or_not_available("minAvailable")),
    (Column("Max Unavailable"), _or_not_available("maxUnavailable")),
    (Column("Allowed Disruptions", type="integer"), _in_status("disruptionsAllowed")),
    AGE,
)
RESOURCE_QUOTAS: Final = (
    NAME,
    (Column("Request"), lambda obj, _now: _used(obj, is_limit=False)),
    (Column("Limit"), lambda obj, _now: _used(obj, is_limit=True)),
    AGE,
)
LIMIT_RANGES: Final = (NAME, (Column("Created At", type="date"), cells.created))
NETWORK_POLICIES: Final = (NAME, (Column("Pod-Selector"), cells.selector("spec", "podSelector")), AGE)
