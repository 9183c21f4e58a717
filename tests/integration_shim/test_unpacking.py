"""Archives that engines export are unpacked safely, even if they are malicious."""

import io
import os
import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim.images import rootfs_store, unpacking
from batchyard.shim.isolation import users
from batchyard.shim.state_dir import open_folder

PASSWD = "root:x:0:0:root:/root:/bin/sh\nwww:x:33:34::/var/www:/bin/sh\nbroken\n"
GROUP = "root:x:0:\nstaff:x:50:www\n"


Member = tuple[tarfile.TarInfo, bytes]


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any) -> Member:
    """A member of an archive."""
    created = tarfile.TarInfo(name)
    created.type, created.size, created.mtime = kind, len(content), 86400
    for field, value in fields.items():
        setattr(created, field, value)
    return created, content


def unpack_archive(place: Path, *members: Member, cut: int | None = None) -> dict[str, Any]:
    """The result of unpacking an archive into a folder."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    file = place.parent / "archive"
    file.write_bytes(written.getvalue()[:cut])
    place.mkdir(exist_ok=True)
    return unpacking.unpack(os.open(file, os.O_RDONLY), str(place))


def test_unpack_restores_files_with_safe_modes_and_without_devices(tmp_path: Path) -> None:
    root = tmp_path / "root"
    reported = unpack_archive(
        root,
        member("./bin", tarfile.DIRTYPE, mode=0o555),
        member("bin/su", content=b"12345", mode=0o4755, uid=1234),
        member("secret", content=b"x", mode=0o044),
        member("dev/sda", tarfile.BLKTYPE, devmajor=8),
        member("etc/passwd", content=PASSWD.encode(), mode=0o644),
        member("a" * 150 + "/" + "b" * 200, content=b"long"),
    )
    modes = [stat.S_IMODE((root / name).stat().st_mode) for name in ("bin", "bin/su", "secret")]
    assert modes == [0o755, 0o755, 0o444]
    assert ((root / "bin/su").stat().st_uid, (root / "bin/su").stat().st_mtime) == (os.geteuid(), 86400)
    assert list((root / "dev").iterdir()) == []
    assert (root / ("a" * 150) / ("b" * 200)).read_bytes() == b"long"
    assert reported == {"bytes": 5 + 1 + len(PASSWD) + 4, "passwd": PASSWD, "group": ""}


def test_unpack_writes_nothing_outside_its_root(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    root, outside = tmp_path / "root", f"{tmp_path}/outside"
    with pytest.raises(OSError, match=r"File exists|No such file"):
        unpack_archive(root, member("there", tarfile.SYMTYPE, linkname=outside), member("there/file", content=b"x"))
    unpack_archive(root, member("../../outside/file", content=b"x"), member("/abs", content=b"x"))
    assert list((tmp_path / "outside").iterdir()) == []
    assert (root / "outside/file").exists()
    assert (root / "abs").exists()


def test_hard_link_target_must_be_inside_archive(tmp_path: Path) -> None:
    root = tmp_path / "root"
    unpack_archive(root, member("a", content=b"x"), member("b", tarfile.LNKTYPE, linkname="a"))
    assert (root / "a").stat().st_ino == (root / "b").stat().st_ino
    with pytest.raises(OSError, match="No such file"):
        unpack_archive(root, member("c", tarfile.LNKTYPE, linkname=f"{tmp_path}/archive"))


def test_truncated_or_invalid_archive_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="unexpected end of data"):
        unpack_archive(tmp_path / "root", member("a", content=b"x" * 5000), cut=2000)
    (tmp_path / "archive").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(OSError, match="invalid header"):
        unpacking.unpack(os.open(tmp_path / "archive", os.O_RDONLY), str(tmp_path / "root"))


def test_failed_unpack_leaves_no_files(tmp_path: Path) -> None:
    node = open_folder(str(tmp_path))

    def fails(place: str) -> dict[str, Any]:
        Path(place, "file").touch()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        rootfs_store.add_image(node, "0123", fails, {})
    assert (list((tmp_path / "roots").iterdir()), rootfs_store.touch_image(node, "0123")) == ([], False)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("", (0, 0, "/root")),
        ("www", (33, 34, "/var/www")),
        ("33", (33, 34, "/var/www")),
        ("7", (7, 0, "/")),
        ("www:staff", (33, 50, "/var/www")),
        ("7:8", (7, 8, "/")),
    ],
)
def test_user_is_resolved_from_passwd_and_group_of_image(named: str, found: Sequence[object]) -> None:
    assert users.resolve_account(named, PASSWD, GROUP) == found


@pytest.mark.parametrize(("named", "message"), [("who", "find user who"), ("0:who", "find group who")])
def test_unknown_user_or_group_is_reported(named: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        users.resolve_account(named, PASSWD, GROUP)


def test_symlinks_resolve_inside_root(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    for link, target in {"var/run": "/run", "var/up": "../../../etc", "loop": "loop", "lib": "usr/lib"}.items():
        (tmp_path / link).symlink_to(target)
    result = [
        unpacking.resolve_in_root(str(tmp_path), path) for path in ("/var/run/a/b", "/var/up/x", "/lib/./x/../y", "/")
    ]
    assert result == ["/run/a/b", "/etc/x", "/usr/lib/y", "/"]
    with pytest.raises(ValueError, match="too many levels"):
        unpacking.resolve_in_root(str(tmp_path), "/loop/x")
