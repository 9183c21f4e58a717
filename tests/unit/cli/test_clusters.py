"""`batchyard simulate` with a cluster: its file, its nodes, and its costs."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

REFARCH = Path(__file__).parents[3] / "examples" / "refarch"
HOTSWAP = REFARCH.parent / "hotswap"
PARTS = (REFARCH / "platform", REFARCH / "low_priority")

Batchyard = Callable[..., "subprocess.CompletedProcess[str]"]


def test_nodes_and_their_costs_are_shown(batchyard: Batchyard) -> None:
    done = batchyard("simulate", *PARTS, "--cluster", REFARCH / "cluster.yaml", "--until", "6m", "-o", "wide")
    assert done.returncode == 0
    assert sum(" Ready " in line for line in done.stdout.splitlines()) == 34
    costs = done.stdout.partition("POOL ")[2]
    assert "spot-np" in costs
    assert "TEAM" in costs


def test_json_contains_costs_and_recoveries(batchyard: Batchyard) -> None:
    done = batchyard("simulate", HOTSWAP, "--until", "20m", "-o", "json")
    reported = json.loads(done.stdout)
    costs, (loss,) = reported["costs"], reported["recoveries"]
    assert (reported["kind"], costs["currency"], loss["lostAt"], loss["seconds"] < 90) == ("List", "USD", 900, True)
    for side in (costs["pools"], costs["teams"]):
        cents = [int(line["cost"].replace(".", "")) for line in side]
        assert sum(cents) == int(costs["total"].replace(".", ""))
    (lost,) = [line for line in costs["teams"] if line["use"] == "lost"]
    assert lost.keys() == {"team", "use", "machineHours", "acceleratorHours", "cost"}
    assert (lost["team"], lost["acceleratorHours"]) == ("default", pytest.approx(4 * lost["machineHours"]))


def test_json_without_machines_contains_no_costs(batchyard: Batchyard) -> None:
    reported = json.loads(batchyard("simulate", HOTSWAP.parent / "first-steps", "-o", "json").stdout)
    assert sorted(reported) == ["apiVersion", "items", "kind", "metadata", "summary"]


def test_pods_without_node_are_shown_with_reason(batchyard: Batchyard) -> None:
    done = batchyard("simulate", *PARTS, "--cluster", REFARCH / "cluster.yaml", "--until", "30s")
    _, _, table = done.stdout.partition("POD WITHOUT A NODE")
    assert "low-priority-job" in table
    assert (
        "0/10 nodes are available: 4 Insufficient nvidia.com/gpu, 6 node(s) didn't match Pod's node affinity" in table
    )


def test_nodes_that_no_pod_uses_have_no_table_of_requests(batchyard: Batchyard) -> None:
    idle = batchyard("simulate", HOTSWAP / "cluster.yaml", "--until", "5m")
    used = batchyard("simulate", HOTSWAP, "--until", "5m")
    assert ["# requests of pods on nodes, by pool" in done.stdout for done in (idle, used)] == [False, True]


def test_file_without_cluster_is_rejected(batchyard: Batchyard) -> None:
    done = batchyard("simulate", *PARTS, "--cluster", REFARCH / "platform" / "kueue" / "flavors.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "flavors.yaml: this file contains no Cluster of cloud.batchyard.dev/v1alpha1" in done.stderr


def test_second_cluster_is_rejected(batchyard: Batchyard) -> None:
    done = batchyard("simulate", REFARCH, "--cluster", REFARCH / "cluster.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cluster/gke-batch-refarch: there is already a document of kind Cluster; keep one of them" in done.stderr


def test_unknown_machine_type_is_reported_with_its_place(batchyard: Batchyard, tmp_path: Path) -> None:
    wrong = (REFARCH / "cluster.yaml").read_text("utf-8").replace("e2-medium", "e2-medum")
    (tmp_path / "cluster.yaml").write_text(wrong, "utf-8")
    done = batchyard("simulate", *PARTS, "--cluster", tmp_path / "cluster.yaml")
    assert done.returncode == 1
    reported = "Cluster/gke-batch-refarch: spec.nodePools[0].machineType: unknown machine type 'e2-medum'; did you mean"
    assert reported in done.stderr
