"""Kueue's blockAdmission: no Workload is admitted while another with quota has pods that are not ready.

Source: WaitForPodsReady in pkg/cache/scheduler of Kueue.
"""

from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy


class PodsReadyGate:
    """The Workloads that hold quota and are not ready, tracked by watch events."""

    def __init__(self, policy: PodsReadyPolicy | None = None) -> None:
        self._policy = policy or PodsReadyPolicy()
        self._unready: dict[Key, None] = {}

    @property
    def is_closed(self) -> bool:
        """Whether admissions have to wait."""
        return bool(self._unready)

    def awaits(self, workload: Obj) -> bool:
        """Report whether an admission of this Workload closes the gate until its pods are ready."""
        return self._policy.awaits(workload)

    def observe(self, event: WatchEvent) -> None:
        """Process a change of a Workload."""
        view = workload_view(event.obj)
        holds = view.quota_reserved and view.active and not view.finished and event.type is not EventType.DELETED
        if holds and not view.pods_ready and self.awaits(event.obj):
            self._unready[event.key] = None
        else:
            self._unready.pop(event.key, None)
