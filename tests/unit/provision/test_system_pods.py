"""Checks that the engine's pods fit on the nodes of a cluster on GKE."""

import pytest

from batchyard.package_data import read_folder
from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.system_pods import system_pod_errors

EXAMPLES = read_folder("examples/platforms", ".yaml")
SPEC = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {{name: small}}
spec:
  engine: {engine}
  google: {{project: my-project}}
  teams: [{{name: red}}]
  flavors: [{{name: any}}]
  operator: {{replicas: {replicas}}}
  cluster:
    zones: [us-central1-a]
    nodePools: [{pools}]
    autoscaling: {autoscaling}
"""
GPU_POOL = "{name: gpus, machineType: g2-standard-24, nodeCount: 4}"
TAINTED = "{name: t, machineType: e2-standard-8, nodeCount: 4, taints: [{key: a, value: b, effect: NoSchedule}]}"


def platform(*pools: str, engine: str = "batchyard", replicas: int = 2, autoscaling: str = "{}") -> PlatformModel:
    text = SPEC.format(engine=engine, replicas=replicas, pools=", ".join(pools), autoscaling=autoscaling)
    return read_platform(PlatformSource("p", text))


def pool(machine: str, size: str) -> str:
    return f"{{name: default-pool, machineType: {machine}, {size}}}"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("engine", ["batchyard", "kueue"])
def test_system_pods_fit_in_each_example(name: str, engine: str) -> None:
    text = EXAMPLES[name].replace("\n  engine: batchyard", "").replace("\nspec:\n", f"\nspec:\n  engine: {engine}\n")
    assert not list(system_pod_errors(read_platform(PlatformSource(name, text))))


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param([pool("e2-standard-4", "nodeCount: 1")], id="one node of four cores"),
        pytest.param([pool("e2-medium", "nodeCount: 3")], id="three small nodes"),
        pytest.param([pool("e2-medium", "autoscaling: {totalMin: 0, totalMax: 3}")], id="up to three small nodes"),
        pytest.param([GPU_POOL, pool("e2-standard-2", "nodeCount: 2")], id="beside GPUs"),
    ],
)
def test_sufficient_room_is_no_fault(pools: list[str]) -> None:
    assert not list(system_pod_errors(platform(*pools)))


@pytest.mark.parametrize(
    "pools",
    [
        pytest.param([pool("e2-medium", "nodeCount: 1")], id="one small node"),
        pytest.param([GPU_POOL], id="all nodes have the taint of their GPUs"),
        pytest.param([TAINTED], id="all nodes have taints of their pool"),
    ],
)
def test_insufficient_room_is_reported_at_node_pools(pools: list[str]) -> None:
    (fault,) = system_pod_errors(platform(*pools))
    assert fault.path == "spec.cluster.nodePools"
    assert fault.problem.startswith("2 x batchyard-operator (500m CPU, 512Mi) do not fit")
    assert "e2-standard-4" in fault.remedy


def test_replicas_increase_required_room() -> None:
    assert list(system_pod_errors(platform(pool("e2-standard-4", "nodeCount: 1"), replicas=7)))


def test_auto_provisioned_nodes_provide_room() -> None:
    limits = "{autoProvisioning: {limits: [{resource: cpu, max: 100}, {resource: memory, max: 400}]}}"
    assert not list(system_pod_errors(platform(GPU_POOL, autoscaling=limits)))


def test_kueue_needs_one_pod_of_each_manager() -> None:
    (fault,) = system_pod_errors(platform(pool("e2-medium", "nodeCount: 1"), engine="kueue"))
    assert fault.problem.startswith("1 x kueue-controller-manager (500m CPU, 512Mi) and 1 x jobset-controller-manager")
