"""One node as placement sees it: what it is, what runs there, what is left."""

from collections.abc import Mapping, Sequence

from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import HostPort, PodView
from batchyard.api.well_known import GPU_MILLI
from batchyard.placement.devices import Devices

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - what Kubernetes takes a missing hostIP for


class Node:
    """See the module. Only Nodes changes it."""

    __slots__ = ("_below", "devices", "left", "name", "pods", "ports", "scored_cpu", "scored_memory", "view")

    def __init__(self, view: NodeView) -> None:
        self.name = view.name
        self.view = view
        self.pods: dict[str, PodView] = {}
        """The pods bound to it or assumed to be, by uid."""
        self.left = dict(view.allocatable)
        """What is left by resource; below zero where more is taken than there is."""
        self.scored_cpu = 0
        """The cpu that is taken, as scores count it."""
        self.scored_memory = 0
        self.ports: dict[HostPort, int] = {}
        """How many pods hold a port."""
        self.devices = Devices(view.allocatable.get(GPU_MILLI, 0))
        self._below: dict[int, dict[str, int]] = {}

    def set_view(self, view: NodeView) -> None:
        """It changed; its pods stay."""
        before, self.view = self.view, view
        if view.allocatable == before.allocatable:
            return
        if view.allocatable.get(GPU_MILLI) != before.allocatable.get(GPU_MILLI):
            self.devices = self.devices.resized(view.allocatable.get(GPU_MILLI, 0))
        taken = {r: before.allocatable.get(r, 0) - n for r, n in self.left.items()}
        self.left = {r: view.allocatable.get(r, 0) - taken.get(r, 0) for r in {**view.allocatable, **taken}}

    def take(self, pod: PodView, devices: Sequence[int] = ()) -> None:
        """A pod comes; with the devices it had here before, if it did."""
        self.pods[pod.uid] = pod
        self._below.clear()
        left = self.left
        for resource, amount in pod.requests:
            left[resource] = left.get(resource, 0) - amount
        self.scored_cpu += pod.shape.scored_cpu
        self.scored_memory += pod.shape.scored_memory
        if pod.shape.gpu_milli:
            self.devices.take(pod.uid, pod.shape.gpu_milli, devices or pod.gpus)
        for port in pod.shape.host_ports:
            self.ports[port] = self.ports.get(port, 0) + 1

    def release(self, uid: str) -> Sequence[int]:
        """A pod that is there goes; the devices it had."""
        pod = self.pods.pop(uid)
        self._below.clear()
        for resource, amount in pod.requests:
            self.left[resource] += amount
        self.scored_cpu -= pod.shape.scored_cpu
        self.scored_memory -= pod.shape.scored_memory
        for port in pod.shape.host_ports:
            self.ports[port] -= 1
            if not self.ports[port]:
                del self.ports[port]
        return self.devices.release(uid) if pod.shape.gpu_milli else ()

    def taken_below(self, priority: int) -> Mapping[str, int]:
        """What pods of lower priority have of it, by resource."""
        known = self._below.get(priority)
        if known is None:
            known = self._below[priority] = {}
            for pod in self.pods.values():
                for resource, amount in pod.requests if pod.priority < priority else ():
                    known[resource] = known.get(resource, 0) + amount
        return known

    def has_port(self, wanted: HostPort) -> bool:
        """Whether a port is free. The address of all takes the port at every address."""
        if not self.ports:
            return True
        return not any(
            held.protocol == wanted.protocol
            and held.port == wanted.port
            and (held.ip == wanted.ip or _EVERY_ADDRESS in (held.ip, wanted.ip))
            for held in self.ports
        )


# --- changes ---
#
# Which nodes changed since a moment: so that whoever remembers something of nodes looks only at those again.


class Changes:
    """Names in the order of their last change; moments are numbers that only grow."""

    __slots__ = ("_last", "now")

    def __init__(self) -> None:
        self.now = 0
        self._last: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Something about a node changed, came or went."""
        self.now += 1
        self._last.pop(name, None)
        self._last[name] = self.now

    def since(self, moment: int) -> list[str]:
        """The nodes that changed after a moment, the latest first."""
        if moment == self.now:
            return []
        names = []
        for name, changed in reversed(self._last.items()):
            if changed <= moment:
                break
            names.append(name)
        return names
