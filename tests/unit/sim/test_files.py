"""Files, folders and texts as sources: what is read, and what is said of what cannot be."""

from pathlib import Path

import pytest

from batchyard.sim.scenario import FileFault, Source, is_text, read_sources


def read(*sources: Source) -> tuple[list[tuple[str, str]], list[str]]:
    """The texts and the faults."""
    faults: list[FileFault] = []
    texts = list(read_sources(sources, faults))
    return texts, [str(fault) for fault in faults]


def write(folder: Path, *names: str) -> None:
    """Files that hold their own name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}")


def test_a_folder_is_read_to_the_bottom_in_order_of_paths(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "a/c.json", "a/b/d.yml", "a.txt", ".hidden/e.yaml", ".f.yaml")
    texts, faults = read(tmp_path)
    assert [Path(name).relative_to(tmp_path).as_posix() for name, _ in texts] == ["a/b/d.yml", "a/c.json", "b.yaml"]
    assert faults == []


def test_a_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    assert read(str(tmp_path / "a.txt")) == ([(str(tmp_path / "a.txt"), "# a.txt")], [])


def test_a_folder_without_manifests_is_a_fault(tmp_path: Path) -> None:
    write(tmp_path, "a.txt")
    _, (fault,) = read(tmp_path)
    assert fault == f"{tmp_path}: no manifests in this folder (*.json, *.yaml, *.yml); name another"


def test_what_is_missing_or_no_text_is_a_fault_and_the_rest_is_read(tmp_path: Path) -> None:
    write(tmp_path, "good.yaml")
    (tmp_path / "bad.yaml").write_bytes(b"\x7fELF\xff\xfe")
    texts, faults = read(tmp_path / "none.yaml", tmp_path / "bad.yaml", tmp_path / "good.yaml")
    assert [text for _, text in texts] == ["# good.yaml"]
    assert [fault.partition(": ")[2] for fault in faults] == [
        "cannot be read: No such file or directory; check the name and the permissions",
        "not a text: byte 4 is not UTF-8; save it as UTF-8, or leave it out",
    ]


def test_a_name_that_no_file_can_have_is_a_fault() -> None:
    _, (fault,) = read("a\0b")
    assert "cannot be read" in fault


def test_texts_and_objects_are_named_by_their_place() -> None:
    texts, _ = read("kind: A\nname: b\n", {"kind": "B"})
    assert texts == [("<text 1>", "kind: A\nname: b\n"), ("<object 2>", '{"kind":"B"}')]


@pytest.mark.parametrize(("source", "expected"), [("a.yaml", False), ("a: b\n", True), ('{"a": 1}', True), ("", False)])
def test_a_string_is_text_if_it_has_lines_or_is_json(source: str, expected: bool) -> None:
    assert is_text(source) is expected
