"""The scheduler's view of a Node."""

from batchyard.api.views.node import Taint, node_view
from unit.placement.placement_make import node


def test_node_view_reads_allocatable_as_integers() -> None:
    view = node_view(node(cpu="3920m", memory="1Ki", gpu="8"))
    assert view.allocatable == {"cpu": 3920, "memory": 1024, "pods": 110, "nvidia.com/gpu": 8}


def test_node_view_uses_capacity_without_allocatable() -> None:
    assert node_view({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}}).allocatable == {"cpu": 2000}


def test_node_view_reads_taints_cordon_and_readiness() -> None:
    view = node_view(node(taints=[{"key": "a", "effect": "NoSchedule"}], unschedulable=True))
    assert (view.taints, view.unschedulable, view.ready) == ((Taint("a", "", "NoSchedule"),), True, True)


def test_node_without_status_is_not_ready() -> None:
    view = node_view({"metadata": {"name": "n"}})
    assert (view.name, view.labels, view.taints, view.ready) == ("n", {}, (), False)
