"""Pod Security Standards: the policy set by a namespace's labels, the restricted checks, and the evaluation of pods."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.pod_security_baseline import (
    CAPABILITIES,
    SE_LINUX_TYPES_1_31,
    SYSCTLS_1_27,
    SYSCTLS_1_29,
    SYSCTLS_1_32,
    CheckPod,
    PodSecurityViolation,
    app_armor_profile,
    bad_seccomp_type,
    containers,
    has_user_namespace,
    host_namespaces,
    host_path_volumes,
    host_ports,
    is_of_windows,
    named,
    plural,
    privileged,
    probe_hosts,
    proc_mount,
    proc_mount_1_35,
    quoted,
    se_linux_options,
    seccomp_annotations,
    seccomp_profile,
    security,
    selected,
    setters,
    sysctls,
    uses,
    windows_host_process,
)

# --- policy ---
#
# The Pod Security policy of a namespace, from its labels.
#
# Source: k8s.io/pod-security-admission, api/{constants,helpers}.go. As in a cluster without a PodSecurityConfiguration,
# every mode defaults to `privileged:latest`.


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
    """A level of the Pod Security Standards, and the minor version of Kubernetes whose checks apply."""

    level: str = PRIVILEGED
    #: None: the latest version.
    minor: int | None = None

    def __str__(self) -> str:
        """Return the level and the version, such as `restricted:v1.25` or `baseline:latest`."""
        return f"{self.level}:{_LATEST if self.minor is None else f'v1.{self.minor}'}"

    @property
    def strictness(self) -> int:
        """The rank of the level from 0 (privileged) to 2 (restricted)."""
        return LEVELS.index(self.level)


class PodSecurityPolicy(NamedTuple):
    """The Pod Security policy of a namespace: level and version of each mode (enforce, audit, warn)."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def is_privileged(self) -> bool:
        """Whether all modes have the level `privileged`, which checks nothing."""
        return all(mode.level == PRIVILEGED for mode in self)


def namespace_policy(labels: Mapping[str, str]) -> PodSecurityPolicy:
    """Return the policy set by a namespace's labels.

    An invalid level means `restricted` for enforce, and `privileged` for audit and warn.
    An invalid version means the latest one. If only enforce is set, its level also applies to warn.
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
    """Return the errors in the Pod Security labels of a namespace, worded as Kubernetes does."""
    faults = []
    for mode in (_ENFORCE, _AUDIT, _WARN):
        level, version = labels.get(PREFIX + mode), labels.get(f"{PREFIX}{mode}-version")
        if level is not None and level not in LEVELS:
            faults.append(_label_fault(mode, level, f"must be one of {', '.join(LEVELS)}"))
        if version is not None and not _is_version(version):
            faults.append(_label_fault(f"{mode}-version", version, 'must be "latest" or "v1.x"'))
    return faults


def _label_fault(name: str, value: str, problem: str) -> FieldError:
    return FieldError(f"metadata.labels[{PREFIX}{name}]", f'Invalid value: "{value}": {problem}')


def _level(labels: Mapping[str, str], mode: str, invalid: str) -> str:
    level = labels.get(PREFIX + mode, PRIVILEGED)
    return level if level in LEVELS else invalid


def _minor(labels: Mapping[str, str], mode: str) -> int | None:
    text = labels.get(f"{PREFIX}{mode}-version", _LATEST)
    return int(text.removeprefix("v1.")) if text != _LATEST and _is_version(text) else None


def _is_version(text: str) -> bool:
    match = _VERSION.fullmatch(text)
    return text == _LATEST or (match is not None and int(match[1]) <= _INT64_MAX)


# --- evaluator ---
#
# Evaluation of a pod against a level and version of the Pod Security Standards.
#
# Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
# `baseline` first. `restricted` has all checks of `baseline` except those that it replaces.


def capabilities(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report containers that add capabilities beyond the defaults of the container runtime."""

    def added(container: Obj) -> set[str]:
        return {*((security(container).get("capabilities") or {}).get("add") or ())} - CAPABILITIES

    names = selected(spec, lambda container: bool(added(container)))
    if not names:
        return None
    forbidden = sorted(set().union(*map(added, containers(spec))))
    field_text = "in securityContext.capabilities.add"
    detail = f"{named('container', names)} must not include {quoted(forbidden)} {field_text}"
    return PodSecurityViolation("non-default capabilities", detail)


# --- restricted ---
#
# Checks of the level `restricted`. Source: k8s.io/pod-security-admission, policy/check_*.go.


_VOLUMES: Final = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
#: Volume types that `restricted` forbids, in the order in which the type of a volume is determined.
_RESTRICTED_VOLUMES: Final = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd"),
    *("flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk"),
    *("photonPersistentDisk", "portworxVolume", "scaleIO", "storageos"),
)
_NET_BIND_SERVICE: Final = "NET_BIND_SERVICE"


def allow_privilege_escalation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report containers that allow privilege escalation."""
    names = selected(spec, lambda container: security(container).get("allowPrivilegeEscalation") is not False)
    detail = f"{named('container', names)} must set securityContext.allowPrivilegeEscalation=false"
    return PodSecurityViolation("allowPrivilegeEscalation != false", detail) if names else None


def capabilities_violation(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report containers that do not drop all capabilities, or add other ones than NET_BIND_SERVICE."""

    def added(container: Obj) -> set[str]:
        return {*((security(container).get("capabilities") or {}).get("add") or ())} - {_NET_BIND_SERVICE}

    def keeps_some(container: Obj) -> bool:
        return "ALL" not in ((security(container).get("capabilities") or {}).get("drop") or ())

    keeping_names, adding_names = selected(spec, keeps_some), selected(spec, lambda container: bool(added(container)))
    details = []
    if keeping_names:
        details.append(f'{named("container", keeping_names)} must set securityContext.capabilities.drop=["ALL"]')
    if adding_names:
        forbidden = sorted(set().union(*map(added, containers(spec))))
        field_text = "in securityContext.capabilities.add"
        details.append(f"{named('container', adding_names)} must not include {quoted(forbidden)} {field_text}")
    return PodSecurityViolation("unrestricted capabilities", "; ".join(details)) if details else None


def volume_types(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report volumes of types that the level `restricted` forbids, such as hostPath and nfs."""
    volumes = spec.get("volumes") or ()
    forbidden = [volume for volume in volumes if not any(volume.get(field) is not None for field in _VOLUMES)]
    # Kubernetes turns a volume without a source into an emptyDir before the check.
    forbidden = [
        volume for volume in forbidden if any(volume[field] is not None for field in volume if field != "name")
    ]
    if not forbidden:
        return None
    types = sorted({_volume_type(volume) for volume in forbidden})
    names = [volume["name"] for volume in forbidden]
    types_text = f"{plural('restricted volume type', len(types))} {quoted(types)}"
    return PodSecurityViolation("restricted volume types", f"{named('volume', names)} {uses(len(names))} {types_text}")


def _volume_type(volume: Obj) -> str:
    return next((field for field in _RESTRICTED_VOLUMES if volume.get(field) is not None), "unknown")


def run_as_non_root(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report containers that may run as root: neither the pod nor the container sets runAsNonRoot to true."""
    reason, pod_value = "runAsNonRoot != true", security(spec).get("runAsNonRoot")
    setting_false = selected(spec, lambda container: security(container).get("runAsNonRoot") is False)
    if subject := setters(setting_false, by_pod=pod_value is False):
        return PodSecurityViolation(reason, f"{subject} must not set securityContext.runAsNonRoot=false")
    unset = selected(spec, lambda container: security(container).get("runAsNonRoot") is None)
    if pod_value is True or not unset:
        return None
    return PodSecurityViolation(
        reason, f"pod or {named('container', unset)} must set securityContext.runAsNonRoot=true"
    )


def run_as_user(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report the pod or the containers that set runAsUser to 0 (root)."""

    def is_root(pod_or_container: Obj) -> bool:
        user = security(pod_or_container).get("runAsUser")
        return user is not None and user == 0

    subject = setters(selected(spec, is_root), by_pod=is_root(spec))
    return PodSecurityViolation("runAsUser=0", f"{subject} must not set runAsUser=0") if subject else None


def seccomp_profile_set(metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Report containers without a seccomp profile of type RuntimeDefault or Localhost, set by them or by the pod."""
    if (violation := seccomp_profile(metadata, spec)) is not None:
        return violation
    if security(spec).get("seccompProfile") is not None and bad_seccomp_type(spec) is None:
        return None
    names = selected(spec, lambda container: security(container).get("seccompProfile") is None)
    if not names:
        return None
    requirement = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return PodSecurityViolation("seccompProfile", f"pod or {named('container', names)} {requirement}")


def except_on_windows(check: CheckPod) -> CheckPod:
    """Return the check with an exception: pods that run on Windows always pass."""
    return lambda metadata, spec: None if is_of_windows(spec) else check(metadata, spec)


def except_in_user_namespaces(check: CheckPod) -> CheckPod:
    """Return the check with an exception: pods with their own user namespace always pass."""
    return lambda metadata, spec: None if has_user_namespace(spec) else check(metadata, spec)


class PodSecurityCheck(NamedTuple):
    """A check of the Pod Security Standards, in all its versions."""

    name: str
    level: str
    #: Pairs of the first minor version of Kubernetes and the function that checks from it on, oldest first.
    versions: tuple[tuple[int, CheckPod], ...]
    #: The check of `baseline` that this check replaces; '' if none.
    replaces: str = ""

    def at(self, minor: int) -> CheckPod | None:
        """Return the check function of a minor version of Kubernetes; None if that version does not have the check."""
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
#: The latest minor version of Kubernetes in which a check changed.
LATEST_MINOR: Final = max(since for check in _CHECKS for since, _ in check.versions)


class PodSecurityViolations(NamedTuple):
    """The violations of a pod: the checks of a level and version that it fails."""

    policy: LevelVersion
    found: Sequence[PodSecurityViolation]

    def __str__(self) -> str:
        """Return a text such as `PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`."""
        return f'PodSecurity "{self.policy}": {", ".join(map(str, self.found))}'

    @property
    def reasons(self) -> str:
        """The reasons of all violations without details, separated by commas."""
        return ", ".join(violation.reason for violation in self.found)


def evaluate_pod(policy: LevelVersion, metadata: Obj, spec: Obj) -> PodSecurityViolations:
    """Check the metadata and spec of a pod or pod template against a level and version."""
    minor = LATEST_MINOR if policy.minor is None else min(policy.minor, LATEST_MINOR)
    results = (check(metadata, spec) for check in _checks(policy.level, minor))
    return PodSecurityViolations(policy, [violation for violation in results if violation is not None])


@cache
def _checks(level: str, minor: int) -> Sequence[CheckPod]:
    """Return the check functions of a level in a minor version of Kubernetes, in the order of their names."""
    if level == PRIVILEGED:
        return ()
    levels = (BASELINE,) if level == BASELINE else (BASELINE, RESTRICTED)
    available = [check for check in _CHECKS if check.level in levels and check.at(minor) is not None]
    replaced = {check.replaces for check in available}
    functions = (check.at(minor) for check in available if check.name not in replaced)
    return [function for function in functions if function is not None]
