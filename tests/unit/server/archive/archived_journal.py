"""A journal with an archive in a folder, and the state that it had at each revision."""

from collections.abc import Mapping
from pathlib import Path

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Instant
from batchyard.server.archive.archiver import Archiver, ArchiverSettings
from batchyard.server.archive.history import ArchivedObject, parse_object_name
from batchyard.server.archive.restoration import RestoredState, restore_archive
from batchyard.server.archive.source import JournalSource
from batchyard.server.archive.storage import FolderStorage
from batchyard.store.commit_times import CommitTimes
from unit.store.test_journal import JournaledStore, key, thing

START: Instant = 1_000_000 * SECOND
State = Mapping[Key, Obj]


class ArchivedJournal:
    """A journal in `folder/name`, its archive in `folder/archive`, and a clock that the test moves."""

    def __init__(self, folder: Path, name: str = "data", *, keep: int = 0, is_replicated: bool = False) -> None:
        self.folder, self.data = folder, folder / name
        self.data.mkdir(exist_ok=True)
        self.path, self.now = self.data / "journal.db", START
        self.storage = FolderStorage(folder / "archive")
        self.settings = ArchiverSettings("archive", str(self.data), keep, 1.0, is_replicated, name, is_json=False)
        #: The objects after each revision, and the time of each transaction by its last revision.
        self.states: dict[int, State] = {}
        self.times: dict[int, Instant] = {}
        self.open()

    def open(self) -> None:
        """Open the journal and start to archive it."""
        self.kept = JournaledStore(self.path)
        self.kept.journal.on_written = CommitTimes(self.path, lambda: self.now).record
        self.start_archiver()

    def start_archiver(self) -> None:
        """Start to archive, as a process that starts again."""
        self.archiver = Archiver(self.storage, JournalSource(self.path), self.settings)

    def write(self, name: str, *, deletes: bool = False) -> int:
        """Change an object, or delete it if it exists; return the revision."""
        store = self.kept.store
        exists = any(obj["metadata"]["name"] == name for obj in store.list("ConfigMap"))
        if deletes and exists:
            store.delete(key(name))
        else:
            store.put(key(name), thing(name, data={"at": str(store.revision)}))
        objects = {key(obj["metadata"]["name"]): obj for obj in store.list("ConfigMap")}
        self.states[store.revision] = objects
        return store.revision

    def commit(self, *names: str) -> int:
        """Change objects in one transaction, a second after the last one; return the revision."""
        for name in names:
            self.write(name)
        self.now += SECOND
        self.kept.flush()
        self.times[self.kept.store.revision] = self.now
        return self.kept.store.revision

    def archive(self) -> None:
        """Archive everything."""
        while self.archiver.step(self.now, is_flush=True):
            pass

    def restore(self, target: str, revision: int | None = None, time: Instant | None = None) -> RestoredState:
        """Restore into `folder/target`."""
        data = self.folder / target
        data.mkdir(exist_ok=True)
        return restore_archive(self.storage, data / "journal.db", revision, time)

    def objects(self, *, bases: bool) -> list[ArchivedObject]:
        """The bases or segments of the archive, by name."""
        parsed = [parse_object_name(stored.name, stored.size) for stored in self.storage.list()]
        return sorted(obj for obj in parsed if obj is not None and obj.is_base is bases)

    def file_of(self, obj: ArchivedObject) -> Path:
        """The file of an archived object."""
        return self.folder / "archive" / obj.name


def objects_of(restored: RestoredState) -> State:
    """The restored objects."""
    return dict(restored.contents.store.objects)
