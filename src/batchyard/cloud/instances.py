"""The life of a machine: it boots, its Node registers and becomes ready, it is told to stop, it is switched off.

How long the steps take is drawn by the seed and the name of the machine. A Node goes with its machine, as the cloud
node lifecycle controller of Kubernetes has it. What is due is worked out from the Instance alone, so nothing is lost
when the controller starts anew.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, label, with_metadata, with_path, without_finalizer
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Duration, Instant, parse_duration
from batchyard.base.seeded_draws import triangular
from batchyard.cloud.catalog.instances import (
    BOOTING,
    NOTICE,
    PROVISIONING,
    RUNNING,
    STOPPING,
    begins_at,
    ends_at,
    find_reservation,
    in_phase,
    is_leaving,
    is_off,
    phase_of,
    since,
    stops_at,
)
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import awaits_drivers, made_ready, registered_node
from batchyard.cloud.catalog.pools import machine_of
from batchyard.cloud.catalog.prices import spread_of
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, Outcome


class Instances:
    """Takes every machine from one phase to the next."""

    name = "cloud-instances"
    rank = 0
    kinds = (scheme.INSTANCE,)

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The Instance."""
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Take the step that is due, or wait for it."""
        instance, cluster = reader.get(key), only_cluster(reader)
        node = reader.get(Key(scheme.NODE, "", key.name))
        if instance is None:
            return Outcome(_removal(node))
        if cluster is None:
            return Outcome()
        pool = reader.get(Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))
        return _Machine(instance, node, pool, cluster, self._seed).step(now)


def _removal(node: Obj | None) -> list[Write]:
    """A Node goes with its machine."""
    is_ours = node is not None and label(node, well_known.NODE_POOL) is not None
    return [Delete(Key(scheme.NODE, "", node["metadata"]["name"]))] if node is not None and is_ours else []


@dataclass(frozen=True, slots=True)
class _Machine:
    """An Instance, its Node if there is one, and what is said of it elsewhere."""

    instance: Obj
    node: Obj | None
    pool: Obj | None
    cluster: Obj
    seed: int

    def step(self, now: Instant) -> Outcome:
        """What is due, or when it will be."""
        if is_leaving(self.instance):
            return self._leave(now)
        phase, stop = phase_of(self.instance), stops_at(self.instance)
        if phase in {PROVISIONING, BOOTING}:
            stop = _first(stop, self._reservation_end())
        if stop is not None and stop <= now:
            key = Key(scheme.INSTANCE, "", self.instance["metadata"]["name"])
            return Outcome([Delete(key, uid=self.instance["metadata"].get("uid"))])
        if phase == PROVISIONING:
            return self._boot(now, stop)
        if phase == BOOTING:
            return self._register(now, stop)
        return self._run(now, stop) if phase == RUNNING else Outcome(requeue_at=stop)

    def _boot(self, now: Instant, stop: Instant | None) -> Outcome:
        due = since(self.instance) + self._drawn("provisioning")
        if due > now:
            return Outcome(requeue_at=_first(due, stop))
        return Outcome([UpdateStatus(in_phase(self.instance, BOOTING, now, startedAt=format_time(now)))])

    def _register(self, now: Instant, stop: Instant | None) -> Outcome:
        """Its kubelet makes the Node."""
        due = since(self.instance) + self._drawn("boot") + self._drawn("registration")
        if due > now or self.pool is None:
            return Outcome(requeue_at=_first(due, stop) if due > now else stop)
        longest = self.instance["spec"].get("maxRunDuration")
        stop = stop if longest is None else _first(now + parse_duration(longest), stop)
        fields = {} if stop is None else {"stopAt": format_time(stop)}
        writes: list[Write] = [UpdateStatus(in_phase(self.instance, RUNNING, now, **fields))]
        if self.node is None:
            writes.insert(0, Create(registered_node(self.instance, self.pool, self.cluster, now)))
        return Outcome(writes)

    def _reservation_end(self) -> Instant | None:
        """When the reservation it is of takes its machines back."""
        reservation = self._reservation()
        return None if reservation is None else ends_at(self.cluster, reservation)

    def _reservation_start(self) -> Instant:
        """When the reservation it is of begins: its node is prepared before, and ready then."""
        reservation = self._reservation()
        return 0 if reservation is None else begins_at(self.cluster, reservation)

    def _reservation(self) -> Mapping[str, Any] | None:
        named = None if self.pool is None else self.pool["spec"].get("reservation")
        return None if named is None else find_reservation(self.cluster, named)

    def _run(self, now: Instant, stop: Instant | None) -> Outcome:
        """Its Node becomes ready; when it is to stop it is told in time."""
        notice = None if stop is None else stop - NOTICE
        if notice is not None and notice <= now:
            return Outcome([UpdateStatus(in_phase(self.instance, STOPPING, now))])
        node = self.node
        if node is None or not awaits_drivers(node):
            return Outcome(requeue_at=notice)
        accelerated = self.pool is not None and machine_of(self.pool, catalog_of(self.cluster)).accelerator is not None
        due = max(
            since(self.instance) + self._drawn("drivers" if accelerated else "network"), self._reservation_start()
        )
        if due > now:
            return Outcome(requeue_at=_first(due, notice))
        name = node["metadata"]["name"]
        event = EventRecord(Key(scheme.NODE, "", name), "Normal", "NodeReady", f"Node {name} status is now: NodeReady")
        return Outcome([UpdateStatus(made_ready(node, now))], [event], notice)

    def _leave(self, now: Instant) -> Outcome:
        """It was given up: once it is off, its Node goes, and then the Instance."""
        off = self._off_at()
        if off > now:
            return Outcome(requeue_at=off)
        released = Update(without_finalizer(self.instance, well_known.INSTANCE_FINALIZER))
        if is_off(self.instance):
            return Outcome([*_removal(self.node), released])
        # The last that is seen of it says until when it was paid.
        told = with_path(self.instance, ("status", "stoppedAt"), format_time(now))
        released = Update(with_metadata(released.obj, resourceVersion=None))
        return Outcome([*_removal(self.node), UpdateStatus(told), released])

    def _off_at(self) -> Instant:
        """When one that was given up is off: at once, unless its system runs and must be shut down."""
        asked, stop = parse_time(self.instance["metadata"]["deletionTimestamp"]), stops_at(self.instance)
        if phase_of(self.instance) not in {RUNNING, STOPPING}:
            return asked
        off = asked + self._drawn("shutdown")
        return off if stop is None else min(off, max(stop, asked))

    def _drawn(self, step: str) -> Duration:
        """How long a step takes it. What a world starts with takes no time to be there."""
        if annotation(self.instance, well_known.INITIAL_INSTANCE) is not None and step != "shutdown":
            return 0
        catalog = catalog_of(self.cluster)
        spread = spread_of(step, catalog.machine(self.instance["spec"]["machineType"]), self.cluster, catalog)
        return triangular(*spread, self.seed, self.instance["metadata"]["name"], step)


def _first(one: Instant | None, other: Instant | None) -> Instant | None:
    """The earlier of two instants, where there are two."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
