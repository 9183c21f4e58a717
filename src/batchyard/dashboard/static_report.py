"""The dashboard's static files and pages, and a self-contained HTML report about a finished run."""

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
from batchyard.dashboard import data_source
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.models.nodes import node_document, nodes_document, topologies_document
from batchyard.dashboard.models.objects import object_yaml, pod_document, search
from batchyard.dashboard.models.overview import cohorts_document, overview_document, timeline_document
from batchyard.dashboard.models.queues import queue_document
from batchyard.dashboard.models.rows import costs_document
from batchyard.dashboard.models.workload import workload_document, workloads_document
from batchyard.interfaces.client import Reader

# The static files of the dashboard. They contain no data, so they need no authentication. Reports use the same files.


_MEDIA_TYPES: Final = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
INDEX: Final = "index.html"
STYLE: Final = "style.css"
COMPARE_STYLE: Final = "compare.css"
#: The scripts in dependency order.
SCRIPTS: Final = (
    "dom.js",
    "format.js",
    "source.js",
    "parts.js",
    "charts.js",
    "actions.js",
    "search.js",
    "comparison.js",
    "overview.js",
    "cohorts.js",
    "workloads.js",
    "queue.js",
    "workload.js",
    "timeline.js",
    "result.js",
    "nodes.js",
    "topology.js",
    "costs.js",
    "objects.js",
    "keys.js",
    "app.js",
)
#: The chart library uPlot, vendored: its script, its style, and its license, which reports include.
_CHART_SCRIPT, _CHART_STYLE = "vendor/uplot/uPlot.iife.min.js", "vendor/uplot/uPlot.min.css"
_CHART_LICENSE: Final = "vendor/uplot/LICENSE.txt"
_VENDORED_FILES: Final = (_CHART_SCRIPT, _CHART_STYLE, _CHART_LICENSE)
_SCRIPT_FILES: Final = tuple(f"js/{name}" for name in SCRIPTS)
_STATIC_FILES: Final = (INDEX, STYLE, COMPARE_STYLE, "icon.svg", *_SCRIPT_FILES, *_VENDORED_FILES)

_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The HTTP headers of every file: they forbid content from other origins, requests to them, and framing.
HEADERS: Final = (
    ("content-security-policy", _CONTENT_SECURITY_POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
)


class Asset(NamedTuple):
    """The content and media type of a static file."""

    content: bytes
    content_type: str


@cache
def read_asset(name: str) -> Asset | None:
    """Return a static file of the dashboard by name; None if it does not exist; the empty name is the index page."""
    name = name or INDEX
    if name not in _STATIC_FILES:
        return None
    content = pkgutil.get_data("batchyard.dashboard", f"static/{name}")
    assert content is not None, f"the package lacks the static file {name}: reinstall batchyard"
    return Asset(content, f"{_MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8")


# All views by name.


View: TypeAlias = Callable[
    [data_source.ViewInputs, data_source.NamespaceAccess, data_source.Query], data_source.ViewJson | None
]


def _empty_document(
    _inputs: data_source.ViewInputs, _access: data_source.NamespaceAccess, _query: data_source.Query
) -> data_source.ViewJson:
    """Return an empty document: the response around it has the time and speed of the platform."""
    return {}


VIEWS: Final[Mapping[str, View]] = {
    "time": _empty_document,
    "overview": overview_document,
    "cohorts": cohorts_document,
    "queue": queue_document,
    "workloads": workloads_document,
    "workload": workload_document,
    "timeline": timeline_document,
    "nodes": nodes_document,
    "node": node_document,
    "topologies": topologies_document,
    "costs": costs_document,
    "yaml": object_yaml,
    "pod": pod_document,
    "search": search,
}


def no_costs() -> Statement | None:
    """Return None: the costs of the platform come from its CostRecords."""
    return None


class PlatformTime(NamedTuple):
    """The clock of the platform, and its speed relative to real time; the speed is 0 for a stopped clock."""

    now: Callable[[], Instant]
    speed: float


class DashboardViews:
    """Computes the JSON documents of all dashboard pages; with `is_complete`, lists are not paginated."""

    def __init__(
        self,
        reader: Reader,
        queue_source: data_source.QueueSource,
        history: PlatformHistory,
        time: PlatformTime,
        costs: Callable[[], Statement | None] = no_costs,
        *,
        is_complete: bool = False,
    ) -> None:
        self._reader = reader
        self._queue_source = queue_source
        self._history = history
        self._time = time
        self._costs = costs
        self._is_complete = is_complete
        #: The documents that the server answers for a Workload, as in `data_source.ViewInputs`.
        self.extra_documents: Sequence[str] = (data_source.WHY, data_source.ETA)
        self._workload_list = data_source.WorkloadListCache()

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        return self._reader.list(kind)

    def model(
        self, view: str, query: data_source.Query, viewer: data_source.ViewerAccess
    ) -> data_source.ViewJson | None:
        """Return the document of a page, limited to what the user may list; None if the page or its object is missing.

        Depending on the page, forbidden content is omitted, or the result is None or has only the field `forbidden`.
        """
        compute_view = VIEWS.get(view)
        if compute_view is None:
            return None
        self._queue_source.snapshot.rebuild_if_changed()
        inputs = data_source.ViewInputs(
            self._reader,
            self._queue_source,
            self._history,
            self._workload_list,
            self._time.now(),
            self._costs(),
            self._is_complete,
            self.extra_documents,
        )
        return compute_view(inputs, data_source.NamespaceAccess(viewer), query)

    def time(self) -> data_source.ViewJson:
        """Return the time and speed of the platform, from which the browser computes ages."""
        return {"time": format_time(self._time.now() // SECOND * SECOND), "speed": self._time.speed}


#: The maximum number of objects of a kind with a detail page; lists and the timeline can contain more.
DETAILS_MAX: Final = 5000
_WHOLE_PERIOD: Final = {"last": "all"}
_IMPORT_LINE: Final = re.compile(r"^import .*\n", re.MULTILINE)
_PRELOAD_LINE: Final = re.compile(r"^<link rel=\"modulepreload\".*\n", re.MULTILINE)
_EXPORT_KEYWORD: Final = re.compile(r"^export ", re.MULTILINE)
_encode = msgspec.json.Encoder().encode


def render_static_report(views: DashboardViews, result: data_source.ViewJson | None = None) -> str:
    """Return the HTML report, which contains the JSON documents of dashboard pages.

    At most DETAILS_MAX objects of a kind have a page. The report opens on the page of the run's `result`, if any.
    """
    result_document = {} if result is None else {"result": result}
    documents_json = _encode({**views.time(), "models": {**_all_documents(views), **result_document}}).decode()
    embedded_json = documents_json.replace("<", "\\u003c")  # valid JSON that cannot close the script element
    style_element = f"<style>\n{_read_text(_CHART_STYLE)}\n{_read_text(STYLE)}</style>"
    data = f'<script type="application/json" id="report">{embedded_json}</script>'
    chart_library = f"/*!\n{_read_text(_CHART_LICENSE)}*/\n{_read_text(_CHART_SCRIPT)}"
    script_element = f'<script type="module">\n{chart_library}\n{bundled_script()}</script>'
    html = _PRELOAD_LINE.sub("", _read_text(INDEX))
    for old, replacement in (
        ('<link rel="icon" href="icon.svg" type="image/svg+xml">\n', ""),
        (f'<link rel="stylesheet" href="{_CHART_STYLE}">\n', ""),
        ('<link rel="stylesheet" href="style.css">', style_element),
        (f'<script src="{_CHART_SCRIPT}"></script>\n', ""),
        ('<script type="module" src="js/app.js"></script>\n', ""),
        ("</body>", f"{data}\n{script_element}\n</body>"),
    ):
        assert old in html, f"index.html does not contain {old!r}"
        html = html.replace(old, replacement)
    return html


def bundled_script() -> str:
    """Return all dashboard scripts joined into one, without imports and the keyword `export`."""
    return "".join(_EXPORT_KEYWORD.sub("", _IMPORT_LINE.sub("", _read_text(f"js/{name}"))) for name in SCRIPTS)


def _read_text(name: str) -> str:
    static_file = read_asset(name)
    assert static_file is not None, f"the package lacks the static file {name}: reinstall batchyard"
    return static_file.content.decode()


def _all_documents(views: DashboardViews) -> dict[str, Any]:
    access = data_source.FullAccess()
    names = ("overview", "cohorts", "workloads", "nodes", "topologies", "costs")
    document_by_view: dict[str, Any] = {view: views.model(view, {}, access) for view in names}
    document_by_view["timeline"] = {
        lane_kind: views.model("timeline", {"by": lane_kind, **_WHOLE_PERIOD}, access)
        for lane_kind in ("flavor", "node")
    }
    for view, kind in (("queue", scheme.CLUSTER_QUEUE), ("node", scheme.NODE), ("workload", scheme.WORKLOAD)):
        queries = _detail_queries(views, kind)
        document_by_view[view] = {"/".join(query.values()): views.model(view, query, access) for query in queries}
    return document_by_view


def _detail_queries(views: DashboardViews, kind: str) -> Iterator[dict[str, str]]:
    for obj in views.objects(kind)[:DETAILS_MAX]:
        namespace, name = obj["metadata"].get("namespace"), obj["metadata"]["name"]
        yield {"namespace": namespace, "name": name} if namespace else {"name": name}
