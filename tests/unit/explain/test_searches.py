"""Searches for changes share a limit of simulated decisions; a costly search does not hide the results of others."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from batchyard.api import well_known
from batchyard.api.meta import key_of, with_metadata
from batchyard.base.instant import SECOND
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.explain.blockers import occupants_of
from batchyard.explain.cohort_simulation import DECISIONS_MAX, NO_CHANGE, CohortSimulation, HypotheticalChange
from batchyard.explain.searches import Proposal, Search, run_searches, search_smallest_amount, search_smallest_between
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.sim.random_worlds import KUEUE_API, make_object
from batchyard.store.memory import Store
from unit.nodes.node_make import node, pod
from yard import SchedulerBench, workload

MILLI_CPU_MISSING = 700
"""The asked Workload requests 1 cpu, and 300m of the quota are free."""


@pytest.fixture
def simulation() -> Iterator[CohortSimulation]:
    """The simulation of one ClusterQueue with a nominal quota of 300m, and one pending Workload."""
    pod = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    quota = {"name": "cpu", "nominalQuota": "300m"}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [quota]}]}
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {}}},
        make_object(KUEUE_API, "ResourceFlavor", "f", spec={}),
        make_object(KUEUE_API, "ClusterQueue", "q", spec={"namespaceSelector": {}, "resourceGroups": [group]}),
        make_object(KUEUE_API, "LocalQueue", "q", spec={"clusterQueue": "q"}),
        make_object(
            KUEUE_API,
            "Workload",
            "w",
            spec={"queueName": "q", "priority": 0, "podSets": [{"name": "main", "count": 1, "template": pod}]},
        ),
    ]
    cache = SchedulerCache()
    for number, obj in enumerate(objects):
        if obj["kind"] in {"LocalQueue", "Workload"}:
            obj["metadata"]["namespace"] = "team"
        obj["metadata"] |= {"uid": obj["metadata"]["name"], "creationTimestamp": "2026-01-01T00:00:00Z"}
        cache.observe(WatchEvent(EventType.ADDED, key_of(obj), obj, None, number), SECOND)
    view = cache.queue_manager.pending["q"].first_not_held_back(1)[0]
    created = CohortSimulation(cache, SchedulingPolicy(), view, cache.snapshot.queues["q"])
    yield created
    created.close()


def raise_by(simulation: CohortSimulation, increase: int) -> HypotheticalChange:
    """Return the change that raises the nominal quota by an amount in thousandths of a cpu."""
    view = simulation.queue.view
    (group,) = view.groups
    quota = group.quotas[0]._replace(nominal=300 + increase)
    return HypotheticalChange(queues={"q": replace(view, groups=(replace(group, quotas=(quota,)),))})


def costly_search() -> Search:
    """Try changes that do not admit until the limit is reached."""
    while True:
        yield NO_CHANGE


def quota_search(simulation: CohortSimulation, first: int) -> Search:
    """Search the smallest raise of the quota below the first one."""
    if (yield raise_by(simulation, first)):
        least = yield from search_smallest_amount(lambda increase: raise_by(simulation, increase), first)
        yield Proposal("quota", str(least.amount), (), least.is_minimal)


def test_costly_search_does_not_hide_others(simulation: CohortSimulation) -> None:
    result = run_searches([costly_search(), quota_search(simulation, 5000)], simulation)
    assert [(each.text, each.is_minimal) for each in result.proposals] == [(str(MILLI_CPU_MISSING), True)]
    assert result.is_limit_reached


def test_searches_without_limit_end(simulation: CohortSimulation) -> None:
    result = run_searches([quota_search(simulation, MILLI_CPU_MISSING), quota_search(simulation, 10)], simulation)
    assert [each.text for each in result.proposals] == [str(MILLI_CPU_MISSING)]
    assert not result.is_limit_reached


@pytest.mark.parametrize("decisions_left", [2, 4, 8])
def test_proposal_is_marked_if_limit_ends_its_refinement(simulation: CohortSimulation, decisions_left: int) -> None:
    simulation.decision_count = DECISIONS_MAX - decisions_left
    result = run_searches([quota_search(simulation, 5000)], simulation)
    (proposal,) = result.proposals
    assert MILLI_CPU_MISSING < int(proposal.text) <= 5000
    assert result.is_limit_reached
    document = proposal.document()
    assert (document["minimal"], "a smaller change may suffice" in document["given"]) == (False, True)


def test_search_without_result_ends_at_limit(simulation: CohortSimulation) -> None:
    simulation.decision_count = DECISIONS_MAX
    result = run_searches([quota_search(simulation, 5000)], simulation)
    assert (list(result.proposals), result.is_limit_reached) == ([], True)


@pytest.mark.parametrize(("low", "high"), [(0, 5000), (600, 701), (700, 700)])
def test_least_between_finds_smallest_admitting_amount(simulation: CohortSimulation, low: int, high: int) -> None:
    def search() -> Search:
        result = yield from search_smallest_between(lambda increase: raise_by(simulation, increase), low, high)
        yield Proposal("quota", str(result.amount), ())

    assert [each.text for each in run_searches([search()], simulation).proposals] == [str(MILLI_CPU_MISSING)]


def test_occupant_is_workload_in_annotation_of_pod() -> None:
    store = Store()
    for obj in (node(), with_metadata(pod("placed"), annotations={well_known.WORKLOAD: "job-a"})):
        store.put(key_of(obj), obj)
    client = LocalClient(store, VirtualEventLoop(0))
    (occupant,) = occupants_of(workload(), [pod("asked", node="")], SchedulerBench().snapshot, client)
    assert occupant.key == "team/job-a"
