"""No pod of a job that names a queue is bound, or begins to run, while its Workload holds no quota."""

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, label
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import workload_view
from batchyard.core.lifecycle.pod import RUNNING
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class NoPodWithoutAdmission(Law):
    """See the module."""

    name = "no_pod_without_admission"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._begun: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Take note of pods that were bound or began to run."""
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        new, old = pod_view(event.obj), None if event.old is None else pod_view(event.old)
        is_bound = new.node_name and not (old and old.node_name)
        runs = new.phase == RUNNING and not (old and old.phase == RUNNING)
        if is_bound or runs:
            self._begun[event.key] = None

    def settle(self) -> None:
        """Those that are to stay need quota."""
        for key in self._begun:
            pod = self.scene.world.client.get(key)
            root = None if pod is None or "deletionTimestamp" in pod["metadata"] else self._root(pod)
            if root is not None and label(root, well_known.QUEUE_NAME) and not self._has_quota(root):
                self.violate(f"{key} has begun, and its job has no quota", key)
        self._begun.clear()

    def _root(self, obj: Obj) -> Obj | None:
        """The topmost owner of a pod; None if it has none, or the one above it is gone."""
        client = self.scene.world.client
        owner = controller_of(obj)
        kind = None if owner is None else {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}.get(owner["kind"])
        if owner is None or kind is None:
            return obj
        above = client.get(Key(kind, obj["metadata"]["namespace"], owner["name"]))
        return None if above is None or "deletionTimestamp" in above["metadata"] else self._root(above)

    def _has_quota(self, root: Obj) -> bool:
        metadata = root["metadata"]
        owned = self.scene.world.client.owned_by(metadata["uid"], metadata["namespace"])
        return any(workload_view(obj).quota_reserved for obj in owned if obj["kind"] == "Workload")
