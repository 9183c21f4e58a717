"""Static files of the dashboard. They hold no data and need no authentication; reports use the same files."""

import pkgutil
from functools import cache
from typing import Final, NamedTuple

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
