"""The users of pods: their ids, and the change of file owners without mapped users."""

import os
from pathlib import Path

import pytest

from batchyard.shim.isolation import users


def test_pod_has_unique_and_stable_user_id() -> None:
    result = {users.pod_unix_id(f"pod-{number}") for number in range(100)}
    assert len(result) == 100
    assert min(result) > 1 << 12
    assert users.pod_unix_id("pod-1") == users.pod_unix_id("pod-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change file owners")
def test_files_of_root_change_owner_without_following_symlinks(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    (own / "folder").mkdir(parents=True)
    other.mkdir()
    for path in (own / "folder" / "file", own / "users", other / "file"):
        path.touch()
    os.chown(own / "users", 1234, 1234)
    (own / "link").symlink_to(other)
    users.change_owner(str(own), 70000)
    assert {path.lstat().st_uid for path in (own, own / "folder", own / "folder" / "file", own / "link")} == {70000}
    assert ((own / "users").stat().st_uid, (other / "file").stat().st_uid, other.stat().st_uid) == (1234, 0, 0)
