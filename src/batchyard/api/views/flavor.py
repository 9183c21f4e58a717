"""The view of a ResourceFlavor."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.views.pod import Taint, Toleration, taint, toleration

_SCHEDULING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor: the labels and taints of its nodes, the tolerations it brings along."""

    name: str
    labels: Mapping[str, str]
    #: Only those that keep pods away.
    taints: tuple[Taint, ...]
    tolerations: tuple[Toleration, ...]


def flavor_view(obj: Obj) -> Flavor:
    """The view of a ResourceFlavor."""
    spec = obj.get("spec") or {}
    taints = map(taint, spec.get("nodeTaints") or ())
    return Flavor(
        name=obj["metadata"]["name"],
        labels=spec.get("nodeLabels") or {},
        taints=tuple(t for t in taints if t.effect in _SCHEDULING_EFFECTS),
        tolerations=tuple(map(toleration, spec.get("tolerations") or ())),
    )
