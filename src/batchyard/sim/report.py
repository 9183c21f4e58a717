"""The HTML page of a run as one file: the dashboard of a running platform, for a world at its end."""

from collections.abc import Sequence

from batchyard.accounting.accounts import Statement
from batchyard.base.instant import Instant
from batchyard.dashboard.history import RUN_LIMITS, PlatformHistory
from batchyard.dashboard.pages import DashboardViews, PlatformTime
from batchyard.dashboard.static_report import report
from batchyard.interfaces.client import WatchEvent
from batchyard.sim.world import World


class Reporter:
    """Records the history of a run for its page; create it before the run begins."""

    def __init__(self, world: World, there: Sequence[WatchEvent] = ()) -> None:
        """`there` are the initial objects."""
        self._world = world
        self._history = PlatformHistory(world.kernel.now, self._queue_of, RUN_LIMITS)
        self._history.observe(there)
        world.client.subscribe(self._history.observe)

    def html(self, now: Instant, costs: Statement | None) -> str:
        """Return the page of the current state; ages are counted to `now`."""
        world = self._world
        time = PlatformTime(lambda: now, 0)
        return report(
            DashboardViews(world.client, world.platform.index, self._history, time, lambda: costs, whole=True)
        )

    def _queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue from the current platform, which a crash may have replaced."""
        return self._world.platform.index.cluster_queue_of(namespace, local_queue)
