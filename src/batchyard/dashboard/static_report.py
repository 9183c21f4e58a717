"""Static report: a self-contained HTML file with the models of a finished run."""

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from batchyard.api import scheme
from batchyard.dashboard.access import FullAccess
from batchyard.dashboard.assets import INDEX, SCRIPTS, STYLE, asset
from batchyard.dashboard.pages import DashboardViews

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
