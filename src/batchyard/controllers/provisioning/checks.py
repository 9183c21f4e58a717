"""Tells whether the AdmissionChecks of the provisioning controller can be answered: whether their config is there.

Source: admissioncheck_reconciler.go beside Kueue's provisioning controller.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.conditions import find_condition, with_condition
from batchyard.api.meta import Key, with_path
from batchyard.base.instant import Instant
from batchyard.controllers.provisioning.config import Missing, find_config
from batchyard.controllers.provisioning.users import ConfigUsers
from batchyard.core.readiness import PROVISIONING
from batchyard.ports.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.ports.controller import Outcome


class ProvisioningChecks:
    """Keeps the Active condition of these AdmissionChecks."""

    name = "provisioning-checks"
    rank = 0
    kinds = (scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG)

    def __init__(self) -> None:
        self._users = ConfigUsers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The check; all that name a config."""
        if event.key.kind == scheme.PROVISIONING_REQUEST_CONFIG:
            return [Key(scheme.ADMISSION_CHECK, "", name) for name in self._users.of(event.key.name)]
        self._users.note(event)
        return (event.key,) if event.type is not EventType.DELETED else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Say whether the check is active; why not is said once."""
        check = reader.get(key)
        if check is None or check["spec"].get("controllerName") != PROVISIONING:
            return Outcome()
        config = find_config(check, reader)
        active = not isinstance(config, Missing)
        old = find_condition(check, "Active")
        if old is not None and (old["status"] == "True") == active:
            return Outcome()
        conditions = with_condition(
            (check.get("status") or {}).get("conditions") or [],
            type="Active",
            status=active,
            reason="Active" if active else "BadParametersRef",
            message=config.message if isinstance(config, Missing) else "The admission check is active",
            now=now,
            generation=check["metadata"].get("generation"),
        )
        return Outcome([UpdateStatus(with_path(check, ("status", "conditions"), conditions))])
