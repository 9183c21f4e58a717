"""Run requests of a pod: its sandbox, and the starts of its containers with all their inputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import NODE
from batchyard.api.validation.resources import is_extended
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PODS, PodView, pod_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader
from batchyard.interfaces.containers import RUN
from batchyard.kubelet.local.container_spec import ContainerInputs, NodeSettings, ResolvedImage, container_run, no_fault
from batchyard.kubelet.local.container_status import StartProblem
from batchyard.kubelet.local.devices import GPU, Allocation, ContainerDevices, Gpu, allocation_of, gpu_devices
from batchyard.kubelet.local.errors import ContainerError, InputError, VolumeError
from batchyard.kubelet.local.image_pulls import ImageRequest, ImageSources, ImageWait, image_of, image_pull_request
from batchyard.kubelet.local.images import find_row, image_row
from batchyard.kubelet.local.names import hostname_of
from batchyard.kubelet.local.pod_actions import ContainerStart
from batchyard.kubelet.local.pod_state import PodState
from batchyard.kubelet.local.runs import ObservedRun, container_run_request, refreshed, run_of, sandbox_run_request
from batchyard.kubelet.local.security import containers_of
from batchyard.kubelet.local.volume_plans import VolumeFiles
from batchyard.kubelet.local.volumes import (
    Token,
    VolumeSources,
    limited_volumes,
    memory_volumes,
    outlines,
    volume_plans,
)
from batchyard.placement.node_filters import selects, tolerates
from batchyard.placement.node_info import NodeInfo

# --- admission ---
# Kubelet admission: rejects pods whose devices are taken, that exceed the node's free resources, or that do not match.
#
# The scheduler has checked this already. Pods fail here if they were bound past it or if their node changed meanwhile.
# A pod that ran here before a restart is not checked again. Sources: pkg/kubelet/lifecycle (predicate.go),
# pkg/scheduler (AdmissionCheck), pkg/kubelet/cm/topologymanager (the messages about insufficient devices).


#: The order in which insufficient resources are checked; the others follow by name.
_ORDER: Final = (PODS, "cpu", "memory", "ephemeral-storage")
_OS: Final = "kubernetes.io/os"


class KubeletRejection(NamedTuple):
    """Why a pod is rejected."""

    #: The reason in its status and in an Event of type Warning.
    reason: str
    #: The message of the Event.
    message: str

    @property
    def status(self) -> dict[str, str]:
        """The phase, reason and message of the rejected pod's status."""
        return {"phase": "Failed", "reason": self.reason, "message": f"Pod was rejected: {self.message}"}


def allocate(
    pod: Obj, resource: str, numbers: Sequence[int], held: Mapping[str, Allocation]
) -> Allocation | KubeletRejection:
    """Allocate devices to a pod's containers, or return why that fails; a kubelet checks this first.

    See batchyard.kubelet.local.devices.allocation_of for the parameters.
    """
    try:
        return allocation_of(pod, resource, numbers, held)
    except InputError as error:
        return KubeletRejection("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def find_rejection(pod: Obj, node: Obj, others: Sequence[Obj]) -> KubeletRejection | None:
    """Return why a node rejects a pod; None if it admits it. `others` are the admitted pods that have not ended."""
    for refusal in _refusals(pod, node, others):
        return refusal
    return None


def _refusals(pod: Obj, node: Obj, others: Sequence[Obj]) -> Iterator[KubeletRejection]:
    """Yield the reasons for a rejection, in the kubelet's order."""
    yield from _of_system(pod, node)
    view, asking = node_view(node), pod_view(pod)
    here = NodeInfo(view)
    for other in others:
        here.take(pod_view(other))
    yield from _of_room(asking, here)
    yield from _of_rules(asking, here)


def _of_system(pod: Obj, node: Obj) -> Iterator[KubeletRejection]:
    spec: Mapping[str, Any] = pod["spec"]
    system = (pod["metadata"].get("labels") or {}).get(_OS, "linux")
    if system != "linux":
        message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        yield KubeletRejection("PodOSSelectorNodeLabelDoesNotMatch", message)
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield KubeletRejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    policy = (spec.get("securityContext") or {}).get("supplementalGroupsPolicy")
    if policy == "Strict" and not ((node.get("status") or {}).get("features") or {}).get("supplementalGroupsPolicy"):
        message = "SupplementalGroupsPolicy=Strict is not supported in this node"
        yield KubeletRejection("SupplementalGroupsPolicyNotSupported", message)


def _of_room(pod: PodView, node: NodeInfo) -> Iterator[KubeletRejection]:
    """Yield insufficient resources. Extended resources that the node does not have are ignored, as in the kubelet."""
    total = node.view.allocatable
    wanted = {name: amount for name, amount in pod.requests if name in total or not is_extended(name)}
    for name in sorted(wanted, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        capacity, left = total.get(name, 0), node.left.get(name, 0)
        if wanted[name] > left:
            amounts = f"requested: {wanted[name]}, used: {capacity - left}, capacity: {capacity}"
            yield KubeletRejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {amounts}")


def _of_rules(pod: PodView, node: NodeInfo) -> Iterator[KubeletRejection]:
    view: NodeView = node.view
    if not selects(pod.shape.rules, view):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.node_name and pod.node_name != view.name:
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if not all(map(node.has_port, pod.shape.host_ports)):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if any(taint.effect == "NoExecute" and not tolerates(pod.tolerations, taint) for taint in view.taints):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(rule: str, why: str) -> KubeletRejection:
    return KubeletRejection(rule, f"Predicate {rule} failed: {why}")


class RunRequests:
    """The settings and GPUs of a node, and `token`, which issues ServiceAccount tokens."""

    def __init__(self, node: str, settings: NodeSettings, token: Token, gpus: Sequence[Gpu] = ()) -> None:
        self._node = Key(NODE, "", node)
        self._settings = settings
        self._token = token
        self._gpus = {gpu.number: gpu for gpu in gpus}

    def refusal(self, pod: Obj, others: Sequence[Obj], reader: Reader) -> KubeletRejection | None:
        """Return why this node rejects a pod; None if it admits it, or if the node's status is not known yet."""
        node = reader.get(self._node)
        if node is None or "status" not in node:
            return None
        given = self._allocated(pod, reader)
        return given if isinstance(given, KubeletRejection) else find_rejection(pod, node, others)

    def _allocated(self, pod: Obj, reader: Reader) -> Allocation | KubeletRejection:
        """Return the GPUs of a pod's containers; the sandboxes of other pods record their allocations."""
        if not any(GPU in amounts for amounts in _amounts(pod)):
            return {}
        sandboxes = [run for run in reader.list(RUN) if "gpus" in run["spec"] and run_of(run).is_alive]
        held = {run["metadata"]["namespace"]: run["spec"]["gpus"] for run in sandboxes}
        return allocate(pod, GPU, list(self._gpus), held)

    def sandbox(self, situation: PodState, reader: Reader) -> Obj:
        """Return the run request for a pod's next sandbox. VolumeError if a volume cannot be created."""
        pod = situation.pod
        metadata, domain = pod["metadata"], self._settings.cluster_domain
        plans = volume_plans(pod, VolumeSources(reader, self._token, self._settings.host_paths))
        try:
            names = hostname_of(pod, domain)
        except InputError as error:
            raise VolumeError("", str(error)) from error
        gpus = self._allocated(pod, reader) if self._gpus else {}
        if isinstance(gpus, KubeletRejection):
            raise VolumeError("", gpus.message)
        searches = [f"{metadata['namespace']}.svc.{domain}", f"svc.{domain}", domain]
        spec = {
            "kind": "sandbox",
            "sandbox": situation.next_sandbox,
            "hostname": names.name,
            "names": names.names,
            "network": "node" if pod["spec"].get("hostNetwork") else "pod",
            "searches": searches if pod["spec"].get("dnsPolicy", "ClusterFirst") == "ClusterFirst" else [],
            "hostAliases": pod["spec"].get("hostAliases") or [],
            "tmpfs": memory_volumes(plans),
            "limited": limited_volumes(plans),
            **({"gpus": gpus} if gpus else {}),
        }
        return sandbox_run_request(pod, spec, plans)

    def refreshed(self, situation: PodState, reader: Reader, now: Instant) -> Obj | None:
        """Return the sandbox with refreshed volume files; None if they cannot be read now and stay unchanged."""
        assert situation.sandbox is not None, "volumes are made with a sandbox"
        try:
            plans = volume_plans(situation.pod, VolumeSources(reader, self._token, self._settings.host_paths))
        except VolumeError:
            return None
        files = {name: plan for name, plan in plans.items() if isinstance(plan, VolumeFiles)}
        return refreshed(situation.sandbox, files, now)

    def container(self, situation: PodState, start: ContainerStart, reader: Reader, now: Instant) -> Obj | ImageWait:
        """Return the run request for a container or its image, or what the start waits for."""
        pod, sandbox = situation.pod, situation.sandbox
        assert sandbox is not None, "containers are started in a sandbox"
        try:
            row = find_row(start.container.spec.get("image") or "", self._settings.images, self._settings.engines)
            image = image_of(start, now) if row.engine else {}
            if isinstance(image, ImageRequest):
                return image_pull_request(pod, start, row, image, ImageSources(reader, self._settings.cache_bytes))
            if isinstance(image, ImageWait):
                return image
            plans = outlines(pod, self._settings.host_paths)
            devices = {start.container.name: self._devices(sandbox, start.container.name)} if self._gpus else {}
            given = ContainerInputs(
                [sandbox.address] if sandbox.address else [], plans, devices, ResolvedImage(row, image)
            )
            run = container_run(pod, start.container.spec, start.attempt, given, self._settings, reader)
        except ContainerError as error:
            return ImageWait(StartProblem(error.reason, error.message))
        spec = {**run.spec, "restartsInRow": start.restarts_in_row, "sandbox": sandbox.sandbox}
        return container_run_request(pod, spec, run.mounts, plans)

    def _devices(self, sandbox: ObservedRun, container: str) -> ContainerDevices:
        """Return the GPUs of a container."""
        numbers = (sandbox.obj["spec"].get("gpus") or {}).get(container, ())
        return gpu_devices([self._gpus[number] for number in numbers if number in self._gpus])


def _amounts(pod: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield the limits and requests of a pod's containers."""
    for container in containers_of(pod):
        resources = container.get("resources") or {}
        yield from (resources.get(kind) or {} for kind in ("limits", "requests"))


def settings_of(
    local: Mapping[str, Any], engines: Sequence[str] = (), profile_fault: Callable[[str], str] = no_fault
) -> NodeSettings:
    """Return the settings in `spec.local` of a Cluster; `engines` are the usable container engines.

    `profile_fault` returns why a seccomp profile of this machine cannot be loaded.
    """
    log = local.get("log") or {}
    return NodeSettings(
        [image_row(row) for row in local.get("images") or ()],
        tuple(local.get("hostPaths") or ()),
        log_max_bytes=quantity.amount("memory", log.get("size", "10Mi")),
        log_max_files=log.get("files", 5),
        engines=engines,
        cache_bytes=quantity.amount("memory", local.get("imageCache", "20Gi")),
        host_network=bool(local.get("hostNetwork")),
        profile_fault=profile_fault,
    )
