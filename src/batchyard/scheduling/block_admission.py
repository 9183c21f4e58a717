"""Kueue's blockAdmission: nobody is admitted while somebody holds quota whose pods are not ready yet.

Source: WaitForPodsReady in pkg/cache/scheduler of Kueue.
"""

from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy


class PodsReadyGate:
    """Knows from watch events alone who holds quota without being ready."""

    def __init__(self, policy: PodsReadyPolicy | None = None) -> None:
        self._policy = policy or PodsReadyPolicy()
        self._unready: dict[Key, None] = {}

    @property
    def is_closed(self) -> bool:
        """Whether whoever fits has to wait."""
        return bool(self._unready)

    def awaits(self, workload: Obj) -> bool:
        """Whether one that is admitted closes it until it is ready."""
        return self._policy.awaits(workload)

    def observe(self, event: WatchEvent) -> None:
        """Take note of a change of a Workload."""
        view = workload_view(event.obj)
        holds = view.quota_reserved and view.active and not view.finished and event.type is not EventType.DELETED
        if holds and not view.pods_ready and self.awaits(event.obj):
            self._unready[event.key] = None
        else:
            self._unready.pop(event.key, None)
