"""Binding annotates the GPU index of a pod; a restarted placement reads these annotations."""

from batchyard.api.meta import Key, annotation, with_path
from batchyard.interfaces.client import Delete, Update
from batchyard.placement.controller import PlacementController
from stage import Stage
from unit.placement.test_placement_devices_core import INDEX, gpu_node, sharer


def gpus(stage: Stage, *names: str) -> list[str | None]:
    """The GPU index annotations of pods."""
    return [annotation(stage.get("Pod", name), INDEX) for name in names]


def remove(stage: Stage, *names: str) -> None:
    """Delete pods without grace period."""
    for name in names:
        stage.client.submit([Delete(Key("Pod", "team", name), grace_period_seconds=0)], lambda _: None)
    stage.settle()


def restart_placement(stage: Stage) -> Stage:
    """Return a stage with the same objects and a new placement controller."""
    fresh = Stage(PlacementController())
    fresh.put(*[obj for kind in ("Node", "Pod") for obj in stage.client.list(kind)])
    return fresh


def test_placement_annotates_gpu_index_at_binding() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=4), sharer("a", 600), sharer("b", 2000), sharer("c", 300))
    assert gpus(stage, "a", "b", "c") == ["0", "1,2", "0"]
    assert stage.get("Pod", "b")["spec"]["nodeName"] == "n"


def test_restarted_placement_keeps_gpu_assignments() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=2), *[sharer(name, 400) for name in "abcd"])
    assert gpus(stage, "a", "b", "c", "d") == ["0", "0", "1", "1"]
    remove(stage, "a", "b", "c")
    fresh = restart_placement(stage)
    fresh.put(sharer("e", 1000), sharer("f", 700))
    assert gpus(fresh, "d", "e", "f") == ["1", "0", None]


def test_placement_binds_pending_pod_after_gpu_is_freed() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=2), sharer("a", 600), sharer("b", 600), sharer("c", 700))
    assert not stage.get("Pod", "c")["spec"].get("nodeName")
    remove(stage, "b")
    assert gpus(stage, "c") == ["1"]


def test_placement_binds_gang_with_gpus_of_its_plan() -> None:
    """If bound by name, a and b would share the first GPU, and c and d would not fit."""
    stage = Stage(PlacementController())
    gang = {"annotations": {"kueue.x-k8s.io/workload": "w"}, "labels": {"batch.kubernetes.io/controller-uid": "g"}}
    pods = [
        sharer(name, milli, schedulingGates=[{"name": "g"}], **gang)
        for name, milli in zip("abcd", (400, 400, 600, 600), strict=True)
    ]
    stage.put(gpu_node(gpus=2), *pods)
    for pod in pods:
        stage.client.submit([Update(with_path(pod, ("spec", "schedulingGates"), None))], lambda _: None)
    stage.settle()
    assert gpus(stage, "a", "b", "c", "d") == ["0", "1", "0", "1"]
