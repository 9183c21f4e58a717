"""What a ClusterQueue holds."""

from batchyard.scheduling.cluster_queue import AdmittedWorkload
from yard import Yard, queue


def test_who_holds_none_of_a_resource_may_still_be_assigned_a_flavor_of_it() -> None:
    yard = Yard(queue("cq", 4))
    cq, fr = yard.snapshot.queues["cq"], yard.snapshot.id_of("spot", "cpu")
    assert AdmittedWorkload("team/a", "a", cq, ((fr, 0),)).flavor_resources == {fr}
    assert AdmittedWorkload("team/a", "a", cq, (), frozenset({fr})).flavor_resources == {fr}


def test_candidates_are_ranked_by_priority_reservation_and_uid() -> None:
    yard = Yard(queue("cq", 9))
    for name, fields in (
        ("d", {"priority": 1}),
        ("c", {"since": 5}),
        ("b", {"since": 9}),
        ("a", {"since": 5}),
        ("e", {"priority": -1}),
    ):
        yard.hold(name, 1, "cq", **fields)
    assert [held.key[-1] for held in yard.snapshot.queues["cq"].ranked()] == ["e", "b", "a", "c", "d"]
    yard.snapshot.release("team/b")
    assert [held.key[-1] for held in yard.snapshot.queues["cq"].ranked()] == ["e", "a", "c", "d"]
