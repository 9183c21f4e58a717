"""Controllers read and write only the kinds that their groups list: an operator has only these rights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.views.pods import bound_node
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.client.transport import kind_of
from batchyard.controller_groups import (
    ADMISSION,
    BINDING,
    FINALIZERS,
    PODS,
    REMOTE_GROUPS,
    kinds_read,
    verbs_by_written_kind,
)
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, Write
from batchyard.interfaces.controller import Controller, ReconcileResult
from batchyard.sim.world import World
from batchyard.store.memory import Store
from batchyard.wiring import PlatformPorts, PlatformSettings, build_platform
from contract import scenes
from contract.environments import SimulatedEnvironment

_VERBS = {Create: "create", Update: "patch", UpdateStatus: "status", Delete: "delete"}
SCENES = (scenes.PREEMPTION, scenes.FAILING, scenes.PROVISIONING, scenes.HOTSWAP, scenes.FAILING_NODE)


class RecordingReader:
    """A reader that records the kinds of its reads."""

    def __init__(self, reader: Reader, note: Callable[[str], None]) -> None:
        self._reader = reader
        self._note = note

    def get(self, key: Key) -> Obj | None:
        self._note(key.kind)
        return self._reader.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        self._note(kind)
        return self._reader.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return self._reader.owned_by(uid, namespace)  # the caller checks their kinds


class RecordedController:
    """A controller whose reads and writes are recorded."""

    def __init__(self, controller: Controller, seen: dict[str, None], written: dict[tuple[str, str], None]) -> None:
        self._controller = controller
        self._seen = seen
        self._written = written
        self.name, self.rank, self.kinds = controller.name, controller.rank, controller.kinds
        self.keys_for = controller.keys_for

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        outcome = self._controller.reconcile(key, RecordingReader(reader, self._note), now)
        self._written.update(dict.fromkeys(each for write in outcome.writes for each in write_accesses(write, reader)))
        return outcome

    def _note(self, kind: str) -> None:
        self._seen[kind] = None


def names_in(group: str) -> list[str]:
    """Return the controllers of a group."""
    kernel = VirtualEventLoop()
    ports = PlatformPorts(kernel, LocalClient(Store(), kernel), (), (), lambda *_: None, lambda _: None)
    settings = PlatformSettings(with_nodes=True, with_topology=True)
    platform = build_platform(ports, replace(settings, controllers=(group,)))
    return [queue.name for queue in platform.runner.queue_stats()]


def write_accesses(write: Write, reader: Reader) -> Iterator[tuple[str, str]]:
    """Yield the kind and verb of a write, and the kinds of owners whose deletion the object now blocks."""
    yield kind_of(write), _VERBS[type(write)]
    if not isinstance(write, Delete):
        old = None if isinstance(write, Create) else reader.get(key_of(write.obj))
        if old is not None and kind_of(write) == scheme.POD and bound_node(write.obj) != bound_node(old):
            yield scheme.POD, BINDING
        before = {} if old is None else blocked_owners(old)
        for uid, kind in blocked_owners(write.obj).items():
            if uid not in before:
                yield kind, FINALIZERS


def blocked_owners(obj: Obj) -> dict[str, str]:
    """Return the kinds of the owners whose deletion an object blocks, by uid."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return {owner["uid"]: group_kind(owner) for owner in owners if owner.get("blockOwnerDeletion")}


class ControllerAccesses(NamedTuple):
    """The reads and writes of each controller."""

    seen: dict[str, dict[str, None]]
    written: dict[str, dict[tuple[str, str], None]]


@pytest.fixture(scope="module")
def accesses() -> ControllerAccesses:
    """The kinds that each controller has read, and its writes."""
    accesses = ControllerAccesses({}, {})
    for scene in SCENES:
        near = SimulatedEnvironment(scene)
        observe(near.world, accesses)
        for step in scene.steps:
            near.play(step)
    return accesses


def observe(world: World, accesses: ControllerAccesses) -> None:
    for queue in world.platform.runner._queue.queues:
        name = queue.controller.name
        kinds = accesses.seen.setdefault(name, dict.fromkeys(queue.controller.kinds or ()))
        queue.controller = RecordedController(queue.controller, kinds, accesses.written.setdefault(name, {}))


@pytest.mark.parametrize("group", REMOTE_GROUPS)
def test_group_lists_all_kinds_read_by_its_controllers(group: str, accesses: ControllerAccesses) -> None:
    # `described_job_rules` grants the rights on described kinds.
    described = scheme.DESCRIBED_KINDS if group in {ADMISSION, PODS} else ()
    referenced = scheme.REFERENCED_KINDS if group == ADMISSION else ()
    named = {*kinds_read([group]), *described, *referenced}
    for name in names_in(group):
        assert [kind for kind in accesses.seen.get(name, ()) if kind not in named] == [], name


@pytest.mark.parametrize("group", REMOTE_GROUPS)
def test_group_lists_all_writes_of_its_controllers(group: str, accesses: ControllerAccesses) -> None:
    named = verbs_by_written_kind([group])
    for name in names_in(group):
        assert [
            (kind, verb) for kind, verb in accesses.written.get(name, ()) if verb not in named.get(kind, ())
        ] == [], name


def test_scenes_cover_kinds_of_main_controllers(accesses: ControllerAccesses) -> None:
    seen = accesses.seen
    assert scheme.RESOURCE_FLAVOR in seen["job"]
    assert scheme.JOB in seen["jobset-controller"]
    assert scheme.WORKLOAD in seen["placement"]
    assert scheme.NODE in seen["scheduler"]
    assert (scheme.POD, BINDING) in accesses.written["placement"]
    assert (scheme.POD, "patch") in accesses.written["topology-ungater"]
    assert (scheme.WORKLOAD, "status") in accesses.written["node-failures"]
