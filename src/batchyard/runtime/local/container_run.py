"""The whole of what a run of a container is to be: the spec that its keeper reads.

Source of the order in which things are looked at, which decides what is told first: pkg/kubelet/kuberuntime
(startContainer, generateContainerConfig); of resources: kuberuntime_container_linux.go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.ports.client import Reader
from batchyard.runtime.local.devices import Devices
from batchyard.runtime.local.environment import command_line, environment
from batchyard.runtime.local.errors import CONFIG, CREATE, ContainerError, InputError
from batchyard.runtime.local.hostname import hostname_of
from batchyard.runtime.local.images import ImageRow, find_row
from batchyard.runtime.local.mounts import Mount, mounts_of
from batchyard.runtime.local.plans import Plan
from batchyard.runtime.local.probes import hooks_of, probes_of
from batchyard.runtime.local.quoting import quoted
from batchyard.runtime.local.security import ROOT, User, refuse_what_cannot_be, user_of

_MESSAGE_PATH: Final = "/dev/termination-log"
_MESSAGE_POLICY: Final = "File"


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What is said of the machine, for all pods alike."""

    images: Sequence[ImageRow] = ()
    #: The folders of the machine that pods may have by hostPath.
    host_paths: Sequence[str] = ()
    #: Who runs a container of which nobody says it.
    default_user: User = ROOT
    #: How many processes a container may have.
    pids: int = 32768
    #: A log is kept in so many files of so many bytes, as a kubelet's containerLogMaxFiles and containerLogMaxSize.
    log_max_bytes: int = 10 * 1024 * 1024
    log_max_files: int = 5
    cluster_domain: str = "cluster.local"


@dataclass(frozen=True, slots=True)
class Given:
    """What a pod was given before its containers are made."""

    #: Its addresses, the main one first.
    addresses: Sequence[str] = ()
    #: What its volumes hold, by name.
    volumes: Mapping[str, Plan] = field(default_factory=dict)
    #: By container.
    devices: Mapping[str, Devices] = field(default_factory=dict)


class ContainerRun(NamedTuple):
    """What a run is to be."""

    #: Complete, but that its mounts are not yet looked up in the folder of the pod.
    spec: dict[str, Any]
    mounts: Sequence[Mount]


def container_run(
    pod: Obj, container: Mapping[str, Any], attempt: int, given: Given, settings: NodeSettings, reader: Reader
) -> ContainerRun:
    """The run of a container, the attempt counted from 0; ContainerError if it cannot be made as it is asked for."""
    name: str = container["name"]
    image_name: str = container.get("image") or ""
    row = find_row(image_name, settings.images)
    refuse_what_cannot_be(pod, container, reader)
    devices = given.devices.get(name, Devices())
    variables = {**devices.variables, **environment(pod, container, given.addresses, reader)}
    mounts = mounts_of(container, variables, given.volumes)
    metadata, context = pod["metadata"], container.get("securityContext") or {}
    spec: dict[str, Any] = {
        "kind": "container",
        "pod": {"uid": metadata["uid"], "namespace": metadata.get("namespace") or "", "name": metadata["name"]},
        "container": name,
        "attempt": attempt,
        "user": user_of(pod, container, settings.default_user),
        "argv": _argv(container, variables),
        "environment": {**_hostname(pod, settings.cluster_domain), **variables},
        "image": row.place(image_name),
        "workingDir": container.get("workingDir") or row.working_dir or None,
        "stdin": bool(container.get("stdin")),
        "stdinOnce": bool(container.get("stdinOnce")),
        "tty": bool(container.get("tty")),
        "mounts": [*_mounts_of_image(row), *(mount.row() for mount in mounts)],
        "readOnlyRoot": bool(context.get("readOnlyRootFilesystem")),
        **_resources(pod, container, settings.pids),
        "devices": list(devices.paths),
        "network": "node" if pod["spec"].get("hostNetwork") else "pod",
        "probes": probes_of(container),
        "hooks": hooks_of(container),
        "terminationMessagePath": container.get("terminationMessagePath") or _MESSAGE_PATH,
        "terminationMessagePolicy": container.get("terminationMessagePolicy") or _MESSAGE_POLICY,
        "log": {"maxBytes": settings.log_max_bytes, "maxFiles": settings.log_max_files},
    }
    return ContainerRun(spec, mounts)


def _mounts_of_image(row: ImageRow) -> list[dict[str, Any]]:
    """What an image brings besides its programs."""
    folder = row.working_dir
    return [{"source": folder, "target": folder, "readOnly": True}] if folder else []


def _argv(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Nothing that stands for an image says what to run where the container does not."""
    if not container.get("command"):
        what = f"what stands for image {quoted(container.get('image') or '')} names none"
        raise ContainerError(CREATE, f"no command specified: {what}; say it in the container's command")
    return command_line(container, variables)


def _hostname(pod: Obj, cluster_domain: str) -> dict[str, str]:
    """HOSTNAME, as runtimes set it; who uses the node's network has the node's name, which is not known here."""
    if pod["spec"].get("hostNetwork"):
        return {}
    try:
        return {"HOSTNAME": hostname_of(pod, cluster_domain).name}
    except InputError as error:
        raise ContainerError(CONFIG, str(error)) from error


def _resources(pod: Obj, container: Mapping[str, Any], pids: int) -> dict[str, Mapping[str, int | None]]:
    """Limits and requests; where a container has no limit its pod's holds, and its limit is its request."""
    own: Mapping[str, Any] = container.get("resources") or {}
    limits: Mapping[str, Any] = own.get("limits") or {}
    of_pod: Mapping[str, Any] = (pod["spec"].get("resources") or {}).get("limits") or {}
    cpu, memory = (_amount(name, limits) or _amount(name, of_pod) for name in ("cpu", "memory"))
    requested = _amount("cpu", own.get("requests") or {}) or _amount("cpu", limits)
    return {"limits": {"cpu": cpu, "memory": memory, "pids": pids}, "requests": {"cpu": requested}}


def _amount(name: str, amounts: Mapping[str, Any]) -> int | None:
    """Thousandths of cpu, bytes of memory; None if nothing is said, or zero, which is no limit."""
    return quantity.amount(name, amounts[name]) or None if name in amounts else None
