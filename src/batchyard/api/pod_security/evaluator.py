"""Evaluates a pod against a level and version of the Pod Security Standards.

Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
`baseline` first. `restricted` has all checks of `baseline` except those that it replaces.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.pod_security import baseline
from batchyard.api.pod_security.baseline import (
    CheckPod,
    PodSecurityViolation,
    bad_seccomp_type,
    containers,
    has_user_namespace,
    is_of_windows,
    named,
    plural,
    quoted,
    seccomp_profile,
    security,
    selected,
    setters,
    uses,
)
from batchyard.api.pod_security.policy import BASELINE, PRIVILEGED, RESTRICTED, LevelVersion

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


def capabilities(_metadata: Obj, spec: Obj) -> PodSecurityViolation | None:
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
    PodSecurityCheck("appArmorProfile", BASELINE, ((0, baseline.app_armor_profile),)),
    PodSecurityCheck("capabilities_baseline", BASELINE, ((0, baseline.capabilities),)),
    PodSecurityCheck("hostNamespaces", BASELINE, ((0, baseline.host_namespaces),)),
    PodSecurityCheck("hostPathVolumes", BASELINE, ((0, baseline.host_path_volumes),)),
    PodSecurityCheck("hostPorts", BASELINE, ((0, baseline.host_ports),)),
    PodSecurityCheck("hostProbesAndHostLifecycle", BASELINE, ((34, baseline.probe_hosts),)),
    PodSecurityCheck("privileged", BASELINE, ((0, baseline.privileged),)),
    PodSecurityCheck("procMount", BASELINE, ((0, baseline.proc_mount), (35, baseline.proc_mount_1_35))),
    PodSecurityCheck(
        "seLinuxOptions",
        BASELINE,
        ((0, baseline.se_linux_options()), (31, baseline.se_linux_options(baseline.SE_LINUX_TYPES_1_31))),
    ),
    PodSecurityCheck(
        "seccompProfile_baseline", BASELINE, ((0, baseline.seccomp_annotations), (19, baseline.seccomp_profile))
    ),
    PodSecurityCheck(
        "sysctls",
        BASELINE,
        (
            (0, baseline.sysctls()),
            (27, baseline.sysctls(baseline.SYSCTLS_1_27)),
            (29, baseline.sysctls(baseline.SYSCTLS_1_29)),
            (32, baseline.sysctls(baseline.SYSCTLS_1_32)),
        ),
    ),
    PodSecurityCheck("windowsHostProcess", BASELINE, ((0, baseline.windows_host_process),)),
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
        ((22, capabilities), (25, except_on_windows(capabilities))),
        replaces="capabilities_baseline",
    ),
    PodSecurityCheck("procMount_restricted", RESTRICTED, ((35, baseline.proc_mount),), replaces="procMount"),
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
