"""`batchyard snapshot`: writes the state of a live cluster as one file, which `why`, `eta`, `whatif` and the rest read.

The file is a List in JSON, an object on each line, and so also YAML. It is written as the pages come; what cannot be
finished is not left behind.
"""

import asyncio
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any, BinaryIO, Final

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.api.times import format_time
from batchyard.cli import output
from batchyard.cli.progress import Counting
from batchyard.cli.states import KINDS, REFUSALS, Where, reading_of
from batchyard.server.operator.snapshot import Reading
from batchyard.sim.redaction import Redaction, bare
from batchyard.sim.state_document import list_metadata
from batchyard.sim.whatif import told_of

STANDARD_OUTPUT: Final = "-"
#: Kinds that only a platform of batchyard has, of which nobody misses any elsewhere.
_OURS: Final = ".batchyard.dev"
_KEY_LENGTH: Final = 32
_BEGINNING: Final = b'{"apiVersion":"v1","kind":"List","items":[\n'


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of the command."""

    where: Where
    file: str
    redacts: bool
    #: What names are hashed with, so that several snapshots agree; '': a key that nobody knows.
    key: str


def run(request: Request) -> None:
    """Do it; exits with 1 where it fails."""
    redaction = Redaction(_key(request.key)) if request.redacts else None
    try:
        with _opened(request.file) as stream, Counting("reading", len(KINDS)) as counting:
            reading = asyncio.run(_written(request.where, stream, redaction, counting))
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as error:
        output.fail(f"batchyard: {request.file}: {error.strerror or error}")
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")
    for line in said_of(reading, request):
        output.tell(f"batchyard: {line}")


def said_of(reading: Reading, request: Request) -> Iterator[str]:
    """What is to be said of a snapshot."""
    for line in told_of(reading.forbidden):
        yield f"we may not list {line}"
    if reading.loose:
        names = ", ".join(dict.fromkeys(kind_info(kind).plural for kind in reading.loose))
        yield f"of another moment than the rest, for the server no longer knew: {names}"
    others = [info.plural for info in map(kind_info, reading.unserved) if not info.group.endswith(_OURS)]
    if others:
        yield f"not served here: {', '.join(others)}"
    if reading.of_configuration:
        yield reading.of_configuration
    yield from reading.beside
    counts = ", ".join(f"{count} {kind_info(kind).plural}" for kind, count in reading.counts.items() if count)
    what = "names are hashed, " if request.redacts else ""
    where = "" if request.file == STANDARD_OUTPUT else f" in {request.file}"
    yield (
        f"{sum(reading.counts.values())} objects as of {format_time(reading.at)}, revision {reading.revision}{where}: "
        f"{counts}; {what}environments and Secrets are left out"
    )


async def _written(where: Where, stream: BinaryIO, redaction: Redaction | None, counting: Counting) -> Reading:
    encode = msgspec.json.Encoder(order="sorted").encode
    separator = _BEGINNING

    def take(kind: str, found: Sequence[Obj]) -> None:
        nonlocal separator
        for obj in found:
            kept = bare(obj)
            stream.write(separator + encode(kept if redaction is None else redaction.redacted(kept)))
            separator = b",\n"
        counting.note(kind_info(kind).plural, len(found))

    reading = await reading_of(where, take)
    if reading.configuration is not None:
        stream.write(separator + encode(reading.configuration))
    metadata: dict[str, Any] = list_metadata(reading.at, reading.revision, reading.forbidden)
    stream.write(b'\n],"metadata":' + encode(metadata) + b"}\n")
    return reading


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Where it is written; a file of that name is there once all of it is, readable to its owner alone."""
    if name == STANDARD_OUTPUT:
        with output.bytes_out() as stream:
            yield stream
        return
    place = Path(name).resolve()
    if place.exists() and not place.is_file():
        with place.open("wb") as stream:  # a device, a pipe: nothing is to take its place
            yield stream
        return
    number, beginning = mkstemp(prefix=f"{place.name}.", dir=place.parent)
    try:
        with os.fdopen(number, "wb") as stream:
            yield stream
        Path(beginning).replace(place)
    finally:
        Path(beginning).unlink(missing_ok=True)


def _key(text: str) -> bytes:
    return text.encode()[:_KEY_LENGTH] if text else ssl.RAND_bytes(_KEY_LENGTH)
