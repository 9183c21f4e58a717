"""Controllers look at no other kinds than their groups name, and write nothing else: an operator has these rights."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.client.writes import kind_of
from batchyard.controller_groups import FINALIZERS, REMOTE, kinds_seen, kinds_written
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, Write
from batchyard.interfaces.controller import Controller, ReconcileResult
from batchyard.sim.world import World
from batchyard.store.memory import Store
from batchyard.wiring import PlatformSettings, Ports, build_platform
from contract import scenes
from contract.places import InProcess

_VERBS = {Create: "create", Update: "patch", UpdateStatus: "status", Delete: "delete"}
SCENES = (scenes.PREEMPTION, scenes.FAILING, scenes.PROVISIONING, scenes.HOTSWAP)


class Noting:
    """A reader that takes note of what is looked at."""

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
        return self._reader.owned_by(uid, namespace)  # of what kinds they are is for whoever asks to look at


class Observed:
    """A controller whose looks and writes are noted."""

    def __init__(self, controller: Controller, seen: dict[str, None], written: dict[tuple[str, str], None]) -> None:
        self._controller = controller
        self._seen = seen
        self._written = written
        self.name, self.rank, self.kinds = controller.name, controller.rank, controller.kinds
        self.keys_for = controller.keys_for

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        outcome = self._controller.reconcile(key, Noting(reader, self._note), now)
        self._written.update(dict.fromkeys(each for write in outcome.writes for each in written_of(write, reader)))
        return outcome

    def _note(self, kind: str) -> None:
        self._seen[kind] = None


def names_in(group: str) -> list[str]:
    """The controllers of a group."""
    kernel = VirtualEventLoop()
    ports = Ports(kernel, LocalClient(Store(), kernel), (), (), lambda *_: None, lambda _: None)
    platform = build_platform(ports, replace(PlatformSettings(with_nodes=True), controllers=(group,)))
    return [load.name for load in platform.runner.loads()]


def written_of(write: Write, reader: Reader) -> Iterator[tuple[str, str]]:
    """The kind of what is written, and what is done to it; the kinds of owners who wait from now on for it to go."""
    yield kind_of(write), _VERBS[type(write)]
    if not isinstance(write, Delete):
        old = None if isinstance(write, Create) else reader.get(key_of(write.obj))
        before = {} if old is None else waiting(old)
        for uid, kind in waiting(write.obj).items():
            if uid not in before:
                yield kind, FINALIZERS


def waiting(obj: Obj) -> dict[str, str]:
    """The owners that do not go before an object does: their kinds, by uid."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return {owner["uid"]: group_kind(owner) for owner in owners if owner.get("blockOwnerDeletion")}


class Found(NamedTuple):
    """What each controller did."""

    seen: dict[str, dict[str, None]]
    written: dict[str, dict[tuple[str, str], None]]


@pytest.fixture(scope="module")
def found() -> Found:
    """The kinds that every controller has looked at, and what it wrote."""
    found = Found({}, {})
    for scene in SCENES:
        near = InProcess(scene)
        observe(near.world, found)
        for step in scene.steps:
            near.play(step)
    return found


def observe(world: World, found: Found) -> None:
    for lane in world.platform.runner._queue.lanes:
        name = lane.controller.name
        kinds = found.seen.setdefault(name, dict.fromkeys(lane.controller.kinds or ()))
        lane.controller = Observed(lane.controller, kinds, found.written.setdefault(name, {}))


@pytest.mark.parametrize("group", REMOTE)
def test_a_group_names_all_kinds_that_its_controllers_look_at(group: str, found: Found) -> None:
    named = kinds_seen([group])
    for name in names_in(group):
        assert [kind for kind in found.seen.get(name, ()) if kind not in named] == [], name


@pytest.mark.parametrize("group", REMOTE)
def test_a_group_names_all_that_its_controllers_write(group: str, found: Found) -> None:
    named = kinds_written([group])
    for name in names_in(group):
        assert [(kind, verb) for kind, verb in found.written.get(name, ()) if verb not in named.get(kind, ())] == [], (
            name
        )


def test_much_was_looked_at(found: Found) -> None:
    seen = found.seen
    assert scheme.RESOURCE_FLAVOR in seen["job"]
    assert scheme.JOB in seen["jobset-controller"]
    assert scheme.WORKLOAD in seen["placement"]
