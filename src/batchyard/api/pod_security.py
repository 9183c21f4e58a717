"""Pod Security Standards: the policy of a namespace, and the violations of a pod."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj

# --- policy ---
#
# The Pod Security policy of a namespace, from its labels.
#
# Source: k8s.io/pod-security-admission, api/{constants,helpers}.go. The defaults are those of a cluster without a
# PodSecurityConfiguration: every mode is `privileged:latest`.


PREFIX: Final = "pod-security.kubernetes.io/"
PRIVILEGED: Final = "privileged"
BASELINE: Final = "baseline"
RESTRICTED: Final = "restricted"
#: From the most permissive to the strictest.
LEVELS: Final = (PRIVILEGED, BASELINE, RESTRICTED)
_LATEST: Final = "latest"
_ENFORCE, _AUDIT, _WARN = "enforce", "audit", "warn"
_VERSION: Final = re.compile(r"v1\.(0|[1-9][0-9]{0,18})")
_INT64_MAX: Final = 2**63 - 1


class LevelVersion(NamedTuple):
    """A level, and the minor version of Kubernetes whose checks apply."""

    level: str = PRIVILEGED
    #: None: the latest version.
    minor: int | None = None

    def __str__(self) -> str:
        """`restricted:v1.25`, `baseline:latest`."""
        return f"{self.level}:{_LATEST if self.minor is None else f'v1.{self.minor}'}"

    @property
    def strictness(self) -> int:
        """The position of the level among all levels."""
        return LEVELS.index(self.level)


class PodSecurityPolicy(NamedTuple):
    """The level and version of each mode."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def is_privileged(self) -> bool:
        """Whether no mode checks anything."""
        return all(mode.level == PRIVILEGED for mode in self)


def namespace_policy(labels: Mapping[str, str]) -> PodSecurityPolicy:
    """Return the policy that labels set. An invalid level means `restricted` for enforce, else `privileged`.

    An invalid version means the latest. Without a warn level, the enforce level also warns.
    """
    if not any(label.startswith(PREFIX) for label in labels):
        return PodSecurityPolicy()
    enforce = LevelVersion(_level(labels, _ENFORCE, RESTRICTED), _minor(labels, _ENFORCE))
    audit = LevelVersion(_level(labels, _AUDIT, PRIVILEGED), _minor(labels, _AUDIT))
    warn = LevelVersion(_level(labels, _WARN, PRIVILEGED), _minor(labels, _WARN))
    is_enforced = labels.get(PREFIX + _ENFORCE) in LEVELS
    if PREFIX + _WARN not in labels and is_enforced and enforce.strictness > warn.strictness:
        has_version = f"{PREFIX}{_WARN}-version" in labels
        warn = LevelVersion(enforce.level, warn.minor if has_version else enforce.minor)
    return PodSecurityPolicy(enforce, audit, warn)


def label_faults(labels: Mapping[str, str]) -> list[FieldError]:
    """Return the faults of policy labels, in the API's words."""
    faults = []
    for mode in (_ENFORCE, _AUDIT, _WARN):
        level, version = labels.get(PREFIX + mode), labels.get(f"{PREFIX}{mode}-version")
        if level is not None and level not in LEVELS:
            faults.append(_fault(mode, level, f"must be one of {', '.join(LEVELS)}"))
        if version is not None and not _is_version(version):
            faults.append(_fault(f"{mode}-version", version, 'must be "latest" or "v1.x"'))
    return faults


def _fault(name: str, value: str, problem: str) -> FieldError:
    return FieldError(f"metadata.labels[{PREFIX}{name}]", f'Invalid value: "{value}": {problem}')


def _level(labels: Mapping[str, str], mode: str, invalid: str) -> str:
    level = labels.get(PREFIX + mode, PRIVILEGED)
    return level if level in LEVELS else invalid


def _minor(labels: Mapping[str, str], mode: str) -> int | None:
    text = labels.get(f"{PREFIX}{mode}-version", _LATEST)
    return int(text.removeprefix("v1.")) if text != _LATEST and _is_version(text) else None


def _is_version(text: str) -> bool:
    found = _VERSION.fullmatch(text)
    return text == _LATEST or (found is not None and int(found[1]) <= _INT64_MAX)


# --- baseline ---
#
# Checks of the level `baseline`. Source: k8s.io/pod-security-admission, policy/check_*.go.


# --- violations ---
#
# A violation of the Pod Security Standards, and helpers that checks share.


class PodSecurityViolation(NamedTuple):
    """A check that a pod fails."""

    reason: str
    detail: str

    def __str__(self) -> str:
        """`privileged (container "c" must not set securityContext.privileged=true)`."""
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


CheckPod: TypeAlias = Callable[[Obj, Obj], PodSecurityViolation | None]
"""Checks the metadata and the spec of a pod or of a template."""


def containers(spec: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield all containers of a pod: init containers, containers, ephemeral containers."""
    for field in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(field) or ()


def security(part: Obj) -> Mapping[str, Any]:
    """Return the security context of a pod's spec or of a container."""
    context: Mapping[str, Any] = part.get("securityContext") or {}
    return context


def selected(spec: Obj, violates: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """Return the names of the containers that violate a rule."""
    return [container["name"] for container in containers(spec) if violates(container)]


def plural(word: str, count: int) -> str:
    """Return a noun in singular or plural."""
    return word if count == 1 else f"{word}s"


def uses(count: int) -> str:
    """Return the verb for a subject in singular or plural."""
    return "uses" if count == 1 else "use"


def quoted(values: Iterable[str]) -> str:
    """Return values in quotes, separated by commas."""
    return ", ".join(f'"{value}"' for value in values)


def named(word: str, names: Sequence[str]) -> str:
    """`container "a"`, or `containers "a", "b"`."""
    return f"{plural(word, len(names))} {quoted(names)}"


def setters(names: Sequence[str], *, by_pod: bool) -> str:
    """Return the subject of a violation: the pod, containers of it, or both."""
    return " and ".join([*(["pod"] if by_pod else []), *([named("container", names)] if names else [])])


def is_of_windows(spec: Obj) -> bool:
    """Report whether a pod runs on Windows, where checks of Linux security contexts do not apply."""
    return (spec.get("os") or {}).get("name") == "windows"


def has_user_namespace(spec: Obj) -> bool:
    """Report whether a pod has its own user namespace."""
    return spec.get("hostUsers") is False


_APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io/"
_APP_ARMOR_DEFAULT: Final = "runtime/default"
_LOCAL_PROFILE: Final = "localhost/"
_SECCOMP_OF_POD: Final = "seccomp.security.alpha.kubernetes.io/pod"
_SECCOMP_OF_CONTAINER: Final = "container.seccomp.security.alpha.kubernetes.io/"
_SECCOMP_DEFAULTS: Final = ("runtime/default", "docker/default")
PROFILE_TYPES: Final = ("RuntimeDefault", "Localhost")
_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD"),
        *("NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
_SE_LINUX_TYPES: Final = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
SE_LINUX_TYPES_1_31: Final = _SE_LINUX_TYPES | {"container_engine_t"}
_SYSCTLS: Final = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_syncookies",
    }
)
SYSCTLS_1_27: Final = _SYSCTLS | {"net.ipv4.ip_local_reserved_ports"}
SYSCTLS_1_29: Final = SYSCTLS_1_27 | {
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
}
SYSCTLS_1_32: Final = SYSCTLS_1_29 | {"net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def app_armor_profile(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """AppArmor profiles must be the runtime's or local ones."""

    def bad_type(part: Obj) -> str | None:
        profile = security(part).get("appArmorProfile")
        found: str = "" if profile is None else profile.get("type") or ""
        return found if profile is not None and found not in PROFILE_TYPES else None

    names = selected(spec, lambda container: bad_type(container) is not None)
    types = {found for part in (spec, *containers(spec)) if (found := bad_type(part)) is not None}
    annotations = sorted(
        f"{name}={_go_quoted(value)}"
        for name, value in (metadata.get("annotations") or {}).items()
        if name.startswith(_APP_ARMOR)
        and value not in ("", _APP_ARMOR_DEFAULT)
        and not value.startswith(_LOCAL_PROFILE)
    )
    subjects = setters(names, by_pod=bad_type(spec) is not None)
    subject = " and ".join(part for part in (subjects, annotations and plural("annotation", len(annotations))) if part)
    if not subject:
        return None
    values = [*sorted(types), *annotations]
    reason = plural("forbidden AppArmor profile", len(values))
    return PodSecurityViolation(reason, f"{subject} must not set AppArmor profile type to {quoted(values)}")


def capabilities(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must not add capabilities beyond the runtime defaults."""

    def added(container: Obj) -> set[str]:
        return {*((security(container).get("capabilities") or {}).get("add") or ())} - _CAPABILITIES

    names = selected(spec, lambda container: bool(added(container)))
    if not names:
        return None
    forbidden = sorted(set().union(*map(added, containers(spec))))
    detail = f"{named('container', names)} must not include {quoted(forbidden)} in securityContext.capabilities.add"
    return PodSecurityViolation("non-default capabilities", detail)


def host_namespaces(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Pods must not share namespaces with the host."""
    shared = [f"{field}=true" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    return PodSecurityViolation("host namespaces", ", ".join(shared)) if shared else None


def host_path_volumes(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Pods must not mount host paths."""
    names = [volume["name"] for volume in spec.get("volumes") or () if volume.get("hostPath") is not None]
    return PodSecurityViolation("hostPath volumes", named("volume", names)) if names else None


def host_ports(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must not use host ports."""

    def ports(container: Obj) -> set[str]:
        return {str(port["hostPort"]) for port in container.get("ports") or () if port.get("hostPort")}

    names = selected(spec, lambda container: bool(ports(container)))
    if not names:
        return None
    found = sorted(set().union(*map(ports, containers(spec))))
    what = f"{plural('hostPort', len(found))} {', '.join(found)}"
    return PodSecurityViolation("hostPort", f"{named('container', names)} {uses(len(names))} {what}")


def probe_hosts(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Probes and lifecycle hooks must not name a host."""
    names = sorted(selected(spec, lambda container: any(_hosts(container))))
    if not names:
        return None
    hosts = sorted({host for container in containers(spec) for host in _hosts(container)})
    what = f"{plural('probe or lifecycle host', len(hosts))} {quoted(hosts)}"
    return PodSecurityViolation("probe or lifecycle host", f"{named('container', names)} {uses(len(names))} {what}")


def _hosts(container: Obj) -> Iterator[str]:
    hooks = container.get("lifecycle") or {}
    probes = (container.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup"))
    for handler in (*probes, hooks.get("postStart"), hooks.get("preStop")):
        for action in ("httpGet", "tcpSocket"):
            host = ((handler or {}).get(action) or {}).get("host")
            if host:
                yield host


def privileged(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must not be privileged."""
    names = selected(spec, lambda container: security(container).get("privileged") is True)
    detail = f"{named('container', names)} must not set securityContext.privileged=true"
    return PodSecurityViolation("privileged", detail) if names else None


def proc_mount(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """The paths of /proc must stay masked."""

    def mount(container: Obj) -> str:
        found: str | None = security(container).get("procMount")
        return "Default" if found is None else found

    names = selected(spec, lambda container: mount(container) != "Default")
    if not names:
        return None
    found = sorted({mount(container) for container in containers(spec)} - {"Default"})
    return PodSecurityViolation(
        "procMount", f"{named('container', names)} must not set securityContext.procMount to {quoted(found)}"
    )


def proc_mount_1_35(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """The paths of /proc must stay masked, except in a user namespace."""
    return None if has_user_namespace(spec) else proc_mount(metadata, spec)


def se_linux_options(types: frozenset[str] = _SE_LINUX_TYPES) -> CheckPod:
    """SELinux types must be those for containers; users and roles must not be set."""

    def flaws(part: Obj) -> Mapping[str, Any]:
        options = security(part).get("seLinuxOptions") or {}
        found = {"type": options.get("type") or "", "user": options.get("user"), "role": options.get("role")}
        return {field: value for field, value in found.items() if (value not in types if field == "type" else value)}

    def check(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
        names = selected(spec, lambda container: bool(flaws(container)))
        if not names and not flaws(spec):
            return None
        found = [flaws(part) for part in (spec, *containers(spec))]
        bad = sorted({flaw["type"] for flaw in found if "type" in flaw})
        details = [f"{plural('type', len(bad))} {quoted(bad)}"] if bad else []
        details += [f"{field} may not be set" for field in ("user", "role") if any(field in flaw for flaw in found)]
        subject = setters(names, by_pod=bool(flaws(spec)))
        return PodSecurityViolation(
            "seLinuxOptions", f"{subject} set forbidden securityContext.seLinuxOptions: {'; '.join(details)}"
        )

    return check


def seccomp_annotations(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Seccomp profiles in annotations (before Kubernetes 1.19) must be the runtime's or local ones."""
    annotations = metadata.get("annotations") or {}
    places = {_SECCOMP_OF_POD, *(_SECCOMP_OF_CONTAINER + container["name"] for container in containers(spec))}
    forbidden = sorted(
        f"{place}={_go_quoted(annotations[place])}"
        for place in places & annotations.keys()
        if annotations[place] not in _SECCOMP_DEFAULTS and not annotations[place].startswith(_LOCAL_PROFILE)
    )
    if not forbidden:
        return None
    return PodSecurityViolation(
        "seccompProfile", f"forbidden {plural('annotation', len(forbidden))} {', '.join(forbidden)}"
    )


def bad_seccomp_type(part: Obj) -> str | None:
    """Return the forbidden seccomp profile type of a pod or container; None if it is allowed or absent."""
    profile = security(part).get("seccompProfile")
    found: str = "" if profile is None else profile.get("type") or ""
    return found if profile is not None and found not in PROFILE_TYPES else None


def seccomp_profile(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Seccomp profiles must be the runtime's or local ones."""
    names = selected(spec, lambda container: bad_seccomp_type(container) is not None)
    subject = setters(names, by_pod=bad_seccomp_type(spec) is not None)
    if not subject:
        return None
    bad = sorted({found for part in (spec, *containers(spec)) if (found := bad_seccomp_type(part)) is not None})
    return PodSecurityViolation(
        "seccompProfile", f"{subject} must not set securityContext.seccompProfile.type to {quoted(bad)}"
    )


def sysctls(allowed: frozenset[str] = _SYSCTLS) -> CheckPod:
    """Pods must set safe sysctls only."""

    def check(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
        names = (sysctl["name"] for sysctl in security(spec).get("sysctls") or ())
        forbidden = [name for name in names if name not in allowed]
        return PodSecurityViolation("forbidden sysctls", ", ".join(forbidden)) if forbidden else None

    return check


def windows_host_process(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Windows containers must not be host processes."""

    def is_host_process(part: Obj) -> bool:
        return (security(part).get("windowsOptions") or {}).get("hostProcess") is True

    subject = setters(selected(spec, is_host_process), by_pod=is_host_process(spec))
    detail = f"{subject} must not set securityContext.windowsOptions.hostProcess=true"
    return PodSecurityViolation("hostProcess", detail) if subject else None


def _go_quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# --- evaluator ---
#
# Evaluates a pod against a level and version of the Pod Security Standards.
#
# Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
# `baseline` first. `restricted` has all checks of `baseline` except those that it replaces.


# --- restricted ---
#
# Checks of the level `restricted`. Source: k8s.io/pod-security-admission, policy/check_*.go.


_VOLUMES: Final = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
#: In the order in which the volume type is determined.
_RESTRICTED_VOLUMES: Final = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd"),
    *("flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk"),
    *("photonPersistentDisk", "portworxVolume", "scaleIO", "storageos"),
)
_NET_BIND_SERVICE: Final = "NET_BIND_SERVICE"


def allow_privilege_escalation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must not allow privilege escalation."""
    names = selected(spec, lambda container: security(container).get("allowPrivilegeEscalation") is not False)
    detail = f"{named('container', names)} must set securityContext.allowPrivilegeEscalation=false"
    return PodSecurityViolation("allowPrivilegeEscalation != false", detail) if names else None


def capabilities_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must drop all capabilities, and may add only NET_BIND_SERVICE."""

    def added(container: Obj) -> set[str]:
        return {*((security(container).get("capabilities") or {}).get("add") or ())} - {_NET_BIND_SERVICE}

    def keeps_some(container: Obj) -> bool:
        return "ALL" not in ((security(container).get("capabilities") or {}).get("drop") or ())

    keeping, adding = selected(spec, keeps_some), selected(spec, lambda container: bool(added(container)))
    details = []
    if keeping:
        details.append(f'{named("container", keeping)} must set securityContext.capabilities.drop=["ALL"]')
    if adding:
        forbidden = sorted(set().union(*map(added, containers(spec))))
        place = "in securityContext.capabilities.add"
        details.append(f"{named('container', adding)} must not include {quoted(forbidden)} {place}")
    return PodSecurityViolation("unrestricted capabilities", "; ".join(details)) if details else None


def volume_types(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Volumes must be of types that do not depend on the node."""
    volumes = spec.get("volumes") or ()
    bad = [volume for volume in volumes if not any(volume.get(field) is not None for field in _VOLUMES)]
    # Kubernetes turns a volume without a source into an emptyDir before the check.
    bad = [volume for volume in bad if any(volume[field] is not None for field in volume if field != "name")]
    if not bad:
        return None
    types = sorted({_volume_type(volume) for volume in bad})
    names = [volume["name"] for volume in bad]
    what = f"{plural('restricted volume type', len(types))} {quoted(types)}"
    return PodSecurityViolation("restricted volume types", f"{named('volume', names)} {uses(len(names))} {what}")


def _volume_type(volume: Obj) -> str:
    return next((field for field in _RESTRICTED_VOLUMES if volume.get(field) is not None), "unknown")


def run_as_non_root(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """The pod or each container must run as non-root."""
    reason, wanted = "runAsNonRoot != true", security(spec).get("runAsNonRoot")
    explicit = selected(spec, lambda container: security(container).get("runAsNonRoot") is False)
    if subject := setters(explicit, by_pod=wanted is False):
        return PodSecurityViolation(reason, f"{subject} must not set securityContext.runAsNonRoot=false")
    implicit = selected(spec, lambda container: security(container).get("runAsNonRoot") is None)
    if wanted is True or not implicit:
        return None
    return PodSecurityViolation(
        reason, f"pod or {named('container', implicit)} must set securityContext.runAsNonRoot=true"
    )


def run_as_user(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """The pod and its containers must not set the user root."""

    def is_root(part: Obj) -> bool:
        user = security(part).get("runAsUser")
        return user is not None and user == 0

    subject = setters(selected(spec, is_root), by_pod=is_root(spec))
    return PodSecurityViolation("runAsUser=0", f"{subject} must not set runAsUser=0") if subject else None


def seccomp_profile_set(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """The pod or each container must set a seccomp profile: the runtime's or a local one."""
    if (violation := seccomp_profile(metadata, spec)) is not None:
        return violation
    if security(spec).get("seccompProfile") is not None and bad_seccomp_type(spec) is None:
        return None
    names = selected(spec, lambda container: security(container).get("seccompProfile") is None)
    if not names:
        return None
    wanted = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return PodSecurityViolation("seccompProfile", f"pod or {named('container', names)} {wanted}")


def except_on_windows(check: CheckPod) -> CheckPod:
    """Wrap a check so that it passes Windows pods."""
    return lambda metadata, spec: None if is_of_windows(spec) else check(metadata, spec)


def except_in_user_namespaces(check: CheckPod) -> CheckPod:
    """Wrap a check so that it passes pods with their own user namespace."""
    return lambda metadata, spec: None if has_user_namespace(spec) else check(metadata, spec)


class PodSecurityCheck(NamedTuple):
    """A check, with its history."""

    name: str
    level: str
    #: The forms of the check with the minor version since which each applies, oldest first.
    versions: tuple[tuple[int, CheckPod], ...]
    #: The check of `baseline` that it replaces.
    replaces: str = ""

    def at(self, minor: int) -> CheckPod | None:
        """Return the form for a minor version; None if the check is newer."""
        return next((check for since, check in reversed(self.versions) if since <= minor), None)


_CHECKS: Final = (
    PodSecurityCheck("appArmorProfile", BASELINE, ((0, app_armor_profile),)),
    PodSecurityCheck("capabilities_baseline", BASELINE, ((0, capabilities),)),
    PodSecurityCheck("hostNamespaces", BASELINE, ((0, host_namespaces),)),
    PodSecurityCheck("hostPathVolumes", BASELINE, ((0, host_path_volumes),)),
    PodSecurityCheck("hostPorts", BASELINE, ((0, host_ports),)),
    PodSecurityCheck("hostProbesAndHostLifecycle", BASELINE, ((34, probe_hosts),)),
    PodSecurityCheck("privileged", BASELINE, ((0, privileged),)),
    PodSecurityCheck("procMount", BASELINE, ((0, proc_mount), (35, proc_mount_1_35))),
    PodSecurityCheck(
        "seLinuxOptions",
        BASELINE,
        ((0, se_linux_options()), (31, se_linux_options(SE_LINUX_TYPES_1_31))),
    ),
    PodSecurityCheck("seccompProfile_baseline", BASELINE, ((0, seccomp_annotations), (19, seccomp_profile))),
    PodSecurityCheck(
        "sysctls",
        BASELINE,
        (
            (0, sysctls()),
            (27, sysctls(SYSCTLS_1_27)),
            (29, sysctls(SYSCTLS_1_29)),
            (32, sysctls(SYSCTLS_1_32)),
        ),
    ),
    PodSecurityCheck("windowsHostProcess", BASELINE, ((0, windows_host_process),)),
    PodSecurityCheck(
        "allowPrivilegeEscalation",
        RESTRICTED,
        (
            (8, allow_privilege_escalation),
            (25, except_on_windows(allow_privilege_escalation)),
        ),
    ),
    PodSecurityCheck(
        "capabilities_restricted",
        RESTRICTED,
        ((22, capabilities_violation), (25, except_on_windows(capabilities_violation))),
        replaces="capabilities_baseline",
    ),
    PodSecurityCheck("procMount_restricted", RESTRICTED, ((35, proc_mount),), replaces="procMount"),
    PodSecurityCheck("restrictedVolumes", RESTRICTED, ((0, volume_types),), replaces="hostPathVolumes"),
    PodSecurityCheck(
        "runAsNonRoot",
        RESTRICTED,
        (
            (0, run_as_non_root),
            (35, except_in_user_namespaces(run_as_non_root)),
        ),
    ),
    PodSecurityCheck(
        "runAsUser",
        RESTRICTED,
        ((23, run_as_user), (35, except_in_user_namespaces(run_as_user))),
    ),
    PodSecurityCheck(
        "seccompProfile_restricted",
        RESTRICTED,
        ((19, seccomp_profile_set), (25, except_on_windows(seccomp_profile_set))),
        replaces="seccompProfile_baseline",
    ),
)
#: The latest version in which any check changed.
LATEST_MINOR: Final = max(since for check in _CHECKS for since, _ in check.versions)


class PodSecurityViolations(NamedTuple):
    """The checks of a level and version that a pod fails."""

    policy: LevelVersion
    found: Sequence[PodSecurityViolation]

    def __str__(self) -> str:
        """`PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`."""
        return f'PodSecurity "{self.policy}": {", ".join(map(str, self.found))}'

    @property
    def reasons(self) -> str:
        """The reasons alone."""
        return ", ".join(violation.reason for violation in self.found)


def evaluate_pod(policy: LevelVersion, metadata: Obj, spec: Obj) -> PodSecurityViolations:
    """Check a pod or a template against a level and version."""
    minor = LATEST_MINOR if policy.minor is None else min(policy.minor, LATEST_MINOR)
    found = (check(metadata, spec) for check in _checks(policy.level, minor))
    return PodSecurityViolations(policy, [violation for violation in found if violation is not None])


@cache
def _checks(level: str, minor: int) -> Sequence[CheckPod]:
    """Return the checks of a level in a version, in order."""
    if level == PRIVILEGED:
        return ()
    levels = (BASELINE,) if level == BASELINE else (BASELINE, RESTRICTED)
    present = [check for check in _CHECKS if check.level in levels and check.at(minor) is not None]
    replaced = {check.replaces for check in present}
    forms = (check.at(minor) for check in present if check.name not in replaced)
    return [form for form in forms if form is not None]
