"""Scheduling state of one node (pods, free resources, shared GPUs), and a log of which nodes changed last."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import HostPort
from batchyard.api.views.pods import PodView
from batchyard.api.well_known import GPU_MILLI
from batchyard.base.primitives import invariant

# Shared GPUs of a node in thousandths (`batchyard.dev/gpu-milli`): the share of each pod on each GPU.
#
# A share below 1000 is on one GPU; whole GPUs must be entirely free. 2500 takes two whole GPUs and 500 of a third. A
# share goes to the fullest GPU with enough capacity, so that whole GPUs stay free. Source for the annotation that is
# written with the binding: Alibaba's gpushare scheduler extender.


WHOLE_GPU: Final = 1000
"""One GPU in thousandths."""


class GpuShares:
    """The GPUs of a node, and how much of each GPU its pods use.

    A pod for which too few GPUs are free gets none.
    """

    __slots__ = ("_shares_by_pod", "free_shares")

    def __init__(self, total_milli: int) -> None:
        self.free_shares = [WHOLE_GPU] * (total_milli // WHOLE_GPU)
        """Free thousandths by GPU; negative if overcommitted."""
        self._shares_by_pod: dict[str, tuple[int, tuple[int, ...]]] = {}

    def fits(self, gpu_milli: int) -> bool:
        """Return whether the node's free GPUs suffice for an amount in thousandths of a GPU."""
        if gpu_milli <= WHOLE_GPU:  # fast path for almost all pods that use GPUs
            return max(self.free_shares, default=0) >= gpu_milli
        return bool(choose_gpus(gpu_milli, self.free_shares))

    def has_enough(self, gpu_milli: int) -> bool:
        """Return whether an amount in thousandths of a GPU would fit if all GPUs of the node were free."""
        return -(-gpu_milli // WHOLE_GPU) <= len(self.free_shares)

    def gpus_of(self, uid: str) -> tuple[int, ...]:
        """Return the indices of the GPUs that a pod uses, a GPU used in part last; () if the pod uses none."""
        return self._shares_by_pod.get(uid, (0, ()))[1]

    def assign_gpus(self, uid: str, gpu_milli: int, gpus: Sequence[int]) -> None:
        """Assign `gpus` to a pod; if these indices are empty or invalid, choose GPUs with enough free capacity."""
        is_right_gpu_count = len(gpus) == -(-gpu_milli // WHOLE_GPU) == len(dict.fromkeys(gpus))
        are_valid = all(0 <= number < len(self.free_shares) for number in gpus)
        chosen_gpus = (
            tuple(gpus) if gpus and is_right_gpu_count and are_valid else choose_gpus(gpu_milli, self.free_shares)
        )
        self._shares_by_pod[uid] = gpu_milli, chosen_gpus
        self._change_free(gpu_milli, chosen_gpus, -1)

    def release(self, uid: str) -> tuple[int, ...]:
        """Free the GPUs that `take` assigned to a pod, and return their indices; () if the pod got no GPU."""
        gpu_milli, chosen_indices = self._shares_by_pod.pop(uid)
        self._change_free(gpu_milli, chosen_indices, 1)
        return chosen_indices

    def with_total(self, total_milli: int) -> "GpuShares":
        """Return the GPU usage of the same pods for a new capacity of the node, in thousandths of a GPU."""
        new = GpuShares(total_milli)
        for uid, (gpu_milli, chosen_gpus) in self._shares_by_pod.items():
            new.assign_gpus(uid, gpu_milli, chosen_gpus)
        return new

    def _change_free(self, gpu_milli: int, gpus: Sequence[int], sign: int) -> None:
        invariant(not gpus or len(gpus) == -(-gpu_milli // WHOLE_GPU), "a pod must have as many GPUs as it requests")
        for number in gpus:
            gpu_share = min(gpu_milli, WHOLE_GPU)
            self.free_shares[number] += sign * gpu_share
            gpu_milli -= gpu_share


def choose_gpus(gpu_milli: int, free_shares: Sequence[int]) -> tuple[int, ...]:
    """Return GPU indices for a request, whole GPUs first, given each GPU's free thousandths; () if it does not fit."""
    whole_gpus, partial_share = divmod(gpu_milli, WHOLE_GPU)
    free_gpus = [number for number, free in enumerate(free_shares) if free == WHOLE_GPU] if whole_gpus else []
    if len(free_gpus) < whole_gpus:
        return ()
    chosen_whole_gpus = free_gpus[:whole_gpus]
    if not partial_share:
        return tuple(chosen_whole_gpus)
    candidates = [
        (free_share, number)
        for number, free_share in enumerate(free_shares)
        if free_share >= partial_share and number not in chosen_whole_gpus
    ]
    return (*chosen_whole_gpus, min(candidates)[1]) if candidates else ()


_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - Kubernetes' default of hostIP


class NodeInfo:
    """The spec, pods and free resources of a node; only the cluster snapshot changes it."""

    __slots__ = (
        "_priority_requests",
        "free_amounts",
        "gpu_shares",
        "name",
        "pods",
        "ports",
        "scored_cpu",
        "scored_memory",
        "view",
    )

    def __init__(self, view: NodeView) -> None:
        self.name = view.name
        self.view = view
        self.pods: dict[str, PodView] = {}
        """The pods that are bound to the node or assumed, by uid."""
        self.free_amounts = dict(view.allocatable)
        """Free amounts by resource; negative if overcommitted."""
        self.scored_cpu = 0
        """The cpu requests of the pods for scoring, with kube-scheduler's defaults for pods without requests."""
        self.scored_memory = 0
        self.ports: dict[HostPort, int] = {}
        """Number of pods by host port."""
        self.gpu_shares = GpuShares(view.allocatable.get(GPU_MILLI, 0))
        self._priority_requests: dict[int, dict[str, int]] = {}

    def set_view(self, view: NodeView) -> None:
        """Replace the node's labels, taints and capacity after a change; its pods stay."""
        old_view, self.view = self.view, view
        if view.allocatable == old_view.allocatable:
            return
        if view.allocatable.get(GPU_MILLI) != old_view.allocatable.get(GPU_MILLI):
            self.gpu_shares = self.gpu_shares.with_total(view.allocatable.get(GPU_MILLI, 0))
        used = {r: old_view.allocatable.get(r, 0) - n for r, n in self.free_amounts.items()}
        self.free_amounts = {r: view.allocatable.get(r, 0) - used.get(r, 0) for r in {**view.allocatable, **used}}

    def add_pod(self, pod: PodView, previous_gpus: Sequence[int] = ()) -> None:
        """Add a pod to the node; `previous_gpus` are the GPUs that it used on this node before, if any."""
        self.pods[pod.uid] = pod
        self._priority_requests.clear()
        free_amounts = self.free_amounts
        for resource, amount in pod.requests:
            free_amounts[resource] = free_amounts.get(resource, 0) - amount
        self.scored_cpu += pod.shape.scored_cpu
        self.scored_memory += pod.shape.scored_memory
        if pod.shape.gpu_milli:
            self.gpu_shares.assign_gpus(pod.uid, pod.shape.gpu_milli, previous_gpus or pod.gpus)
        for port in pod.shape.host_ports:
            self.ports[port] = self.ports.get(port, 0) + 1

    def release(self, uid: str) -> Sequence[int]:
        """Remove a pod from the node and return the indices of its GPUs; () if it had none."""
        pod = self.pods.pop(uid)
        self._priority_requests.clear()
        for resource, amount in pod.requests:
            self.free_amounts[resource] += amount
        self.scored_cpu -= pod.shape.scored_cpu
        self.scored_memory -= pod.shape.scored_memory
        for port in pod.shape.host_ports:
            self.ports[port] -= 1
            if not self.ports[port]:
                del self.ports[port]
        return self.gpu_shares.release(uid) if pod.shape.gpu_milli else ()

    def requests_below(self, priority: int) -> Mapping[str, int]:
        """Return the total requests of the node's pods with a priority below `priority`, by resource; cached."""
        total_requests = self._priority_requests.get(priority)
        if total_requests is None:
            total_requests = self._priority_requests[priority] = {}
            for pod in self.pods.values():
                for resource, amount in pod.requests if pod.priority < priority else ():
                    total_requests[resource] = total_requests.get(resource, 0) + amount
        return total_requests

    def is_port_free(self, host_port: HostPort) -> bool:
        """Return whether a host port is free on the node; the address 0.0.0.0 conflicts with every address."""
        if not self.ports:
            return True
        return not any(
            used_port.protocol == host_port.protocol
            and used_port.port == host_port.port
            and (used_port.ip == host_port.ip or _EVERY_ADDRESS in (used_port.ip, host_port.ip))
            for used_port in self.ports
        )


# Change log of nodes, so that caches update only changed nodes.


class NodeGenerations:
    """Log of node changes: the names of changed nodes in order of their last change, and the number of that change.

    All changes are numbered consecutively. The number of a change is called its generation.
    """

    __slots__ = ("_generations", "latest")

    def __init__(self) -> None:
        self.latest = 0
        self._generations: dict[str, int] = {}

    def record_change(self, name: str) -> None:
        """Record that a node changed, and increase the generation."""
        self.latest += 1
        self._generations.pop(name, None)
        self._generations[name] = self.latest

    def changed_since(self, generation: int) -> list[str]:
        """Return the names of the nodes that changed after a generation, the last changed one first."""
        if generation == self.latest:
            return []
        names = []
        for name, changed in reversed(self._generations.items()):
            if changed <= generation:
                break
            names.append(name)
        return names
