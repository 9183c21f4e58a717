"""Packed and rejected files of a folder."""

import gzip
import io
import os
import socket
import tarfile
from pathlib import Path

import pytest

from batchyard.cli.submit import manifests
from batchyard.cli.submit.manifests import PackingError, pack


def fill_folder(folder: Path, **files: str) -> Path:
    """Fill a folder with files; `__` in a name stands for a slash, `_py` for `.py`."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def members(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(content))) as archive:
        return {member.name: member for member in archive.getmembers()}


def test_equal_files_pack_to_equal_bytes(tmp_path: Path) -> None:
    one = fill_folder(tmp_path / "one", train_py="a", lib__net_py="b")
    other = fill_folder(tmp_path / "other", lib__net_py="b", train_py="a")
    os.utime(other / "train.py", (1_000_000_000, 1_000_000_000))
    (other / "lib" / "net.py").chmod(0o600)
    assert pack(one) == pack(other)
    assert pack(one).file_count == 2


def test_pack_keeps_contents_links_empty_folders_and_executable_bits(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "work", train_py="a", run="#!/bin/sh")
    (folder / "run").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "latest.py").symlink_to("train.py")
    result = members(pack(folder).content)
    assert list(result) == ["empty", "latest.py", "run", "train.py"]
    assert result["empty"].isdir()
    assert result["latest.py"].linkname == "train.py"
    assert (result["run"].mode, result["train.py"].mode) == (0o755, 0o644)


def test_excluded_files_are_left_out_and_reported(tmp_path: Path) -> None:
    folder = fill_folder(
        tmp_path, train_py="a", __init_py="", lib____pycache____a="", env__pyvenv="", platform__journal=""
    )
    for name in (".git", ".venv", ".batchyard"):
        fill_folder(folder / name, secret="s")
    (folder / "env" / "pyvenv").rename(folder / "env" / "pyvenv.cfg")
    (folder / "platform" / "journal").rename(folder / "platform" / "journal.db")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        packed = pack(folder)
    reported = {".git/", ".venv/", ".batchyard/", "env/", "platform/", "socket"}
    assert reported <= set(packed.excluded_paths)
    assert not any(name.startswith((".", "env", "platform", "socket")) for name in members(packed.content))


@pytest.mark.parametrize("target", ["../elsewhere", "/etc/hostname", "lib/../../elsewhere"])
def test_links_out_of_folder_are_rejected(tmp_path: Path, target: str) -> None:
    folder = fill_folder(tmp_path / "work", lib__a="")
    (folder / "link").symlink_to(target)
    with pytest.raises(PackingError, match="links must be relative"):
        pack(folder)


def test_oversized_folder_is_rejected_with_largest_files(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path, train_py="a", weights__small="b" * 200_000)
    with (folder / "weights" / "large").open("wb") as file:
        file.truncate(manifests.FOLDER_SIZE_MAX)
    with pytest.raises(PackingError, match=r"the largest files: weights/large \(104.9 MB\), weights/small \(0.2 MB\)"):
        pack(folder)


def test_oversized_archive_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "PACKED_MAX", 100)
    with pytest.raises(PackingError, match=r"kB packed, more than the limit of 0.1 kB; the largest files: train.py"):
        pack(fill_folder(tmp_path, train_py="".join(map(str, range(1000)))))


def test_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="is not a folder"):
        pack(tmp_path / "none")
