"""Requests to start pod sandboxes and containers (Run objects), and the checks by which the kubelet rejects pods."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from batchyard.api import meta
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import NODE
from batchyard.api.validation.rules import is_extended
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader
from batchyard.interfaces.containers import RUN
from batchyard.kubelet.local import errors, runs, security
from batchyard.kubelet.local import volumes as pod_volumes
from batchyard.kubelet.local.environment import command_line, environment
from batchyard.kubelet.local.images import (
    ImageMapping,
    ImageRequest,
    ImageSources,
    ImageWait,
    find_image_mapping,
    image_pull_request,
    parse_image_mapping,
    resolve_pulled_image,
)
from batchyard.kubelet.local.names import hostname_of
from batchyard.kubelet.local.node import GPU, Allocation, ContainerDevices, Gpu, allocate_devices, gpu_devices
from batchyard.kubelet.local.pod_actions import ContainerStart, PodState
from batchyard.kubelet.local.status import StartProblem
from batchyard.placement.node_filters import selects, tolerates
from batchyard.placement.node_info import NodeInfo

# Probes and lifecycle hooks of a container, with defaults and numeric ports.
#
# In Kubernetes, probes with an unknown port name fail at run time. Here the container is not created. Sources:
# pkg/apis/core/v1/defaults.go; pkg/probe (ResolveContainerPort).


_PROBE_NAMES_BY_FIELD: Final = {"startupProbe": "startup", "livenessProbe": "liveness", "readinessProbe": "readiness"}
_HOOK_NAMES: Final = ("postStart", "preStop")
_PROBE_DEFAULTS: Final[Mapping[str, int]] = {
    "initialDelaySeconds": 0,
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_HANDLER_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
    "tcpSocket": {},
}
_PORT_MAX: Final = 65535


def probes_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a container's probes by kind (`startup`, `liveness`, `readiness`), with defaults and numeric ports.

    Raises ContainerError if a probe has no handler, or an unknown or invalid port.
    """
    probes = {name: container[field] for field, name in _PROBE_NAMES_BY_FIELD.items() if container.get(field)}
    for name, probe in probes.items():
        if not any(probe.get(action) for action in ("exec", *_HANDLER_DEFAULTS)):
            raise errors.ContainerError(errors.CONFIG_ERROR, f"{name} probe: must specify a handler type")
    return {
        name: {**_PROBE_DEFAULTS, **_without_nulls(probe), **_handlers(probe, container, f"{name} probe")}
        for name, probe in probes.items()
    }


def lifecycle_hooks_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return a container's lifecycle hooks by kind (`postStart`, `preStop`), with defaults and numeric ports.

    Raises ContainerError if a port is unknown or invalid.
    """
    lifecycle: Mapping[str, Any] = container.get("lifecycle") or {}
    hooks = {name: lifecycle[name] for name in _HOOK_NAMES if lifecycle.get(name)}
    return {key: {**_without_nulls(hook), **_handlers(hook, container, f"{key} hook")} for key, hook in hooks.items()}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _handlers(fields: Mapping[str, Any], container: Mapping[str, Any], owner: str) -> dict[str, Mapping[str, Any]]:
    return {
        action: {
            **defaults,
            **_without_nulls(fields[action]),
            "port": _resolve_port(fields[action].get("port"), container, owner),
        }
        for action, defaults in _HANDLER_DEFAULTS.items()
        if fields.get(action) is not None
    }


def _resolve_port(port: int | str | None, container: Mapping[str, Any], owner: str) -> int:
    port_number = port
    if isinstance(port, str):
        ports_by_name = {p["name"]: p["containerPort"] for p in container.get("ports") or () if p.get("name")}
        port_number = ports_by_name.get(port, int(port) if port.isdecimal() and port.isascii() else None)
    if port_number is None:
        raise errors.ContainerError(errors.CONFIG_ERROR, f"{owner}: port {port} not found")
    if not 0 < int(port_number) <= _PORT_MAX:
        raise errors.ContainerError(errors.CONFIG_ERROR, f"{owner}: invalid port number: {port_number}")
    return int(port_number)


# The spec of a container run: the complete input of the container's shim.
#
# Sources of the order of checks, which determines the reported error: pkg/kubelet/kuberuntime (startContainer,
# generateContainerConfig); of resources: kuberuntime_container_linux.go.


_TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"
_TERMINATION_MESSAGE_POLICY: Final = "File"


def accept_any_profile(_: str) -> str:
    """Return '' (no error) for any seccomp profile name."""
    return ""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of this machine for all pods, mostly from `spec.local` of the Cluster object."""

    images: Sequence[ImageMapping] = ()
    #: The machine's directories that pods may mount as hostPath volumes.
    host_paths: Sequence[str] = ()
    #: The folder that has a folder for each volume of a claim; '' if claims are not supported.
    claims_folder: str = ""
    #: The user of containers that specify none.
    default_user: security.ContainerUser = security.ROOT
    #: The maximum number of processes of a container.
    processes_max: int = 32768
    #: The size and number of a container's log files, as the kubelet's containerLogMaxSize and containerLogMaxFiles.
    log_max_bytes: int = 10 * 1024 * 1024
    log_max_files: int = 5
    cluster_domain: str = "cluster.local"
    #: The usable container engines, the default first.
    engines: Sequence[str] = ()
    #: The size limit of all unpacked images, in bytes; images in use are kept even above the limit.
    cache_bytes: int = 20 << 30
    #: Whether pods may use the machine's network, including services on the loopback interface.
    host_network: bool = False
    #: Returns why a seccomp profile of this machine cannot be loaded, by its name; '' if it can.
    seccomp_profile_fault: Callable[[str], str] = accept_any_profile


class ResolvedImage(NamedTuple):
    """The configured replacement of a container's image, and the image's metadata if an engine provides it."""

    mapping: ImageMapping
    image: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """The inputs of a container from its pod: addresses, volumes, devices and the image."""

    #: The addresses of the pod's own network, the primary one first; empty without such a network.
    addresses: Sequence[str] = ()
    #: The pod's volumes, by name.
    volumes: Mapping[str, pod_volumes.VolumePlan] = field(default_factory=dict)
    #: Devices by container name.
    devices: Mapping[str, ContainerDevices] = field(default_factory=dict)
    #: The image of the container to create; None to look up its replacement in the node's settings.
    resolved_image: ResolvedImage | None = None


class ContainerRunSpec(NamedTuple):
    """The spec of a container start, and its volume mounts."""

    #: The complete spec, except that the mount sources are not yet resolved in the pod's directory.
    spec: dict[str, Any]
    mounts: Sequence[pod_volumes.Mount]


def build_container_run(
    pod: Obj,
    container: Mapping[str, Any],
    attempt: int,
    inputs: ContainerInputs,
    settings: NodeSettings,
    reader: Reader,
) -> ContainerRunSpec:
    """Return the spec of a container's start number `attempt` (from 0).

    Raises ContainerError if the container cannot be created.
    """
    name: str = container["name"]
    resolved_image = inputs.resolved_image or ResolvedImage(
        find_image_mapping(container.get("image") or "", settings.images), {}
    )
    security.reject_unsupported(pod, container, reader, host_network=settings.host_network)
    seccomp_profile = security.seccomp_of(pod, container, settings.seccomp_profile_fault)
    container_devices = inputs.devices.get(name, ContainerDevices())
    variables = {**container_devices.variables, **environment(pod, container, inputs.addresses, reader)}
    mounts = pod_volumes.mounts_of(container, variables, inputs.volumes)
    metadata, security_context = pod["metadata"], container.get("securityContext") or {}
    spec: dict[str, Any] = {
        "kind": "container",
        "pod": {"uid": metadata["uid"], "namespace": metadata.get("namespace") or "", "name": metadata["name"]},
        "container": name,
        "attempt": attempt,
        "argv": _container_argv(container, variables, resolved_image.image),
        "environment": {**_hostname_variable(pod, settings.cluster_domain), **variables},
        **_image_fields(pod, container, resolved_image, settings.default_user),
        "stdin": bool(container.get("stdin")),
        "stdinOnce": bool(container.get("stdinOnce")),
        "tty": bool(container.get("tty")),
        "mounts": [*_image_mounts(resolved_image.mapping), *(mount.to_spec() for mount in mounts)],
        "readOnlyRoot": bool(security_context.get("readOnlyRootFilesystem")),
        **_resource_amounts(pod, container, settings.processes_max),
        "seccomp": seccomp_profile,
        "procMount": security_context.get("procMount") or "Default",
        "devices": list(container_devices.paths),
        "network": "node" if pod["spec"].get("hostNetwork") else "pod",
        "probes": probes_of(container),
        "hooks": lifecycle_hooks_of(container),
        "terminationMessagePath": container.get("terminationMessagePath") or _TERMINATION_MESSAGE_PATH,
        "terminationMessagePolicy": container.get("terminationMessagePolicy") or _TERMINATION_MESSAGE_POLICY,
        "log": {"maxBytes": settings.log_max_bytes, "maxFiles": settings.log_max_files},
    }
    return ContainerRunSpec(spec, mounts)


def _image_mounts(mapping: ImageMapping) -> list[dict[str, Any]]:
    working_directory = mapping.working_dir
    return [{"source": working_directory, "target": working_directory, "readOnly": True}] if working_directory else []


def _image_fields(
    pod: Obj, container: Mapping[str, Any], resolved_image: ResolvedImage, default_user: security.ContainerUser
) -> dict[str, Any]:
    mapping, image = resolved_image
    name, working_directory = container.get("image") or "", container.get("workingDir")
    if not mapping.engine:
        fields = {"image": mapping.image_field(name), "workingDir": working_directory or mapping.working_dir or None}
        find_user = security.user_in_folder if mapping.root else security.user_of
        return {**fields, "user": find_user(pod, container, default_user)}
    source = {"engine": mapping.engine, "id": image["id"], "resolved": image["name"] or name, "digest": image["digest"]}
    if "unpacked" in image:
        content_fields, image_user, group = {"unpacked": image["unpacked"]}, image["user"] or None, None
    else:
        content_fields, image_user, group = {"lacksFolder": image["lacksFolder"]}, None, security.volume_file_group(pod)
    return {
        "image": {"name": name, **source, **content_fields},
        "workingDir": working_directory or image["workingDir"] or "/",
        "user": security.user_in_image(pod, container, image["user"]) or image_user,
        "groups": [] if group is None else [group],
        "stopSignal": image["stopSignal"],
    }


def _container_argv(container: Mapping[str, Any], variables: Mapping[str, str], image: Mapping[str, Any]) -> list[str]:
    """Return a container's command line, with the image's command and arguments as defaults.

    A command of the container replaces both; arguments of the container replace only the image's arguments. Raises
    ContainerError if the command line is empty. Source: containerd (internal/cri/server: WithProcessArgs).
    """
    argv = command_line(container, variables)
    if not container.get("command"):
        entrypoint, image_arguments = image.get("entrypoint") or [], image.get("command") or []
        argv = [*entrypoint, *(argv or image_arguments)]
    if not argv:
        reason = f"image {errors.quote_like_go(container.get('image') or '')} has none"
        raise errors.ContainerError(errors.CREATE_ERROR, f"no command specified: {reason}; set the container's command")
    return argv


def _hostname_variable(pod: Obj, cluster_domain: str) -> dict[str, str]:
    """Return the variable HOSTNAME of a pod; empty on the host network, where the machine's hostname is used later.

    Raises ContainerError if the pod's FQDN is too long.
    """
    if pod["spec"].get("hostNetwork"):
        return {}
    try:
        return {"HOSTNAME": hostname_of(pod, cluster_domain).name}
    except errors.InputError as error:
        raise errors.ContainerError(errors.CONFIG_ERROR, str(error)) from error


def _resource_amounts(pod: Obj, container: Mapping[str, Any], pids_max: int) -> dict[str, Mapping[str, int | None]]:
    """Return a container's limits of cpu, memory and pids, and its CPU request.

    Unset CPU and memory limits default to the pod's limits, an unset CPU request to the container's own CPU limit.
    """
    resources: Mapping[str, Any] = container.get("resources") or {}
    limits: Mapping[str, Any] = resources.get("limits") or {}
    pod_limits: Mapping[str, Any] = (pod["spec"].get("resources") or {}).get("limits") or {}
    cpu, memory = (_parse_amount(name, limits) or _parse_amount(name, pod_limits) for name in ("cpu", "memory"))
    cpu_request = _parse_amount("cpu", resources.get("requests") or {}) or _parse_amount("cpu", limits)
    return {"limits": {"cpu": cpu, "memory": memory, "pids": pids_max}, "requests": {"cpu": cpu_request}}


def _parse_amount(name: str, amounts: Mapping[str, Any]) -> int | None:
    """Return the quantity of resource `name` in millicores or bytes; None (no limit) if it is unset or zero."""
    return meta.amount(name, amounts[name]) or None if name in amounts else None


# Kubelet admission rejects pods that do not fit: no free devices or resources, or an unmatched node selector.
#
# The scheduler has checked this already. Pods fail here if another client bound them or if their node has changed.
# A pod that ran before a restart of batchyard is not checked again. Sources: pkg/kubelet/lifecycle (predicate.go),
# pkg/scheduler (AdmissionCheck), pkg/kubelet/cm/topologymanager (the messages about insufficient devices).


#: The order in which resources are checked; all other resources follow by name.
_RESOURCE_ORDER: Final = (PODS, "cpu", "memory", "ephemeral-storage")
_OS_LABEL: Final = "kubernetes.io/os"


class KubeletRejection(NamedTuple):
    """The reason and message with which the kubelet rejects a pod bound to its node."""

    #: The reason in the pod's status and in an Event of type Warning.
    reason: str
    #: The message of the Event.
    message: str

    @property
    def status(self) -> dict[str, str]:
        """The phase, reason and message for the status of the rejected pod."""
        return {"phase": "Failed", "reason": self.reason, "message": f"Pod was rejected: {self.message}"}


def allocate_or_reject(
    pod: Obj, resource: str, healthy_devices: Sequence[int], allocations: Mapping[str, Allocation]
) -> Allocation | KubeletRejection:
    """Assign devices to a pod's containers; return the assignment, or the pod's rejection if that is impossible.

    `healthy_devices` are those of the machine, `allocations` the current assignments by pod uid.
    """
    try:
        return allocate_devices(pod, resource, healthy_devices, allocations)
    except errors.InputError as error:
        return KubeletRejection("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def find_rejection(pod: Obj, node: Obj, other_pods: Sequence[Obj]) -> KubeletRejection | None:
    """Return the first reason for which a node rejects a pod, or None; `other_pods` are the node's other live pods."""
    for rejection in _find_rejections(pod, node, other_pods):
        return rejection
    return None


def _find_rejections(pod: Obj, node: Obj, other_pods: Sequence[Obj]) -> Iterator[KubeletRejection]:
    yield from _system_rejections(pod, node)
    view, requested_pod = node_view(node), pod_view(pod)
    node_info = NodeInfo(view)
    for other_pod in other_pods:
        node_info.add_pod(pod_view(other_pod))
    yield from _resource_rejections(requested_pod, node_info)
    yield from _scheduling_rejections(requested_pod, node_info)


def _system_rejections(pod: Obj, node: Obj) -> Iterator[KubeletRejection]:
    spec: Mapping[str, Any] = pod["spec"]
    os_name = (pod["metadata"].get("labels") or {}).get(_OS_LABEL, "linux")
    if os_name != "linux":
        message = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        yield KubeletRejection("PodOSSelectorNodeLabelDoesNotMatch", message)
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield KubeletRejection("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    policy = (spec.get("securityContext") or {}).get("supplementalGroupsPolicy")
    if policy == "Strict" and not ((node.get("status") or {}).get("features") or {}).get("supplementalGroupsPolicy"):
        message = "SupplementalGroupsPolicy=Strict is not supported in this node"
        yield KubeletRejection("SupplementalGroupsPolicyNotSupported", message)


def _resource_rejections(pod: PodView, node: NodeInfo) -> Iterator[KubeletRejection]:
    """Yield a rejection for each resource of which too little is left; skip extended resources the node lacks."""
    total = node.view.allocatable
    pod_requests = {name: amount for name, amount in pod.requests if name in total or not is_extended(name)}
    for name in sorted(
        pod_requests,
        key=lambda name: (_RESOURCE_ORDER.index(name) if name in _RESOURCE_ORDER else len(_RESOURCE_ORDER), name),
    ):
        capacity, unused_amount = total.get(name, 0), node.free_amounts.get(name, 0)
        if pod_requests[name] > unused_amount:
            amounts_text = f"requested: {pod_requests[name]}, used: {capacity - unused_amount}, capacity: {capacity}"
            yield KubeletRejection(f"OutOf{name}", f"Node didn't have enough resource: {name}, {amounts_text}")


def _scheduling_rejections(pod: PodView, node: NodeInfo) -> Iterator[KubeletRejection]:
    view: NodeView = node.view
    if not selects(pod.shape.rules, view):
        yield _predicate_rejection("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.node_name and pod.node_name != view.name:
        yield _predicate_rejection("NodeName", "node(s) didn't match the requested node name")
    if not all(map(node.is_port_free, pod.shape.host_ports)):
        yield _predicate_rejection("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if any(taint.effect == "NoExecute" and not tolerates(pod.tolerations, taint) for taint in view.taints):
        yield _predicate_rejection("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _predicate_rejection(rule: str, reason: str) -> KubeletRejection:
    return KubeletRejection(rule, f"Predicate {rule} failed: {reason}")


class RunRequests:
    """Builds a node's requests (Run objects) for sandboxes and containers, with ServiceAccount tokens."""

    def __init__(
        self, node: str, settings: NodeSettings, issue_token: pod_volumes.TokenIssuer, gpus: Sequence[Gpu] = ()
    ) -> None:
        self._node = Key(NODE, "", node)
        self._settings = settings
        self._issue_token = issue_token
        self._gpus = {gpu.number: gpu for gpu in gpus}

    def check_admission(self, pod: Obj, other_pods: Sequence[Obj], reader: Reader) -> KubeletRejection | None:
        """Return why this node rejects a pod; None if it accepts the pod or the Node is missing or has no status."""
        node = reader.get(self._node)
        if node is None or "status" not in node:
            return None
        allocation = self._allocate_gpus(pod, reader)
        return allocation if isinstance(allocation, KubeletRejection) else find_rejection(pod, node, other_pods)

    def _allocate_gpus(self, pod: Obj, reader: Reader) -> Allocation | KubeletRejection:
        """Assign GPUs to a pod's containers; the Run objects of live sandboxes record the GPUs in use."""
        if not any(GPU in amounts for amounts in _resource_lists(pod)):
            return {}
        sandboxes = [run for run in reader.list(RUN) if "gpus" in run["spec"] and runs.run_of(run).is_alive]
        allocations = {run["metadata"]["namespace"]: run["spec"]["gpus"] for run in sandboxes}
        return allocate_or_reject(pod, GPU, list(self._gpus), allocations)

    def _volume_sources(self, reader: Reader) -> pod_volumes.VolumeSources:
        settings = self._settings
        return pod_volumes.VolumeSources(reader, self._issue_token, settings.host_paths, settings.claims_folder)

    def build_sandbox_request(self, pod_state: PodState, reader: Reader) -> Obj:
        """Return the Run object that requests a pod's next sandbox.

        Raises VolumeError if a volume cannot be created, the pod's FQDN is too long, or its GPUs cannot be assigned.
        """
        pod = pod_state.pod
        metadata, domain = pod["metadata"], self._settings.cluster_domain
        plans_by_volume = pod_volumes.volume_plans(pod, self._volume_sources(reader))
        try:
            hostname = hostname_of(pod, domain)
        except errors.InputError as error:
            raise errors.VolumeError("", str(error)) from error
        gpu_allocation = self._allocate_gpus(pod, reader) if self._gpus else {}
        if isinstance(gpu_allocation, KubeletRejection):
            raise errors.VolumeError("", gpu_allocation.message)
        search_domains = [f"{metadata['namespace']}.svc.{domain}", f"svc.{domain}", domain]
        spec = {
            "kind": "sandbox",
            "sandbox": pod_state.next_sandbox,
            "hostname": hostname.name,
            "names": hostname.names,
            "network": "node" if pod["spec"].get("hostNetwork") else "pod",
            "searches": search_domains if pod["spec"].get("dnsPolicy", "ClusterFirst") == "ClusterFirst" else [],
            "hostAliases": pod["spec"].get("hostAliases") or [],
            "tmpfs": pod_volumes.memory_volumes(plans_by_volume),
            "limited": pod_volumes.limited_volumes(plans_by_volume),
            **({"gpus": gpu_allocation} if gpu_allocation else {}),
        }
        return runs.sandbox_run_request(pod, spec, plans_by_volume)

    def build_sandbox_update(self, pod_state: PodState, reader: Reader, now: Instant) -> Obj | None:
        """Return the Run object of a pod's sandbox with current volume files; None if a source cannot be read now."""
        assert pod_state.sandbox is not None, "volume files are refreshed only if the pod has a sandbox"
        try:
            plans = pod_volumes.volume_plans(pod_state.pod, self._volume_sources(reader))
        except errors.VolumeError:
            return None
        volume_files = {name: plan for name, plan in plans.items() if isinstance(plan, pod_volumes.VolumeFiles)}
        return runs.with_volume_files(pod_state.sandbox, volume_files, now)

    def build_container_request(
        self, pod_state: PodState, start: ContainerStart, reader: Reader, now: Instant
    ) -> Obj | ImageWait:
        """Return the Run object that requests a container or its image pull; ImageWait if neither can start now."""
        pod, sandbox, settings = pod_state.pod, pod_state.sandbox, self._settings
        assert sandbox is not None, "a container is started only if its pod has a sandbox"
        try:
            mapping = find_image_mapping(start.container.spec.get("image") or "", settings.images, settings.engines)
            image = resolve_pulled_image(start, now) if mapping.engine else {}
            if isinstance(image, ImageRequest):
                return image_pull_request(pod, start, mapping, image, ImageSources(reader, settings.cache_bytes))
            if isinstance(image, ImageWait):
                return image
            plans = pod_volumes.volume_plans_without_contents(pod, self._volume_sources(reader))
            devices = {start.container.name: self._container_gpus(sandbox, start.container.name)} if self._gpus else {}
            addresses = [sandbox.address] if sandbox.address else []
            container_inputs = ContainerInputs(addresses, plans, devices, ResolvedImage(mapping, image))
            run_spec = build_container_run(pod, start.container.spec, start.attempt, container_inputs, settings, reader)
        except errors.ContainerError as error:
            return ImageWait(StartProblem(error.reason, error.message))
        spec = {**run_spec.spec, "restartsInRow": start.restarts_in_row, "sandbox": sandbox.sandbox_number}
        return runs.container_run_request(pod, spec, run_spec.mounts, plans)

    def _container_gpus(self, sandbox: runs.ObservedRun, container: str) -> ContainerDevices:
        gpu_indices = (sandbox.obj["spec"].get("gpus") or {}).get(container, ())
        return gpu_devices([self._gpus[number] for number in gpu_indices if number in self._gpus])


def _resource_lists(pod: Obj) -> Iterator[Mapping[str, Any]]:
    for container in security.containers_of(pod):
        resources = container.get("resources") or {}
        yield from (resources.get(kind) or {} for kind in ("limits", "requests"))


def parse_node_settings(
    settings: Mapping[str, Any],
    engines: Sequence[str] = (),
    seccomp_profile_fault: Callable[[str], str] = accept_any_profile,
) -> NodeSettings:
    """Return this machine's settings from `spec.local` of a Cluster; `engines` are the usable container engines.

    `seccomp_profile_fault` returns why a seccomp profile of this machine cannot be loaded, or ''.
    """
    log = settings.get("log") or {}
    return NodeSettings(
        [parse_image_mapping(row) for row in settings.get("images") or ()],
        tuple(settings.get("hostPaths") or ()),
        log_max_bytes=meta.amount("memory", log.get("size", "10Mi")),
        log_max_files=log.get("files", 5),
        engines=engines,
        cache_bytes=meta.amount("memory", settings.get("imageCache", "20Gi")),
        host_network=bool(settings.get("hostNetwork")),
        seccomp_profile_fault=seccomp_profile_fault,
    )
