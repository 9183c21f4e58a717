"""The simulated world: applying, refusing, settling."""

from pathlib import Path

import pytest

import make
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.ports.client import Delete
from batchyard.sim.scenario import Scenario, Step, make_scenario
from batchyard.sim.world import StoppedByLoop, World

LIVELOCK = Path(__file__).with_name("livelock.yaml")
TEAM = Key(scheme.NAMESPACE, "", "team")


def namespace(**labels: str) -> make.Obj:
    """A Namespace as a user writes it."""
    obj = make.namespace(**labels)
    return {**obj, "metadata": {"name": "team", "labels": obj["metadata"]["labels"]}}


def world(*steps: Step) -> World:
    """A world with these steps."""
    return World(Scenario(steps))


def test_time_comes_to_where_the_run_was_to_go() -> None:
    empty = world()
    empty.run_until(7 * SECOND)
    assert empty.now() == 7 * SECOND


def test_a_later_document_is_an_update_that_keeps_the_uid() -> None:
    two = world(Step(0, [namespace()], ()), Step(SECOND, [namespace(tier="gold")], ()))
    two.run_until(0)
    (before,) = two.objects(scheme.NAMESPACE)
    two.run_until(None)
    (after,) = two.objects(scheme.NAMESPACE)
    assert after["metadata"]["labels"]["tier"] == "gold"
    assert after["metadata"]["uid"] == before["metadata"]["uid"]


def test_under_a_name_to_be_made_every_apply_makes_another() -> None:
    nameless = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "team-"}}
    two = world(Step(0, [nameless], ()), Step(SECOND, [nameless], ()))
    two.run_until(None)
    names = [obj["metadata"]["name"] for obj in two.objects(scheme.NAMESPACE)]
    assert [name[:5] for name in names] == ["team-", "team-"]
    assert names[0] != names[1]


def test_what_is_deleted_is_gone() -> None:
    brief = world(Step(0, [namespace()], ()), Step(SECOND, (), [TEAM]))
    brief.run_until(None)
    assert list(brief.objects(scheme.NAMESPACE)) == []


def test_deleting_what_is_not_there_is_refused_and_the_run_goes_on() -> None:
    odd = world(Step(0, (), [TEAM]), Step(SECOND, [namespace()], ()))
    odd.run_until(None)
    (refused,) = odd.refused
    assert (refused[0], refused[1].reason) == (Delete(TEAM), "NotFound")
    assert len(odd.objects(scheme.NAMESPACE)) == 1


def test_a_loop_stops_the_world_between_decisions() -> None:
    looping = World(make_scenario(read_manifests([("f", LIVELOCK.read_text("utf-8"))])), stop_on_loop=True)
    with pytest.raises(StoppedByLoop, match="without end: team/elastic preempts team/rigid"):
        looping.run_until(None)
    looping.settle()
    looping.platform.runner.validate()
    looping.store.validate()
    assert [queue["status"]["pendingWorkloads"] for queue in looping.objects(scheme.CLUSTER_QUEUE)] == [1, 1]


def test_settling_twice_changes_nothing() -> None:
    settled = World(make_scenario(read_manifests([("f", LIVELOCK.read_text("utf-8"))])))
    settled.run_until(5 * SECOND)
    settled.settle()
    revision = settled.store.revision
    settled.settle()
    assert settled.store.revision == revision
