"""Storage: names, errors and folders; contents that end early or were changed; the ring of commit times."""

import io
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.meta import Key
from batchyard.server.archive.encoding import ContentHeader, ContentReader, DamagedContentError, write_content
from batchyard.server.archive.history import ArchivedObject, parse_object_name
from batchyard.server.archive.storage import (
    FolderStorage,
    ObjectExistsError,
    ObjectMissingError,
    StorageError,
    open_storage,
)
from batchyard.store.commit_times import RING_SLOTS, CommitTimes, read_commit_times
from batchyard.store.journal import JournalRow
from batchyard.store.journal_file import row_checksum


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://host/x", "unknown storage; use a folder, file://, s3://, gs:// or az://"),
        ("file://host/x", "use file:///PATH with an absolute path"),
        ("s3:///x", "use s3://BUCKET/PREFIX; credentials come from environment variables"),
        ("s3://key:secret@bucket/x", "credentials come from environment variables"),
    ],
)
def test_invalid_url_is_rejected(url: str, problem: str) -> None:
    with pytest.raises(StorageError, match=problem):
        open_storage(url)


def test_missing_library_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StorageError, match=r"requires the library obstore; install it with: pip install 'batchyard\["):
        open_storage("s3://bucket/x")


def test_folder_never_overwrites_a_created_object(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}/archive")
    storage.create("1/a", b"first")
    with pytest.raises(ObjectExistsError, match="already exists and is not overwritten"):
        storage.create("1/a", b"second")
    storage.replace("1/b", b"old")
    storage.replace("1/b", b"new")
    assert (b"".join(storage.read("1/a")), b"".join(storage.read("1/b"))) == (b"first", b"new")
    assert sorted(stored.name for stored in storage.list()) == ["1/a", "1/b"]


def test_folder_deletes_objects(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path)
    storage.create("1/a", b"x")
    storage.delete("1/a")
    storage.delete("1/a")
    with pytest.raises(ObjectMissingError, match="does not exist"):
        next(storage.read("1/a"))


def test_folder_uploads_files_privately(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (storage := FolderStorage(tmp_path / "to")).upload("1/a", tmp_path / "file")
    assert (tmp_path / "to" / "1" / "a").read_bytes() == b"content"
    assert (storage.url, (tmp_path / "to").stat().st_mode & 0o77) == (str(tmp_path / "to"), 0)


@given(epoch=st.integers(1, 10**8 - 1), first=st.integers(0, 10**16 - 1), is_base=st.booleans())
def test_object_names_are_parsed(epoch: int, first: int, *, is_base: bool) -> None:
    obj = ArchivedObject(epoch, is_base, first, 10**16 - 1, 5, "0f" * 32, 7)
    assert parse_object_name(obj.name, 7) == obj
    assert parse_object_name(obj.name + "x") is None


def row(revision: int, text: bytes | None) -> JournalRow:
    key = Key("ConfigMap", "team", f"n{revision}")
    return revision, *key, text, row_checksum(revision, key, text)


TEXTS = st.lists(st.one_of(st.none(), st.binary(max_size=600_000)), min_size=1, max_size=6)


@given(texts=TEXTS, part_size=st.integers(1, 100_000))
def test_contents_are_read_in_any_parts(texts: list[bytes | None], part_size: int) -> None:
    rows = [row(number + 1, text) for number, text in enumerate(texts)]
    header, buffer = ContentHeader(1, len(rows), [(len(rows), 9)], len(rows)), io.BytesIO()
    digest, content = write_content(buffer, header, rows), buffer.getvalue()
    part_size = max(part_size, len(content) // 1000)
    reader = ContentReader((content[at : at + part_size] for at in range(0, len(content), part_size)), digest)
    assert (reader.header.last, list(reader.rows())) == (len(rows), rows)


@given(cut=st.integers(0, 400), flipped=st.integers(0, 2000), is_cut=st.booleans())
def test_damaged_contents_are_never_accepted(cut: int, flipped: int, *, is_cut: bool) -> None:
    rows, buffer = [row(number, bytes(range(200))) for number in range(1, 5)], io.BytesIO()
    digest, content = write_content(buffer, ContentHeader(1, 4, [], 4), rows), bytearray(buffer.getvalue())
    content[flipped % len(content)] ^= 1
    damaged = bytes(buffer.getvalue()[: -1 - cut] if is_cut else content)
    with pytest.raises(DamagedContentError):
        list(ContentReader([damaged], digest).rows())


def test_commit_times_survive_restarts_and_never_decrease(tmp_path: Path) -> None:
    journal, now = tmp_path / "journal.db", 100
    times = CommitTimes(journal, lambda: now)
    times.record(3)
    now = 50
    times.record(4)
    times.close()
    now = 200
    CommitTimes(journal, lambda: now).record(9)
    assert read_commit_times(journal) == [(3, 100), (4, 100), (9, 200)]
    assert read_commit_times(journal, after=3) == [(4, 100), (9, 200)]


def test_commit_times_keep_the_last_transactions(tmp_path: Path) -> None:
    times = CommitTimes(tmp_path / "journal.db", lambda: 7)
    for revision in range(1, RING_SLOTS + 11):
        times.record(revision)
    recorded = read_commit_times(tmp_path / "journal.db")
    assert (recorded[0], recorded[-1], len(recorded)) == ((11, 7), (RING_SLOTS + 10, 7), RING_SLOTS)


def test_journal_without_commit_times_has_none(tmp_path: Path) -> None:
    assert read_commit_times(tmp_path / "journal.db") == []
