"""Security contexts: the user and seccomp profile of a container; unsupported settings are rejected.

Containers run without capabilities and new privileges, in their own namespaces. Settings that require more are rejected
instead of ignored. Sources: pkg/kubelet/kuberuntime/security_context_others.go; pkg/securitycontext
(DetermineEffectiveSecurityContext); pkg/volume/util (FsUserFrom).
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import CONFIG_ERROR, CREATE_ERROR, ContainerError
from batchyard.kubelet.local.names import quote_pod_name

#: RuntimeClass handlers that this node can replace: they require no stronger isolation.
_SUPPORTED_RUNTIME_HANDLERS: Final = frozenset({"", "runc", "crun", "nvidia"})
_APPARMOR_PROFILES: Final = frozenset({"RuntimeDefault", "Unconfined"})
_UID_PATTERN: Final = re.compile(r"[0-9]{1,18}")
_NO_FIELDS: Final[Mapping[str, Any]] = {}


class ContainerUser(NamedTuple):
    """The uid and gid of a container's processes, as seen inside the container."""

    uid: int
    gid: int


ROOT: Final = ContainerUser(0, 0)
#: The user of a folder that replaces an image, in pods that require a non-root user. Source: the distroless images.
NON_ROOT: Final = ContainerUser(65532, 65532)


def containers_of(pod: Obj) -> list[Mapping[str, Any]]:
    """Return all containers of a pod in start order, init containers first."""
    spec = pod["spec"]
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def user_of(pod: Obj, container: Mapping[str, Any], default_user: ContainerUser) -> dict[str, int] | None:
    """Return the ids under which a container runs, such as `{"uid": 1000, "gid": 1000}`; None if unset.

    None means that the container runs as `default_user`. Raises ContainerError if the user would be root despite
    runAsNonRoot. Volume files belong to the container's user, so membership in the fsGroup is not needed.
    """
    uid, gid = _effective_setting(pod, container, "runAsUser"), _effective_setting(pod, container, "runAsGroup")
    if _effective_setting(pod, container, "runAsNonRoot"):
        _reject_root(pod, container, uid, str(default_user.uid))
    if uid is None and gid is None:
        return None
    default_gid = default_user.gid if uid is None else 0
    return {"uid": default_user.uid if uid is None else uid, "gid": default_gid if gid is None else gid}


def user_in_folder(pod: Obj, container: Mapping[str, Any], default_user: ContainerUser) -> dict[str, int] | None:
    """Return the ids under which a container of a root folder runs; None if it runs as `default_user`.

    A folder names no user, as an image does. An image of a pod with runAsNonRoot must name one that is not root.
    """
    if default_user == ROOT and _effective_setting(pod, container, "runAsNonRoot"):
        user = user_of(pod, container, NON_ROOT)
        return NON_ROOT._asdict() if user is None else user
    return user_of(pod, container, default_user)


def user_in_image(pod: Obj, container: Mapping[str, Any], image_user: str) -> str | None:
    """Return the user with which an engine runs a container: `user` or `user:gid`; None if no securityContext sets one.

    None means that the container runs as `image_user`, the user of the image. Raises ContainerError if runAsNonRoot is
    set and the user is root, or is a user name of the image, which cannot be verified.
    """
    uid, gid = _effective_setting(pod, container, "runAsUser"), _effective_setting(pod, container, "runAsGroup")
    name, _, _ = image_user.partition(":")
    if _effective_setting(pod, container, "runAsNonRoot"):
        _reject_root(pod, container, uid, name or "0")
    if uid is None and gid is None:
        return None
    user = str(uid) if uid is not None else name or "0"
    return user if gid is None else f"{user}:{gid}"


def fs_group(pod: Obj) -> int | None:
    """Return the fsGroup of a pod's security context; None if it has none."""
    group: int | None = (pod["spec"].get("securityContext") or _NO_FIELDS).get("fsGroup")
    return group


def fs_user(pod: Obj) -> int | None:
    """Return the runAsUser that all containers of a pod have in common; None if unset or different."""
    user_ids = {_effective_setting(pod, container, "runAsUser") for container in containers_of(pod)}
    return user_ids.pop() if len(user_ids) == 1 else None


def volume_file_group(pod: Obj) -> int | None:
    """Return the group id of a pod's volume files that not everyone may read, in podman containers; None for no group.

    The group id is the pod's fsGroup, or else the runAsUser that all its containers share. Kubernetes makes that user
    the owner of the service account token file instead. Here the user that runs the node owns all files.
    """
    group = fs_group(pod)
    return fs_user(pod) if group is None else group


def _reject_root(pod: Obj, container: Mapping[str, Any], uid: int | None, default_user: str) -> None:
    """Raise ContainerError if a container would run as root.

    `uid` is its runAsUser. If that is None, the container runs as `default_user`, a uid or a name.
    """
    owner = f"(pod: {quote_pod_name(pod)}, container: {container['name']})"
    if uid == 0:
        raise ContainerError(CONFIG_ERROR, f"container's runAsUser breaks non-root policy {owner}")
    if uid is None and not _UID_PATTERN.fullmatch(default_user):
        reason = f"image has non-numeric user ({default_user}), cannot verify user is non-root"
        raise ContainerError(CONFIG_ERROR, f"container has runAsNonRoot and {reason} {owner}")
    if uid is None and int(default_user) == 0:
        raise ContainerError(CONFIG_ERROR, f"container has runAsNonRoot and image will run as root {owner}")


def _effective_setting(pod: Obj, container: Mapping[str, Any], field: str) -> Any:
    container_value = (container.get("securityContext") or _NO_FIELDS).get(field)
    return (pod["spec"].get("securityContext") or _NO_FIELDS).get(field) if container_value is None else container_value


def seccomp_of(pod: Obj, container: Mapping[str, Any], profile_error: Callable[[str], str]) -> dict[str, str]:
    """Return the seccomp profile of a container; the runtime's default profile if the pod specifies none.

    `profile_error` returns why a Localhost profile cannot be loaded, or ''. Raises ContainerError if a Localhost
    profile has no valid name or cannot be loaded. Source: pkg/kubelet/kuberuntime/helpers.go (with seccompDefault).
    """
    profile = _effective_setting(pod, container, "seccompProfile") or {"type": "RuntimeDefault"}
    if profile["type"] != "Localhost":
        return {"type": profile["type"]}
    name: str = profile.get("localhostProfile") or ""
    if not name:
        raise ContainerError(CONFIG_ERROR, "localhostProfile must be set if seccompProfile type is Localhost.")
    if name.startswith("/") or ".." in name.split("/"):
        raise ContainerError(
            CONFIG_ERROR, f"localhostProfile {name} must be a relative path that does not contain '..'"
        )
    error = profile_error(name)
    if error:
        raise ContainerError(CREATE_ERROR, f"failed to create containerd container: {error}")
    return {"type": "Localhost", "profile": name}


def reject_unsupported(pod: Obj, container: Mapping[str, Any], reader: Reader, *, host_network: bool = False) -> None:
    """Raise ContainerError if a pod or container has unsupported settings; the message lists all of them.

    An unknown or unavailable RuntimeClass is reported only if all other settings are supported. `host_network` is
    whether pods may use the machine's network.
    """
    fields = [
        *_unsupported_pod_fields(pod["spec"]),
        *_unsupported_app_armor_fields(pod, container),
        *_unsupported_container_fields(pod["spec"], container),
    ]
    if pod["spec"].get("hostNetwork") and not host_network:
        fields.append("hostNetwork (start with `batchyard up --host-network`, or set spec.local.hostNetwork)")
    if fields:
        raise ContainerError(CONFIG_ERROR, f"not supported on this node: {'; '.join(fields)}")
    _reject_unknown_runtime_class(pod["spec"].get("runtimeClassName") or "", reader)


def _unsupported_pod_fields(spec: Mapping[str, Any]) -> Iterator[str]:
    for field in ("hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(field):
            yield field
    security_context: Mapping[str, Any] = spec.get("securityContext") or _NO_FIELDS
    field_values = {
        "sysctls": [sysctl["name"] for sysctl in security_context.get("sysctls") or ()],
        "supplementalGroups": [str(group) for group in security_context.get("supplementalGroups") or ()],
    }
    for field, names in field_values.items():
        if names:
            yield f"{field} {', '.join(names)}"


def _unsupported_app_armor_fields(pod: Obj, container: Mapping[str, Any]) -> Iterator[str]:
    profile = _effective_setting(pod, container, "appArmorProfile") or _NO_FIELDS
    if profile.get("type", "RuntimeDefault") not in _APPARMOR_PROFILES:
        yield f"appArmorProfile of type {profile['type']}"


def _unsupported_container_fields(spec: Mapping[str, Any], container: Mapping[str, Any]) -> Iterator[str]:
    security_context: Mapping[str, Any] = container.get("securityContext") or _NO_FIELDS
    added_capabilities: Sequence[str] = (security_context.get("capabilities") or _NO_FIELDS).get("add") or ()
    if security_context.get("privileged"):
        yield "privileged"
    if added_capabilities:
        yield f"capabilities {', '.join(added_capabilities)}"
    if security_context.get("procMount") == "Unmasked" and spec.get("hostUsers") is not False:
        yield "procMount Unmasked without hostUsers: false"
    if container.get("volumeDevices"):
        yield f"volumeDevices {', '.join(device['name'] for device in container['volumeDevices'])}"
    if (container.get("resources") or _NO_FIELDS).get("claims"):
        yield "resources.claims"
    if (container.get("lifecycle") or _NO_FIELDS).get("stopSignal", "SIGTERM") != "SIGTERM":
        yield f"stopSignal {container['lifecycle']['stopSignal']}"
    ports = [] if spec.get("hostNetwork") else container.get("ports") or ()
    host_ports = [p["hostPort"] for p in ports if p.get("hostPort")]
    if host_ports:
        yield f"hostPort {', '.join(map(str, host_ports))} without hostNetwork"


def _reject_unknown_runtime_class(name: str, reader: Reader) -> None:
    if not name:
        return
    runtime_class = reader.get(Key(scheme.RUNTIME_CLASS, "", name))
    if runtime_class is None:
        raise ContainerError(CREATE_ERROR, f'RuntimeClass "{name}" not found')
    if runtime_class.get("handler", "") not in _SUPPORTED_RUNTIME_HANDLERS:
        raise ContainerError(CREATE_ERROR, f'no runtime for "{runtime_class["handler"]}" is configured')
