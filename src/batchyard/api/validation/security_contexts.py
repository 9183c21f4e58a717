"""Rules of security contexts, of pods and of containers. Source: Kubernetes's pkg/apis/core/validation."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, paths

_ID_MAX: Final = 2**31 - 1
_ID_MESSAGE: Final = "must be between 0 and 2147483647, inclusive"
_SECCOMP_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS: Final = ("Default", "Unmasked")
_LOCAL: Final = "Localhost"
_SYSCTL_LENGTH_MAX: Final = 253
_SYSCTL_PATTERN: Final = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SYSCTL_SEGMENT: Final = re.compile(r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?")
_SYSCTL_DOTS: Final = re.compile(r"[./]")
_PROFILE_LENGTH_MAX: Final = 4095


def pod_security_faults(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the security context of a pod."""
    yield from _shared_faults(context, path)
    yield from _id_faults(context.get("fsGroup"), f"{path}.fsGroup")
    for i, group in enumerate(context.get("supplementalGroups") or ()):
        yield from _id_faults(group, f"{path}.supplementalGroups[{i}]")
    seen: set[str] = set()
    for i, sysctl in enumerate(context.get("sysctls") or ()):
        at, name = f"{path}.sysctls[{i}].name", sysctl.get("name") or ""
        if not name:
            yield faults.required(at, "", "name the kernel parameter")
        elif not _is_sysctl(name):
            message = f"must have at most {_SYSCTL_LENGTH_MAX} characters and match regex {_SYSCTL_PATTERN}"
            yield faults.invalid(at, name, message, "write it as net.ipv4.tcp_syncookies")
        elif name in seen:
            yield faults.duplicate(at, name, "set each parameter once")
        seen.add(name)


def container_security_faults(context: Mapping[str, Any], path: str, *, in_host_users: bool) -> Iterator[FieldError]:
    """Validate the security context of a container."""
    yield from _shared_faults(context, path)
    mount = context.get("procMount")
    if mount is not None and mount not in _PROC_MOUNTS:
        yield faults.unsupported(f"{path}.procMount", mount, _PROC_MOUNTS)
    if mount == "Unmasked" and in_host_users:
        message = "`hostUsers` must be false to use `Unmasked`"
        yield faults.invalid(f"{path}.procMount", mount, message, "set hostUsers: false")
    if context.get("allowPrivilegeEscalation") is False:
        begin = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            yield faults.invalid_here(path, f"{begin} `privileged` to true", "drop one of them")
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            yield faults.invalid_here(path, f"{begin} `capabilities.Add` CAP_SYS_ADMIN", "drop one of them")


def _shared_faults(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("runAsUser", "runAsGroup"):
        yield from _id_faults(context.get(field), f"{path}.{field}")
    if (profile := context.get("seccompProfile")) is not None:
        yield from _seccomp_faults(profile, f"{path}.seccompProfile")
    if (profile := context.get("appArmorProfile")) is not None:
        yield from _app_armor_faults(profile, f"{path}.appArmorProfile")


def _id_faults(number: int | None, path: str) -> Iterator[FieldError]:
    if number is not None and not 0 <= number <= _ID_MAX:
        yield faults.invalid(path, number, _ID_MESSAGE, "give the number of a user or group")


def _seccomp_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local = profile.get("type") or "", profile.get("localhostProfile")
    yield from _type_faults(kind, path, "seccompProfile")
    if kind == _LOCAL and local is None:
        message = "must be set when seccomp type is Localhost"
        yield faults.required(f"{path}.localhostProfile", message, "name the profile")
    elif kind == _LOCAL:
        yield from paths.local_path_faults(local or "", f"{path}.localhostProfile")
    elif local is not None:
        message = "can only be set when seccomp type is Localhost"
        yield faults.invalid(f"{path}.localhostProfile", local, message, "drop it")


def _app_armor_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local, at = profile.get("type") or "", profile.get("localhostProfile"), f"{path}.localhostProfile"
    yield from _type_faults(kind, path, "appArmorProfile")
    if kind == _LOCAL:
        if local is not None and local != local.strip():
            yield faults.invalid(at, local, "must not be padded with whitespace", "drop the spaces")
        if not local:
            yield faults.required(at, "must be set when AppArmor type is Localhost", "name the profile")
        elif len(local.encode()) > _PROFILE_LENGTH_MAX:
            yield faults.too_long(at, _PROFILE_LENGTH_MAX, "give the name of a profile")
    elif local is not None:
        yield faults.invalid(at, local, "can only be set when AppArmor type is Localhost", "drop it")


def _type_faults(kind: str, path: str, field: str) -> Iterator[FieldError]:
    if not kind:
        yield faults.required(f"{path}.type", f"type is required when {field} is set", "use RuntimeDefault")
    elif kind not in _SECCOMP_TYPES:
        yield faults.unsupported(f"{path}.type", kind, _SECCOMP_TYPES)


def _is_sysctl(name: str) -> bool:
    segments = _SYSCTL_DOTS.split(name) if len(name) <= _SYSCTL_LENGTH_MAX else [""]
    return all(_SYSCTL_SEGMENT.fullmatch(segment) for segment in segments)
