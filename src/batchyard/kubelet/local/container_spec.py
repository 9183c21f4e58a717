"""Container run spec: the complete input of a container's shim.

Sources of the order of checks, which decides the first reported error: pkg/kubelet/kuberuntime (startContainer,
generateContainerConfig); of resources: kuberuntime_container_linux.go.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.devices import ContainerDevices
from batchyard.kubelet.local.environment import command_line, environment
from batchyard.kubelet.local.errors import CONFIG, CREATE, ContainerError, InputError, quoted
from batchyard.kubelet.local.images import ImageRow, find_row
from batchyard.kubelet.local.names import hostname_of
from batchyard.kubelet.local.security import (
    ROOT,
    ContainerUser,
    reject_unsupported,
    seccomp_of,
    shared_group,
    user_in_image,
    user_of,
)
from batchyard.kubelet.local.volume_plans import Mount, Plan, mounts_of

# --- probes ---
# Probes and lifecycle hooks of a container, with defaults and numeric ports.
#
# A kubelet detects an unknown port name only when it probes, and then fails each probe. Here such a container is not
# created. Source: pkg/apis/core/v1/defaults.go; pkg/probe (ResolveContainerPort).


_PROBES: Final[Mapping[str, str]] = {
    "startupProbe": "startup",
    "livenessProbe": "liveness",
    "readinessProbe": "readiness",
}
_HOOKS: Final = ("postStart", "preStop")
_DEFAULTS: Final[Mapping[str, int]] = {
    "initialDelaySeconds": 0,
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_OF_ACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
    "tcpSocket": {},
}
_PORT_MAX: Final = 65535


def probes_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the probes by `startup`, `liveness` and `readiness`; ContainerError if a port is unknown."""
    found = {name: container[field] for field, name in _PROBES.items() if container.get(field)}
    for name, probe in found.items():
        if not any(probe.get(action) for action in ("exec", *_OF_ACTIONS)):
            raise ContainerError(CONFIG, f"{name} probe: must specify a handler type")
    return {
        name: {**_DEFAULTS, **_without_nulls(probe), **_actions(probe, container, f"{name} probe")}
        for name, probe in found.items()
    }


def hooks_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the hooks by `postStart` and `preStop`; ContainerError if a port is unknown."""
    lifecycle: Mapping[str, Any] = container.get("lifecycle") or {}
    found = {name: lifecycle[name] for name in _HOOKS if lifecycle.get(name)}
    return {name: {**_without_nulls(hook), **_actions(hook, container, f"{name} hook")} for name, hook in found.items()}


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _actions(fields: Mapping[str, Any], container: Mapping[str, Any], whose: str) -> dict[str, Mapping[str, Any]]:
    """Return the handlers of a probe or hook that use a port."""
    return {
        action: {
            **defaults,
            **_without_nulls(fields[action]),
            "port": _port(fields[action].get("port"), container, whose),
        }
        for action, defaults in _OF_ACTIONS.items()
        if fields.get(action) is not None
    }


def _port(port: int | str | None, container: Mapping[str, Any], whose: str) -> int:
    number = port
    if isinstance(port, str):
        named = {p["name"]: p["containerPort"] for p in container.get("ports") or () if p.get("name")}
        number = named.get(port, int(port) if port.isdecimal() and port.isascii() else None)
    if number is None:
        raise ContainerError(CONFIG, f"{whose}: port {port} not found")
    if not 0 < int(number) <= _PORT_MAX:
        raise ContainerError(CONFIG, f"{whose}: invalid port number: {number}")
    return int(number)


_MESSAGE_PATH: Final = "/dev/termination-log"
_MESSAGE_POLICY: Final = "File"


def no_fault(_: str) -> str:
    """Accept every seccomp profile."""
    return ""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The machine's settings for all pods."""

    images: Sequence[ImageRow] = ()
    #: The machine's directories that pods may mount by hostPath.
    host_paths: Sequence[str] = ()
    #: The user of containers that name none.
    default_user: ContainerUser = ROOT
    #: The maximum number of processes of a container.
    pids: int = 32768
    #: The number and size of a container's log files, as the kubelet's containerLogMaxFiles and containerLogMaxSize.
    log_max_bytes: int = 10 * 1024 * 1024
    log_max_files: int = 5
    cluster_domain: str = "cluster.local"
    #: The usable container engines, the default first.
    engines: Sequence[str] = ()
    #: The size limit in bytes of unpacked images that no container uses.
    cache_bytes: int = 20 << 30
    #: Whether pods may use the machine's network, including services on its loopback.
    host_network: bool = False
    #: Returns why a seccomp profile of this machine cannot be loaded, by its name; '' if it can.
    profile_fault: Callable[[str], str] = no_fault


class ResolvedImage(NamedTuple):
    """The mapping of a container's image, and the metadata of an engine's image."""

    row: ImageRow
    image: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """What a pod has before its containers are created: addresses, volumes, devices and the image."""

    #: Its addresses, the primary one first.
    addresses: Sequence[str] = ()
    #: Its volumes, by name.
    volumes: Mapping[str, Plan] = field(default_factory=dict)
    #: Devices by container name.
    devices: Mapping[str, ContainerDevices] = field(default_factory=dict)
    #: The image of the container to create; None for a mapped image.
    standing: ResolvedImage | None = None


class ContainerRunSpec(NamedTuple):
    """The spec of a run, and its mounts."""

    #: Complete, except that the mounts are not yet resolved in the pod's directory.
    spec: dict[str, Any]
    mounts: Sequence[Mount]


def container_run(
    pod: Obj, container: Mapping[str, Any], attempt: int, given: ContainerInputs, settings: NodeSettings, reader: Reader
) -> ContainerRunSpec:
    """Return a container's run spec, attempts counted from 0; ContainerError if it cannot be created."""
    name: str = container["name"]
    standing = given.standing or ResolvedImage(find_row(container.get("image") or "", settings.images), {})
    reject_unsupported(pod, container, reader, host_network=settings.host_network)
    seccomp = seccomp_of(pod, container, settings.profile_fault)
    devices = given.devices.get(name, ContainerDevices())
    variables = {**devices.variables, **environment(pod, container, given.addresses, reader)}
    mounts = mounts_of(container, variables, given.volumes)
    metadata, context = pod["metadata"], container.get("securityContext") or {}
    spec: dict[str, Any] = {
        "kind": "container",
        "pod": {"uid": metadata["uid"], "namespace": metadata.get("namespace") or "", "name": metadata["name"]},
        "container": name,
        "attempt": attempt,
        "argv": _argv(container, variables, standing.image),
        "environment": {**_hostname(pod, settings.cluster_domain), **variables},
        **_place(pod, container, standing, settings.default_user),
        "stdin": bool(container.get("stdin")),
        "stdinOnce": bool(container.get("stdinOnce")),
        "tty": bool(container.get("tty")),
        "mounts": [*_mounts_of_image(standing.row), *(mount.row() for mount in mounts)],
        "readOnlyRoot": bool(context.get("readOnlyRootFilesystem")),
        **_resources(pod, container, settings.pids),
        "seccomp": seccomp,
        "procMount": context.get("procMount") or "Default",
        "devices": list(devices.paths),
        "network": "node" if pod["spec"].get("hostNetwork") else "pod",
        "probes": probes_of(container),
        "hooks": hooks_of(container),
        "terminationMessagePath": container.get("terminationMessagePath") or _MESSAGE_PATH,
        "terminationMessagePolicy": container.get("terminationMessagePolicy") or _MESSAGE_POLICY,
        "log": {"maxBytes": settings.log_max_bytes, "maxFiles": settings.log_max_files},
    }
    return ContainerRunSpec(spec, mounts)


def _mounts_of_image(row: ImageRow) -> list[dict[str, Any]]:
    """Return the mount of the image's working directory."""
    folder = row.working_dir
    return [{"source": folder, "target": folder, "readOnly": True}] if folder else []


def _place(pod: Obj, container: Mapping[str, Any], standing: ResolvedImage, default: ContainerUser) -> dict[str, Any]:
    """Return the image, working directory and user fields of a container."""
    row, image = standing
    name, folder = container.get("image") or "", container.get("workingDir")
    if not row.engine:
        place = {"image": row.place(name), "workingDir": folder or row.working_dir or None}
        return {**place, "user": user_of(pod, container, default)}
    source = {"engine": row.engine, "id": image["id"], "resolved": image["name"] or name, "digest": image["digest"]}
    if "unpacked" in image:
        files, user, group = {"unpacked": image["unpacked"]}, image["user"] or None, None
    else:
        files, user, group = {"lacksFolder": image["lacksFolder"]}, None, shared_group(pod)
    return {
        "image": {"name": name, **source, **files},
        "workingDir": folder or image["workingDir"] or "/",
        "user": user_in_image(pod, container, image["user"]) or user,
        "groups": [] if group is None else [group],
        "stopSignal": image["stopSignal"],
    }


def _argv(container: Mapping[str, Any], variables: Mapping[str, str], image: Mapping[str, Any]) -> list[str]:
    """Return the container's command and arguments, or those of its image.

    The image's arguments apply only with the image's command. If the image has no command, the container's arguments
    are the command line. Source: containerd (internal/cri/server: WithProcessArgs).
    """
    argv = command_line(container, variables)
    if not container.get("command"):
        entrypoint, arguments = image.get("entrypoint") or [], image.get("command") or []
        argv = [*entrypoint, *(argv or arguments)]
    if not argv:
        what = f"image {quoted(container.get('image') or '')} has none"
        raise ContainerError(CREATE, f"no command specified: {what}; set the container's command")
    return argv


def _hostname(pod: Obj, cluster_domain: str) -> dict[str, str]:
    """Return HOSTNAME as runtimes set it; on the host network it is the node's name, which is not known here."""
    if pod["spec"].get("hostNetwork"):
        return {}
    try:
        return {"HOSTNAME": hostname_of(pod, cluster_domain).name}
    except InputError as error:
        raise ContainerError(CONFIG, str(error)) from error


def _resources(pod: Obj, container: Mapping[str, Any], pids: int) -> dict[str, Mapping[str, int | None]]:
    """Return limits and requests. An unset limit defaults to the pod's, and an unset request to the limit."""
    own: Mapping[str, Any] = container.get("resources") or {}
    limits: Mapping[str, Any] = own.get("limits") or {}
    of_pod: Mapping[str, Any] = (pod["spec"].get("resources") or {}).get("limits") or {}
    cpu, memory = (_amount(name, limits) or _amount(name, of_pod) for name in ("cpu", "memory"))
    requested = _amount("cpu", own.get("requests") or {}) or _amount("cpu", limits)
    return {"limits": {"cpu": cpu, "memory": memory, "pids": pids}, "requests": {"cpu": requested}}


def _amount(name: str, amounts: Mapping[str, Any]) -> int | None:
    """Return thousandths of a CPU or bytes of memory; None if unset or zero, which means no limit."""
    return quantity.amount(name, amounts[name]) or None if name in amounts else None
