"""Who is concerned when a check or its config changes: an index that the same watch events would build again."""

from collections.abc import Iterable, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.controllers.provisioning.config import Missing, config_name
from batchyard.core.lifecycle.checks import checks_of
from batchyard.ports.client import EventType, WatchEvent


class ConfigUsers:
    """Which AdmissionChecks name which config."""

    def __init__(self) -> None:
        self._checks: dict[str, dict[str, None]] = {}

    def note(self, event: WatchEvent) -> None:
        """Take note of a change of an AdmissionCheck."""
        name, before, after = event.key.name, _config_of(event.old), _config_of(_now(event))
        if before != after:
            self._checks.get(before, {}).pop(name, None)
        self._checks.setdefault(after, {})[name] = None

    def of(self, config: str) -> Iterable[str]:
        """The checks that name a config."""
        return list(self._checks.get(config, ()))


class CheckUsers:
    """Which Workloads have which check."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[Key, None]] = {}

    def note(self, event: WatchEvent) -> bool:
        """Take note of a change of a Workload; whether it has checks, or had."""
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
        """The Workloads that have a check."""
        return list(self._workloads.get(check, ()))


def owners_of(obj: Obj) -> list[Key]:
    """The Workloads an object belongs to."""
    namespace = obj["metadata"].get("namespace", "")
    owners = obj["metadata"].get("ownerReferences") or ()
    return [Key(scheme.WORKLOAD, namespace, owner["name"]) for owner in owners if owner["kind"] == "Workload"]


def _now(event: WatchEvent) -> Obj | None:
    return None if event.type is EventType.DELETED else event.obj


def _config_of(check: Obj | None) -> str:
    """The config an AdmissionCheck names; '' for none."""
    name = "" if check is None else config_name(check)
    return "" if isinstance(name, Missing) else name


def _checks_of(workload: Obj | None) -> Sequence[str]:
    checks = () if workload is None else checks_of(workload)
    return [check["name"] for check in checks] if checks else ()
