"""Where another scheduler decides otherwise than ours would, for whoever sees all Workloads: partings name several."""

from typing import Final

from batchyard.api import scheme
from batchyard.web.comparison import Parted
from batchyard.web.models.rows import time_of
from batchyard.web.sight import Scope
from batchyard.web.source import Model, Source

#: How many lines there are; the shadow's own report has all.
LINES_MAX: Final = 20


def comparison(source: Source, scope: Scope, workload: str = "") -> Model:
    """All of it, or what is about one Workload; nothing where nobody compares, or that may not be seen."""
    found = source.history.comparison
    if found is None or not scope.all_of(scheme.WORKLOAD):
        return {}
    of_it = [each for each in found.partings if workload in ("", each.workload)]
    told = {"agreed": found.agreed(), "parted": found.parted(), "partings": [_line(each) for each in of_it[:LINES_MAX]]}
    return {"comparison": told}


def _line(parted: Parted) -> Model:
    return {
        "at": time_of(parted.at),
        "since": time_of(parted.since),
        "type": parted.kind,
        "workload": parted.workload,
        "message": parted.message,
        "why": parted.why,
        "look": list(parted.look),
    }
