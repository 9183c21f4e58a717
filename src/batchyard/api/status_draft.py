"""A draft of a status: copied once, changed in place, handed over once.

A transition often sets four conditions. One draft costs a third of creating a new list for each.
"""

from typing import Any

from batchyard.api.conditions import Condition, cut_message
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant


class StatusDraft:
    """The status and conditions of one object while a transition rewrites them."""

    __slots__ = ("_conditions_changed", "_generation", "_obj", "changed", "conditions", "now", "status", "time")

    def __init__(self, obj: Obj, now: Instant) -> None:
        self._obj = obj
        self._generation = obj["metadata"].get("generation")
        self._conditions_changed = False
        self.status: dict[str, Any] = dict(obj.get("status") or ())
        #: By type, in the order of the status.
        self.conditions: dict[str, Condition] = {c["type"]: c for c in self.status.get("conditions") or ()}
        self.now = now
        self.time = format_time(now)
        self.changed = False

    def result(self) -> Obj:
        """Return the object with the new status; the original object if nothing changed."""
        if not (self.changed or self._conditions_changed):
            return self._obj
        if self._conditions_changed:
            self.status["conditions"] = list(self.conditions.values())
        return {**self._obj, "status": self.status}

    def is_true(self, kind: str) -> bool:
        """Report whether the condition of that type is True."""
        condition = self.conditions.get(kind)
        return condition is not None and condition["status"] == "True"

    def set_condition(self, kind: str, holds: bool, reason: str, message: str, observed: bool = True) -> None:
        """Set a condition, like apimachinery's SetStatusCondition; `observed` sets the observed generation."""
        status = "True" if holds else "False"
        old = self.conditions.get(kind)
        since = self.time if old is None or old["status"] != status else old["lastTransitionTime"]
        new: dict[str, Any] = {"type": kind, "status": status}
        if observed and self._generation:
            new["observedGeneration"] = self._generation
        new["lastTransitionTime"] = since
        new["reason"] = reason
        new["message"] = cut_message(message)
        if new != old:
            self.conditions[kind] = new
            self._conditions_changed = True

    def drop_condition(self, kind: str) -> None:
        """Remove a condition, if present."""
        if self.conditions.pop(kind, None) is not None:
            self._conditions_changed = True

    def set_field(self, name: str, value: object) -> None:
        """Set a field of the status."""
        self.status[name] = value
        self.changed = True

    def drop_fields(self, *names: str) -> None:
        """Remove fields of the status, if present."""
        for name in names:
            if name in self.status:
                del self.status[name]
                self.changed = True
