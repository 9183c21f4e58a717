"""The content of archived objects: rows of the journal with their checksums, compressed.

A base has all rows that a journal kept at one revision. A segment has all rows of a range of revisions, and the times
of their transactions. Both are one zlib stream of MessagePack frames, each after its length: a header, then batches of
rows. The name of an object contains the SHA-256 of its content, so that damage and exchanged objects are detected.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final

import msgspec

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.store.journal import JournalRow
from batchyard.store.journal_file import row_checksum

_MAGIC: Final = b"batchyard archive 1\n"
_LENGTH: Final = struct.Struct("<I")
_COMPRESSION_LEVEL: Final = 1
_BATCH_BYTES: Final = 256 * 1024
#: Maximum bytes of a frame; one row can be as large as the largest object.
_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024
_INFLATE_BYTES: Final = 1024 * 1024


class DamagedContentError(Exception):
    """The content of an archived object is not what was written; the message contains the reason."""


class ContentHeader(msgspec.Struct, array_like=True, frozen=True):
    """The first frame of an object: its range of revisions, and the transactions that end in it with their times."""

    first: int
    last: int
    times: Sequence[tuple[int, Instant]]
    #: The number of rows of a segment; 0 for a base, whose rows are not counted before they are written.
    row_count: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_header: Final = msgspec.msgpack.Decoder(ContentHeader).decode
_decode_rows: Final = msgspec.msgpack.Decoder(list[JournalRow]).decode


def write_content(file: BinaryIO, header: ContentHeader, rows: Iterable[JournalRow]) -> str:
    """Write an object to a file; return its digest."""
    compressor, digest = zlib.compressobj(_COMPRESSION_LEVEL), hashlib.sha256()

    def write(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    write(_MAGIC)
    write(compressor.compress(_frame(_encode(header))))
    for batch in _batches(rows):
        write(compressor.compress(_frame(_encode(batch))))
    write(compressor.compress(_frame(_encode([]))))
    write(compressor.flush())
    return digest.hexdigest()


def _frame(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _batches(rows: Iterable[JournalRow]) -> Iterator[Sequence[JournalRow]]:
    batch: list[JournalRow] = []
    batch_bytes = 0
    for row in rows:
        batch.append(row)
        batch_bytes += len(row[4] or b"") + 200
        if batch_bytes >= _BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


class ContentReader:
    """Reads an object from the parts of its content: the header at once, and the rows when they are taken."""

    def __init__(self, parts: Iterable[bytes], digest: str) -> None:
        """Read the header. Raise DamagedContentError if it is invalid."""
        self._expected_digest, self._digest = digest, hashlib.sha256()
        self._frames = self._read_frames(iter(parts))
        try:
            self.header: Final = _decode_header(next(self._frames))
        except (msgspec.MsgspecError, StopIteration) as error:
            raise DamagedContentError("its header is damaged") from error

    def rows(self) -> Iterator[JournalRow]:
        """Yield the rows in order. Raise DamagedContentError at the first damage, at the latest after the last row."""
        header, previous, count, is_complete = self.header, -1, 0, False
        for frame in self._frames:
            try:
                batch = _decode_rows(frame)
            except msgspec.MsgspecError as error:
                raise DamagedContentError("a row cannot be decoded") from error
            is_complete = not batch
            for row in batch:
                revision, kind, namespace, name, text, checksum = row
                if checksum != row_checksum(revision, Key(kind, namespace, name), text) or revision <= previous:
                    raise DamagedContentError(f"the checksum of revision {revision} does not match")
                previous, count = revision, count + 1
                yield row
        if not is_complete or previous > header.last or (header.row_count and count != header.row_count):
            raise DamagedContentError("it ends early")

    def _read_frames(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        buffer = bytearray()
        for data in self._inflate(parts):
            buffer += data
            while len(buffer) >= _LENGTH.size:
                end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
                if end > _FRAME_BYTES_MAX:
                    raise DamagedContentError("a frame is too long")
                if len(buffer) < end:
                    break
                yield bytes(buffer[_LENGTH.size : end])
                del buffer[:end]
        if buffer:
            raise DamagedContentError("it ends early")
        if self._digest.hexdigest() != self._expected_digest:
            raise DamagedContentError("its SHA-256 does not match its name")

    def _inflate(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        decompressor, start = zlib.decompressobj(), b""
        try:
            for part in parts:
                self._digest.update(part)
                start += part
                if len(start) < len(_MAGIC):
                    continue
                if start[: len(_MAGIC)] != _MAGIC:
                    raise DamagedContentError("it is not an object of an archive, or of another version")
                data = start[len(_MAGIC) :]
                start = _MAGIC
                while data and not decompressor.eof:
                    yield decompressor.decompress(data, _INFLATE_BYTES)
                    data = decompressor.unconsumed_tail
        except zlib.error as error:
            raise DamagedContentError("its compressed data is damaged") from error
        if not decompressor.eof:
            raise DamagedContentError("it is truncated")
