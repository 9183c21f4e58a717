"""Kinds of Kueue whose spec may be left out."""

from batchyard.api.manifests import decode

KUEUE = "kueue.x-k8s.io/v1beta2"


def test_a_spec_that_is_left_out_has_the_defaults_of_its_fields() -> None:
    queue = decode({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "a"}}).obj
    assert queue is not None
    assert queue["spec"] == {"stopPolicy": "None"}
    assert decode(queue).obj == queue


def test_queues_trees_and_topologies_have_a_spec_whatever_is_left_out() -> None:
    for kind in ("ClusterQueue", "Cohort", "Topology"):
        found = decode({"apiVersion": KUEUE, "kind": kind, "metadata": {"name": "a"}}).obj
        assert found is not None
        assert "spec" in found, kind


def test_where_something_must_be_said_it_is_empty() -> None:
    check = decode({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "a"}}).obj
    assert check is not None
    assert check["spec"] == {}


def test_what_is_to_go_is_not_held_again_by_who_lets_it_go() -> None:
    flavor = {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "a"}}
    held = decode(flavor).obj
    assert held is not None
    assert held["metadata"]["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    leaving = {**flavor, "metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    left = decode(leaving).obj
    assert left is not None
    assert "finalizers" not in left["metadata"]
