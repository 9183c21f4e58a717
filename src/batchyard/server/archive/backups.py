"""Backups in object storage: the backup file, and beside it an object with its SHA-256, which is written last."""

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from batchyard.server.archive.epochs import read_small
from batchyard.server.archive.history import parse_claim_name
from batchyard.server.archive.storage import (
    ObjectMissingError,
    ObjectStorage,
    StorageError,
    is_storage_url,
    open_storage,
)
from batchyard.store.journal import back_up, restore_backup
from batchyard.store.journal_file import JournalContents, JournalError

_DIGEST_SUFFIX: Final = ".sha256"
_READ_BYTES: Final = 1024 * 1024
_DRAFT_PREFIX: Final = ".batchyard-backup."


def find_archive(source: str) -> ObjectStorage | None:
    """Return the storage of an archive; None if the source is a backup. Raise StorageError if it is neither."""
    storage = open_storage(source)
    with suppress(ObjectMissingError):
        if any(parse_claim_name(stored.name) is not None for stored in storage.list()):
            return storage
    if is_storage_url(source):
        parent, name = _split(source)
        if _has(parent, name + _DIGEST_SUFFIX) or _has(parent, name):
            return None
    raise StorageError(f"{source} holds no archive and no backup; check the URL, or whether the first base is uploaded")


def upload_backup(journal: Path, url: str) -> JournalContents:
    """Upload a verified backup of a journal; return its contents. Raise JournalError on failure.

    The object with the digest is created before the backup is uploaded, so that a second upload is rejected, and again
    as the last one, so that an interrupted upload is not complete.
    """
    try:
        storage, name = _split(url)
        if _has(storage, name) or _has(storage, name + _DIGEST_SUFFIX):
            raise JournalError(f"{url} already exists and is not overwritten; choose another name")
        with TemporaryDirectory(
            prefix=_DRAFT_PREFIX, dir=journal.parent if journal.parent.is_dir() else None
        ) as folder:
            draft = Path(folder) / "backup"
            contents = back_up(journal, draft)
            storage.create(name + _DIGEST_SUFFIX, b"")
            storage.upload(name, draft)
            storage.replace(name + _DIGEST_SUFFIX, f"{_digest_of(draft)}  {name}\n".encode())
    except StorageError as error:
        raise JournalError(str(error)) from error
    return contents


def restore_uploaded_backup(url: str, journal: Path) -> JournalContents:
    """Create a journal from an uploaded backup; return its contents. Raise JournalError on failure."""
    try:
        storage, name = _split(url)
        expected = _read_digest(storage, name)
        with TemporaryDirectory(prefix=_DRAFT_PREFIX, dir=journal.parent) as folder:
            draft, digest = Path(folder) / "backup", hashlib.sha256()
            with draft.open("xb") as file:
                for part in storage.read(name):
                    digest.update(part)
                    file.write(part)
            if digest.hexdigest() != expected:
                raise JournalError(f"{url} is damaged: its SHA-256 does not match; restore another backup")
            return restore_backup(draft, journal)
    except StorageError as error:
        raise JournalError(str(error)) from error


def _read_digest(storage: ObjectStorage, name: str) -> str:
    try:
        content = read_small(storage, name + _DIGEST_SUFFIX)
    except ObjectMissingError as error:
        problem = f"{storage.url}/{name} has no object {name}{_DIGEST_SUFFIX} beside it"
        raise JournalError(f"{problem}; copy both, or download the file and restore that") from error
    if not content:
        raise JournalError(f"{storage.url}/{name} is incomplete, because its upload was interrupted; restore another")
    return content.decode("ascii", "replace").partition(" ")[0]


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _split(url: str) -> tuple[ObjectStorage, str]:
    """Return the storage of the prefix of a URL, and the name of the object in it."""
    prefix, _, name = url.rstrip("/").rpartition("/")
    if not name or prefix.endswith((":/", ":")):
        raise StorageError(f"{url}: add the name of the backup, as in s3://BUCKET/monday.backup")
    return open_storage(prefix), name


def _has(storage: ObjectStorage, name: str) -> bool:
    try:
        next(storage.read(name), b"")
    except ObjectMissingError:
        return False
    return True
