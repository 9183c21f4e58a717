"""How writes change objects, by the rules of the API server."""

from typing import Any

import pytest

from batchyard.api.errors import Conflict, InvalidObject
from batchyard.api.meta import Key, Obj, with_metadata, with_path, with_status
from batchyard.api.times import parse_time
from batchyard.client import local

NOW = parse_time("2026-01-01T00:00:00Z")
KEY = Key("Job.batch", "team", "a")


def stored_job(**metadata: Any) -> Obj:
    own = {
        "name": "a",
        "uid": "u1",
        "resourceVersion": "5",
        "generation": 3,
        "creationTimestamp": "2025-01-01T00:00:00Z",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**own, **metadata},
        "spec": {"suspend": True},
        "status": {"active": 1},
    }


def new_object(metadata: dict[str, Any], kind: str = "Job") -> Obj:
    return {"apiVersion": "batch/v1" if kind == "Job" else "v1", "kind": kind, "metadata": metadata}


def test_create_sets_uid_creation_time_and_generation() -> None:
    metadata = local.with_server_metadata(new_object({"name": "a"}), "u9", NOW)["metadata"]
    assert metadata == {"name": "a", "uid": "u9", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}


def test_create_keeps_given_uid_and_creation_time() -> None:
    given = {"name": "a", "uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 12}
    metadata = local.with_server_metadata(new_object(given), "u9", NOW)["metadata"]
    assert metadata == {**given, "generation": 1}


def test_some_kinds_have_no_generation() -> None:
    assert "generation" not in local.with_server_metadata(new_object({"name": "a"}, "ConfigMap"), "u9", NOW)["metadata"]


def test_create_drops_deletion_timestamp() -> None:
    given = {"name": "a", "deletionTimestamp": "2020-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    assert "deletionTimestamp" not in local.with_server_metadata(new_object(given), "u9", NOW)["metadata"]


def test_generated_name_depends_on_uid() -> None:
    first = local.generated_name("job-", "0a1b2c3d-4e5f-4000-8000-000000000000")
    assert first == local.generated_name("job-", "0a1b2c3d-4e5f-4000-8000-000000000000")
    assert first != local.generated_name("job-", "0a1b2c3d-4e60-4000-8000-000000000000")
    assert first.startswith("job-")
    assert len(first) == len("job-") + 5
    assert set(first[4:]) <= set("bcdfghjklmnpqrstvwxz2456789")


def test_generated_name_has_at_most_63_characters() -> None:
    name = local.generated_name("x" * 80, "0a1b2c3d-4e5f-4000-8000-000000000000")
    assert len(name) == 63
    assert name.startswith("x" * 58)


def test_object_needs_name_or_generate_name() -> None:
    local.check_name_given({"metadata": {"name": "a"}})
    local.check_name_given({"metadata": {"generateName": "a-"}})
    with pytest.raises(InvalidObject, match="name or generateName is required"):
        local.check_name_given({"metadata": {"name": ""}})


def test_spec_change_increments_generation() -> None:
    new = local.apply_update(stored_job(), with_path(stored_job(), ("spec", "suspend"), False))
    assert new["metadata"]["generation"] == 4
    assert new["spec"] == {"suspend": False}


def test_change_of_other_top_level_field_increments_generation() -> None:
    assert local.apply_update(stored_job(), {**stored_job(), "data": {}})["metadata"]["generation"] == 4
    without = {field: value for field, value in stored_job().items() if field != "spec"}
    new = local.apply_update(stored_job(), without)
    assert new["metadata"]["generation"] == 4
    assert "spec" not in new


def test_metadata_change_keeps_generation() -> None:
    new = local.apply_update(stored_job(), with_metadata(stored_job(), labels={"a": "b"}))
    assert new["metadata"] == {**stored_job()["metadata"], "labels": {"a": "b"}}


def test_update_does_not_write_status() -> None:
    before = stored_job()
    new = local.apply_update(before, {**with_path(before, ("spec", "suspend"), False), "status": {"active": 9}})
    assert new["status"] is before["status"]
    bare = {field: value for field, value in before.items() if field != "status"}
    assert "status" not in local.apply_update(bare, with_path(before, ("spec", "suspend"), False))
    assert local.apply_update(before, bare) is before


def test_update_does_not_write_server_side_metadata() -> None:
    before = stored_job(deletionTimestamp="2026-01-01T00:00:00Z", deletionGracePeriodSeconds=0, finalizers=["f"])
    sent = {"name": "a", "finalizers": ["f"], "generation": 99, "creationTimestamp": "1999-01-01T00:00:00Z"}
    assert local.apply_update(before, {**before, "metadata": sent}) is before
    meddling = with_metadata(stored_job(), deletionTimestamp="2026-01-01T00:00:00Z", labels={"a": "b"})
    assert "deletionTimestamp" not in local.apply_update(stored_job(), meddling)["metadata"]


def test_update_without_change_returns_same_object() -> None:
    before = stored_job()
    assert local.apply_update(before, stored_job()) is before
    assert local.apply_update(before, with_status(before, {"other": 1})) is before
    assert local.apply_status_update(before, with_path(before, ("spec", "suspend"), False)) is before


def test_status_update_writes_status_only() -> None:
    before = stored_job()
    sent = with_metadata({**with_path(before, ("spec", "suspend"), False), "status": {"active": 2}}, labels={"a": "b"})
    assert local.apply_status_update(before, sent) == {**before, "status": {"active": 2}}


def test_status_update_without_status_removes_status() -> None:
    bare = {field: value for field, value in stored_job().items() if field != "status"}
    assert local.apply_status_update(stored_job(), bare) == bare


def test_preconditions_check_revision_and_uid() -> None:
    local.check_preconditions(KEY, stored_job(), stored_job())
    local.check_preconditions(KEY, stored_job(), {"metadata": {"name": "a"}})
    with pytest.raises(Conflict, match="has been modified"):
        local.check_preconditions(KEY, stored_job(), stored_job(resourceVersion="4"))
    with pytest.raises(Conflict, match="recreated"):
        local.check_preconditions(KEY, stored_job(), {"metadata": {"name": "a", "uid": "u0"}})


def test_deletion_is_marked_once() -> None:
    marked = local.mark_deleted(stored_job(), NOW)
    assert marked["metadata"]["deletionTimestamp"] == "2026-01-01T00:00:00Z"
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
    assert marked["metadata"]["generation"] == 4
    assert local.mark_deleted(marked, NOW + 1) is marked


def test_only_marked_object_without_finalizers_is_released() -> None:
    assert not local.is_removable(stored_job())
    assert not local.is_removable(stored_job(deletionTimestamp="x", finalizers=["f"]))
    assert local.is_removable(stored_job(deletionTimestamp="x", finalizers=[]))
    assert local.is_removable(stored_job(deletionTimestamp="x"))
