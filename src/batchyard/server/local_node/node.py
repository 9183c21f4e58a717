"""The local node: this machine as a node of the cluster, with the runtime, kubelet, DNS and GPUs of its pods."""

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import Controller
from batchyard.kubelet.local.kubelet import LocalKubelet
from batchyard.kubelet.local.node import Gpu, LocalNode
from batchyard.kubelet.local.run_requests import RunRequests, settings_of
from batchyard.kubelet.local.runs import EXITED, run_of
from batchyard.kubelet.local.volumes import Token
from batchyard.metrics.gpus import MEASURED, GpuHolder, GpuState
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.containers import LocalContainers
from batchyard.server.local_node.machine_info import Gpus, facts_of
from batchyard.server.local_node.network import NameServer, PodsNetwork
from batchyard.server.local_node.run_dirs import NodeTimes
from batchyard.server.local_node.runtime import LocalMachine
from batchyard.shim.isolation import seccomp

_LOG: Final = logging.getLogger("batchyard")
#: The node's folder within the data directory.
FOLDER: Final = "node"
#: The features that a machine needs to run pods of users other than the owner.
_ISOLATES: Final = frozenset({"bubblewrap", "users of pods", "seccomp", "pod network", "user namespaces"})
#: The port of the API for pods, as in other clusters.
API_PORT: Final = 443


class LocalNodeParts:
    """The components of the local node; `local` is `spec.local` of the Cluster.

    Create it within the event loop that runs it.
    """

    def __init__(
        self, local: Mapping[str, Any], folder: Path, kernel: LiveKernel, objects: Reader, token: Token
    ) -> None:
        loop = asyncio.get_running_loop()
        self._gpus = Gpus()
        facts = facts_of(local, folder, self._gpus.found)
        self.name = facts.name
        self._folder = folder / FOLDER
        times = NodeTimes(kernel.clock, wall_clock)
        self.machine = LocalMachine(self._folder, kernel, loop, times)
        engines = [each["name"] for each in self.machine.features.get("engines") or ()]
        settings = settings_of(local, engines, self._profile_fault)
        self.containers = LocalContainers(self.machine, self.machine.folders, loop, times)
        run_specs = RunRequests(facts.name, settings, token, self._gpus.found)
        self.controllers: Sequence[Controller] = (LocalKubelet(facts.name, run_specs), LocalNode(facts))
        for row in self.machine.features.get("missing") or ():
            _LOG.warning("%s is missing: %s; %s", row["what"], row["means"], row["remedy"])
        self._names = NameServer(objects, settings.cluster_domain)
        self._serving = loop.create_task(self._serve_names(self._folder))

    @property
    def pods_denial(self) -> str:
        """Why only the owner may start pods; '' if pods are isolated from the machine."""
        features = self.machine.features
        if features.get("isolated"):
            return ""
        lacks = ", ".join(row["what"] for row in features.get("missing") or () if row["what"] in _ISOLATES)
        return f"this machine cannot isolate pods, so only its owner may run them: it lacks {lacks or 'isolation'}"

    def _profile_fault(self, name: str) -> str:
        """Return why a seccomp profile, below `seccomp` in the node's folder, cannot be loaded; '' if it can."""
        try:
            seccomp.filter_of_file(str(self._folder / seccomp.FOLDER / name))
        except ValueError as error:
            return str(error)
        return ""

    def status(self) -> Mapping[str, Any]:
        """Return the node's part of the status document: isolation features, missing programs, pods and GPUs."""
        features, runs = self.machine.features, self.machine.runs()
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
            "gpus": [self._gpu_status(gpu) for gpu in self._gpus.found],
        }

    def gpu_states(self) -> list[GpuState]:
        """Return the utilization and the holder of each GPU."""
        return [self._state_of(gpu) for gpu in self._gpus.found]

    def _state_of(self, gpu: Gpu) -> GpuState:
        use, holder = self._gpus.use(gpu), self._holder_of(gpu)
        state = GpuState(gpu.number, gpu.uuid, gpu.model, self.name, holder, MEASURED)
        if use is None:
            return state
        return state._replace(
            busy_percent=use.busy_percent,
            memory_busy_percent=use.memory_busy_percent,
            used_mib=use.memory_bytes >> 20,
            free_mib=use.free_bytes >> 20,
            celsius=use.celsius,
            watts=use.watts,
        )

    def _holder_of(self, gpu: Gpu) -> GpuHolder:
        of_pods = [run["spec"] for run in self.machine.runs() if "gpus" in run["spec"] and run_of(run).is_alive]
        for spec in of_pods:
            for container, given in spec["gpus"].items():
                if gpu.number in given:
                    return GpuHolder(container, spec["pod"]["namespace"], spec["pod"]["name"])
        return GpuHolder()

    def _gpu_status(self, gpu: Gpu) -> Mapping[str, Any]:
        """Return a GPU's entry of the status document."""
        use, holder = self._gpus.use(gpu), self._holder_of(gpu)
        return {
            "uuid": gpu.uuid,
            "model": gpu.model,
            "memoryBytes": gpu.memory_bytes,
            **({} if use is None else {"usedBytes": use.memory_bytes, "busyPercent": use.busy_percent}),
            **({} if use is None else {"celsius": use.celsius}),
            "pod": f"{holder.namespace}/{holder.pod}" if holder.pod else None,
        }

    def listener_among_pods(self) -> tuple[str, socket.socket] | None:
        """Return the address and listening socket of the API within the pod network; None without a pod network."""
        if not self.machine.features.get("podNetwork"):
            return None
        try:
            with PodsNetwork(self._folder) as network:
                listener = network.streams()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("0.0.0.0", API_PORT))  # noqa: S104 - in the pod network's namespace
        except OSError as error:
            _LOG.warning("pods cannot reach the API: %s", error)
            return None
        return self.machine.gateway, listener

    def close(self) -> None:
        """Stop managing the node. Running containers keep running."""
        self._serving.cancel()
        self._names.close()
        self.machine.close()

    async def _serve_names(self, node: Path) -> None:
        """Run the DNS server, if pods have their own network."""
        if not self.machine.features.get("podNetwork"):
            return
        try:
            with PodsNetwork(node) as network:
                await self._names.serve(network.datagrams(), network.streams())
        except OSError as error:
            _LOG.warning("no DNS for pods: %s", error)


def local_of(cluster: Obj | None) -> Mapping[str, Any] | None:
    """Return the settings of this machine as a node in a Cluster; None if it is not a node."""
    if cluster is None or "local" not in cluster["spec"]:
        return None
    local: Mapping[str, Any] = cluster["spec"]["local"] or {}
    return local
