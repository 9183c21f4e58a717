"""Storage of backups and archives: a folder, or a bucket of S3, Google Cloud Storage or Azure by the library obstore.

An object becomes visible complete or not at all. `create` never overwrites an object: two writers that create the same
name have exactly one winner. Folders are written without obstore, since it does not flush files to the disk.
"""

import errno
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from batchyard.store.journal_file import flush_folder

#: The URL schemes that obstore serves.
CLOUD_SCHEMES: Final = ("s3", "gs", "az")
_PART_BYTES: Final = 8 * 1024 * 1024
_UPLOAD_PARTS_MAX: Final = 2
_READ_BYTES: Final = 1024 * 1024
_DRAFT_PREFIX: Final = ".new."


class StorageError(Exception):
    """The storage cannot be used; the message contains the reason, and the remedy if one is known."""


class ObjectExistsError(StorageError):
    """An object with this name exists, and is not overwritten."""


class ObjectMissingError(StorageError):
    """No object has this name."""


class StoredObject(NamedTuple):
    """The name of a stored object, and its size in bytes."""

    name: str
    size: int


class ObjectStorage(Protocol):
    """A folder or a prefix of a bucket. All methods raise StorageError if the storage cannot be reached."""

    #: The URL, for messages.
    url: str

    def create(self, name: str, content: bytes) -> None:
        """Store an object. Raise ObjectExistsError if the name exists."""

    def replace(self, name: str, content: bytes) -> None:
        """Store an object in the place of an older one."""

    def upload(self, name: str, path: Path) -> None:
        """Store the content of a file in parts, as an object that no other writer creates."""

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in parts. Raise ObjectMissingError if it does not exist."""

    def list(self) -> Iterator[StoredObject]:
        """Yield all complete objects."""

    def delete(self, name: str) -> None:
        """Delete an object; do nothing if it does not exist."""


def open_storage(url: str) -> ObjectStorage:
    """Return the storage of a folder or URL. Raise StorageError for an unknown scheme or a missing library."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return FolderStorage(Path(url))
    parts = urlsplit(url)
    if scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise StorageError(f"{url}: use file:///PATH with an absolute path")
        return FolderStorage(Path(unquote(parts.path)))
    if scheme not in CLOUD_SCHEMES:
        raise StorageError(f"{url}: unknown storage; use a folder, file://, s3://, gs:// or az://")
    if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
        raise StorageError(f"{url}: use {scheme}://BUCKET/PREFIX; credentials come from environment variables")
    return CloudStorage(url)


def is_storage_url(text: str) -> bool:
    """Return whether a text is a URL, and not the path of a file or folder."""
    return "://" in text


class FolderStorage:
    """A folder of this machine, or of a network file system with atomic hard links."""

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder

    def create(self, name: str, content: bytes) -> None:
        """Store an object. Raise ObjectExistsError if the name exists."""
        with self._draft(name) as (draft, path):
            _write_flushed(draft, content)
            try:
                os.link(draft, path)
            except FileExistsError as error:
                raise ObjectExistsError(f"{path} already exists and is not overwritten; choose another name") from error
            flush_folder(path)

    def replace(self, name: str, content: bytes) -> None:
        """Store an object in the place of an older one."""
        with self._draft(name) as (draft, path):
            _write_flushed(draft, content)
            draft.replace(path)

    def upload(self, name: str, path: Path) -> None:
        """Store the content of a file in parts, as an object that no other writer creates."""
        with self._draft(name) as (draft, target), path.open("rb") as source, _open_private(draft) as file:
            while part := source.read(_READ_BYTES):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            draft.replace(target)
            flush_folder(target)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in parts. Raise ObjectMissingError if it does not exist."""
        path = self._folder / name
        with self._convert_errors(path), path.open("rb") as file:
            while part := file.read(_READ_BYTES):
                yield part

    def list(self) -> Iterator[StoredObject]:
        """Yield all complete objects."""
        with self._convert_errors(self._folder):
            if not self._folder.is_dir():
                return
            for folder, _, file_names in os.walk(self._folder, onerror=_raise_unless_missing):
                for file_name in file_names:
                    path = Path(folder) / file_name
                    if not file_name.startswith(_DRAFT_PREFIX):
                        yield StoredObject(path.relative_to(self._folder).as_posix(), path.stat().st_size)

    def delete(self, name: str) -> None:
        """Delete an object; do nothing if it does not exist."""
        path = self._folder / name
        with self._convert_errors(path):
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    @contextmanager
    def _draft(self, name: str) -> Iterator[tuple[Path, Path]]:
        """Yield the paths of a private draft, which is removed after the `with` block, and of the object."""
        path = self._folder / name
        draft = path.with_name(f"{_DRAFT_PREFIX}{os.getpid()}.{path.name}")
        with self._convert_errors(path):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            draft.unlink(missing_ok=True)
            try:
                yield draft, path
            finally:
                draft.unlink(missing_ok=True)

    @contextmanager
    def _convert_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissingError(f"{path} does not exist") from error
        except OSError as error:
            raise StorageError(f"{error.filename or path}: {error.strerror}; check the folder and its disk") from error


def _raise_unless_missing(error: OSError) -> None:
    if error.errno != errno.ENOENT:
        raise error


def _open_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _write_flushed(path: Path, content: bytes) -> None:
    with _open_private(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


class CloudStorage:
    """A prefix of a bucket. The library reads credentials, region and endpoint from its environment variables."""

    def __init__(self, url: str) -> None:
        """Load the library. Raise StorageError if it is not installed or rejects the URL."""
        try:
            self._library: Any = importlib.import_module("obstore")
            stores: Any = importlib.import_module("obstore.store")
            self._errors: Any = importlib.import_module("obstore.exceptions")
        except ImportError as error:
            remedy = "install it with: pip install 'batchyard[storage]'"
            raise StorageError(f"{url}: object storage requires the library obstore; {remedy}") from error
        self.url = url.rstrip("/")
        with self._convert_errors(url):
            self._store = stores.from_url(url, retry_config={"max_retries": 2})

    def create(self, name: str, content: bytes) -> None:
        """Store an object. Raise ObjectExistsError if the name exists."""
        with self._convert_errors(name):
            self._library.put(self._store, name, content, mode="create", use_multipart=False)

    def replace(self, name: str, content: bytes) -> None:
        """Store an object in the place of an older one."""
        with self._convert_errors(name):
            self._library.put(self._store, name, content, use_multipart=False)

    def upload(self, name: str, path: Path) -> None:
        """Store the content of a file in parts, as an object that no other writer creates."""
        with self._convert_errors(name), path.open("rb") as file:
            limits = {"chunk_size": _PART_BYTES, "max_concurrency": _UPLOAD_PARTS_MAX}
            self._library.put(self._store, name, file, **limits)

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in parts. Raise ObjectMissingError if it does not exist."""
        with self._convert_errors(name):
            for part in self._library.get(self._store, name).stream(min_chunk_size=_READ_BYTES):
                yield bytes(part)

    def list(self) -> Iterator[StoredObject]:
        """Yield all complete objects."""
        with self._convert_errors("list"):
            for page in self._library.list(self._store):
                for entry in page:
                    yield StoredObject(entry["path"], entry["size"])

    def delete(self, name: str) -> None:
        """Delete an object; do nothing if it does not exist."""
        with suppress(ObjectMissingError), self._convert_errors(name):
            self._library.delete(self._store, name)

    @contextmanager
    def _convert_errors(self, name: str) -> Iterator[None]:
        target = name if "://" in name else f"{self.url}/{name}"
        try:
            yield
        except self._errors.AlreadyExistsError as error:
            raise ObjectExistsError(f"{target} already exists and is not overwritten; choose another name") from error
        except (FileNotFoundError, self._errors.NotFoundError) as error:
            raise ObjectMissingError(f"{target} does not exist ({_first_line(error)})") from error
        except (self._errors.BaseError, OSError, ValueError) as error:
            remedy = "check the URL, the network, and the credentials and endpoint in the environment variables"
            raise StorageError(f"{target}: {_first_line(error)}; {remedy}") from error


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
