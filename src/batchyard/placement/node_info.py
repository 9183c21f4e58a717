"""Scheduling state of one node: its spec, pods and free resources."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import HostPort
from batchyard.api.views.pods import PodView
from batchyard.api.well_known import GPU_MILLI
from batchyard.base import invariant

# --- devices ---
#
# Shared GPUs of a node in thousandths (`batchyard.dev/gpu-milli`): the share of each pod on each GPU.
#
# A share below 1000 is on one GPU; whole GPUs must be entirely free. 2500 takes two whole GPUs and 500 of a third. A
# share goes to the GPU with the least sufficient room, so that whole GPUs stay free. Source for the annotation that is
# written with the binding: Alibaba's gpushare scheduler extender.


WHOLE: Final = 1000
"""One GPU in thousandths."""


class GpuShares:
    """The GPUs of a node and the shares of its pods. Pods that others bound without free GPUs are not counted."""

    __slots__ = ("_held", "left")

    def __init__(self, total: int) -> None:
        self.left = [WHOLE] * (total // WHOLE)
        """Free thousandths by GPU; negative if overcommitted."""
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}

    def fits(self, amount: int) -> bool:
        """Whether the amount fits."""
        if amount <= WHOLE:  # fast path for almost all pods that use GPUs
            return max(self.left, default=0) >= amount
        return bool(pick_devices(amount, self.left))

    def has_enough(self, amount: int) -> bool:
        """Whether the amount would fit if all GPUs were free."""
        return -(-amount // WHOLE) <= len(self.left)

    def held_by(self, uid: str) -> tuple[int, ...]:
        """Return the GPUs of a pod; one with a partial share comes last."""
        return self._held.get(uid, (0, ()))[1]

    def take(self, uid: str, amount: int, chosen: Sequence[int]) -> None:
        """Add a pod with its chosen GPUs; if those are invalid, GPUs are picked."""
        is_possible = len(chosen) == -(-amount // WHOLE) == len(dict.fromkeys(chosen))
        is_known = all(0 <= number < len(self.left) for number in chosen)
        picked = tuple(chosen) if chosen and is_possible and is_known else pick_devices(amount, self.left)
        self._held[uid] = amount, picked
        self._count(amount, picked, -1)

    def release(self, uid: str) -> tuple[int, ...]:
        """Remove a pod and return its GPUs."""
        amount, picked = self._held.pop(uid)
        self._count(amount, picked, 1)
        return picked

    def resized(self, total: int) -> "GpuShares":
        """Return devices for a node with a new total, with the same pods."""
        new = GpuShares(total)
        for uid, (amount, picked) in self._held.items():
            new.take(uid, amount, picked)
        return new

    def _count(self, amount: int, picked: Sequence[int], sign: int) -> None:
        invariant(not picked or len(picked) == -(-amount // WHOLE), "a pod has as many GPUs as it asked for")
        for number in picked:
            part = min(amount, WHOLE)
            self.left[number] += sign * part
            amount -= part


def pick_devices(amount: int, left: Sequence[int]) -> tuple[int, ...]:
    """Return the GPUs for an amount, whole ones first, given the free thousandths; empty if it does not fit."""
    whole, share = divmod(amount, WHOLE)
    free = [number for number, rest in enumerate(left) if rest == WHOLE] if whole else []
    if len(free) < whole:
        return ()
    taken = free[:whole]
    if not share:
        return tuple(taken)
    others = [(rest, number) for number, rest in enumerate(left) if rest >= share and number not in taken]
    return (*taken, min(others)[1]) if others else ()


_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' default of hostIP


class NodeInfo:
    """Spec, pods and free resources of a node. Only the cluster snapshot changes it."""

    __slots__ = ("_below", "devices", "left", "name", "pods", "ports", "scored_cpu", "scored_memory", "view")

    def __init__(self, view: NodeView) -> None:
        self.name = view.name
        self.view = view
        self.pods: dict[str, PodView] = {}
        """The pods that are bound to it or assumed, by uid."""
        self.left = dict(view.allocatable)
        """Free amounts by resource; negative if overcommitted."""
        self.scored_cpu = 0
        """Requested cpu as scores count it (with defaults)."""
        self.scored_memory = 0
        self.ports: dict[HostPort, int] = {}
        """Number of pods by host port."""
        self.devices = GpuShares(view.allocatable.get(GPU_MILLI, 0))
        self._below: dict[int, dict[str, int]] = {}

    def set_view(self, view: NodeView) -> None:
        """Replace the node's spec; its pods stay."""
        before, self.view = self.view, view
        if view.allocatable == before.allocatable:
            return
        if view.allocatable.get(GPU_MILLI) != before.allocatable.get(GPU_MILLI):
            self.devices = self.devices.resized(view.allocatable.get(GPU_MILLI, 0))
        taken = {r: before.allocatable.get(r, 0) - n for r, n in self.left.items()}
        self.left = {r: view.allocatable.get(r, 0) - taken.get(r, 0) for r in {**view.allocatable, **taken}}

    def take(self, pod: PodView, devices: Sequence[int] = ()) -> None:
        """Add a pod; `devices`: the GPUs it had here before, if any."""
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
        """Remove a pod and return its GPUs."""
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
        """Return what pods of lower priority have requested, by resource."""
        known = self._below.get(priority)
        if known is None:
            known = self._below[priority] = {}
            for pod in self.pods.values():
                for resource, amount in pod.requests if pod.priority < priority else ():
                    known[resource] = known.get(resource, 0) + amount
        return known

    def has_port(self, wanted: HostPort) -> bool:
        """Whether a host port is free. The address 0.0.0.0 conflicts with every address."""
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
# Change log of nodes, so that caches update only what changed.


class NodeGenerations:
    """Node names in order of their last change, each with an increasing generation."""

    __slots__ = ("_last", "now")

    def __init__(self) -> None:
        self.now = 0
        self._last: dict[str, int] = {}

    def note(self, name: str) -> None:
        """Record a change of a node."""
        self.now += 1
        self._last.pop(name, None)
        self._last[name] = self.now

    def since(self, moment: int) -> list[str]:
        """Return the nodes that changed after a generation, latest first."""
        if moment == self.now:
            return []
        names = []
        for name, changed in reversed(self._last.items()):
            if changed <= moment:
                break
            names.append(name)
        return names
