"""States: all objects of a platform at an instant, from which a simulated world goes on (batchyard.sim.world).

What runs goes on for as long as it had left: pods and Workloads say since when they run. A state that was read from a
file or a cluster holds no Leases, Events and Secrets: nobody decides by them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.kueue_configuration import SIMULATED, KueueSettings
from batchyard.store.log import Recovered

#: What is left out where a state is read from elsewhere.
LEFT_OUT: Final = frozenset({scheme.LEASE, scheme.EVENT, scheme.SECRET})


@dataclass(frozen=True, slots=True)
class State:
    """See the module."""

    #: When it was so.
    at: Instant
    #: The revision of the last change.
    revision: int
    objects: Mapping[Key, Obj]
    #: What users applied last, as the manifests said it.
    applied: Mapping[Key, Obj] = field(default_factory=dict)
    #: Kinds that whoever read it might not list: nothing is known of their objects.
    unread: Sequence[str] = ()
    #: Kueue's Configuration there, if it is known, and what is decided by.
    configuration: Obj | None = None
    kueue: KueueSettings = SIMULATED

    @property
    def has_nodes(self) -> bool:
        """Whether there are nodes, or a Cluster that says which there could be."""
        return any(key.kind in {scheme.NODE, scheme.CLUSTER} for key in self.objects)

    @property
    def cluster(self) -> Obj | None:
        """The Cluster, if there is one. It looks through all objects."""
        return next(iter(self.of_kind(scheme.CLUSTER)), None)

    def of_kind(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind, in no particular order."""
        return [obj for key, obj in self.objects.items() if key.kind == kind]

    def recovered(self) -> Recovered:
        """What a store goes on from."""
        return Recovered(self.revision, self.objects, ())

    def shown(self) -> list[WatchEvent]:
        """The objects as if each were added now, kind by kind: what controllers are shown after a restart."""
        return as_added(sorted(self.objects.values(), key=lambda obj: int(obj["metadata"]["resourceVersion"])))


def as_added(objects: Iterable[Obj]) -> list[WatchEvent]:
    """Objects that were there before, told as if each were added now."""
    return [WatchEvent(EventType.ADDED, key_of(o), o, None, int(o["metadata"]["resourceVersion"])) for o in objects]
