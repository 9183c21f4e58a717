"""Which checks a level and a version have, and which of them a pod fails.

Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
`baseline` first. `restricted` has all checks of `baseline` but those that it replaces.
"""

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.pod_security import baseline, restricted
from batchyard.api.pod_security.policy import BASELINE, PRIVILEGED, RESTRICTED, LevelVersion
from batchyard.api.pod_security.violations import CheckPod, Violation


class Check(NamedTuple):
    """A check, with its history."""

    name: str
    level: str
    #: The minor versions since which each form of it counts, the oldest first.
    versions: tuple[tuple[int, CheckPod], ...]
    #: The check of `baseline` that it replaces.
    replaces: str = ""

    def at(self, minor: int) -> CheckPod | None:
        """The form that a version has; None if it is older than the check."""
        return next((check for since, check in reversed(self.versions) if since <= minor), None)


_CHECKS: Final = (
    Check("appArmorProfile", BASELINE, ((0, baseline.app_armor_profile),)),
    Check("capabilities_baseline", BASELINE, ((0, baseline.capabilities),)),
    Check("hostNamespaces", BASELINE, ((0, baseline.host_namespaces),)),
    Check("hostPathVolumes", BASELINE, ((0, baseline.host_path_volumes),)),
    Check("hostPorts", BASELINE, ((0, baseline.host_ports),)),
    Check("hostProbesAndHostLifecycle", BASELINE, ((34, baseline.probe_hosts),)),
    Check("privileged", BASELINE, ((0, baseline.privileged),)),
    Check("procMount", BASELINE, ((0, baseline.proc_mount), (35, baseline.proc_mount_1_35))),
    Check(
        "seLinuxOptions",
        BASELINE,
        ((0, baseline.se_linux_options()), (31, baseline.se_linux_options(baseline.SE_LINUX_TYPES_1_31))),
    ),
    Check("seccompProfile_baseline", BASELINE, ((0, baseline.seccomp_annotations), (19, baseline.seccomp_profile))),
    Check(
        "sysctls",
        BASELINE,
        (
            (0, baseline.sysctls()),
            (27, baseline.sysctls(baseline.SYSCTLS_1_27)),
            (29, baseline.sysctls(baseline.SYSCTLS_1_29)),
            (32, baseline.sysctls(baseline.SYSCTLS_1_32)),
        ),
    ),
    Check("windowsHostProcess", BASELINE, ((0, baseline.windows_host_process),)),
    Check(
        "allowPrivilegeEscalation",
        RESTRICTED,
        (
            (8, restricted.allow_privilege_escalation),
            (25, restricted.except_on_windows(restricted.allow_privilege_escalation)),
        ),
    ),
    Check(
        "capabilities_restricted",
        RESTRICTED,
        ((22, restricted.capabilities), (25, restricted.except_on_windows(restricted.capabilities))),
        replaces="capabilities_baseline",
    ),
    Check("procMount_restricted", RESTRICTED, ((35, baseline.proc_mount),), replaces="procMount"),
    Check("restrictedVolumes", RESTRICTED, ((0, restricted.volume_types),), replaces="hostPathVolumes"),
    Check(
        "runAsNonRoot",
        RESTRICTED,
        (
            (0, restricted.run_as_non_root),
            (35, restricted.except_in_user_namespaces(restricted.run_as_non_root)),
        ),
    ),
    Check(
        "runAsUser",
        RESTRICTED,
        ((23, restricted.run_as_user), (35, restricted.except_in_user_namespaces(restricted.run_as_user))),
    ),
    Check(
        "seccompProfile_restricted",
        RESTRICTED,
        ((19, restricted.seccomp_profile_set), (25, restricted.except_on_windows(restricted.seccomp_profile_set))),
        replaces="seccompProfile_baseline",
    ),
)
#: The version from which on no check changes.
LATEST_MINOR: Final = max(since for check in _CHECKS for since, _ in check.versions)


class Violations(NamedTuple):
    """The checks of a level and version that a pod fails."""

    policy: LevelVersion
    found: Sequence[Violation]

    def __str__(self) -> str:
        """`PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`."""
        return f'PodSecurity "{self.policy}": {", ".join(map(str, self.found))}'

    @property
    def reasons(self) -> str:
        """The reasons alone."""
        return ", ".join(violation.reason for violation in self.found)


def evaluate_pod(policy: LevelVersion, metadata: Obj, spec: Obj) -> Violations:
    """Check a pod or a template against a level and version."""
    minor = LATEST_MINOR if policy.minor is None else min(policy.minor, LATEST_MINOR)
    found = (check(metadata, spec) for check in _checks(policy.level, minor))
    return Violations(policy, [violation for violation in found if violation is not None])


@cache
def _checks(level: str, minor: int) -> Sequence[CheckPod]:
    """The checks of a level in a version, in order."""
    if level == PRIVILEGED:
        return ()
    levels = (BASELINE,) if level == BASELINE else (BASELINE, RESTRICTED)
    present = [check for check in _CHECKS if check.level in levels and check.at(minor) is not None]
    replaced = {check.replaces for check in present}
    forms = (check.at(minor) for check in present if check.name not in replaced)
    return [form for form in forms if form is not None]
