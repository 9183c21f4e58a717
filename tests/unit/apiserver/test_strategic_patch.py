"""Strategic merge patches: the schema of a list defines how to merge it."""

from typing import Any

import pytest

from batchyard.api.scheme import NODE, POD, kind_info
from batchyard.apiserver.patch import apply_strategic_merge_patch, merge_schema_of_kind
from batchyard.apiserver.request import StatusError

SHAPE = merge_schema_of_kind(kind_info(POD), "v1")
A, B, C = ({"name": name, "image": f"{name}:1"} for name in "abc")
NFS, CLAIM = {"server": "s", "path": "/"}, {"claimName": "c"}


def spec(patch: dict[str, Any], **given: Any) -> dict[str, Any]:
    """The spec of a pod after a patch of it."""
    merged: dict[str, Any] = apply_strategic_merge_patch({"spec": given}, {"spec": patch}, SHAPE)["spec"]
    return merged


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ([A], [B], [B, A]),
        ([A, B], [{"name": "b", "image": "b:2"}], [A, {"name": "b", "image": "b:2"}]),
        ([A, B], [{"name": "a", "image": None}], [{"name": "a"}, B]),
        ([A, B], [{"name": "a", "$patch": "delete"}], [B]),
        ([A, B], [{"$patch": "replace"}, C], [C]),
        ([A], [{"name": "b", "image": "b:1", "args": None}], [B, A]),
        ([], [{"name": "b", "$patch": "delete"}], []),
    ],
    ids=[
        "added",
        "changed",
        "field removed",
        "removed",
        "replaced",
        "nulls of a new item are dropped",
        "item to remove is missing",
    ],
)
def test_containers_are_merged_by_name(before: list[Any], patch: list[Any], after: list[Any]) -> None:
    assert spec({"containers": patch}, containers=before) == {"containers": after}


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        ({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [C]}, "cab"),
        ({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}, "ba"),
        ({"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "containers": [C]}, "abc"),
    ],
)
def test_set_element_order_sorts_items(patch: dict[str, Any], after: str) -> None:
    assert "".join(item["name"] for item in spec(patch, containers=[A, B])["containers"]) == after


def test_nested_lists_are_merged() -> None:
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    patch = {"name": "a", "env": [{"name": "Y", "value": "3"}]}
    merged = spec({"containers": [patch]}, containers=[{**A, "env": env}])
    assert merged["containers"][0]["env"] == [{"name": "X", "value": "1"}, {"name": "Y", "value": "3"}]


def test_lists_without_merge_key_are_replaced() -> None:
    assert spec({"tolerations": [{"key": "b"}]}, tolerations=[{"key": "a"}]) == {"tolerations": [{"key": "b"}]}


def test_scalar_list_values_are_added_and_deleted() -> None:
    finalizers = apply_strategic_merge_patch(
        {"metadata": {"finalizers": ["a/x", "a/y"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a/x"], "finalizers": ["a/z"]}},
        SHAPE,
    )["metadata"]["finalizers"]
    assert sorted(finalizers) == ["a/y", "a/z"]


def test_retain_keys_drops_other_union_members() -> None:
    patch = {
        "volumes": [{"name": "v", "$retainKeys": ["name", "persistentVolumeClaim"], "persistentVolumeClaim": CLAIM}]
    }
    merged = spec(patch, volumes=[{"name": "v", "nfs": NFS}])
    assert merged == {"volumes": [{"name": "v", "persistentVolumeClaim": CLAIM}]}


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        ({"$patch": "replace", "runAsUser": 1}, {"securityContext": {"runAsUser": 1}}),
        ({"$patch": "delete"}, {"securityContext": {}}),
        ({"runAsUser": None}, {"securityContext": {"fsGroup": 5}}),
    ],
)
def test_mappings_are_merged_replaced_or_cleared(patch: dict[str, Any], after: dict[str, Any]) -> None:
    assert spec({"securityContext": patch}, securityContext={"runAsUser": 7, "fsGroup": 5}) == after


@pytest.mark.parametrize(
    ("patch", "reported"),
    [
        ({"containers": [{"image": "a"}]}, "does not contain declared merge key: name"),
        ({"containers": [{"name": "a", "$patch": "merge"}]}, "merging lists cannot yet be specified in the patch"),
        ({"containers": [{"name": "a", "$patch": "burn"}]}, "unknown patch type: burn"),
        ({"containers": ["a"]}, "is not an object"),
        ({"$patch": "burn"}, "unknown patch type: burn in map"),
        ({"$retainKeys": ["volumes"], "containers": [A]}, "invalid patch format of retainKeys"),
        ({"$setElementOrder/containers": "a", "containers": [A]}, "invalid patch format of setElementOrder list"),
        ({"$setElementOrder/containers": [{"name": "b"}], "containers": [A]}, "doesn't match $setElementOrder list"),
        ({"$deleteFromPrimitiveList/containers": "a"}, "invalid patch format of primitive list"),
        ({"containers": [[A]]}, "lists of lists are not supported"),
    ],
)
def test_invalid_strategic_patch_is_rejected(patch: dict[str, Any], reported: str) -> None:
    with pytest.raises(StatusError, match=reported.replace("$", r"\$")):
        spec(patch, containers=[A])


def test_patch_with_mappings_for_scalar_list_is_rejected() -> None:
    node = merge_schema_of_kind(kind_info(NODE), "v1")
    with pytest.raises(StatusError, match="cannot merge lists without merge key"):
        apply_strategic_merge_patch({}, {"spec": {"podCIDRs": [{"a": "b"}]}}, node)


def test_patch_does_not_change_original_object() -> None:
    before = [dict(A)]
    spec({"containers": [{"name": "a", "image": "a:2"}]}, containers=before)
    assert before == [A]
