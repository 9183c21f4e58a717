"""The files of the page: public, for they hold no data. The same ones show what is live and what is in a report."""

import pkgutil
from functools import cache
from typing import Final, NamedTuple

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
INDEX: Final = "index.html"
STYLE: Final = "style.css"
COMPARE_STYLE: Final = "compare.css"
#: The scripts, each after those that it imports.
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
#: What browsers are told of every file: nothing comes from elsewhere, goes elsewhere, or is shown within another page.
HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-cache"),
)


class Asset(NamedTuple):
    """A file."""

    content: bytes
    content_type: str


@cache
def asset(name: str) -> Asset | None:
    """The file of that name; None if there is none. The empty name is the page itself."""
    name = name or INDEX
    if name not in _FILES:
        return None
    content = pkgutil.get_data("batchyard.dashboard", f"static/{name}")
    assert content is not None, "the files are part of the package"
    return Asset(content, f"{_TYPES[name.rpartition('.')[2]]}; charset=utf-8")
