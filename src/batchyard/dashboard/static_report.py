"""Static report: a self-contained HTML file with the models of a finished run."""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.accounting.accounts import Statement
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard.data_source import (
    FullAccess,
    Model,
    NamespaceAccess,
    Query,
    QueueSource,
    ViewerAccess,
    ViewInputs,
    WorkloadListCache,
)
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.models.nodes import node, nodes
from batchyard.dashboard.models.overview import cohorts, overview, timeline
from batchyard.dashboard.models.queues import queue
from batchyard.dashboard.models.rows import costs
from batchyard.dashboard.models.workload import workload, workloads
from batchyard.interfaces.client import Reader

# --- assets ---
#
# Static files of the dashboard. They hold no data and need no authentication; reports use the same files.


_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
INDEX: Final = "index.html"
STYLE: Final = "style.css"
COMPARE_STYLE: Final = "compare.css"
#: The scripts in dependency order.
SCRIPTS: Final = (
    "dom.js",
    "format.js",
    "source.js",
    "parts.js",
    "comparison.js",
    "overview.js",
    "cohorts.js",
    "workloads.js",
    "queue.js",
    "workload.js",
    "timeline.js",
    "nodes.js",
    "costs.js",
    "keys.js",
    "app.js",
)
_FILES: Final = (INDEX, STYLE, COMPARE_STYLE, "icon.svg", *(f"js/{name}" for name in SCRIPTS))

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The headers of every file: no content from other origins, no requests to them, no framing.
HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
)


class Asset(NamedTuple):
    """The content of a file and its media type."""

    content: bytes
    content_type: str


@cache
def asset(name: str) -> Asset | None:
    """Return the file of a name; None if it does not exist. The empty name is the index page."""
    name = name or INDEX
    if name not in _FILES:
        return None
    content = pkgutil.get_data("batchyard.dashboard", f"static/{name}")
    assert content is not None, "the files are part of the package"
    return Asset(content, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")


# --- pages ---
#
# All views by name.


View: TypeAlias = Callable[[ViewInputs, NamespaceAccess, Query], Model | None]

VIEWS: Final[Mapping[str, View]] = {
    "overview": overview,
    "cohorts": cohorts,
    "queue": queue,
    "workloads": workloads,
    "workload": workload,
    "timeline": timeline,
    "nodes": nodes,
    "node": node,
    "costs": costs,
}


def no_costs() -> Statement | None:
    """Return None: CostRecords hold the machine costs, if any."""
    return None


class PlatformTime(NamedTuple):
    """The clock of the platform, and its speed relative to real time; 0 if it is stopped."""

    now: Callable[[], Instant]
    speed: float


class DashboardViews:
    """The views of a platform. With `whole`, lists are complete, as in a report."""

    def __init__(
        self,
        reader: Reader,
        standing: QueueSource,
        history: PlatformHistory,
        time: PlatformTime,
        costs: Callable[[], Statement | None] = no_costs,
        *,
        whole: bool = False,
    ) -> None:
        self._reader = reader
        self._standing = standing
        self._history = history
        self._time = time
        self._costs = costs
        self._whole = whole
        self._roster = WorkloadListCache()

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        return self._reader.list(kind)

    def model(self, view: str, query: Query, sight: ViewerAccess) -> Model | None:
        """Return the model of a view; None if the view or its subject does not exist or is hidden from the user."""
        make = VIEWS.get(view)
        if make is None:
            return None
        self._standing.snapshot.settle()
        source = ViewInputs(
            self._reader,
            self._standing,
            self._history,
            self._roster,
            self._time.now(),
            self._costs(),
            self._whole,
        )
        return make(source, NamespaceAccess(sight), query)

    def time(self) -> Model:
        """Return time and speed of the platform, from which the page computes ages."""
        return {"time": format_time(self._time.now() // SECOND * SECOND), "speed": self._time.speed}


#: Maximum number of objects of a kind with a detail page; lists and time lines include more.
DETAILS_MAX: Final = 5000
_ALL: Final = {"last": "all"}
_IMPORT: Final = re.compile(r"^import .*\n", re.MULTILINE)
_PRELOAD: Final = re.compile(r"^<link rel=\"modulepreload\".*\n", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export ", re.MULTILINE)
_encode = msgspec.json.Encoder().encode


def report(pages: DashboardViews) -> str:
    """Return the report of all views."""
    message = _encode({**pages.time(), "models": _models(pages)}).decode()
    embedded = message.replace("<", "\\u003c")  # valid JSON that cannot close the script element
    style = f"<style>\n{_text(STYLE)}</style>"
    data = f'<script type="application/json" id="report">{embedded}</script>'
    script = f'<script type="module">\n{script_of_all()}</script>'
    page = _PRELOAD.sub("", _text(INDEX))
    for found, instead in (
        ('<link rel="icon" href="icon.svg" type="image/svg+xml">\n', ""),
        ('<link rel="stylesheet" href="style.css">', style),
        ('<script type="module" src="js/app.js"></script>\n', ""),
        ("</body>", f"{data}\n{script}\n</body>"),
    ):
        assert found in page, "the index page contains the expected text"
        page = page.replace(found, instead)
    return page


def script_of_all() -> str:
    """Return all scripts as one, without imports; top-level names are unique across the scripts."""
    return "".join(_EXPORT.sub("", _IMPORT.sub("", _text(f"js/{name}"))) for name in SCRIPTS)


def _text(name: str) -> str:
    found = asset(name)
    assert found is not None, "the files are part of the package"
    return found.content.decode()


def _models(pages: DashboardViews) -> dict[str, Any]:
    everything = FullAccess()
    models: dict[str, Any] = {
        view: pages.model(view, {}, everything) for view in ("overview", "cohorts", "workloads", "nodes", "costs")
    }
    models["timeline"] = {by: pages.model("timeline", {"by": by, **_ALL}, everything) for by in ("flavor", "node")}
    for view, kind in (("queue", scheme.CLUSTER_QUEUE), ("node", scheme.NODE), ("workload", scheme.WORKLOAD)):
        models[view] = {
            "/".join(query.values()): pages.model(view, query, everything) for query in _queries(pages, kind)
        }
    return models


def _queries(pages: DashboardViews, kind: str) -> Iterator[dict[str, str]]:
    """Yield the detail page query of each object of a kind."""
    for obj in pages.objects(kind)[:DETAILS_MAX]:
        namespace, name = obj["metadata"].get("namespace"), obj["metadata"]["name"]
        yield {"namespace": namespace, "name": name} if namespace else {"name": name}
