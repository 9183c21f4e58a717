"""What a ClusterQueue holds, and what asking it for room comes to."""

from batchyard.api.views.pod import pod_template
from batchyard.core.queue import Admitted
from yard import Yard, group, queue


def test_what_is_asked_for_is_worked_out_once() -> None:
    yard = Yard(queue("cq", groups=[group(spot={"cpu": 4, "pods": 9})]))
    obstacles, cq = yard.snapshot.obstacles, yard.snapshot.queues["cq"]
    template = pod_template({"containers": [{"resources": {"requests": {"cpu": 2, "gpu": 1}}}]})
    plan = cq.plan(template, 3, obstacles)
    assert (dict(plan.requests), plan.unavailable) == ({"cpu": 6000, "pods": 3, "gpu": 3}, "gpu")
    assert cq.plan(template, 3, obstacles) is plan
    for count in range(4, 5000):
        cq.plan(template, count, obstacles)
    assert cq.plan(template, 3, obstacles) == plan


def test_who_holds_none_of_a_resource_may_still_be_assigned_a_flavor_of_it() -> None:
    yard = Yard(queue("cq", 4))
    cq, fr = yard.snapshot.queues["cq"], yard.snapshot.id_of("spot", "cpu")
    assert Admitted("team/a", "a", cq, ((fr, 0),)).flavor_resources == {fr}
    assert Admitted("team/a", "a", cq, (), frozenset({fr})).flavor_resources == {fr}


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
