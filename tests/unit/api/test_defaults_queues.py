"""Kueue kinds with an optional spec."""

from batchyard.api.manifests import decode

KUEUE = "kueue.x-k8s.io/v1beta2"


def test_missing_spec_gets_field_defaults() -> None:
    queue = decode({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "a"}}).obj
    assert queue is not None
    assert queue["spec"] == {"stopPolicy": "None"}
    assert decode(queue).obj == queue


def test_queue_cohort_and_topology_without_spec_get_spec() -> None:
    for kind in ("ClusterQueue", "Cohort", "Topology"):
        result = decode({"apiVersion": KUEUE, "kind": kind, "metadata": {"name": "a"}}).obj
        assert result is not None
        assert "spec" in result, kind


def test_admission_check_without_spec_gets_empty_spec() -> None:
    check = decode({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "a"}}).obj
    assert check is not None
    assert check["spec"] == {}


def test_object_in_deletion_gets_no_finalizer() -> None:
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "a"}}
    held = decode(flavor).obj
    assert held is not None
    assert held["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    leaving = {**flavor, "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    left = decode(leaving).obj
    assert left is not None
    assert "finalizers" not in left["metadata"]
