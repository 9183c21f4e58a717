"""Files, folders and texts as sources: their contents, and the faults of unreadable files."""

import os
from pathlib import Path

import pytest

from batchyard.sim.scenario import FileFault, Source, is_manifest_text, read_sources


def read(*sources: Source) -> tuple[list[tuple[str, str]], list[str]]:
    """Read sources; return the texts and the faults."""
    faults: list[FileFault] = []
    texts = list(read_sources(sources, faults))
    return texts, [str(fault) for fault in faults]


def write(folder: Path, *names: str) -> None:
    """Create files, each of which contains its own name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}")


def test_folder_is_read_recursively_in_path_order(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "a/c.json", "a/b/d.yml", "a.txt", ".hidden/e.yaml", ".f.yaml")
    texts, faults = read(tmp_path)
    assert [Path(name).relative_to(tmp_path).as_posix() for name, _ in texts] == ["a/b/d.yml", "a/c.json", "b.yaml"]
    assert faults == []


def test_named_file_is_read_with_any_extension(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    assert read(str(tmp_path / "a.txt")) == ([(str(tmp_path / "a.txt"), "# a.txt")], [])


def test_folder_without_manifests_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    _, (fault,) = read(tmp_path)
    assert fault == f"{tmp_path}: the folder contains no manifests (*.json, *.yaml, *.yml); use another folder"


def test_unreadable_files_are_reported_and_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, "good.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"\x7fELF\xff\xfe")
    texts, faults = read(tmp_path / "none.yaml", tmp_path / "bad.yaml", tmp_path / "good.yaml")
    assert [text for _, text in texts] == ["# good.yaml"]
    assert [fault.partition(": ")[2] for fault in faults] == [
        "cannot be read: No such file or directory; check the name and the permissions",
        "the file is not text: byte 4 is not UTF-8; save the file as UTF-8, or remove the file",
    ]


def test_missing_file_is_reported_with_similar_name(tmp_path: Path) -> None:
    write(tmp_path, "change.yaml")
    _, (fault,) = read(tmp_path / "chnage.yaml")
    assert fault.endswith(f"cannot be read: No such file or directory; did you mean {tmp_path / 'change.yaml'}?")


def test_folder_without_permission_is_reported(tmp_path: Path) -> None:
    write(tmp_path, "open/a.yaml", "closed/b.yaml")
    closed = tmp_path / "closed"
    closed.chmod(0)
    try:
        if os.access(closed, os.R_OK):
            pytest.skip("this user may read all folders")
        _, (fault,) = read(tmp_path)
    finally:
        closed.chmod(0o755)
    assert fault == f"{closed}: cannot be read: Permission denied; ask its owner for the permission to read it"


def test_invalid_file_name_is_reported() -> None:
    _, (fault,) = read("a\0b")
    assert "cannot be read" in fault


def test_texts_and_objects_are_named_by_position() -> None:
    texts, _ = read("kind: A\nname: b\n", {"kind": "B"})
    assert texts == [("<text 1>", "kind: A\nname: b\n"), ("<object 2>", '{"kind":"B"}')]


@pytest.mark.parametrize(("source", "expected"), [("a.yaml", False), ("a: b\n", True), ('{"a": 1}', True), ("", False)])
def test_string_with_lines_or_json_is_text(source: str, expected: bool) -> None:
    assert is_manifest_text(source) is expected
