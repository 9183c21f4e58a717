"""What a scheduler reads of a Node."""

from batchyard.api.views.node import Taint, node_view
from unit.placement.placement_make import node


def test_a_node_counts_what_pods_may_have_in_whole_numbers() -> None:
    view = node_view(node(cpu="3920m", memory="1Ki", gpu="8"))
    assert view.allocatable == {"cpu": 3920, "memory": 1024, "pods": 110, "nvidia.com/gpu": 8}


def test_a_node_without_allocatable_gives_its_capacity() -> None:
    assert node_view({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}}).allocatable == {"cpu": 2000}


def test_a_node_tells_its_taints_and_whether_it_is_cordoned_and_ready() -> None:
    view = node_view(node(taints=[{"key": "a", "effect": "NoSchedule"}], unschedulable=True))
    assert (view.taints, view.unschedulable, view.ready) == ((Taint("a", "", "NoSchedule"),), True, True)


def test_a_bare_node_is_not_ready() -> None:
    view = node_view({"metadata": {"name": "n"}})
    assert (view.name, view.labels, view.taints, view.ready) == ("n", {}, (), False)
