"""Pod Security Standards: the policy set by a namespace's labels, the restricted checks, and the evaluation of pods."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from batchyard.api import pod_security_baseline as baseline
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, controller_of
from batchyard.base.counts import pluralize, select_verb

# The Pod Security policy of a namespace, from its labels.
#
# Source: k8s.io/pod-security-admission, api/{constants,helpers}.go. As in a cluster without a PodSecurityConfiguration,
# every mode defaults to `privileged:latest`.


LABEL_PREFIX: Final = "pod-security.kubernetes.io/"
PRIVILEGED: Final = "privileged"
BASELINE: Final = "baseline"
RESTRICTED: Final = "restricted"
#: From the most permissive to the strictest.
LEVELS: Final = (PRIVILEGED, BASELINE, RESTRICTED)
_LATEST_VERSION: Final = "latest"
_ENFORCE, _AUDIT, _WARN = "enforce", "audit", "warn"
_VERSION_PATTERN: Final = re.compile(r"v1\.(0|[1-9][0-9]{0,18})")
_INT64_MAX: Final = 2**63 - 1


class LevelVersion(NamedTuple):
    """A Pod Security level, and the minor version of Kubernetes whose checks of that level apply."""

    level: str = PRIVILEGED
    #: None: the latest version.
    minor: int | None = None

    def __str__(self) -> str:
        """Return the level and the version, such as `restricted:v1.25` or `baseline:latest`."""
        return f"{self.level}:{_LATEST_VERSION if self.minor is None else f'v1.{self.minor}'}"

    @property
    def strictness(self) -> int:
        """The rank of the Pod Security level: 0 for privileged, 1 for baseline, 2 for restricted."""
        return LEVELS.index(self.level)


class PodSecurityPolicy(NamedTuple):
    """The Pod Security settings of a namespace: level and version for each mode (enforce, audit, warn)."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def is_privileged(self) -> bool:
        """Whether all modes have the level `privileged`, which checks nothing."""
        return all(mode.level == PRIVILEGED for mode in self)


def namespace_policy(labels: Mapping[str, str]) -> PodSecurityPolicy:
    """Return the Pod Security policy that a namespace's labels set.

    An invalid level means `restricted` for enforce, and `privileged` for audit and warn. An invalid version means the
    latest one. Without a label for its own level, warn gets the level of enforce if that is valid.
    """
    if not any(label.startswith(LABEL_PREFIX) for label in labels):
        return PodSecurityPolicy()
    enforce_level = LevelVersion(_policy_level_for_mode(labels, _ENFORCE, RESTRICTED), _mode_minor(labels, _ENFORCE))
    audit_level = LevelVersion(_policy_level_for_mode(labels, _AUDIT, PRIVILEGED), _mode_minor(labels, _AUDIT))
    warn_level = LevelVersion(_policy_level_for_mode(labels, _WARN, PRIVILEGED), _mode_minor(labels, _WARN))
    has_enforce_level = labels.get(LABEL_PREFIX + _ENFORCE) in LEVELS
    if LABEL_PREFIX + _WARN not in labels and has_enforce_level and enforce_level.strictness > warn_level.strictness:
        has_warn_version = f"{LABEL_PREFIX}{_WARN}-version" in labels
        warn_level = LevelVersion(enforce_level.level, warn_level.minor if has_warn_version else enforce_level.minor)
    return PodSecurityPolicy(enforce_level, audit_level, warn_level)


def label_errors(labels: Mapping[str, str]) -> list[FieldError]:
    """Return the errors in the Pod Security labels of a namespace, worded as Kubernetes does."""
    errors = []
    for mode in (_ENFORCE, _AUDIT, _WARN):
        level, version = labels.get(LABEL_PREFIX + mode), labels.get(f"{LABEL_PREFIX}{mode}-version")
        if level is not None and level not in LEVELS:
            errors.append(_label_error(mode, level, f"must be one of {', '.join(LEVELS)}"))
        if version is not None and not _is_policy_version(version):
            errors.append(_label_error(f"{mode}-version", version, 'must be "latest" or "v1.x"'))
    return errors


def _label_error(name: str, value: str, problem: str) -> FieldError:
    return FieldError(f"metadata.labels[{LABEL_PREFIX}{name}]", f'Invalid value: "{value}": {problem}')


def _policy_level_for_mode(labels: Mapping[str, str], mode: str, level_if_invalid: str) -> str:
    level = labels.get(LABEL_PREFIX + mode, PRIVILEGED)
    return level if level in LEVELS else level_if_invalid


def _mode_minor(labels: Mapping[str, str], mode: str) -> int | None:
    text = labels.get(f"{LABEL_PREFIX}{mode}-version", _LATEST_VERSION)
    return int(text.removeprefix("v1.")) if text != _LATEST_VERSION and _is_policy_version(text) else None


def _is_policy_version(text: str) -> bool:
    match = _VERSION_PATTERN.fullmatch(text)
    return text == _LATEST_VERSION or (match is not None and int(match[1]) <= _INT64_MAX)


# Evaluation of a pod against a level and version of the Pod Security Standards.
#
# Source: k8s.io/pod-security-admission, policy/{registry,checks}.go. Checks run in the order of their names, those of
# `baseline` first. `restricted` has all checks of `baseline` except those that its own checks replace.


def baseline_capabilities_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if containers add capabilities beyond the container runtime's defaults, else None."""

    def added_capabilities(container: Obj) -> set[str]:
        return {
            *((baseline.security_context(container).get("capabilities") or {}).get("add") or ())
        } - baseline.BASELINE_CAPABILITIES

    names = baseline.violating_container_names(spec, lambda container: bool(added_capabilities(container)))
    if not names:
        return None
    bad_capabilities = sorted(set().union(*map(added_capabilities, baseline.containers(spec))))
    return baseline.PodSecurityViolation(
        "non-default capabilities", _added_capabilities_detail(names, bad_capabilities)
    )


def _added_capabilities_detail(names: Sequence[str], capabilities: Sequence[str]) -> str:
    subject = baseline.noun_with_names("container", names)
    return f"{subject} must not include {baseline.quote_values(capabilities)} in securityContext.capabilities.add"


# Checks of the level `restricted`. Source: k8s.io/pod-security-admission, policy/check_*.go.


_SAFE_VOLUMES: Final = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
#: Volume types that `restricted` forbids, in the order in which the type of a volume is determined.
_RESTRICTED_VOLUME_TYPES: Final = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd"),
    *("flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk"),
    *("photonPersistentDisk", "portworxVolume", "scaleIO", "storageos"),
)
_NET_BIND_SERVICE: Final = "NET_BIND_SERVICE"


def privilege_escalation_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if containers do not set allowPrivilegeEscalation to false, else None."""
    names = baseline.violating_container_names(
        spec, lambda each: baseline.security_context(each).get("allowPrivilegeEscalation") is not False
    )
    detail = f"{baseline.noun_with_names('container', names)} must set securityContext.allowPrivilegeEscalation=false"
    return baseline.PodSecurityViolation("allowPrivilegeEscalation != false", detail) if names else None


def restricted_capabilities_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if containers do not drop ALL capabilities, or add any but NET_BIND_SERVICE, else None."""

    def added_capabilities(container: Obj) -> set[str]:
        return {*((baseline.security_context(container).get("capabilities") or {}).get("add") or ())} - {
            _NET_BIND_SERVICE
        }

    def keeps_capabilities(container: Obj) -> bool:
        return "ALL" not in ((baseline.security_context(container).get("capabilities") or {}).get("drop") or ())

    keeping_names = baseline.violating_container_names(spec, keeps_capabilities)
    adding_names = baseline.violating_container_names(spec, lambda container: bool(added_capabilities(container)))
    detail_texts = []
    if keeping_names:
        detail_texts.append(
            f'{baseline.noun_with_names("container", keeping_names)} must set securityContext.capabilities.drop=["ALL"]'
        )
    if adding_names:
        bad_capabilities = sorted(set().union(*map(added_capabilities, baseline.containers(spec))))
        detail_texts.append(_added_capabilities_detail(adding_names, bad_capabilities))
    return baseline.PodSecurityViolation("unrestricted capabilities", "; ".join(detail_texts)) if detail_texts else None


def volume_types_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if volumes have types that the level `restricted` forbids, such as nfs, else None."""
    volumes = spec.get("volumes") or ()
    bad_volumes = [volume for volume in volumes if not any(volume.get(field) is not None for field in _SAFE_VOLUMES)]
    # Kubernetes turns a volume without a source into an emptyDir before the check.
    bad_volumes = [each for each in bad_volumes if any(each[field] is not None for field in each if field != "name")]
    if not bad_volumes:
        return None
    types = sorted({_volume_type(volume) for volume in bad_volumes})
    names = [volume["name"] for volume in bad_volumes]
    types_noun = pluralize("restricted volume type", len(types))
    usage_text = f"{select_verb(len(names), 'uses', 'use')} {types_noun} {baseline.quote_values(types)}"
    return baseline.PodSecurityViolation(
        "restricted volume types", f"{baseline.noun_with_names('volume', names)} {usage_text}"
    )


def _volume_type(volume: Obj) -> str:
    return next((field for field in _RESTRICTED_VOLUME_TYPES if volume.get(field) is not None), "unknown")


def run_as_non_root_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if containers may run as root, else None.

    runAsNonRoot must be true in the pod or in each container, and must not be false in any of them.
    """
    reason, pod_value = "runAsNonRoot != true", baseline.security_context(spec).get("runAsNonRoot")
    false_names = baseline.violating_container_names(
        spec, lambda each: baseline.security_context(each).get("runAsNonRoot") is False
    )
    if subject := baseline.violation_subject(false_names, by_pod=pod_value is False):
        return baseline.PodSecurityViolation(reason, f"{subject} must not set securityContext.runAsNonRoot=false")
    unset_names = baseline.violating_container_names(
        spec, lambda each: baseline.security_context(each).get("runAsNonRoot") is None
    )
    detail = f"pod or {baseline.noun_with_names('container', unset_names)} must set securityContext.runAsNonRoot=true"
    return None if pod_value is True or not unset_names else baseline.PodSecurityViolation(reason, detail)


def run_as_user_violation(_metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if the pod or containers set runAsUser to 0 (root), else None."""

    def is_root(pod_or_container: Obj) -> bool:
        user = baseline.security_context(pod_or_container).get("runAsUser")
        return user is not None and user == 0

    subject_text = baseline.violation_subject(baseline.violating_container_names(spec, is_root), by_pod=is_root(spec))
    return (
        baseline.PodSecurityViolation("runAsUser=0", f"{subject_text} must not set runAsUser=0")
        if subject_text
        else None
    )


def missing_seccomp_violation(metadata: Obj, spec: Obj) -> baseline.PodSecurityViolation | None:
    """Return a violation if seccomp profiles are missing or neither RuntimeDefault nor Localhost, else None.

    A profile of the pod replaces the missing profiles of its containers.
    """
    if (violation := baseline.seccomp_profile_violation(metadata, spec)) is not None:
        return violation
    if (
        baseline.security_context(spec).get("seccompProfile") is not None
        and baseline.forbidden_seccomp_type(spec) is None
    ):
        return None
    names = baseline.violating_container_names(
        spec, lambda container: baseline.security_context(container).get("seccompProfile") is None
    )
    if not names:
        return None
    requirement_text = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return baseline.PodSecurityViolation(
        "seccompProfile", f"pod or {baseline.noun_with_names('container', names)} {requirement_text}"
    )


def with_windows_exception(check: baseline.CheckPod) -> baseline.CheckPod:
    """Return the check changed so that pods that run on Windows always pass."""
    return lambda metadata, spec: None if baseline.is_windows_pod(spec) else check(metadata, spec)


def with_user_namespace_exception(check: baseline.CheckPod) -> baseline.CheckPod:
    """Return the check changed so that pods with their own user namespace always pass."""
    return lambda metadata, spec: None if baseline.has_user_namespace(spec) else check(metadata, spec)


class PodSecurityCheck(NamedTuple):
    """One check of the Pod Security Standards, with its variants for different minor versions of Kubernetes."""

    name: str
    level: str
    #: Pairs of the first minor version of Kubernetes and the function that checks from it on, oldest first.
    versions: tuple[tuple[int, baseline.CheckPod], ...]
    #: The check of `baseline` that this check replaces; '' if none.
    replaces: str = ""

    def check_function(self, minor: int) -> baseline.CheckPod | None:
        """Return the function of this check for a minor version of Kubernetes; None if that version lacks the check."""
        return next((check for since, check in reversed(self.versions) if since <= minor), None)


_POD_CHECKS: Final = (
    PodSecurityCheck("appArmorProfile", BASELINE, ((0, baseline.app_armor_violation),)),
    PodSecurityCheck("capabilities_baseline", BASELINE, ((0, baseline_capabilities_violation),)),
    PodSecurityCheck("hostNamespaces", BASELINE, ((0, baseline.host_namespaces_violation),)),
    PodSecurityCheck("hostPathVolumes", BASELINE, ((0, baseline.host_path_violation),)),
    PodSecurityCheck("hostPorts", BASELINE, ((0, baseline.host_ports_violation),)),
    PodSecurityCheck("hostProbesAndHostLifecycle", BASELINE, ((34, baseline.probe_hosts_violation),)),
    PodSecurityCheck("privileged", BASELINE, ((0, baseline.privileged_violation),)),
    PodSecurityCheck(
        "procMount", BASELINE, ((0, baseline.proc_mount_violation), (35, baseline.proc_mount_violation_1_35))
    ),
    PodSecurityCheck(
        "seLinuxOptions",
        BASELINE,
        ((0, baseline.se_linux_check()), (31, baseline.se_linux_check(baseline.SE_LINUX_TYPES_1_31))),
    ),
    PodSecurityCheck(
        "seccompProfile_baseline",
        BASELINE,
        ((0, baseline.seccomp_annotations_violation), (19, baseline.seccomp_profile_violation)),
    ),
    PodSecurityCheck(
        "sysctls",
        BASELINE,
        (
            (0, baseline.sysctls_check()),
            (27, baseline.sysctls_check(baseline.SYSCTLS_1_27)),
            (29, baseline.sysctls_check(baseline.SYSCTLS_1_29)),
            (32, baseline.sysctls_check(baseline.SYSCTLS_1_32)),
        ),
    ),
    PodSecurityCheck("windowsHostProcess", BASELINE, ((0, baseline.host_process_violation),)),
    PodSecurityCheck(
        "allowPrivilegeEscalation",
        RESTRICTED,
        ((8, privilege_escalation_violation), (25, with_windows_exception(privilege_escalation_violation))),
    ),
    PodSecurityCheck(
        "capabilities_restricted",
        RESTRICTED,
        ((22, restricted_capabilities_violation), (25, with_windows_exception(restricted_capabilities_violation))),
        replaces="capabilities_baseline",
    ),
    PodSecurityCheck("procMount_restricted", RESTRICTED, ((35, baseline.proc_mount_violation),), replaces="procMount"),
    PodSecurityCheck("restrictedVolumes", RESTRICTED, ((0, volume_types_violation),), replaces="hostPathVolumes"),
    PodSecurityCheck(
        "runAsNonRoot",
        RESTRICTED,
        ((0, run_as_non_root_violation), (35, with_user_namespace_exception(run_as_non_root_violation))),
    ),
    PodSecurityCheck(
        "runAsUser",
        RESTRICTED,
        ((23, run_as_user_violation), (35, with_user_namespace_exception(run_as_user_violation))),
    ),
    PodSecurityCheck(
        "seccompProfile_restricted",
        RESTRICTED,
        ((19, missing_seccomp_violation), (25, with_windows_exception(missing_seccomp_violation))),
        replaces="seccompProfile_baseline",
    ),
)
#: The latest minor version of Kubernetes in which a check changed.
LATEST_MINOR: Final = max(since for check in _POD_CHECKS for since, _ in check.versions)


class PodSecurityViolations(NamedTuple):
    """The Pod Security checks that a pod fails, and the level and version to which they belong."""

    policy: LevelVersion
    violations: Sequence[baseline.PodSecurityViolation]

    def __str__(self) -> str:
        """Return a text such as `PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`."""
        return f'PodSecurity "{self.policy}": {", ".join(map(str, self.violations))}'

    @property
    def reasons(self) -> str:
        """The reasons of all violations, separated by commas, without the violating containers and fields."""
        return ", ".join(violation.reason for violation in self.violations)


def evaluate_pod(policy: LevelVersion, metadata: Obj, spec: Obj) -> PodSecurityViolations:
    """Check the metadata and spec of a pod or pod template against a Pod Security level and version."""
    minor_version = LATEST_MINOR if policy.minor is None else min(policy.minor, LATEST_MINOR)
    check_results = (check(metadata, spec) for check in _check_functions(policy.level, minor_version))
    return PodSecurityViolations(policy, [violation for violation in check_results if violation is not None])


@cache
def _check_functions(level: str, minor_version: int) -> Sequence[baseline.CheckPod]:
    if level == PRIVILEGED:
        return ()
    levels = (BASELINE,) if level == BASELINE else (BASELINE, RESTRICTED)
    available_checks = [
        check for check in _POD_CHECKS if check.level in levels and check.check_function(minor_version) is not None
    ]
    replaced_names = {check.replaces for check in available_checks}
    check_functions = (
        check.check_function(minor_version) for check in available_checks if check.name not in replaced_names
    )
    return [function for function in check_functions if function is not None]


#: The maximum number of existing pods that are checked against a changed policy.
PODS_MAX: Final = 3000


def namespace_warnings(new: Obj, old: Obj, existing_pods: Sequence[Obj]) -> tuple[str, ...]:
    """Return the warnings about the pods of a Namespace that violate the stricter level of its changed labels."""
    labels = (obj["metadata"].get("labels") or {} for obj in (new, old))
    new_level, old_level = (namespace_policy(each).enforce for each in labels)
    is_no_stricter = new_level.minor == old_level.minor and new_level.strictness <= old_level.strictness
    if is_no_stricter or not new_level.strictness:
        return ()
    name = new["metadata"]["name"]
    pods = _order_pods(existing_pods)
    pods_by_reasons: dict[str, list[str]] = {}
    for pod in pods[:PODS_MAX]:
        result = evaluate_pod(new_level, pod["metadata"], pod["spec"])
        if result.violations:
            pods_by_reasons.setdefault(result.reasons, []).append(pod["metadata"]["name"])
    warnings = []
    if len(pods) > PODS_MAX:
        checked_text = f"first {PODS_MAX} of {len(pods)} existing pods"
        warnings.append(f"new PodSecurity enforce level only checked against the {checked_text}")
    if pods_by_reasons:
        warnings.append(f'existing pods in namespace "{name}" violate the new PodSecurity enforce level "{new_level}"')
    return (*warnings, *sorted(_pods_text(names, reasons) for reasons, names in pods_by_reasons.items()))


def _order_pods(pods: Sequence[Obj]) -> list[Obj]:
    """Return the pods without controller and the first pod of each controller, then all other pods."""
    first_of_each_owner: list[Obj] = []
    other_pods: list[Obj] = []
    owner_uids: set[str] = set()
    for pod in pods:
        controller_owner = controller_of(pod)
        uid = "" if controller_owner is None else controller_owner["uid"]
        (other_pods if uid in owner_uids else first_of_each_owner).append(pod)
        if uid:
            owner_uids.add(uid)
    return first_of_each_owner + other_pods


def _pods_text(names: Sequence[str], reasons: str) -> str:
    other_count = len(names) - 1
    others_text = f" (and {other_count} other {'pod' if other_count == 1 else 'pods'})" if other_count else ""
    return f"{min(names)}{others_text}: {reasons}"
