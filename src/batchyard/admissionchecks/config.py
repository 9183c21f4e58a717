"""ProvisioningRequestConfig of an AdmissionCheck.

Source: Kueue's apis/kueue/v1beta2 (its defaults included) and pkg/util/admissioncheck.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.conditions import find_condition, with_condition
from batchyard.api.meta import Key, Obj, with_path
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.cluster_queue import PROVISIONING
from batchyard.scheduling.workload.checks import checks_of

_GROUP: Final = "kueue.x-k8s.io"
_KIND: Final = "ProvisioningRequestConfig"
_NOTHING: Final[Mapping[str, Any]] = {}


class NodeSelectorUpdate(NamedTuple):
    """A node selector key, and the detail of the request that gives its value."""

    key: str
    detail: str


@dataclass(frozen=True, slots=True)
class ProvisioningConfig:
    """The values of a ProvisioningRequestConfig."""

    class_name: str
    parameters: Mapping[str, str]
    #: Pod sets that request none of these need no capacity; if empty, all pod sets need it.
    managed_resources: tuple[str, ...]
    retries_max: int
    backoff_base: Duration
    backoff_max: Duration
    #: Which pod sets share a template: IdenticalPodTemplates, IdenticalWorkloadSchedulingRequirements, '' for none.
    merge_policy: str
    node_selector: tuple[NodeSelectorUpdate, ...]


class InvalidConfig(NamedTuple):
    """Why the config cannot be used, in Kueue's words."""

    message: str


def find_config(check: Obj, reader: Reader) -> ProvisioningConfig | InvalidConfig:
    """Return the config of an AdmissionCheck, or why there is none."""
    name = config_name(check)
    if isinstance(name, InvalidConfig):
        return name
    found = reader.get(Key(scheme.PROVISIONING_REQUEST_CONFIG, "", name))
    if found is None:
        return InvalidConfig(f'{scheme.PROVISIONING_REQUEST_CONFIG} "{name}" not found')
    return _config(found["spec"])


def config_name(check: Obj) -> str | InvalidConfig:
    """Return the name of the config of an AdmissionCheck, or why there is none."""
    reference = check["spec"].get("parameters")
    if reference is None:
        return InvalidConfig("missing parameters reference")
    name, group, kind = (reference.get(field) or "" for field in ("name", "apiGroup", "kind"))
    if not name:
        return InvalidConfig("empty name: bad parameters reference")
    if group != _GROUP:
        return InvalidConfig(f'wrong group "{group}", expecting "{_GROUP}": bad parameters reference')
    if kind != _KIND:
        return InvalidConfig(f'wrong kind "{kind}", expecting "{_KIND}": bad parameters reference')
    return str(name)


def _config(spec: Mapping[str, Any]) -> ProvisioningConfig:
    retry = spec.get("retryStrategy") or _NOTHING
    updates = (spec.get("podSetUpdates") or _NOTHING).get("nodeSelector") or ()
    return ProvisioningConfig(
        class_name=spec.get("provisioningClassName", ""),
        parameters=spec.get("parameters") or _NOTHING,
        managed_resources=tuple(spec.get("managedResources") or ()),
        retries_max=retry.get("backoffLimitCount", 3),
        backoff_base=retry.get("backoffBaseSeconds", 60) * SECOND,
        backoff_max=retry.get("backoffMaxSeconds", 1800) * SECOND,
        merge_policy=spec.get("podSetMergePolicy") or "",
        node_selector=tuple(NodeSelectorUpdate(u["key"], u["valueFromProvisioningClassDetail"]) for u in updates),
    )


# --- users ---
#
# Indexes of the AdmissionChecks and Workloads affected by a change of a config or check, built only from watch events.


class ConfigUsers:
    """AdmissionChecks by config."""

    def __init__(self) -> None:
        self._checks: dict[str, dict[str, None]] = {}

    def note(self, event: WatchEvent) -> None:
        """Process a change of an AdmissionCheck."""
        name, before, after = event.key.name, _config_of(event.old), _config_of(_now(event))
        if before != after:
            self._checks.get(before, {}).pop(name, None)
        self._checks.setdefault(after, {})[name] = None

    def of(self, config: str) -> Iterable[str]:
        """Return the checks that reference a config."""
        return list(self._checks.get(config, ()))


class CheckUsers:
    """Workloads by AdmissionCheck."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def note(self, event: WatchEvent) -> bool:
        """Process a change of a Workload. Return whether it has or had checks."""
        before, after = _checks_of(event.old), _checks_of(_now(event))
        if not (before or after):
            return False
        for name in before:
            if name not in after:
                self._workloads.get(name, {}).pop(event.key, None)
        for name in after:
            self._workloads.setdefault(name, {})[event.key] = None
        return True

    def of(self, check: str) -> Iterable[Key]:
        """Return the Workloads that have a check."""
        return list(self._workloads.get(check, ()))


def owners_of(obj: Obj) -> list[Key]:
    """Return the Workloads that own an object."""
    namespace = obj["metadata"].get("namespace", "")
    owners = obj["metadata"].get("ownerReferences") or ()
    return [Key(scheme.WORKLOAD, namespace, owner["name"]) for owner in owners if owner["kind"] == "Workload"]


def _now(event: WatchEvent) -> Obj | None:
    return None if event.type is EventType.DELETED else event.obj


def _config_of(check: Obj | None) -> str:
    """Return the config name of an AdmissionCheck; '' if it has none."""
    name = "" if check is None else config_name(check)
    return "" if isinstance(name, InvalidConfig) else name


def _checks_of(workload: Obj | None) -> Sequence[str]:
    checks = () if workload is None else checks_of(workload)
    return [check["name"] for check in checks] if checks else ()


# --- checks ---
#
# Maintains the Active condition of the provisioning controller's AdmissionChecks: whether their config exists.
#
# Source: admissioncheck_reconciler.go beside Kueue's provisioning controller.


class ProvisioningChecks:
    """Maintains the Active condition of these AdmissionChecks."""

    name = "provisioning-checks"
    rank = 0
    kinds = (scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG)

    def __init__(self) -> None:
        self._users = ConfigUsers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the check, or all checks that reference a config."""
        if event.key.kind == scheme.PROVISIONING_REQUEST_CONFIG:
            return [Key(scheme.ADMISSION_CHECK, "", name) for name in self._users.of(event.key.name)]
        self._users.note(event)
        return (event.key,) if event.type is not EventType.DELETED else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the Active condition; the message changes only together with the status."""
        check = reader.get(key)
        if check is None or check["spec"].get("controllerName") != PROVISIONING:
            return ReconcileResult()
        config = find_config(check, reader)
        active = not isinstance(config, InvalidConfig)
        old = find_condition(check, "Active")
        if old is not None and (old["status"] == "True") == active:
            return ReconcileResult()
        conditions = with_condition(
            (check.get("status") or {}).get("conditions") or [],
            type="Active",
            status=active,
            reason="Active" if active else "BadParametersRef",
            message=config.message if isinstance(config, InvalidConfig) else "The admission check is active",
            now=now,
            generation=check["metadata"].get("generation"),
        )
        return ReconcileResult([UpdateStatus(with_path(check, ("status", "conditions"), conditions))])
