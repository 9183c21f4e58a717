"""What a kubelet wants of its machine for a pod: a sandbox, and the starts of its containers, in all that they need."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchyard.api import quantity
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import NODE
from batchyard.base.instant import Instant
from batchyard.ports.client import Reader
from batchyard.ports.machine import RUN
from batchyard.runtime.local.admission import Refusal, allocate, find_refusal
from batchyard.runtime.local.container_run import Given, NodeSettings, Standing, container_run, no_fault
from batchyard.runtime.local.container_status import Trouble
from batchyard.runtime.local.devices import GPU, Allocation, Devices, Gpu, gpu_devices
from batchyard.runtime.local.errors import ContainerError, InputError, VolumeError
from batchyard.runtime.local.hostname import hostname_of
from batchyard.runtime.local.image_pulls import Ask, Waits, image_of, wish_for
from batchyard.runtime.local.image_pulls import Sources as ImageSources
from batchyard.runtime.local.images import find_row, image_row
from batchyard.runtime.local.next_steps import Start
from batchyard.runtime.local.plans import Files
from batchyard.runtime.local.runs import Run, refreshed, run_of, run_wish, sandbox_wish
from batchyard.runtime.local.security import containers_of
from batchyard.runtime.local.situation import Situation
from batchyard.runtime.local.volumes import Sources, Token, limited_volumes, memory_volumes, outlines, volume_plans


class Wishes:
    """See the module. `token` gives tokens of ServiceAccounts, `gpus` are those of the machine."""

    def __init__(self, node: str, settings: NodeSettings, token: Token, gpus: Sequence[Gpu] = ()) -> None:
        self._node = Key(NODE, "", node)
        self._settings = settings
        self._token = token
        self._gpus = {gpu.number: gpu for gpu in gpus}

    def refusal(self, pod: Obj, others: Sequence[Obj], reader: Reader) -> Refusal | None:
        """Why this node does not take a pod; None if it does, or it is not known yet what it has."""
        node = reader.get(self._node)
        if node is None or "status" not in node:
            return None
        given = self._allocated(pod, reader)
        return given if isinstance(given, Refusal) else find_refusal(pod, node, others)

    def _allocated(self, pod: Obj, reader: Reader) -> Allocation | Refusal:
        """The GPUs of a pod's containers; those of others are told by their sandboxes."""
        if not any(GPU in amounts for amounts in _amounts(pod)):
            return {}
        sandboxes = [run for run in reader.list(RUN) if "gpus" in run["spec"] and run_of(run).is_alive]
        held = {run["metadata"]["namespace"]: run["spec"]["gpus"] for run in sandboxes}
        return allocate(pod, GPU, list(self._gpus), held)

    def sandbox(self, situation: Situation, reader: Reader) -> Obj:
        """The sandbox of a pod, in place of the one that was; VolumeError where one of its volumes cannot be made."""
        pod = situation.pod
        metadata, domain = pod["metadata"], self._settings.cluster_domain
        plans = volume_plans(pod, Sources(reader, self._token, self._settings.host_paths))
        try:
            names = hostname_of(pod, domain)
        except InputError as error:
            raise VolumeError("", str(error)) from error
        gpus = self._allocated(pod, reader) if self._gpus else {}
        if isinstance(gpus, Refusal):
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
        return sandbox_wish(pod, spec, plans)

    def refreshed(self, situation: Situation, reader: Reader, now: Instant) -> Obj | None:
        """The sandbox with the files of its volumes made anew; None where they cannot be now, and stay as they are."""
        assert situation.sandbox is not None, "volumes are made with a sandbox"
        try:
            plans = volume_plans(situation.pod, Sources(reader, self._token, self._settings.host_paths))
        except VolumeError:
            return None
        files = {name: plan for name, plan in plans.items() if isinstance(plan, Files)}
        return refreshed(situation.sandbox, files, now)

    def container(self, situation: Situation, start: Start, reader: Reader, now: Instant) -> Obj | Waits:
        """A start of a container, or what is done to have its image; or why there is nothing to do at present."""
        pod, sandbox = situation.pod, situation.sandbox
        assert sandbox is not None, "containers are started in a sandbox"
        try:
            row = find_row(start.container.spec.get("image") or "", self._settings.images, self._settings.engines)
            image = image_of(start, now) if row.engine else {}
            if isinstance(image, Ask):
                return wish_for(pod, start, row, image, ImageSources(reader, self._settings.cache_bytes))
            if isinstance(image, Waits):
                return image
            plans = outlines(pod, self._settings.host_paths)
            devices = {start.container.name: self._devices(sandbox, start.container.name)} if self._gpus else {}
            given = Given([sandbox.address] if sandbox.address else [], plans, devices, Standing(row, image))
            run = container_run(pod, start.container.spec, start.attempt, given, self._settings, reader)
        except ContainerError as error:
            return Waits(Trouble(error.reason, error.message))
        spec = {**run.spec, "restartsInRow": start.restarts_in_row, "sandbox": sandbox.sandbox}
        return run_wish(pod, spec, run.mounts, plans)

    def _devices(self, sandbox: Run, container: str) -> Devices:
        """The GPUs that a container has."""
        numbers = (sandbox.obj["spec"].get("gpus") or {}).get(container, ())
        return gpu_devices([self._gpus[number] for number in numbers if number in self._gpus])


def _amounts(pod: Obj) -> Iterator[Mapping[str, Any]]:
    """What the containers of a pod ask for, of whatever it is."""
    for container in containers_of(pod):
        resources = container.get("resources") or {}
        yield from (resources.get(kind) or {} for kind in ("limits", "requests"))


def settings_of(
    local: Mapping[str, Any], engines: Sequence[str] = (), profile_fault: Callable[[str], str] = no_fault
) -> NodeSettings:
    """What `spec.local` of a Cluster says for all pods alike; `engines` are the container engines that work here.

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
