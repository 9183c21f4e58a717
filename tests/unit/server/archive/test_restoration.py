"""A restore has the state of each revision and time; damage, gaps and other platforms are reported."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchyard.base.instant import SECOND
from batchyard.server.archive.epochs import RejectedArchiveError
from batchyard.server.archive.history import ArchiveError
from batchyard.server.archive.restoration import describe_archive
from batchyard.server.archive.storage import StorageError
from batchyard.store.journal import REVISION_LEAP
from batchyard.store.journal_file import JournalError
from unit.server.archive.archived_journal import ArchivedJournal, objects_of


@pytest.fixture
def archived(tmp_path: Path) -> ArchivedJournal:
    return ArchivedJournal(tmp_path)


def filled(archived: ArchivedJournal) -> ArchivedJournal:
    """Archive a base at revision 1, and segments that end at revisions 3, 4 and 6."""
    for names in ("a", "bc", "a", "bd"):
        archived.commit(*names)
        archived.archive()
    return archived


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "delete"]), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["commit", "archive", "compact", "restart", "kill"]), st.just("")),
    ),
    max_size=40,
)


def play(archived: ArchivedJournal, steps: list[tuple[str, str]]) -> None:
    for step, name in steps:
        if step in {"write", "delete"}:
            archived.write(name, deletes=step == "delete")
        elif step == "commit":
            archived.commit()
        elif step == "archive":
            archived.commit()
            archived.archive()
        elif step == "compact":
            archived.commit()
            archived.kept.journal.compact(archived.kept.store.revision)
        elif step == "restart":
            archived.start_archiver()
        else:
            archived.commit()
            archived.kept.journal.close()
            archived.open()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=STEPS, data=st.data())
def test_every_restorable_revision_and_time_has_its_state(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    archived = ArchivedJournal(tmp_path_factory.mktemp("history"))
    archived.commit("a")
    play(archived, steps)
    last = archived.commit("z")
    archived.archive()
    spans = [(span["fromRevision"], span["toRevision"]) for span in describe_archive(archived.storage)["restorable"]]
    assert spans[0][1] == last
    revisions = [revision for first, end in spans for revision in range(first, end + 1)]
    for number in range(3):
        revision = data.draw(st.sampled_from(revisions))
        assert objects_of(archived.restore(f"r{number}", revision)) == archived.states[revision]
    restorable = [revision for revision in archived.times if spans[0][0] <= revision]
    revision = data.draw(st.sampled_from(restorable))
    restored = archived.restore("time", time=archived.times[revision])
    assert (restored.revision, objects_of(restored)) == (revision, archived.states[revision])


def test_newest_state_is_the_default_and_revisions_continue_beyond_it(archived: ArchivedJournal) -> None:
    restored = filled(archived).restore("new")
    assert (restored.revision, objects_of(restored)) == (6, archived.states[6])
    assert restored.contents.store.revision == 6 + REVISION_LEAP


def test_earlier_revision_continues_beyond_all_archived_ones(archived: ArchivedJournal) -> None:
    assert filled(archived).restore("new", 2).contents.store.revision == 6 + REVISION_LEAP


def test_time_before_archive_is_rejected(archived: ArchivedJournal) -> None:
    with pytest.raises(ArchiveError, match="the archive begins after this time"):
        filled(archived).restore("new", time=archived.times[1] - 1)


def test_revision_outside_archive_is_rejected_with_the_newest_before_it(archived: ArchivedJournal) -> None:
    with pytest.raises(ArchiveError, match=r"revision 9 is not in the archive, which has 1 to 6; .* --to-revision 6"):
        filled(archived).restore("new", 9)


def test_restore_never_overwrites(archived: ArchivedJournal) -> None:
    filled(archived).restore("new", 3)
    with pytest.raises(JournalError, match="already exists and is not overwritten"):
        archived.restore("new", 4)
    with pytest.raises(JournalError, match="another process has the journal open"):
        archived.restore("data", 4)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_damaged_segment_is_named_with_the_newest_revision_before_it(archived: ArchivedJournal, damage: str) -> None:
    segment = filled(archived).objects(bases=False)[1]
    path = archived.file_of(segment)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": bytes(content), "truncate": bytes(content)[:-1], "empty": b""}[damage])
    with pytest.raises(ArchiveError, match=f"{segment.name} is damaged: .* --to-revision 3"):
        archived.restore("new")
    assert objects_of(archived.restore("new", 3)) == archived.states[3]


def test_missing_segment_is_a_gap(archived: ArchivedJournal) -> None:
    archived.file_of(filled(archived).objects(bases=False)[1]).unlink()
    with pytest.raises(ArchiveError, match=r"lacks revisions 4 to 4, before 00000001/segment-.* --to-revision 3"):
        archived.restore("new")
    with pytest.raises(ArchiveError, match="lacks revisions 4 to 4"):
        archived.restore("new", time=archived.times[6])
    with pytest.raises(ArchiveError, match="revision 5 is not in the archive"):
        archived.restore("new", 5)


def test_exchanged_segment_is_damaged(archived: ArchivedJournal) -> None:
    first, second, _ = filled(archived).objects(bases=False)
    shutil.copyfile(archived.file_of(first), archived.file_of(second))
    with pytest.raises(ArchiveError, match=f"{second.name} is damaged"):
        archived.restore("new")


def test_older_base_replaces_a_damaged_one(archived: ArchivedJournal) -> None:
    filled(archived)
    archived.now += 25 * 3600 * SECOND
    archived.commit("e")
    archived.archive()
    base = archived.objects(bases=True)[-1]
    archived.file_of(base).write_bytes(b"nonsense")
    restored = archived.restore("new")
    assert objects_of(restored) == archived.states[7]
    assert restored.remarks == [
        f"{archived.storage.url}/{base.name} is damaged: it is truncated; an older base was used"
    ]


def test_interrupted_upload_leaves_no_object(archived: ArchivedJournal) -> None:
    filled(archived)
    draft = archived.file_of(archived.objects(bases=False)[0]).with_name(".new.1.segment-1")
    draft.write_bytes(b"half")
    assert len(archived.objects(bases=False)) == 3
    assert archived.restore("new").revision == 6


def test_compaction_past_the_archive_begins_with_a_new_base(archived: ArchivedJournal) -> None:
    filled(archived)
    for _ in range(3):
        archived.commit("a")
    archived.kept.journal.compact(8)
    archived.archive()
    spans = [(span["fromRevision"], span["toRevision"]) for span in describe_archive(archived.storage)["restorable"]]
    assert spans == [(9, 9), (1, 6)]
    with pytest.raises(ArchiveError, match="revision 8 is not in the archive, which has 1 to 6, 9"):
        archived.restore("new", 8)
    with pytest.raises(ArchiveError, match="the archive lacks revisions 7 to 8, which may be of this time"):
        archived.restore("new", time=archived.times[8])


def test_other_platform_is_rejected(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    other = ArchivedJournal(tmp_path, "other")
    other.commit("x")
    with pytest.raises(RejectedArchiveError, match="belongs to another platform, which ran on data; set another URL"):
        other.archive()


def test_copy_of_data_directory_takes_over_and_fences_the_first(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    shutil.copytree(archived.data, tmp_path / "copy")
    copy = ArchivedJournal(tmp_path, "copy")
    copy.archive()
    archived.commit("x")
    with pytest.raises(RejectedArchiveError, match="a platform on copy has taken over the archive"):
        archived.archive()


def test_older_copy_of_data_directory_is_rejected(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    shutil.copytree(archived.data, tmp_path / "copy")
    archived.commit("x")
    archived.archive()
    with pytest.raises(
        RejectedArchiveError, match=r"has revision 7, but this journal ends at revision 6; the data dir"
    ):
        ArchivedJournal(tmp_path, "copy").archive()


def test_standby_continues_where_both_have_the_same_changes(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    shutil.copytree(archived.data, tmp_path / "standby")
    archived.commit("x")
    archived.archive()
    standby = ArchivedJournal(tmp_path, "standby", is_replicated=True)
    standby.states = dict(archived.states)
    standby.commit("y", "z")
    standby.archive()
    restored = standby.restore("new")
    assert (restored.revision, objects_of(restored)) == (8, standby.states[8])


def test_restored_platform_begins_an_epoch_once_the_first_has_ended(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    archived.restore("new", 3)
    new = ArchivedJournal(tmp_path, "new")
    new.now = archived.now + SECOND
    archived.archiver.step(archived.now)
    new.archive()
    new.commit("after")
    new.archive()
    assert objects_of(new.restore("again")) == new.states[new.kept.store.revision]
    assert objects_of(archived.restore("before", 5)) == archived.states[5]
    archived.start_archiver()
    with pytest.raises(RejectedArchiveError, match="belongs to another platform, which ran on new"):
        archived.archive()


def test_restored_platform_waits_for_a_living_one(archived: ArchivedJournal, tmp_path: Path) -> None:
    filled(archived)
    archived.now += 60 * SECOND
    archived.archiver.step(archived.now)
    archived.restore("new", 3)
    new = ArchivedJournal(tmp_path, "new")
    new.now = archived.now + 10 * SECOND
    with pytest.raises(RejectedArchiveError, match=r"still writes its archive; end it on data.* try again in 30 s"):
        new.archive()
    new.now = archived.now + 41 * SECOND
    new.archive()


def test_retention_keeps_every_state_of_its_time(tmp_path: Path) -> None:
    archived = ArchivedJournal(tmp_path, keep=60 * SECOND)
    for number in range(100):
        archived.commit(f"n{number % 7}")
        archived.now += 4 * SECOND
        archived.archive()
    spans = describe_archive(archived.storage)["restorable"]
    assert len(spans) == 1
    oldest = min(revision for revision, time in archived.times.items() if time >= archived.now - 60 * SECOND)
    assert 60 <= spans[0]["fromRevision"] <= oldest
    assert objects_of(archived.restore("old", oldest)) == archived.states[oldest]


def test_storage_that_is_away_loses_no_change(archived: ArchivedJournal) -> None:
    filled(archived)
    (archived.folder / "archive").rename(archived.folder / "elsewhere")
    (archived.folder / "archive").write_text("not a folder")
    archived.commit("x")
    with pytest.raises(StorageError, match="check the folder"):
        archived.archive()
    (archived.folder / "archive").unlink()
    (archived.folder / "elsewhere").rename(archived.folder / "archive")
    archived.commit("y")
    archived.archive()
    assert objects_of(archived.restore("new", 7)) == archived.states[7]


def test_lost_times_are_those_of_the_next_transaction(archived: ArchivedJournal) -> None:
    filled(archived)
    archived.kept.journal.on_written = None
    archived.commit("x")
    archived.now += 5 * SECOND
    archived.archive()
    restored = archived.restore("new", time=archived.now - SECOND)
    assert restored.revision == 6
