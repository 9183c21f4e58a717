"""Folders of provisioned volumes are deleted after their volume, unless it is retained."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.server.local_node.run_dirs import delete_folder
from batchyard.server.local_node.volume_folders import VolumeFolderController, prepare_claims_folder
from integration_shim.machine import until
from stage import Stage

NAME = "pvc-00000000-0000-0000-0000-000000000001"


def volume(policy: str = "Delete", provisioner: str = "batchyard.dev/folder", name: str = NAME) -> Obj:
    annotations = {"pv.kubernetes.io/provisioned-by": provisioner}
    metadata = {"name": name, "annotations": annotations, "finalizers": ["batchyard.dev/volume-folder"]}
    spec: dict[str, Any] = {"persistentVolumeReclaimPolicy": policy, "capacity": {"storage": "1Gi"}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec}


def delete_volume(folder: Path, deleted: Obj) -> list[Obj]:
    """Delete a volume; return the volumes that still exist after a minute."""
    world = Stage(VolumeFolderController(folder))
    world.put(deleted)
    world.delete(scheme.PERSISTENT_VOLUME, deleted["metadata"]["name"], "")
    world.run(1)
    assert (folder / NAME / "data").exists()
    world.run(60)
    return list(world.client.list(scheme.PERSISTENT_VOLUME))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of volumes, with one volume whose link leads elsewhere."""
    folder = prepare_claims_folder(tmp_path)
    (folder / NAME).mkdir()
    (folder / NAME / "data").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("x")
    (folder / NAME / "link").symlink_to(tmp_path / "outside")
    return folder


def wait_until_gone(path: Path) -> None:
    until(lambda: not os.path.lexists(path))


def test_folder_is_deleted_without_following_links(folder: Path) -> None:
    assert delete_volume(folder, volume()) == []
    wait_until_gone(folder / f".deleted-{NAME}")
    assert not (folder / NAME).exists()
    assert (folder.parent / "outside" / "kept").exists()


@pytest.mark.parametrize("kept", [volume("Retain"), volume(provisioner="a.io/b")])
def test_folders_of_other_volumes_stay(folder: Path, kept: Obj) -> None:
    assert delete_volume(folder, kept) == []
    assert (folder / NAME / "data").exists()


def test_leftovers_are_deleted_at_the_start(tmp_path: Path) -> None:
    leftover = prepare_claims_folder(tmp_path) / f".deleted-{NAME}"
    leftover.mkdir()
    prepare_claims_folder(tmp_path)
    wait_until_gone(leftover)
    assert prepare_claims_folder(tmp_path).stat().st_mode & 0o777 == 0o700


def make_deep_folder(path: Path, depth: int, mode: int, link: Path) -> None:
    """Create a chain of folders of a mode, the upper ones with a file and a link."""
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    for level in range(depth):
        os.mkdir("d", dir_fd=fd)
        if level < 20:
            os.symlink(link, "link", dir_fd=fd)
            os.close(os.open("file", os.O_CREAT, dir_fd=fd))
        deeper = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.fchmod(fd, mode)
        os.close(fd)
        fd = deeper
    os.close(fd)


@pytest.mark.parametrize(("depth", "mode"), [(5000, 0o700), (50, 0o500)])
def test_deep_folder_is_deleted_with_few_open_files(folder: Path, depth: int, mode: int) -> None:
    outside, deep = folder.parent / "outside", folder / "deep"
    make_deep_folder(deep, depth, mode, outside)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 6, limits[1]))
    try:
        delete_folder(deep)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not deep.exists()
    assert (outside / "kept").exists()


def test_link_in_place_of_a_folder_is_not_followed(folder: Path) -> None:
    outside = folder.parent / "outside"
    delete_folder(folder / NAME / "link")
    assert (outside / "kept").exists()
