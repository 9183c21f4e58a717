"""What is installed is taken by Kubernetes itself as it is: kinds, rights, webhooks, platforms."""

from pathlib import Path

import pytest

from e2e_kubernetes.installed import Installed
from e2e_platform.snapshots import batchyard

REPOSITORY = Path(__file__).parents[2]
TAKEN = ("--server-side", "--force-conflicts", "--dry-run=server", "--warnings-as-errors")


def test_all_kinds_are_established_and_no_schema_is_called_nonstructural(cluster: Installed) -> None:
    for definition in cluster.get("crd")["items"]:
        conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, definition["metadata"]["name"]


@pytest.mark.parametrize("folder", ["base", "overlays/development"])
def test_kustomizations_are_taken_without_a_warning(cluster: Installed, folder: str) -> None:
    cluster.kubectl("apply", *TAKEN, "-k", str(REPOSITORY / "deploy/operator" / folder))


def test_a_platform_is_taken_without_a_warning(cluster: Installed, tmp_path: Path) -> None:
    example = REPOSITORY / "examples/platforms/refarch.yaml"
    done = batchyard("platform", "render", str(example), "--out", str(tmp_path / "out"))
    assert done.code == 0, done.stderr
    for part in ("10-priorities.yaml", "15-readers.yaml", "30-flavors.yaml"):
        cluster.kubectl("apply", *TAKEN, "-f", str(tmp_path / "out/manifests" / part))
    for part in ("20-teams", "60-queues.yaml"):  # the Namespaces of the one must be there for the other
        cluster.kubectl("apply", "--server-side", "--warnings-as-errors", "-f", str(tmp_path / "out/manifests" / part))
    assert len(cluster.get("localqueues", "-A")["items"]) >= 12


def test_fields_are_explained_and_columns_printed(cluster: Installed) -> None:
    assert "borrowingLimit" in cluster.kubectl("explain", "clusterqueue.spec.resourceGroups.flavors.resources")
    cluster.create(
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": "printed"}},
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": "printed"},
            "spec": {"cohortName": "printed"},
        },
    )
    head, row = cluster.kubectl("get", "clusterqueue", "printed", "-o", "wide").splitlines()
    assert head.split("  ")[0] == "NAME"
    assert "STRATEGY" in head
    assert row.split()[:3] == ["printed", "printed", "BestEffortFIFO"]
