"""`batchyard snapshot`: writes the state of a live cluster to a file for `why`, `eta`, `whatif` and other commands.

The file is a List in JSON, one object per line, and so also YAML. It is written page by page; an incomplete file is
removed.
"""

import asyncio
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from batchyard.api.meta import Obj
from batchyard.api.scheme import kind_info
from batchyard.api.times import format_time
from batchyard.cli import output
from batchyard.cli.cluster_access import KINDS, SOURCE_REFUSALS, ClusterSource, reading_of
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, cluster
from batchyard.cli.output import Counting
from batchyard.server.operator.snapshot import SnapshotResult
from batchyard.sim.redaction import Redaction, without_secrets
from batchyard.sim.state_document import list_metadata
from batchyard.sim.whatif import consequences_of

STANDARD_OUTPUT: Final = "-"
#: The suffix of batchyard's own API groups, which other clusters are not expected to serve.
_OURS: Final = ".batchyard.dev"
_KEY_LENGTH: Final = 32
_BEGINNING: Final = b'{"apiVersion":"v1","kind":"List","items":[\n'


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The arguments of the command."""

    where: ClusterSource
    file: str
    redacts: bool
    #: The key of the name hashes, to compare several snapshots; '': a random key.
    key: str


def run(request: SnapshotRequest) -> None:
    """Write the snapshot; ends the command with 1 on failure."""
    redaction = Redaction(_key(request.key)) if request.redacts else None
    try:
        with _opened(request.file) as stream, Counting("reading", len(KINDS)) as counting:
            reading = asyncio.run(_written(request.where, stream, redaction, counting))
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as error:
        output.fail(f"batchyard: {request.file}: {error.strerror or error}")
    except SOURCE_REFUSALS as error:
        output.fail(f"batchyard: {error}")
    for line in snapshot_remarks(reading, request):
        output.report_line(f"batchyard: {line}")


def snapshot_remarks(reading: SnapshotResult, request: SnapshotRequest) -> Iterator[str]:
    """Remarks on a snapshot."""
    for line in consequences_of(reading.forbidden):
        yield f"no permission to list {line}"
    if reading.loose:
        names = ", ".join(dict.fromkeys(kind_info(kind).plural for kind in reading.loose))
        yield f"read at a later revision, because the server no longer had the first: {names}"
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


async def _written(
    where: ClusterSource, stream: BinaryIO, redaction: Redaction | None, counting: Counting
) -> SnapshotResult:
    encode = msgspec.json.Encoder(order="sorted").encode
    separator = _BEGINNING

    def take(kind: str, found: Sequence[Obj]) -> None:
        nonlocal separator
        for obj in found:
            kept = without_secrets(obj)
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
    """The output stream; a regular file appears under its name once complete, readable by its owner only."""
    if name == STANDARD_OUTPUT:
        with output.bytes_out() as stream:
            yield stream
        return
    place = Path(name).resolve()
    if place.exists() and not place.is_file():
        with place.open("wb") as stream:  # a device or pipe must not be replaced
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


# --- snapshot ---
#
# The options of `batchyard snapshot`.


def snapshot(
    context: typer.Context,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    file: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; `-`: standard output.")
    ] = "-",
    redact: Annotated[
        bool, typer.Option("--redact", help="Hash names, and leave out commands, images and messages.")
    ] = False,
    redact_key: Annotated[
        str, typer.Option(metavar="TEXT", help="With --redact: key of the hashes, to compare snapshots.")
    ] = "",
) -> None:
    """Write the state of a live cluster to a file, for why, eta, whatif, lint, simulate and compare. Read-only."""
    if redact_key and not redact:
        raise typer.BadParameter("--redact-key requires --redact")

    where = ClusterSource(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    run(SnapshotRequest(where, file, redact, redact_key))
