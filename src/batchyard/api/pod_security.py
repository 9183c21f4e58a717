"""Pod Security Standards: the policy of a namespace, and the violations of a pod."""

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


"""Checks the metadata and the spec of a pod or of a template."""


# --- evaluator ---
#
# Evaluates a pod against a level and version of the Pod Security Standards.
#
# Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
# `baseline` first. `restricted` has all checks of `baseline` except those that it replaces.


def capabilities(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
    """Containers must not add capabilities beyond the runtime defaults."""

    def added(container: Obj) -> set[str]:
        return {*((security(container).get("capabilities") or {}).get("add") or ())} - CAPABILITIES

    names = selected(spec, lambda container: bool(added(container)))
    if not names:
        return None
    forbidden = sorted(set().union(*map(added, containers(spec))))
    detail = f"{named('container', names)} must not include {quoted(forbidden)} in securityContext.capabilities.add"
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
