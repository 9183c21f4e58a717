"""With Hotswap nobody loses nodes to an equal or lower priority: that of the pods, as kube-scheduler goes by.

Who gets the nodes is a Workload that has quota, or a pod that needs none.
"""

from collections.abc import Sequence

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, annotation
from batchyard.core.hotswap import HOTSWAP
from batchyard.core.reasons import preemptor_uid_of
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.law import Law
from batchyard.sim.checkers.ledger import is_preempted_by


class HotswapRespectsPriority(Law):
    """See the module."""

    name = "hotswap_respects_priority"

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Look at new preemptions, the ledger as before them."""
        for event in batch:
            preempted = find_condition(event.obj, "Preempted") if is_preempted_by(event) else None
            if preempted is not None and preempted["reason"] == HOTSWAP:
                self._judge(event, preemptor_uid_of(preempted["message"]))

    def _judge(self, event: WatchEvent, uid: str) -> None:
        workload = next((view for view in self.ledger.workloads.values() if view.uid == uid), None)
        if workload is not None and not workload.quota_reserved:
            self.violate(f"{workload.key} got nodes of {event.key} without quota", event.key)
        if workload is None:
            preemptors = [pod for pod in self.scene.world.objects(scheme.POD) if pod["metadata"]["uid"] == uid]
        else:
            preemptors = self._pods_of(workload.namespace, workload.name)
        victims = self._pods_of(event.key.namespace, event.key.name)
        highest = max((pod["spec"].get("priority", 0) for pod in preemptors), default=None)
        if highest is None:
            self.violate(f"{event.key} lost its nodes to {uid}, of whom there is no pod", event.key)
        elif any(pod["spec"].get("priority", 0) >= highest for pod in victims):
            self.violate(f"{event.key} lost its nodes to {uid}, whose pods have no more than {highest}", event.key)

    def _pods_of(self, namespace: str, workload: str) -> list[Obj]:
        pods = self.scene.world.objects(scheme.POD, namespace)
        return [pod for pod in pods if annotation(pod, well_known.WORKLOAD) == workload]
