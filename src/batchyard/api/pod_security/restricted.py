"""The checks of the level `restricted`. Source: k8s.io/pod-security-admission, policy/check_*.go."""

from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.pod_security.baseline import bad_seccomp_type, seccomp_profile
from batchyard.api.pod_security.violations import (
    CheckPod,
    Violation,
    containers,
    has_user_namespace,
    is_of_windows,
    named,
    plural,
    quoted,
    security,
    selected,
    setters,
    uses,
)

_VOLUMES: Final = frozenset(
    {
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
#: In the order in which the type of a volume is looked for.
_RESTRICTED_VOLUMES: Final = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "iscsi", "glusterfs", "rbd"),
    *("flexVolume", "cinder", "cephfs", "flocker", "fc", "azureFile", "vsphereVolume", "quobyte", "azureDisk"),
    *("photonPersistentDisk", "portworxVolume", "scaleIO", "storageos"),
)
_NET_BIND_SERVICE: Final = "NET_BIND_SERVICE"


def allow_privilege_escalation(_metadata: Obj, spec: Obj) -> Violation | None:
    """Containers gain no privileges."""
    names = selected(spec, lambda container: security(container).get("allowPrivilegeEscalation") is not False)
    detail = f"{named('container', names)} must set securityContext.allowPrivilegeEscalation=false"
    return Violation("allowPrivilegeEscalation != false", detail) if names else None


def capabilities(_metadata: Obj, spec: Obj) -> Violation | None:
    """Containers drop all capabilities, and add at most the one to bind low ports."""

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
    return Violation("unrestricted capabilities", "; ".join(details)) if details else None


def volume_types(_metadata: Obj, spec: Obj) -> Violation | None:
    """Volumes are of the types that depend on nothing of the node."""
    volumes = spec.get("volumes") or ()
    bad = [volume for volume in volumes if not any(volume.get(field) is not None for field in _VOLUMES)]
    # Kubernetes makes a volume without a source an emptyDir before it looks at it.
    bad = [volume for volume in bad if any(volume[field] is not None for field in volume if field != "name")]
    if not bad:
        return None
    types = sorted({_volume_type(volume) for volume in bad})
    names = [volume["name"] for volume in bad]
    what = f"{plural('restricted volume type', len(types))} {quoted(types)}"
    return Violation("restricted volume types", f"{named('volume', names)} {uses(len(names))} {what}")


def _volume_type(volume: Obj) -> str:
    return next((field for field in _RESTRICTED_VOLUMES if volume.get(field) is not None), "unknown")


def run_as_non_root(_metadata: Obj, spec: Obj) -> Violation | None:
    """The pod or each container runs as another user than root."""
    reason, wanted = "runAsNonRoot != true", security(spec).get("runAsNonRoot")
    explicit = selected(spec, lambda container: security(container).get("runAsNonRoot") is False)
    if subject := setters(explicit, by_pod=wanted is False):
        return Violation(reason, f"{subject} must not set securityContext.runAsNonRoot=false")
    implicit = selected(spec, lambda container: security(container).get("runAsNonRoot") is None)
    if wanted is True or not implicit:
        return None
    return Violation(reason, f"pod or {named('container', implicit)} must set securityContext.runAsNonRoot=true")


def run_as_user(_metadata: Obj, spec: Obj) -> Violation | None:
    """Neither the pod nor a container asks for the user root."""

    def is_root(part: Obj) -> bool:
        user = security(part).get("runAsUser")
        return user is not None and user == 0

    subject = setters(selected(spec, is_root), by_pod=is_root(spec))
    return Violation("runAsUser=0", f"{subject} must not set runAsUser=0") if subject else None


def seccomp_profile_set(metadata: Obj, spec: Obj) -> Violation | None:
    """The pod or each container sets a seccomp profile, which is the runtime's or a local one."""
    if (violation := seccomp_profile(metadata, spec)) is not None:
        return violation
    if security(spec).get("seccompProfile") is not None and bad_seccomp_type(spec) is None:
        return None
    names = selected(spec, lambda container: security(container).get("seccompProfile") is None)
    if not names:
        return None
    wanted = 'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    return Violation("seccompProfile", f"pod or {named('container', names)} {wanted}")


def except_on_windows(check: CheckPod) -> CheckPod:
    """The check, which passes pods of Windows."""
    return lambda metadata, spec: None if is_of_windows(spec) else check(metadata, spec)


def except_in_user_namespaces(check: CheckPod) -> CheckPod:
    """The check, which passes pods with a user namespace of their own."""
    return lambda metadata, spec: None if has_user_namespace(spec) else check(metadata, spec)
