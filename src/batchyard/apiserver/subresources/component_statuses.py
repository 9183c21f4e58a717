"""ComponentStatuses: the health of the control plane. All components share one process, so all report healthy.

Source: Kubernetes's pkg/registry/core/componentstatus.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column
from batchyard.apiserver.resources import Resource
from batchyard.apiserver.virtual_resources import ComputedStrategy, derived, unstored_kind
from batchyard.base.instant import Instant

_KIND: Final = "ComponentStatus"
_NAMES: Final = ("controller-manager", "journal", "scheduler")
_DEPRECATION: Final = "v1 ComponentStatus is deprecated in v1.19+"


def component_statuses(now: Callable[[], Instant]) -> Resource:
    """Return the ComponentStatuses as a resource."""
    info = unstored_kind("", "v1", _KIND, "componentstatuses", "componentstatus", namespaced=False)
    info = replace(info, short_names=("cs",), deprecated_versions=("v1",), deprecation=_DEPRECATION)
    table = (
        (Column("Name"), cells.name),
        (Column("Status"), lambda _obj, _now: "Healthy"),
        (Column("Message"), lambda obj, _now: str(obj["conditions"][0]["message"])),
        (Column("Error"), lambda _obj, _now: ""),
    )
    return derived(ComputedStrategy(info, table), info, _Components(), now)


class _Components:
    """The components of the control plane."""

    def found(self, _namespace: str) -> Sequence[Obj]:
        """Return all component statuses."""
        return [_component_status(name) for name in _NAMES]

    def one(self, _namespace: str, name: str) -> Obj | None:
        """Return the status of one component."""
        return _component_status(name) if name in _NAMES else None


def _component_status(name: str) -> Obj:
    condition = {"type": "Healthy", "status": "True", "message": "ok"}
    return {"kind": _KIND, "apiVersion": "v1", "metadata": {"name": name}, "conditions": [condition]}
