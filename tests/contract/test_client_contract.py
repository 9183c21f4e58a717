"""The contract of clients: writes take effect, events precede results, and both arrive only through the kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api import scheme
from batchyard.api.errors import Conflict, InvalidObject, NotFound
from batchyard.api.meta import Key, Obj, key_of, with_metadata, with_path, with_status
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    ObjectClient,
    Update,
    UpdateStatus,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.store.memory import Store
from unit.client.client_and_server import ClientAndServer

KIND = scheme.POD_DISRUPTION_BUDGET


@dataclass
class ClientBench:
    """A client, a function that runs all work, and the ordered reports of the client."""

    client: ObjectClient
    run: Callable[[], object]
    check: Callable[[], None]
    reported: list[object] = field(default_factory=list)
    results: list[WriteResult | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client.subscribe(self.reported.extend)

    def submit(self, write: Write) -> None:
        """Write, and record the result at the position of the write."""
        at = len(self.results)
        self.results.append(None)

        def done(result: WriteResult) -> None:
            self.reported.append(result)
            self.results[at] = result

        self.client.submit([write], done)

    def write(self, write: Write) -> Obj:
        """Write, run all work, and return the object."""
        results: list[WriteResult] = []
        self.client.submit([write], results.append)
        self.run()
        (result,) = results
        if result.error is not None:
            raise result.error
        assert result.obj is not None
        return result.obj

    def events(self) -> list[tuple[EventType, str]]:
        return [(event.type, event.key.name) for event in self.reported if isinstance(event, WatchEvent)]


def local() -> ClientBench:
    store, kernel = Store(detect_mutation=True), VirtualEventLoop(1_767_225_600_000_000)
    client = LocalClient(store, kernel)

    def check() -> None:
        store.validate()
        store.check_unchanged()

    return ClientBench(client, kernel.run, check)


def rest() -> ClientBench:
    served = ClientAndServer([KIND])
    served.client.start()
    served.kernel.run()
    return ClientBench(served.client, served.kernel.run, served.api.stored.store.validate)


CLIENTS = [pytest.param(local, id="local"), pytest.param(rest, id="rest")]


@pytest.fixture(params=CLIENTS)
def world(request: pytest.FixtureRequest) -> ClientBench:
    created: ClientBench = request.param()
    return created


def key(name: str) -> Key:
    return Key(KIND, "team", name)


def budget(name: str = "a", **metadata: Any) -> Obj:
    own = {"name": name, "namespace": "team", **metadata}
    kind = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    return {**kind, "metadata": own, "spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow", "minAvailable": 0}}


def status(number: int) -> dict[str, int]:
    return {"currentHealthy": number, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0}


def metadata_of(obj: Obj, *fields: str) -> list[Any]:
    return [obj["metadata"].get(name) for name in fields]


def test_created_object_can_be_read_and_listed(world: ClientBench) -> None:
    stored = world.write(Create(budget()))
    assert world.client.get(key("a")) == stored
    assert list(world.client.list(KIND)) == [stored]
    assert list(world.client.list(KIND, "other")) == []
    assert world.client.get(key("b")) is None


def test_created_object_has_server_set_fields(world: ClientBench) -> None:
    stored = world.write(Create(budget()))
    uid, created, generation = metadata_of(stored, "uid", "creationTimestamp", "generation")
    assert len(uid) == 36
    assert created == "2026-01-01T00:00:00Z"
    assert generation == 1
    assert stored["metadata"]["resourceVersion"]


def test_create_of_existing_object_raises_conflict(world: ClientBench) -> None:
    world.write(Create(budget()))
    with pytest.raises(Conflict, match="already exists"):
        world.write(Create(budget()))


def test_create_without_name_is_invalid(world: ClientBench) -> None:
    with pytest.raises(InvalidObject):
        world.write(Create(budget("")))


@pytest.mark.parametrize("write", [Update(budget()), UpdateStatus(budget()), Delete(key("a"))])
def test_write_to_missing_object_raises_not_found(world: ClientBench, write: Write) -> None:
    with pytest.raises(NotFound):
        world.write(write)
    assert world.events() == []


@pytest.mark.parametrize("verb", [Update, UpdateStatus])
def test_stale_write_raises_conflict(world: ClientBench, verb: type[Update] | type[UpdateStatus]) -> None:
    read = world.write(Create(budget()))
    world.write(Update(with_path(read, ("spec", "minAvailable"), 1)))
    with pytest.raises(Conflict):
        world.write(verb(with_status(with_path(read, ("spec", "minAvailable"), 2), status(1))))


def test_last_write_wins_without_resource_version(world: ClientBench) -> None:
    world.write(Create(budget()))
    world.write(Update(with_path(budget(), ("spec", "minAvailable"), 1)))
    stored = world.write(Update(with_path(budget(), ("spec", "minAvailable"), 2)))
    assert stored["spec"]["minAvailable"] == 2
    assert stored["metadata"]["generation"] == 3


def test_status_and_spec_are_written_separately(world: ClientBench) -> None:
    world.write(Create(budget()))
    world.write(UpdateStatus(with_status(with_path(budget(), ("spec", "minAvailable"), 9), status(1))))
    stored = world.write(Update(with_status(with_path(budget(), ("spec", "minAvailable"), 3), status(2))))
    assert stored["spec"]["minAvailable"] == 3
    assert stored["status"] == status(1)
    assert stored["metadata"]["generation"] == 2


def test_unchanged_write_succeeds_without_event(world: ClientBench) -> None:
    stored = world.write(Create(budget()))
    world.reported.clear()
    assert world.write(Update(stored)) == stored
    assert world.write(UpdateStatus(stored)) == stored
    assert world.reported == []


def test_deleted_object_is_removed(world: ClientBench) -> None:
    stored = world.write(Create(budget()))
    assert world.write(Delete(key("a"))) == stored
    assert world.client.get(key("a")) is None
    assert world.events() == [(EventType.ADDED, "a"), (EventType.DELETED, "a")]


def test_finalizers_delay_deletion_until_last_is_removed(world: ClientBench) -> None:
    world.write(Create(budget(finalizers=["batchyard.dev/one", "batchyard.dev/two"])))
    marked = world.write(Delete(key("a")))
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert world.write(Delete(key("a"))) == marked
    still = world.write(Update(with_metadata(marked, finalizers=["batchyard.dev/two"])))
    assert world.client.get(key("a")) == still
    world.write(Update(with_metadata(still, finalizers=None)))
    assert world.client.get(key("a")) is None
    kinds = [kind for kind, _ in world.events()]
    assert kinds == [EventType.ADDED, EventType.MODIFIED, EventType.MODIFIED, EventType.DELETED]


def test_submit_reports_nothing_synchronously(world: ClientBench) -> None:
    world.submit(Create(budget()))
    assert world.reported == []
    world.run()
    assert len(world.reported) == 2
    assert world.client.is_settled()


def test_events_precede_write_results(world: ClientBench) -> None:
    for name in ("a", "b"):
        world.submit(Create(budget(name)))
    world.run()
    reported = [event.key.name if isinstance(event, WatchEvent) else "result" for event in world.reported]
    assert reported.index("a") < reported.index("b")
    assert reported.index("b") < len(reported) - 1
    assert reported.count("result") == 2
    assert reported[-1] == "result"


def test_results_of_writes_to_same_object_keep_order(world: ClientBench) -> None:
    results: list[WriteResult] = []
    writes: list[Write] = [Create(budget("b")), Create(budget("b")), Delete(key("b"))]
    for write in writes:
        world.client.submit([write], results.append)
    world.run()
    assert [result.error is None for result in results] == [True, False, True]


def test_write_from_result_callback_runs_later(world: ClientBench) -> None:
    order: list[str] = []

    def done(result: WriteResult) -> None:
        order.append("first")
        world.client.submit([Create(budget("b"))], lambda _: order.append("second"))
        order.append("submitted")

    world.client.submit([Create(budget("a"))], done)
    world.run()
    assert order == ["first", "submitted", "second"]


def test_owned_objects_are_found_by_owner_uid(world: ClientBench) -> None:
    owner = world.write(Create(budget("owner")))
    reference = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    for name in ("z", "y"):
        world.write(Create(budget(name, ownerReferences=[reference])))
    assert metadata_of(world.client.owned_by(reference["uid"], owner["metadata"]["namespace"])[0], "name") == ["y"]
    assert len(world.client.owned_by(reference["uid"], owner["metadata"]["namespace"])) == 2
    assert list(world.client.owned_by(reference["uid"], "elsewhere")) == []
    assert list(world.client.owned_by("nobody", "")) == []
    world.write(Delete(key("owner")))
    assert list(world.client.list(KIND)) == []


#: The only possible error of a write of a named object without a resourceVersion.
REFUSALS = {Create: Conflict, Update: NotFound, UpdateStatus: NotFound, Delete: NotFound}
STEPS = st.tuples(st.sampled_from("cusdo"), st.sampled_from("abcd"), st.sampled_from("abcd"), st.integers(0, 2))


def step_write(world: ClientBench, step: tuple[str, str, str, int]) -> Write:
    """Return a random write: some are rejected."""
    verb, name, other, number = step
    owner = world.client.get(key(other))
    uid = owner["metadata"]["uid"] if owner else "nobody"
    references = (
        [{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "name": other, "uid": uid}] if number else []
    )
    match verb:
        case "c":
            return Create(budget(name, ownerReferences=references, finalizers=["batchyard.dev/f"] * (number == 2)))
        case "u":
            return Update(
                with_path(
                    budget(name, finalizers=["batchyard.dev/f"] * (number == 1)), ("spec", "minAvailable"), number
                )
            )
        case "s":
            return UpdateStatus(with_status(budget(name), status(number)))
        case "o":
            return Update(budget(name, ownerReferences=references))
        case _:
            return Delete(key(name))


@pytest.mark.parametrize("make", CLIENTS)
@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=60))
def test_random_writes_leave_consistent_state(
    make: Callable[[], ClientBench], steps: list[tuple[tuple[str, str, str, int], bool]]
) -> None:
    world = make()
    writes: list[Write] = []
    for step, is_run in steps:
        writes.append(step_write(world, step))
        world.submit(writes[-1])
        if is_run:
            world.run()
    world.run()
    world.check()
    assert_answered(world, writes)
    assert_events_are_complete(world)
    assert_owners_are_indexed(world)


def assert_answered(world: ClientBench, writes: Sequence[Write]) -> None:
    """Check that each write has its result: the object, or the only possible error."""
    assert len([reported for reported in world.reported if isinstance(reported, WriteResult)]) == len(writes)
    for write, result in zip(writes, world.results, strict=True):
        assert result is not None
        expected = write.key if isinstance(write, Delete) else key_of(write.obj)
        if result.obj is None:
            assert type(result.error) is REFUSALS[type(write)]
        else:
            assert (key_of(result.obj), result.error) == (expected, None)


def assert_events_are_complete(world: ClientBench) -> None:
    """Check that the replayed events yield the current objects."""
    replayed: dict[Key, Obj] = {}
    for event in world.reported:
        if isinstance(event, WatchEvent):
            assert event.old == replayed.get(event.key)
            replayed[event.key] = event.obj
            if event.type is EventType.DELETED:
                del replayed[event.key]
    assert [replayed[at] for at in sorted(replayed)] == list(world.client.list(KIND))


def assert_owners_are_indexed(world: ClientBench) -> None:
    """Check that `owned_by` finds the same objects as a search through all objects."""
    objects = world.client.list(KIND)
    for uid in [obj["metadata"]["uid"] for obj in objects] + ["nobody"]:
        owned = [obj for obj in objects if uid in [o["uid"] for o in obj["metadata"].get("ownerReferences") or ()]]
        assert list(world.client.owned_by(uid, "")) == owned
