"""The table rows of a guide by name, without the names and ages that differ between runs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from batchyard.api import printing, scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import Instant
from batchyard.sim.guide import GuideObservation, pool_of


class Played(Protocol):
    """A guide that was played, in a simulated world or on a running platform."""

    @property
    def initial(self) -> Mapping[str, int]:
        """The number of nodes of each pool before the first step."""

    @property
    def began(self) -> Instant:
        """The instant at which the guide began."""

    def now(self) -> Instant:
        """The current time in the guide."""

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind."""


def rows_of(seen: Sequence[GuideObservation], guide: Played) -> Mapping[str, str]:
    """The rows of all steps (`STEP: NAME`) and of all Jobs (`NAMESPACE/NAME`), as text by name."""
    rows: dict[str, str] = {}
    for each in seen:
        found = {**queue_rows(each.cluster_queues, each.now), **node_rows(each.nodes, each.nodes_now)}
        rows |= {f"{each.step.name}: {name}": cells for name, cells in found.items()}
    for job in guide.objects(scheme.JOB):
        name, status, completions, *_ = printing.row(job, now=guide.now(), wide=False)
        rows[f"{job['metadata']['namespace']}/{name}"] = f"{status} {completions}"
    return rows


def queue_rows(cluster_queues: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """The cells of each ClusterQueue by its name."""
    _, *rows = printing.table(scheme.CLUSTER_QUEUE, cluster_queues, now=now, wide=True, namespaces=False)
    return {name: " ".join(filter(None, cells)) for name, *cells in rows}


def node_rows(nodes: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """The number of nodes of each kind: pool, status, roles, version."""
    counts = Counter(_kind_of_node(node, now) for node in nodes)
    return {kind: f"{count} nodes" for kind, count in counts.items()}


def _kind_of_node(node: Obj, now: Instant) -> str:
    _, status, roles, _, version, *_ = printing.row(node, now=now, wide=False)
    return f"{pool_of(node)} {status} {roles} {version}"
