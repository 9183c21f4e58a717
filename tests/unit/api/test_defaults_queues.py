"""Kinds of Kueue whose spec may be left out."""

from batchyard.api.decode import decode

KUEUE = "kueue.x-k8s.io/v1beta2"


def test_a_spec_that_is_left_out_has_the_defaults_of_its_fields() -> None:
    queue = decode({"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "a"}}).obj
    assert queue is not None
    assert queue["spec"] == {"stopPolicy": "None"}
    assert decode(queue).obj == queue


def test_where_something_must_be_said_it_is_empty() -> None:
    check = decode({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "a"}}).obj
    assert check is not None
    assert check["spec"] == {}
