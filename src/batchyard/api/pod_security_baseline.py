"""Pod Security Standards: the checks of the level `baseline`, and helpers that the checks of both levels use.

Source: k8s.io/pod-security-admission, policy/check_*.go.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.meta import Obj
from batchyard.base.counts import pluralize, select_verb


class PodSecurityViolation(NamedTuple):
    """A failed Pod Security check of a pod: the reason, and the containers or fields that fail it."""

    reason: str
    detail: str

    def __str__(self) -> str:
        """Return a text such as `privileged (container "c" must not set securityContext.privileged=true)`."""
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


#: Checks the metadata and the spec of a pod or pod template; returns the violation, or None if it passes.
CheckPod: TypeAlias = Callable[[Obj, Obj], PodSecurityViolation | None]


def containers(spec: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield all containers of a pod: init containers, containers, ephemeral containers."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def security_context(pod_or_container: Obj) -> Mapping[str, Any]:
    """Return the security context of a pod's spec or of a container; empty if it has none."""
    security_fields: Mapping[str, Any] = pod_or_container.get("securityContext") or {}
    return security_fields


def violating_container_names(spec: Obj, violates: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """Return the names of a pod's containers for which `violates` returns true."""
    return [container["name"] for container in containers(spec) if violates(container)]


def quote_values(values: Iterable[str]) -> str:
    """Return values in quotes, separated by commas."""
    return ", ".join(f'"{value}"' for value in values)


def noun_with_names(noun: str, names: Sequence[str]) -> str:
    """Return a noun with names, such as `container "a"` or `containers "a", "b"`."""
    return f"{pluralize(noun, len(names))} {quote_values(names)}"


def violation_subject(names: Sequence[str], *, by_pod: bool) -> str:
    """Return the subject of a violation message: the pod, the named containers, or both; '' for neither."""
    return " and ".join([*(["pod"] if by_pod else []), *([noun_with_names("container", names)] if names else [])])


def is_windows_pod(spec: Obj) -> bool:
    """Return whether a pod runs on Windows, where checks of Linux security contexts do not apply."""
    return (spec.get("os") or {}).get("name") == "windows"


def has_user_namespace(spec: Obj) -> bool:
    """Return whether a pod has its own user namespace."""
    return spec.get("hostUsers") is False


_APP_ARMOR_PREFIX: Final = "container.apparmor.security.beta.kubernetes.io/"
_APP_ARMOR_DEFAULT_PROFILE: Final = "runtime/default"
_LOCAL_PROFILE: Final = "localhost/"
_POD_SECCOMP_ANNOTATION: Final = "seccomp.security.alpha.kubernetes.io/pod"
_CONTAINER_SECCOMP_PREFIX: Final = "container.seccomp.security.alpha.kubernetes.io/"
_SECCOMP_DEFAULT_PROFILES: Final = ("runtime/default", "docker/default")
SECCOMP_PROFILE_TYPES: Final = ("RuntimeDefault", "Localhost")
BASELINE_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
_SE_LINUX_TYPES: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
SE_LINUX_TYPES_1_31: Final = _SE_LINUX_TYPES | {"container_engine_t"}
_BASELINE_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_syncookies",
    }
)
SYSCTLS_1_27: Final = _BASELINE_SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
SYSCTLS_1_29: Final = SYSCTLS_1_27 | {
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
}
SYSCTLS_1_32: Final = SYSCTLS_1_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def app_armor_violation(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if AppArmor profiles (in fields or annotations) are neither default nor local, else None."""

    def bad_type(part: Obj) -> str | None:
        profile = security_context(part).get("appArmorProfile")
        profile_type: str = "" if profile is None else profile.get("type") or ""
        return profile_type if profile is not None and profile_type not in SECCOMP_PROFILE_TYPES else None

    names = violating_container_names(spec, lambda container: bad_type(container) is not None)
    profile_types = {profile_type for part in (spec, *containers(spec)) if (profile_type := bad_type(part)) is not None}
    annotations = sorted(
        f"{name}={_quote_text_like_go(value)}"
        for name, value in (metadata.get("annotations") or {}).items()
        if name.startswith(_APP_ARMOR_PREFIX)
        and value not in ("", _APP_ARMOR_DEFAULT_PROFILE)
        and not value.startswith(_LOCAL_PROFILE)
    )
    containers_text = violation_subject(names, by_pod=bad_type(spec) is not None)
    subject = " and ".join(p for p in (containers_text, annotations and pluralize("annotation", len(annotations))) if p)
    if not subject:
        return None
    bad_profiles = [*sorted(profile_types), *annotations]
    reason = pluralize("forbidden AppArmor profile", len(bad_profiles))
    return PodSecurityViolation(reason, f"{subject} must not set AppArmor profile type to {quote_values(bad_profiles)}")


def host_namespaces_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if a pod shares the network, PID or IPC namespace of its node, else None."""
    shared_namespaces = [f"{field}=true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    return PodSecurityViolation("host namespaces", ", ".join(shared_namespaces)) if shared_namespaces else None


def host_path_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if a pod has volumes of type hostPath, else None."""
    names = [volume["name"] for volume in spec.get("volumes") or () if volume.get("hostPath") is not None]
    return PodSecurityViolation("hostPath volumes", noun_with_names("volume", names)) if names else None


def host_ports_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if containers use ports of the node (hostPort), else None."""

    def host_port_texts(container: Obj) -> set[str]:
        return {str(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")}

    names = violating_container_names(spec, lambda container: bool(host_port_texts(container)))
    if not names:
        return None
    used_ports = sorted(set().union(*map(host_port_texts, containers(spec))))
    usage_text = (
        f"{select_verb(len(names), 'uses', 'use')} {pluralize('hostPort', len(used_ports))} {', '.join(used_ports)}"
    )
    return PodSecurityViolation("hostPort", f"{noun_with_names('container', names)} {usage_text}")


def probe_hosts_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if probes or lifecycle hooks of containers set a host, else None."""
    names = sorted(violating_container_names(spec, lambda container: any(_hook_and_probe_hosts(container))))
    if not names:
        return None
    probe_hosts = sorted({host for container in containers(spec) for host in _hook_and_probe_hosts(container)})
    hosts_text = f"{pluralize('probe or lifecycle host', len(probe_hosts))} {quote_values(probe_hosts)}"
    return PodSecurityViolation(
        "probe or lifecycle host",
        f"{noun_with_names('container', names)} {select_verb(len(names), 'uses', 'use')} {hosts_text}",
    )


def _hook_and_probe_hosts(container: Obj) -> Iterator[str]:
    lifecycle_hooks = container.get("lifecycle") or {}
    probes = (container.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup"))
    for handler in (*probes, lifecycle_hooks.get("postStart"), lifecycle_hooks.get("preStop")):
        for action in ("httpGet", "tcpSocket"):
            host = ((handler or {}).get(action) or {}).get("host")
            if host:
                yield host


def privileged_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if containers are privileged, else None."""
    names = violating_container_names(spec, lambda container: security_context(container).get("privileged") is True)
    detail = f"{noun_with_names('container', names)} must not set securityContext.privileged=true"
    return PodSecurityViolation("privileged", detail) if names else None


def proc_mount_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if the procMount of containers is not Default (parts of /proc are not masked), else None."""

    def container_proc_mount(container: Obj) -> str:
        proc_mount_value: str | None = security_context(container).get("procMount")
        return "Default" if proc_mount_value is None else proc_mount_value

    names = violating_container_names(spec, lambda container: container_proc_mount(container) != "Default")
    if not names:
        return None
    bad_mounts = sorted({container_proc_mount(container) for container in containers(spec)} - {"Default"})
    return PodSecurityViolation(
        "procMount",
        f"{noun_with_names('container', names)} must not set securityContext.procMount to {quote_values(bad_mounts)}",
    )


def proc_mount_violation_1_35(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if procMount is not Default and the pod has no user namespace of its own, else None."""
    return None if has_user_namespace(spec) else proc_mount_violation(metadata, spec)


def se_linux_check(types: frozenset[str] = _SE_LINUX_TYPES) -> CheckPod:
    """Return the check that forbids SELinux options with a user, a role, or a type that is not in `types`."""

    def forbidden_options(pod_or_container: Obj) -> Mapping[str, Any]:
        options = security_context(pod_or_container).get("seLinuxOptions") or {}
        fields = {"type": options.get("type") or "", "user": options.get("user"), "role": options.get("role")}
        return {field: value for field, value in fields.items() if (value not in types if field == "type" else value)}

    def check_pod(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
        names = violating_container_names(spec, lambda container: bool(forbidden_options(container)))
        if not names and not forbidden_options(spec):
            return None
        options_of_all = [forbidden_options(each) for each in (spec, *containers(spec))]
        bad_types = sorted({options["type"] for options in options_of_all if "type" in options})
        details = [f"{pluralize('type', len(bad_types))} {quote_values(bad_types)}"] if bad_types else []
        details += [
            f"{field} may not be set"
            for field in ("user", "role")
            if any(field in options for options in options_of_all)
        ]
        subject = violation_subject(names, by_pod=bool(forbidden_options(spec)))
        problem = f"{subject} set forbidden securityContext.seLinuxOptions"
        return PodSecurityViolation("seLinuxOptions", f"{problem}: {'; '.join(details)}")

    return check_pod


def seccomp_annotations_violation(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if seccomp annotations (before Kubernetes 1.19) are neither default nor local, else None."""
    annotations = metadata.get("annotations") or {}
    names = {_POD_SECCOMP_ANNOTATION, *(_CONTAINER_SECCOMP_PREFIX + each["name"] for each in containers(spec))}
    forbidden_annotations = sorted(
        f"{name}={_quote_text_like_go(annotations[name])}"
        for name in names & annotations.keys()
        if annotations[name] not in _SECCOMP_DEFAULT_PROFILES and not annotations[name].startswith(_LOCAL_PROFILE)
    )
    detail = f"forbidden {pluralize('annotation', len(forbidden_annotations))} {', '.join(forbidden_annotations)}"
    return PodSecurityViolation("seccompProfile", detail) if forbidden_annotations else None


def forbidden_seccomp_type(pod_or_container: Obj) -> str | None:
    """Return the seccomp profile type of a pod spec or container if it is forbidden, else None."""
    profile = security_context(pod_or_container).get("seccompProfile")
    profile_type: str = "" if profile is None else profile.get("type") or ""
    return profile_type if profile is not None and profile_type not in SECCOMP_PROFILE_TYPES else None


def seccomp_profile_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if seccomp profiles have other types than RuntimeDefault and Localhost, else None."""
    names = violating_container_names(spec, lambda container: forbidden_seccomp_type(container) is not None)
    violating_subject = violation_subject(names, by_pod=forbidden_seccomp_type(spec) is not None)
    if not violating_subject:
        return None
    profile_types = {forbidden_seccomp_type(part) for part in (spec, *containers(spec))}
    forbidden_types_text = quote_values(sorted(each for each in profile_types if each is not None))
    detail = f"{violating_subject} must not set securityContext.seccompProfile.type to {forbidden_types_text}"
    return PodSecurityViolation("seccompProfile", detail)


def sysctls_check(allowed_sysctls: frozenset[str] = _BASELINE_SYSCTLS) -> CheckPod:
    """Return the check that forbids sysctls of a pod that are not in `allowed_sysctls`."""

    def check_pod(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
        names = (sysctl["name"] for sysctl in security_context(spec).get("sysctls") or ())
        forbidden_sysctls = [name for name in names if name not in allowed_sysctls]
        return PodSecurityViolation("forbidden sysctls", ", ".join(forbidden_sysctls)) if forbidden_sysctls else None

    return check_pod


def host_process_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Return a violation if a pod or its containers run as Windows host processes, else None."""

    def is_host_process(pod_or_container: Obj) -> bool:
        return (security_context(pod_or_container).get("windowsOptions") or {}).get("hostProcess") is True

    violating_subject = violation_subject(
        violating_container_names(spec, is_host_process), by_pod=is_host_process(spec)
    )
    detail = f"{violating_subject} must not set securityContext.windowsOptions.hostProcess=true"
    return PodSecurityViolation("hostProcess", detail) if violating_subject else None


def _quote_text_like_go(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
