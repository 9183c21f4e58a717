"""Dashboard models of a simulated cluster, for a given viewer."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from batchyard.dashboard.data_source import FullAccess, ViewerAccess
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to

Model = dict[str, Any]
ALL = FullAccess()


class Team:
    """A viewer with access to objects in some namespaces, and to the kinds in `also`."""

    def __init__(self, *namespaces: str, also: tuple[str, ...] = ()) -> None:
        self._namespaces = namespaces
        self._also = also

    def may_list(self, kind: str, namespace: str = "") -> bool:
        return namespace in self._namespaces or kind in self._also


class SimulatedDashboard:
    """The guide up to its high-priority step, where some Workloads preempt and some are pending."""

    def __init__(self) -> None:
        folder = examples_folder()
        assert folder is not None
        self.guide = Guide(folder, guide_steps_up_to("high-priority"))
        world = self.guide.world
        history = PlatformHistory(world.kernel.now, world.platform.index.cluster_queue_of)
        world.client.subscribe(history.observe)
        *_, self.seen = self.guide.play()
        self.history, self.index, self.reader = history, world.platform.index, world.client
        self.pages = DashboardViews(world.client, world.platform.index, history, PlatformTime(world.kernel.now, 0))

    def model(self, view: str, query: Mapping[str, str] = {}, access: ViewerAccess = ALL) -> Model:
        result = self.pages.model(view, query, access)
        assert result is not None
        return result


@cache
def dashboard() -> SimulatedDashboard:
    """The shared read-only instance, created once."""
    return SimulatedDashboard()
