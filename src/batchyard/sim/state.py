"""State: all objects of a platform at an instant, from which a simulation can start.

Running pods and Workloads continue for their remaining time, because the objects record their start. A state read from
a file or a cluster holds no Leases, Events or Secrets: no decision depends on them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.scheme import kind_info
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, KueueSettings
from batchyard.sim.faults import LastingFaults
from batchyard.store.memory import RecoveredStore

#: The kinds that are left out of a state that is read from a file or a cluster.
OMITTED_KINDS: Final = frozenset({scheme.LEASE, scheme.EVENT, scheme.SECRET})


@dataclass(frozen=True, slots=True)
class State:
    """The objects of a platform at an instant, and the settings of its scheduler."""

    #: The instant of the state.
    at: Instant
    #: The revision of the last change.
    revision: int
    objects: Mapping[Key, Obj]
    #: The manifest that users applied last, by object.
    last_applied_manifests: Mapping[Key, Obj] = field(default_factory=dict)
    #: Kinds whose objects are unknown, because the user was not allowed to list them.
    unread_kinds: Sequence[str] = ()
    #: Kueue's Configuration, if it is known, and the scheduler settings.
    configuration: Obj | None = None
    kueue: KueueSettings = SIMULATION_SETTINGS
    #: Whether the source of the state records its time; if not, `at` is the latest timestamp in the objects.
    is_time_recorded: bool = True
    #: The lasting faults of a simulation that are under way.
    lasting_faults: LastingFaults = field(default_factory=LastingFaults)

    @property
    def has_nodes(self) -> bool:
        """Whether the state has nodes, or a Cluster that describes nodes."""
        return any(key.kind in {scheme.NODE, scheme.CLUSTER} for key in self.objects)

    @property
    def cluster(self) -> Obj | None:
        """Return the Cluster object, or None; scans all objects."""
        return next(iter(self.of_kind(scheme.CLUSTER)), None)

    def of_kind(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind, in no particular order."""
        return [obj for key, obj in self.objects.items() if key.kind == kind]

    def recovered_store(self) -> RecoveredStore:
        """Return the objects and the revision with which a store starts."""
        return RecoveredStore(self.revision, self.objects, ())

    def added_events(self) -> list[WatchEvent]:
        """Return the objects as ADDED events by revision, as a controller receives existing objects after a restart."""
        return to_added_events(sorted(self.objects.values(), key=lambda obj: int(obj["metadata"]["resourceVersion"])))


def to_added_events(objects: Iterable[Obj]) -> list[WatchEvent]:
    """Return ADDED events for existing objects."""
    return [WatchEvent(EventType.ADDED, key_of(o), o, None, int(o["metadata"]["resourceVersion"])) for o in objects]


# The consequences for answers if the objects of a kind could not be read from a cluster.


#: The suffix of batchyard's own API groups.
_OWN_GROUP_SUFFIX: Final = ".batchyard.dev"
#: The kinds without which no answer is possible.
REQUIRED_KINDS: Final = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD)
_CONSEQUENCES: Final = {
    scheme.NAMESPACE: "namespaceSelectors match by the namespace's name only",
    scheme.COHORT: "Cohorts count as having no quota of their own and no parents",
    scheme.PREEMPTION_CONFIG: "the rules of PreemptionConfigs select no victims",
    scheme.TOPOLOGY: "queues with flavors of a Topology count as inactive",
    scheme.ADMISSION_CHECK: "queues with AdmissionChecks count as inactive",
    scheme.PROVISIONING_REQUEST_CONFIG: "the settings of provisioning checks are unknown",
    scheme.PROVISIONING_REQUEST: "Workloads that wait for provisioned capacity are unknown",
    scheme.POD_TEMPLATE: "the capacity of ProvisioningRequests is unknown",
    scheme.LIMIT_RANGE: "violations of LimitRanges are not detected",
    scheme.PRIORITY_CLASS: "new jobs get no priority from a PriorityClass; existing ones keep theirs",
    scheme.WORKLOAD_PRIORITY_CLASS: "new jobs get no priority from one; existing ones keep theirs",
    scheme.JOB: "run times come from history only, and Jobs cannot be queried",
    scheme.JOB_SET: "JobSets cannot be queried, and their run times come from history only",
    scheme.POD: "nodes count as empty, and pods cannot be queried",
    scheme.NODE: "only quota is considered, no machines",
    scheme.POD_DISRUPTION_BUDGET: "pods count as having no disruption budgets",
    scheme.RESOURCE_QUOTA: "ResourceQuotas do not limit new pods",
}


def consequence_of_unread_kind(kind: str) -> str:
    """Return a text about the results that are unreliable because the objects of a kind could not be read."""
    served_kind = kind_info(kind)
    name = f"{served_kind.plural}.{served_kind.group}" if served_kind.group else served_kind.plural
    return f"{name}: {_CONSEQUENCES.get(kind, 'their content is ignored')}"


def consequences_of_unread_kinds(kinds: Iterable[str]) -> list[str]:
    """Return texts about the results that are unreliable because the objects of some kinds could not be read."""
    unread_kinds = list(kinds)
    own_kinds = [kind for kind in unread_kinds if kind.endswith(_OWN_GROUP_SUFFIX)]
    consequence_texts = [consequence_of_unread_kind(kind) for kind in unread_kinds if kind not in own_kinds]
    names = ", ".join(kind_info(kind).plural for kind in own_kinds)
    if own_kinds:
        consequence_texts.append(f"{names}: if this is a batchyard platform, the autoscaling of machines is unknown")
    return consequence_texts
