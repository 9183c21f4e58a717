"""The folders of provisioned volumes: deleted after their volume, if its reclaim policy is Delete."""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from batchyard.api import meta, scheme
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.server.local_node.run_dirs import CLAIMS_FOLDER, delete_folder
from batchyard.volumes.binding import FOLDER_FINALIZER, is_folder

_TRASH_PREFIX: Final = ".deleted-"
#: The delay of a deletion, so that the journal certainly contains the deletion of the volume first.
_DELETION_DELAY: Final = 2 * SECOND


def prepare_claims_folder(node_folder: Path) -> Path:
    """Create the folder of the volumes, which only its owner may enter, and delete folders that are left in it."""
    folder = node_folder / CLAIMS_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in folder.glob(f"{_TRASH_PREFIX}*"):
        _delete_in_background(path)
    return folder


class VolumeFolderController:
    """Controller that deletes the folders of volumes that are being deleted, and then removes their finalizers."""

    name = "volume-folders"
    rank = 0
    kinds: Sequence[str] = (scheme.PERSISTENT_VOLUME,)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: When the folder of a volume may be deleted.
        self._due_times: dict[meta.Key, Instant] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a volume that waits only for the deletion of its folder."""
        if event.type is EventType.DELETED:
            self._due_times.pop(event.key, None)
            return ()
        return (event.key,) if _waits_for_folder(event.obj) else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete the folder, unless the volume is retained, and remove the finalizer of the volume."""
        volume = reader.get(key)
        if volume is None or not _waits_for_folder(volume):
            return ReconcileResult()
        due_time = self._due_times.setdefault(key, now + _DELETION_DELAY)
        if now < due_time:
            return ReconcileResult(requeue_at=due_time)
        if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete" and is_folder(volume):
            self._delete_folder(key.name)
        return ReconcileResult([Update(meta.with_metadata(volume, finalizers=None))])

    def _delete_folder(self, name: str) -> None:
        if "/" in name or name.startswith("."):
            return  # not the name of a folder that was created for a volume
        trash = self._folder / f"{_TRASH_PREFIX}{name}"
        with suppress(FileNotFoundError):
            (self._folder / name).rename(trash)
        _delete_in_background(trash)


def _waits_for_folder(volume: meta.Obj) -> bool:
    metadata = volume["metadata"]
    return "deletionTimestamp" in metadata and metadata.get("finalizers") == [FOLDER_FINALIZER]


def _delete_in_background(path: Path) -> None:
    """Delete a folder in a thread, because it may be large; what remains after a crash is deleted at the next start."""
    threading.Thread(target=delete_folder, args=(path,), daemon=True).start()
