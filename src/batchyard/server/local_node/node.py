"""The local machine as a node of the cluster: its capacity and GPUs, container runtime, kubelet and DNS server."""

import asyncio
import logging
import os
import platform
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.meta import Obj
from batchyard.apiserver.discovery import VERSION
from batchyard.controller_runtime.kernel import OnDemandController
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.interfaces.controller import Controller
from batchyard.kubelet.local.kubelet import LocalKubelet
from batchyard.kubelet.local.node import GPU, Gpu, LocalNode, NodeInventory
from batchyard.kubelet.local.run_requests import RunRequests, parse_node_settings
from batchyard.kubelet.local.runs import EXITED, run_of
from batchyard.kubelet.local.volumes import TokenIssuer
from batchyard.metrics.gpus import MEASURED, GpuHolder, GpuState
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.containers import LocalContainers
from batchyard.server.local_node.network import (
    NameServer,
    PodNetworkConnection,
    PodNetworkListeners,
    create_pod_listeners,
)
from batchyard.server.local_node.run_dirs import CLAIMS_FOLDER, NodeTimes
from batchyard.server.local_node.runtime import LocalContainerRuntime
from batchyard.shim.isolation import seccomp

if TYPE_CHECKING:
    from batchyard.server.local_node.service_forwarding import ServiceForwarder

try:
    import pynvml
except ModuleNotFoundError:
    pynvml = None

# Capacity and properties of this machine as a node: processors, memory, disk, operating system, address.


_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_KUBELET_VERSION: Final = VERSION["gitVersion"]
_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
#: Default reservation for the platform and system programs.
_DEFAULT_RESERVATION: Final = {"memory": "256Mi"}


def node_inventory(settings: Mapping[str, Any], folder: Path, gpus: Sequence[Gpu]) -> NodeInventory:
    """Return the properties of this machine as a node, such as its name, address, capacity and labels.

    `settings` is `spec.local` of the Cluster object. The ephemeral storage is the size of the disk of `folder`.
    """
    name = settings.get("name") or socket.gethostname().lower()
    architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
    host_labels = {"hostname": name, "arch": architecture, "os": "linux"}
    labels = {f"kubernetes.io/{key}": value for key, value in host_labels.items()} | _gpu_labels(gpus)
    capacity = {
        "cpu": str(len(os.sched_getaffinity(0))),
        "ephemeral-storage": f"{shutil.disk_usage(folder).total // _KIB}Ki",
        "memory": f"{_host_memory_bytes() // _KIB}Ki",
        "pods": str(settings.get("pods", 110)),
        **({GPU: str(len(gpus))} if gpus else {}),
    }
    reservation = {**_DEFAULT_RESERVATION, **(settings.get("reserved") or {})}
    return NodeInventory(
        name,
        _host_address(),
        capacity,
        {resource: _subtract_reservation(amount, reservation.get(resource)) for resource, amount in capacity.items()},
        _node_info(architecture),
        {**labels, **(settings.get("labels") or {})},
        settings.get("taints") or (),
    )


def _gpu_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return labels that NVIDIA's GPU feature discovery sets; the first GPU's model and memory stand for all GPUs."""
    if not gpus:
        return {}
    gpu_product = gpus[0].model.replace(" ", "-")
    memory_megabytes = gpus[0].memory_bytes // _MIB
    return {f"{GPU}.count": str(len(gpus)), f"{GPU}.product": gpu_product, f"{GPU}.memory": str(memory_megabytes)}


def _subtract_reservation(capacity: str, reserved_quantity: str | None) -> str:
    if reserved_quantity is None:
        return capacity
    remaining_quantity = max(0, meta.parse_quantity(capacity) - meta.parse_quantity(reserved_quantity))
    return meta.format_quantity(remaining_quantity, meta.quantity_format(capacity))


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _host_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            probe_socket.connect(("192.0.2.1", 9))  # TEST-NET-1: connecting selects the source address
            return str(probe_socket.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _node_info(architecture: str) -> Mapping[str, Any]:
    return {
        "architecture": architecture,
        "bootID": _read_first_line("/proc/sys/kernel/random/boot_id"),
        "containerRuntimeVersion": f"batchyard://{_KUBELET_VERSION}",
        "kernelVersion": platform.release(),
        "kubeProxyVersion": "",
        "kubeletVersion": _KUBELET_VERSION,
        "machineID": _read_first_line("/etc/machine-id"),
        "operatingSystem": "linux",
        "osImage": _os_image(),
        "systemUUID": "",
    }


def _os_image() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def _read_first_line(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except OSError:
        return ""


# GPUs of this machine, by NVIDIA's management library (NVML): their properties and utilization.
#
# Without the library or a GPU, the node has no GPUs. GPUs partitioned into instances (MIG) are skipped, because the
# local node does not allocate instances.


#: Device files shared by all GPUs of a machine.
_SHARED_DEVICE_PATHS: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class GpuUtilization(NamedTuple):
    """The current utilization of a GPU, as NVML reports it."""

    #: Memory in bytes.
    used_bytes: int
    free_bytes: int
    #: Utilization in percent, over NVML's last sample period.
    busy_percent: int
    memory_busy_percent: int
    celsius: int
    #: None if the GPU does not report it.
    watts: float | None


class Gpus:
    """The GPUs of this machine, with their NVML handles."""

    def __init__(self) -> None:
        #: Why no GPUs are available; '' without an error.
        self.failure = ""
        self._handles: dict[str, Any] = {}
        self.devices: Sequence[Gpu] = ()
        if pynvml is None:
            self.failure = "the library nvidia-ml-py is not installed; run: pip install 'batchyard[gpu]'"
            return
        try:
            pynvml.nvmlInit()
            self.devices = [gpu for index in range(pynvml.nvmlDeviceGetCount()) if (gpu := self._read_gpu(index))]
        except pynvml.NVMLError as error:
            self.failure = str(error)

    def utilization(self, gpu: Gpu) -> GpuUtilization | None:
        """Return the current utilization of a GPU; None if NVML fails to read it."""
        handle = self._handles[gpu.uuid]
        try:
            memory, utilization = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUtilizationRates(handle)
            return GpuUtilization(
                int(memory.used),
                int(memory.free),
                int(utilization.gpu),
                int(utilization.memory),
                int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
                _power_watts(handle),
            )
        except pynvml.NVMLError:
            return None

    def _read_gpu(self, index: int) -> Gpu | None:
        nvml_handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if _is_mig_enabled(nvml_handle):
            return None
        uuid = str(pynvml.nvmlDeviceGetUUID(nvml_handle))
        self._handles[uuid] = nvml_handle
        memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(nvml_handle).total)
        minor_number = int(pynvml.nvmlDeviceGetMinorNumber(nvml_handle))
        paths = [f"/dev/nvidia{minor_number}", *(path for path in _SHARED_DEVICE_PATHS if Path(path).exists())]
        return Gpu(minor_number, uuid, str(pynvml.nvmlDeviceGetName(nvml_handle)), memory_bytes, paths)


def _power_watts(nvml_handle: Any) -> float | None:
    try:
        return int(pynvml.nvmlDeviceGetPowerUsage(nvml_handle)) / 1000
    except pynvml.NVMLError:
        return None


def _is_mig_enabled(nvml_handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(nvml_handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)
    except pynvml.NVMLError:
        return False


_LOG: Final = logging.getLogger("batchyard")
#: The node's folder within the data directory.
NODE_FOLDER: Final = "node"
#: The features that a machine needs to run pods of users other than the platform's owner.
_ISOLATION_FEATURES: Final = frozenset({"bubblewrap", "users of pods", "seccomp", "pod network", "user namespaces"})
#: The port of the API for pods, as in other clusters.
API_PORT: Final = 443


class LocalNodeComponents:
    """The components that make this machine a node; `local_settings` is `spec.local` of the Cluster object.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(
        self, local_settings: Mapping[str, Any], folder: Path, kernel: LiveKernel, objects: Reader, token: TokenIssuer
    ) -> None:
        loop = asyncio.get_running_loop()
        self._gpus = Gpus()
        if self._gpus.failure and Path(_SHARED_DEVICE_PATHS[0]).exists():
            _LOG.warning("the GPUs of this machine are not available: %s", self._gpus.failure)
        inventory = node_inventory(local_settings, folder, self._gpus.devices)
        self.name = inventory.name
        self._folder = folder / NODE_FOLDER
        node_times = NodeTimes(kernel.clock, wall_clock)
        self.container_runtime = LocalContainerRuntime(self._folder, kernel, loop, node_times)
        engine_names = [engine["name"] for engine in self.container_runtime.features.get("engines") or ()]
        settings = parse_node_settings(local_settings, engine_names, self._seccomp_profile_error)
        self.containers = LocalContainers(self.container_runtime, self.container_runtime.folders, loop, node_times)
        settings = replace(settings, claims_folder=str((self._folder / CLAIMS_FOLDER).resolve()))
        run_specs = RunRequests(inventory.name, settings, token, self._gpus.devices)
        self._forwarder: ServiceForwarder | None = None
        self.controllers: Sequence[Controller] = (
            LocalKubelet(inventory.name, run_specs),
            LocalNode(inventory),
            OnDemandController("volume-folders", (scheme.PERSISTENT_VOLUME,), self._create_volume_folders),
            OnDemandController(
                "service-forwarding", (scheme.SERVICE,), self._create_forwarding, self._needs_forwarding
            ),
        )
        for feature in self.container_runtime.features.get("missing") or ():
            _LOG.warning("%s is missing: %s; %s", feature["what"], feature["means"], feature["remedy"])
        self._name_server = NameServer(objects, settings.cluster_domain)
        self._name_server_task = loop.create_task(self._serve_dns(self._folder))

    @property
    def pods_denial_reason(self) -> str:
        """The reason why only the platform's owner may start pods; '' if pods are isolated from this machine."""
        features = self.container_runtime.features
        if features.get("isolated"):
            return ""
        names = ", ".join(f["what"] for f in features.get("missing") or () if f["what"] in _ISOLATION_FEATURES)
        return f"this machine cannot isolate pods, so only its owner may run them: it lacks {names or 'isolation'}"

    def _create_volume_folders(self) -> Controller:
        from batchyard.server.local_node.volume_folders import VolumeFolderController, prepare_claims_folder  # noqa: PLC0415 - few nodes have volumes

        return VolumeFolderController(prepare_claims_folder(self._folder))

    def _seccomp_profile_error(self, name: str) -> str:
        try:
            seccomp.compile_profile_file(str(self._folder / seccomp.PROFILES_FOLDER / name))
        except ValueError as error:
            return str(error)
        return ""

    def status(self) -> Mapping[str, Any]:
        """Return this node's section of the platform's status document, such as its isolation, pods and GPUs."""
        features, runs = self.container_runtime.features, self.container_runtime.runs()
        pods = {run["metadata"]["namespace"] for run in runs if (run.get("status") or {}).get("phase") != EXITED}
        cgroups = features.get("cgroups")
        return {
            "node": self.name,
            "pods": len(pods),
            "isolation": {
                "bubblewrap": features.get("bubblewrap"),
                "podNetwork": bool(features.get("podNetwork")),
                "cgroups": None if cgroups is None else f"v{cgroups['version']} {','.join(cgroups['controllers'])}",
                "userNamespace": bool(features.get("userNamespaces")),
                "usersOfPods": bool(features.get("usersOfPods")),
                "seccomp": bool(features.get("seccomp")),
            },
            "engines": features.get("engines") or [],
            "runsNone": features.get("runsNone") or "",
            "missing": features.get("missing") or [],
            "gpus": [self._gpu_status(gpu) for gpu in self._gpus.devices],
        }

    def gpu_states(self) -> list[GpuState]:
        """Return the state of each GPU of this machine: its utilization, and the container that uses it."""
        return [self._gpu_state(gpu) for gpu in self._gpus.devices]

    def _gpu_state(self, gpu: Gpu) -> GpuState:
        utilization, holder = self._gpus.utilization(gpu), self._gpu_holder(gpu)
        gpu_state = GpuState(gpu.number, gpu.uuid, gpu.model, self.name, holder, MEASURED)
        if utilization is None:
            return gpu_state
        return gpu_state._replace(
            busy_percent=utilization.busy_percent,
            memory_busy_percent=utilization.memory_busy_percent,
            used_mib=utilization.used_bytes >> 20,
            free_mib=utilization.free_bytes >> 20,
            celsius=utilization.celsius,
            watts=utilization.watts,
        )

    def _gpu_holder(self, gpu: Gpu) -> GpuHolder:
        run_specs = [
            run["spec"] for run in self.container_runtime.runs() if "gpus" in run["spec"] and run_of(run).is_alive
        ]
        for spec in run_specs:
            for container, gpu_numbers in spec["gpus"].items():
                if gpu.number in gpu_numbers:
                    return GpuHolder(container, spec["pod"]["namespace"], spec["pod"]["name"])
        return GpuHolder()

    def _gpu_status(self, gpu: Gpu) -> Mapping[str, Any]:
        use, holder = self._gpus.utilization(gpu), self._gpu_holder(gpu)
        return {
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memoryBytes": gpu.memory_bytes,
            **({} if use is None else {"usedBytes": use.used_bytes, "busyPercent": use.busy_percent}),
            **({} if use is None else {"celsius": use.celsius}),
            "pod": f"{holder.namespace}/{holder.pod}" if holder.pod else None,
        }

    def pod_network_listeners(self, service_cidr: str) -> PodNetworkListeners:
        """Return bound sockets for serving the API in the pod network; `service_cidr` is the range of cluster IPs.

        Return none without a pod network, and also (with a warning in the log) if a socket cannot be created.
        """
        if not self.container_runtime.features.get("podNetwork"):
            return PodNetworkListeners((), ())
        try:
            gateway, service_network = self.container_runtime.gateway, IPv4Network(service_cidr)
            return create_pod_listeners(self._folder, gateway, service_network, API_PORT)
        except OSError as error:
            reason = f"{error.strerror or error}; read {self._folder / 'node.log'}, and restart the platform"
            _LOG.warning("pods cannot reach the API: its socket in the pod network could not be created: %s", reason)
            return PodNetworkListeners((), ())

    def create_pod_network_socket(self) -> socket.socket | None:
        """Return a new TCP socket in the pod network; None without a pod network. Raises OSError on failure."""
        if not self.container_runtime.features.get("podNetwork"):
            return None
        with PodNetworkConnection(self._folder) as network:
            return network.create_tcp_socket()

    def close(self) -> None:
        """Stop the platform's components of this node. Running containers keep running."""
        self._name_server_task.cancel()
        self._name_server.close()
        if self._forwarder is not None:
            self._forwarder.close()
        self.container_runtime.close()

    def _needs_forwarding(self, event: WatchEvent) -> bool:
        spec, metadata = event.obj["spec"], event.obj["metadata"]
        is_api_service = metadata["name"] == "kubernetes" and metadata["namespace"] == "default"
        has_cluster_ip = spec.get("clusterIP") not in {None, "", "None"}
        return has_cluster_ip and not is_api_service and bool(self.container_runtime.features.get("podNetwork"))

    def _create_forwarding(self) -> Controller:
        from batchyard.server.local_node import service_forwarding  # noqa: PLC0415 - rarely needed

        self._forwarder = service_forwarding.ServiceForwarder(self._folder, asyncio.get_running_loop())
        return service_forwarding.ServiceForwardingController(self._forwarder)

    async def _serve_dns(self, node: Path) -> None:
        if not self.container_runtime.features.get("podNetwork"):
            return
        try:
            with PodNetworkConnection(node) as network:
                sockets = network.create_udp_socket(), network.create_tcp_socket()
                await self._name_server.serve(*sockets, self.container_runtime.gateway)
        except OSError as error:
            reason = f"{error.strerror or error}; read {node / 'node.log'}, and restart the platform"
            _LOG.warning("the DNS server of the pods could not be started: %s", reason)


def local_node_settings(cluster: Obj | None) -> Mapping[str, Any] | None:
    """Return `spec.local` of a Cluster object, the settings of this machine as a node; None without such settings."""
    if cluster is None or "local" not in cluster["spec"]:
        return None
    local_settings: Mapping[str, Any] = cluster["spec"]["local"] or {}
    return local_settings
