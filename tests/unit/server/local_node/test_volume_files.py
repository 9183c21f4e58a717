"""The volumes of pods in their folders."""

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.kubelet.local.errors import ContainerError, VolumeError
from batchyard.kubelet.local.volumes import EmptyDirPlan, HostPathPlan, Mount, VolumeFile, VolumeFiles
from batchyard.server.local_node.runtime import DATA_LINK, make_volume, mount_source, write_files

Contents = Mapping[str, bytes]
BEFORE: Contents = {"a": b"1", "dir/b": b"2", "dir/deep/c": b"3", "gone": b"4"}
AFTER: Contents = {"a": b"one", "dir/deep/c": b"3", "new/d": b"5"}


def plan(contents: Contents, mode: int = 0o644) -> VolumeFiles:
    return VolumeFiles({path: VolumeFile(content, mode) for path, content in contents.items()})


def read(folder: Path) -> dict[str, bytes]:
    """Return the files that a program sees in the folder: all names without a leading dot."""
    result: dict[str, bytes] = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith(".."):
            files = [path] if path.is_file() else [p for p in path.resolve(strict=True).rglob("*") if p.is_file()]
            result.update({_name(folder, path, file): file.read_bytes() for file in files})
    return result


def _name(folder: Path, path: Path, file: Path) -> str:
    return path.name if file == path else f"{path.name}/{file.relative_to(path.resolve())}"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def mount(folder: str, sub_path: str = "") -> Mount:
    return Mount("v", "main", folder, sub_path, "/x", read_only=False)


# --- files ---


def test_files_are_written_with_their_modes_regardless_of_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_files(
            tmp_path / "v", VolumeFiles({"a": VolumeFile(b"1", 0o644), "dir/b": VolumeFile(b"2", 0o400)}), make.NOW
        )
    finally:
        os.umask(before)
    result = [mode_of(tmp_path / "v" / path) for path in ("", "a", "dir", "dir/b")]
    assert result == [0o777, 0o644, 0o755, 0o400]


def test_volume_names_link_through_data_symlink(tmp_path: Path) -> None:
    write_files(tmp_path, plan(BEFORE), make.NOW)
    names = {path.name: str(path.readlink()) for path in tmp_path.iterdir() if path.is_symlink()}
    stamped = names.pop(DATA_LINK)
    assert names == {name: f"..data/{name}" for name in ("a", "dir", "gone")}
    assert stamped.startswith("..2026_01_01_00_00_00.")


def test_next_plan_replaces_folder_content(tmp_path: Path) -> None:
    assert write_files(tmp_path, plan(BEFORE), make.NOW)
    assert read(tmp_path) == BEFORE
    assert write_files(tmp_path, plan(AFTER), make.at(1))
    assert read(tmp_path) == AFTER
    assert sorted(path.name for path in tmp_path.iterdir())[2:] == ["a", "dir", "new"]


def test_unchanged_plan_writes_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, plan(BEFORE), make.NOW)
    current = (tmp_path / DATA_LINK).readlink()
    assert not write_files(tmp_path, plan(BEFORE), make.at(1))
    assert (tmp_path / DATA_LINK).readlink() == current


def test_empty_plan_removes_all_files(tmp_path: Path) -> None:
    write_files(tmp_path, plan(BEFORE), make.NOW)
    write_files(tmp_path, plan({}), make.at(1))
    assert read(tmp_path) == {}


def test_open_file_keeps_old_content_after_update(tmp_path: Path) -> None:
    write_files(tmp_path, plan(BEFORE), make.NOW)
    with (tmp_path / "a").open("rb") as held:
        write_files(tmp_path, plan(AFTER), make.at(1))
        assert held.read() == b"1"


def test_mount_points_of_other_volumes_are_kept(tmp_path: Path) -> None:
    files = VolumeFiles({"a": VolumeFile(b"1", 0o644)}, mount_points=("sub/deep",))
    write_files(tmp_path, files, make.NOW)
    write_files(tmp_path, VolumeFiles({"a": VolumeFile(b"2", 0o644)}, mount_points=("sub/deep",)), make.at(1))
    assert (tmp_path / "sub/deep").is_dir()
    assert mode_of(tmp_path / "sub") == 0o755


class InterruptedWriteError(Exception):
    """Simulates the end of the process."""


STEPS = ("symlink_to", "replace", "unlink", "chmod", "write_bytes", "mkdir", "touch")
NAMES = st.sampled_from(["a", "b", "dir/a", "dir/b", "dir/deep/a", "other/x"])
PLANS = st.dictionaries(NAMES, st.binary(max_size=2), max_size=5)


def interrupt_write(folder: Path, contents: Contents, after: int) -> bool:
    """Interrupt a write after some steps, with a reader at each step; return whether it was interrupted."""
    seen: list[dict[str, bytes]] = []
    old = read_data(folder)
    with pytest.MonkeyPatch.context() as patch:
        left = [after]
        for step in STEPS:
            patch.setattr(Path, step, _counted(getattr(Path, step), left, lambda: seen.append(read_data(folder))))
        try:
            write_files(folder, plan(contents), make.at(1))
        except InterruptedWriteError:
            return True
        finally:
            assert all(look in (old, dict(contents)) for look in seen)
    return False


def _counted(step: Callable[..., Any], left: list[int], look: Callable[[], None]) -> Callable[..., Any]:
    def counted(path: Path, *args: Any, **kwargs: Any) -> Any:
        if left[0] == 0:
            raise InterruptedWriteError
        left[0] -= 1
        result = step(path, *args, **kwargs)
        look()
        return result

    return counted


def read_data(folder: Path) -> dict[str, bytes]:
    """Return the files that a program sees that opens `..data` once and reads all below it."""
    if not (folder / DATA_LINK).exists():
        return {}
    current = (folder / DATA_LINK).resolve()
    return {str(path.relative_to(current)): path.read_bytes() for path in current.rglob("*") if path.is_file()}


@given(PLANS, PLANS, PLANS, st.integers(0, 40))
def test_reader_sees_one_complete_plan_after_interrupted_write(
    first: Contents, second: Contents, third: Contents, after: int
) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name) / "v"
        write_files(folder, plan(first), make.NOW)
        interrupt_write(folder, second, after)
        assert read_data(folder) in (first, second)
        write_files(folder, plan(third), make.at(2))
        assert read(folder) == third
        hidden = [path.name for path in folder.iterdir() if path.name.startswith("..")]
        assert sorted(hidden) == sorted([DATA_LINK, str((folder / DATA_LINK).readlink())])


def test_write_can_be_interrupted_between_steps(tmp_path: Path) -> None:
    write_files(tmp_path, plan(BEFORE), make.NOW)
    assert interrupt_write(tmp_path, AFTER, 5)
    assert not interrupt_write(tmp_path, AFTER, 100)


# --- other volumes ---


def test_empty_dir_is_created_once_and_kept(tmp_path: Path) -> None:
    make_volume(tmp_path / "v", "v", EmptyDirPlan(mode=0o1777), make.NOW)
    assert mode_of(tmp_path / "v") == 0o1777
    (tmp_path / "v" / "work").write_text("done")
    assert not make_volume(tmp_path / "v", "v", EmptyDirPlan(mode=0o1777), make.NOW)
    assert (tmp_path / "v" / "work").read_text() == "done"


def test_write_failure_is_reported_as_volume_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(VolumeError, match=r'MountVolume\.SetUp failed for volume "v" : .*Not a directory'):
        make_volume(tmp_path / "file" / "v", "v", plan({"a": b"1"}), make.NOW)


@pytest.mark.parametrize(("kind", "is_folder"), [("", True), ("DirectoryOrCreate", True), ("FileOrCreate", False)])
def test_host_path_is_created_for_create_types(tmp_path: Path, kind: str, is_folder: bool) -> None:
    path = tmp_path / "new" if kind == "FileOrCreate" else tmp_path / "new" / "deep"
    make_volume(tmp_path / "v", "v", HostPathPlan(str(path), kind, (str(tmp_path),)), make.NOW)
    assert (path.is_dir(), path.is_file()) == (is_folder, not is_folder)
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("file", "Directory", "directory"),
        ("none", "Directory", "directory"),
        ("file", "DirectoryOrCreate", "directory"),
        ("folder", "File", "file"),
        ("none", "File", "file"),
        ("file", "Socket", "socket file"),
        ("file", "CharDevice", "character device"),
        ("none", "BlockDevice", "block device"),
    ],
)
def test_host_path_of_wrong_type_is_rejected(tmp_path: Path, name: str, kind: str, what: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(VolumeError) as caught:
        make_volume(tmp_path / "v", "v", HostPathPlan(str(tmp_path / name), kind, (str(tmp_path),)), make.NOW)
    assert str(caught.value).endswith(f"hostPath type check failed: {tmp_path / name} is not a {what}")


def test_host_path_symlink_outside_allowed_paths_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "out").symlink_to("/etc")
    with pytest.raises(VolumeError, match="leads to /etc/hosts, which is outside the allowed host paths"):
        make_volume(tmp_path, "v", HostPathPlan(f"{tmp_path}/data/out/hosts", "", (f"{tmp_path}/data",)), make.NOW)


# --- mounts ---


def test_whole_volume_is_mounted_at_resolved_path(tmp_path: Path) -> None:
    assert mount_source(tmp_path, mount("volumes/v"), EmptyDirPlan()) == "volumes/v"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    disk = HostPathPlan(str(tmp_path / "link"), allowed_folders=(str(tmp_path),))
    assert mount_source(tmp_path, mount(disk.path), disk) == str(tmp_path.resolve() / "real")


@pytest.mark.parametrize("sub_path", ["", "below"])
def test_host_path_replaced_by_symlink_outside_allowed_paths_is_rejected(tmp_path: Path, sub_path: str) -> None:
    disk = HostPathPlan(f"{tmp_path}/data/x", allowed_folders=(f"{tmp_path}/data",))
    make_volume(tmp_path, "v", disk, make.NOW)
    assert mount_source(tmp_path, mount(disk.path), disk) == str(tmp_path.resolve() / "data/x")
    (tmp_path / "data/x").rename(tmp_path / "data/y")
    (tmp_path / "data/x").symlink_to(tmp_path)
    with pytest.raises(ContainerError, match="leads outside the allowed host paths"):
        mount_source(tmp_path, mount(disk.path, sub_path), disk)
    assert not (tmp_path / "below").exists()


@pytest.mark.parametrize("when", ["before a folder is made", "after it was made"])
def test_sub_path_replaced_by_symlink_during_creation_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    outside, volume = tmp_path / "outside", tmp_path / "volumes/v"
    (outside / "b").mkdir(parents=True, mode=0o700)
    (volume / "a").mkdir(parents=True)
    make_folder = os.mkdir

    def exchange() -> None:
        (volume / "a").rename(volume / "was")
        (volume / "a").symlink_to(outside)

    def made(*arguments: Any, **options: Any) -> None:
        monkeypatch.undo()
        if when == "before a folder is made":
            exchange()
        make_folder(*arguments, **options)
        if when == "after it was made":
            exchange()

    monkeypatch.setattr(os, "mkdir", made)
    with suppress(ContainerError):
        mount_source(tmp_path, mount("volumes/v", "a/b/c"), EmptyDirPlan())
    assert [path.name for path in outside.rglob("*")] == ["b"]
    assert mode_of(outside / "b") == 0o700


def test_host_path_replaced_by_symlink_during_creation_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data/x").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    look = Path.exists

    def exchanged(path: Path) -> bool:
        monkeypatch.undo()
        result = look(path)
        (tmp_path / "data/x").rename(tmp_path / "data/y")
        (tmp_path / "data/x").symlink_to(tmp_path / "outside")
        return result

    monkeypatch.setattr(Path, "exists", exchanged)
    with pytest.raises(VolumeError):
        make_volume(tmp_path, "v", HostPathPlan(f"{tmp_path}/data/x/new", "", (f"{tmp_path}/data",)), make.NOW)
    assert not list((tmp_path / "outside").iterdir())


def test_missing_sub_path_is_created_with_mode_of_volume(tmp_path: Path) -> None:
    make_volume(tmp_path / "volumes/v", "v", EmptyDirPlan(), make.NOW)
    assert mount_source(tmp_path, mount("volumes/v", "a/b"), EmptyDirPlan()) == "volumes/v/a/b"
    assert mode_of(tmp_path / "volumes/v/a/b") == 0o777


def test_config_map_file_is_mounted_at_current_version(tmp_path: Path) -> None:
    make_volume(tmp_path / "volumes/v", "v", plan(BEFORE), make.NOW)
    source = mount_source(tmp_path, mount("volumes/v", "dir/b"), plan(BEFORE))
    assert (tmp_path / source).read_bytes() == b"2"


def test_symlink_inside_volume_is_followed_and_symlink_outside_is_rejected(tmp_path: Path) -> None:
    volume = tmp_path / "volumes/v"
    (volume / "real").mkdir(parents=True)
    (volume / "in").symlink_to("real")
    (volume / "out").symlink_to("../../..")
    (volume / "far").symlink_to("/etc")
    assert mount_source(tmp_path, mount("volumes/v", "in"), EmptyDirPlan()) == "volumes/v/real"
    for sub_path in ("out", "far/ssl", "in/../../x"):
        with pytest.raises(ContainerError) as caught:
            mount_source(tmp_path, mount("volumes/v", sub_path), EmptyDirPlan())
        assert caught.value.message == 'failed to prepare subPath for volumeMount "v" of container "main"'


def test_sub_path_below_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "volumes/v").mkdir(parents=True)
    (tmp_path / "volumes/v/file").touch()
    with pytest.raises(ContainerError, match='failed to create subPath directory for volumeMount "v"'):
        mount_source(tmp_path, mount("volumes/v", "file/x"), EmptyDirPlan())


def test_memory_volume_is_left_to_sandbox(tmp_path: Path) -> None:
    memory = EmptyDirPlan(is_memory=True)
    assert mount_source(tmp_path, mount("volumes/v", "a"), memory) == "volumes/v/a"
    assert not (tmp_path / "volumes").exists()
