"""Controllers look at no other kinds than their groups name, so that an operator knows what to watch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient
from batchyard.controllers.groups import REMOTE, kinds_seen
from batchyard.kernel import VirtualKernel
from batchyard.ports.client import Reader
from batchyard.ports.controller import Controller, Outcome
from batchyard.sim.world import World
from batchyard.store.memory import Store
from batchyard.wiring import Ports, Settings, build_platform
from contract import scenes
from contract.places import InProcess

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

    def owned_by(self, uid: str) -> Sequence[Obj]:
        return self._reader.owned_by(uid)  # of what kinds they are is for whoever asks to look at


class Observed:
    """A controller whose looks are noted."""

    def __init__(self, controller: Controller, seen: dict[str, None]) -> None:
        self._controller = controller
        self._seen = seen
        self.name, self.rank, self.kinds = controller.name, controller.rank, controller.kinds
        self.keys_for = controller.keys_for

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        return self._controller.reconcile(key, Noting(reader, self._note), now)

    def _note(self, kind: str) -> None:
        self._seen[kind] = None


def names_in(group: str) -> list[str]:
    """The controllers of a group."""
    kernel = VirtualKernel()
    ports = Ports(kernel, LocalClient(Store(), kernel), (), (), lambda *_: None, lambda _: None)
    platform = build_platform(ports, replace(Settings(with_nodes=True), controllers=(group,)))
    return [load.name for load in platform.runner.loads()]


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, None]]:
    """The kinds that every controller has looked at."""
    found: dict[str, dict[str, None]] = {}
    for scene in SCENES:
        near = InProcess(scene)
        observe(near.world, found)
        for step in scene.steps:
            near.play(step)
    return found


def observe(world: World, found: dict[str, dict[str, None]]) -> None:
    for lane in world.platform.runner._queue.lanes:
        kinds = found.setdefault(lane.controller.name, dict.fromkeys(lane.controller.kinds or ()))
        lane.controller = Observed(lane.controller, kinds)


@pytest.mark.parametrize("group", REMOTE)
def test_a_group_names_all_kinds_that_its_controllers_look_at(group: str, seen: dict[str, Any]) -> None:
    named = kinds_seen([group])
    for name in names_in(group):
        assert [kind for kind in seen.get(name, ()) if kind not in named] == [], name


def test_much_was_looked_at(seen: dict[str, Any]) -> None:
    assert scheme.RESOURCE_FLAVOR in seen["job"]
    assert scheme.JOB in seen["jobset-controller"]
    assert scheme.WORKLOAD in seen["placement"]
