"""A pod that shares a GPU is told which one at its binding; who places pods after a restart goes by that."""

from batchyard.api.meta import Key, annotation, with_path
from batchyard.interfaces.client import Delete, Update
from batchyard.placement.controller import PlacementController
from stage import Stage
from unit.placement.test_placement_devices_core import INDEX, gpu_node, sharer


def gpus(stage: Stage, *names: str) -> list[str | None]:
    """The GPUs that pods were told."""
    return [annotation(stage.get("Pod", name), INDEX) for name in names]


def remove(stage: Stage, *names: str) -> None:
    """Let pods go at once."""
    for name in names:
        stage.client.submit([Delete(Key("Pod", "team", name), grace=0)], lambda _: None)
    stage.settle()


def restarted(stage: Stage) -> Stage:
    """The same objects, and a scheduler that knows nothing else."""
    fresh = Stage(PlacementController())
    fresh.put(*[obj for kind in ("Node", "Pod") for obj in stage.client.list(kind)])
    return fresh


def test_gpus_are_told_with_the_binding() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=4), sharer("a", 600), sharer("b", 2000), sharer("c", 300))
    assert gpus(stage, "a", "b", "c") == ["0", "1,2", "0"]
    assert stage.get("Pod", "b")["spec"]["nodeName"] == "n"


def test_after_a_restart_pods_have_the_gpus_they_had() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=2), *[sharer(name, 400) for name in "abcd"])
    assert gpus(stage, "a", "b", "c", "d") == ["0", "0", "1", "1"]
    remove(stage, "a", "b", "c")
    fresh = restarted(stage)
    fresh.put(sharer("e", 1000), sharer("f", 700))
    assert gpus(fresh, "d", "e", "f") == ["1", "0", None]


def test_who_waits_for_one_gpu_is_placed_when_it_is_free() -> None:
    stage = Stage(PlacementController())
    stage.put(gpu_node(gpus=2), sharer("a", 600), sharer("b", 600), sharer("c", 700))
    assert not stage.get("Pod", "c")["spec"].get("nodeName")
    remove(stage, "b")
    assert gpus(stage, "c") == ["1"]


def test_the_pods_of_a_gang_are_bound_as_they_were_found_to_fit() -> None:
    """Bound by name, a and b would both lie on the first GPU, and c and d would not fit any more."""
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
