"""Kubernetes accepts the manifests unchanged: CRDs, RBAC, webhooks and platforms."""

from pathlib import Path

import pytest

from e2e_kubernetes.installed_operators import InstalledOperators
from e2e_platform.snapshot_commands import batchyard

REPOSITORY = Path(__file__).parents[2]
APPLY_OPTIONS = ("--server-side", "--force-conflicts", "--dry-run=server", "--warnings-as-errors")


def test_crds_are_established_without_non_structural_schema_condition(cluster: InstalledOperators) -> None:
    for definition in cluster.get("crd")["items"]:
        conditions = {each["type"]: each["status"] for each in definition["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}, definition["metadata"]["name"]


@pytest.mark.parametrize("folder", ["base", "overlays/development"])
def test_kustomization_applies_without_warning(cluster: InstalledOperators, folder: str) -> None:
    cluster.kubectl("apply", *APPLY_OPTIONS, "-k", str(REPOSITORY / "deploy/operator" / folder))


def test_rendered_platform_applies_without_warning(cluster: InstalledOperators, tmp_path: Path) -> None:
    example = REPOSITORY / "examples/platforms/refarch.yaml"
    done = batchyard("platform", "render", str(example), "--out", str(tmp_path / "out"))
    assert done.code == 0, done.stderr
    for part in ("10-priorities.yaml", "15-readers.yaml", "30-flavors.yaml"):
        cluster.kubectl("apply", *APPLY_OPTIONS, "-f", str(tmp_path / "out/manifests" / part))
    for part in ("20-teams", "60-queues.yaml"):  # the queues need the Namespaces of the teams
        cluster.kubectl("apply", "--server-side", "--warnings-as-errors", "-f", str(tmp_path / "out/manifests" / part))
    assert len(cluster.get("localqueues", "-A")["items"]) >= 12


def test_kubectl_explains_fields_and_prints_columns(cluster: InstalledOperators) -> None:
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
