"""The command `batchyard snapshot`: writes the state of a live cluster to a file for `why`, `eta` and `whatif`.

The file is a List in JSON with one object per line, so it is also valid YAML. It is written page by page; an incomplete
regular file is removed.
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
from batchyard.api.times import format_second
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.cli import output
from batchyard.cli.cluster_access import SNAPSHOT_KINDS, SOURCE_ERRORS, ClusterTarget, read_snapshot
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, select_kubeconfig
from batchyard.cli.output import ObjectCounter
from batchyard.server.operator.snapshot import SnapshotResult
from batchyard.sim.redaction import Redaction, without_secrets
from batchyard.sim.state import consequences_of_unread_kinds
from batchyard.sim.state_document import list_metadata

STANDARD_OUTPUT: Final = "-"
#: The suffix of batchyard's own API groups, which other clusters are not expected to serve.
_OWN_GROUP_SUFFIX: Final = ".batchyard.dev"
_HASH_KEY_LENGTH: Final = 32
_JSON_LIST_START: Final = b'{"apiVersion":"v1","kind":"List","items":[\n'


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The arguments of `batchyard snapshot`."""

    source: ClusterTarget
    file: str
    redacts: bool
    #: The key of the name hashes, to compare several snapshots; '' selects a random key.
    key: str


def run(request: SnapshotRequest) -> None:
    """Write the objects of a live cluster to a file and print remarks; exit with 1 on failure."""
    redaction = Redaction(_hash_key(request.key)) if request.redacts else None
    try:
        with _open_output(request.file) as stream, ObjectCounter("reading", len(SNAPSHOT_KINDS)) as progress:
            snapshot_result = asyncio.run(_write_snapshot(request.source, stream, redaction, progress))
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as error:
        message = f"batchyard: cannot write the snapshot to {request.file}: {error.strerror or error}"
        output.fail(f"{message}; check its folder, its permissions and the free disk space, or choose another file")
    except SOURCE_ERRORS as error:
        output.fail(f"batchyard: {error}")
    for line in snapshot_remarks(snapshot_result, request):
        output.report_line(f"batchyard: {line}")


def snapshot_remarks(snapshot: SnapshotResult, request: SnapshotRequest) -> Iterator[str]:
    """Yield remarks on a snapshot: missing kinds, kinds read later, Kueue's Configuration, and object counts."""
    for line in consequences_of_unread_kinds(snapshot.forbidden):
        yield f"no permission to list {line}"
    if snapshot.kinds_at_other_revision:
        names = ", ".join(dict.fromkeys(kind_info(kind).plural for kind in snapshot.kinds_at_other_revision))
        yield f"kinds read at a later revision, because the server no longer had the first revision: {names}"
    kinds = [info.plural for info in map(kind_info, snapshot.unserved) if not info.group.endswith(_OWN_GROUP_SUFFIX)]
    if kinds:
        yield f"kinds that the server does not serve: {', '.join(kinds)}"
    if snapshot.configuration_message:
        yield snapshot.configuration_message
    yield from snapshot.unsupported_settings
    counts_text = ", ".join(
        f"{count:,} {select_verb(count, kind_info(kind).singular, kind_info(kind).plural)}"
        for kind, count in snapshot.counts.items()
        if count
    )
    redaction_note = "names are hashed, " if request.redacts else ""
    file_note = "" if request.file == STANDARD_OUTPUT else f" in {request.file}"
    yield (
        f"{count_with_noun(sum(snapshot.counts.values()), 'object')} as of {format_second(snapshot.at)}, revision"
        f" {snapshot.revision}{file_note}: "
        f"{counts_text}; {redaction_note}environment variables and Secrets are omitted"
    )


async def _write_snapshot(
    source: ClusterTarget, stream: BinaryIO, redaction: Redaction | None, progress: ObjectCounter
) -> SnapshotResult:
    encode = msgspec.json.Encoder(order="sorted").encode
    item_prefix = _JSON_LIST_START

    def write_page(kind: str, page: Sequence[Obj]) -> None:
        nonlocal item_prefix
        for obj in page:
            public_obj = without_secrets(obj)
            stream.write(item_prefix + encode(public_obj if redaction is None else redaction.redact_object(public_obj)))
            item_prefix = b",\n"
        progress.add(kind_info(kind).plural, len(page))

    snapshot_result = await read_snapshot(source, write_page)
    if snapshot_result.configuration is not None:
        stream.write(item_prefix + encode(snapshot_result.configuration))
    place = snapshot_result.at, snapshot_result.revision
    metadata: dict[str, Any] = list_metadata(*place, snapshot_result.forbidden, snapshot_result.kueue_version)
    stream.write(b'\n],"metadata":' + encode(metadata) + b"}\n")
    return snapshot_result


@contextmanager
def _open_output(name: str) -> Iterator[BinaryIO]:
    """Yield the stream to write the snapshot to; a regular file appears under its name only when it is complete."""
    if name == STANDARD_OUTPUT:
        with output.open_binary_output() as stream:
            yield stream
        return
    output_path = Path(name).resolve()
    if output_path.exists() and not output_path.is_file():
        with output_path.open("wb") as stream:  # a device or pipe must not be replaced
            yield stream
        return
    temporary_fd, temporary_path = mkstemp(prefix=f"{output_path.name}.", dir=output_path.parent)
    try:
        with os.fdopen(temporary_fd, "wb") as stream:
            yield stream
        Path(temporary_path).replace(output_path)
    finally:
        Path(temporary_path).unlink(missing_ok=True)


def _hash_key(text: str) -> bytes:
    return text.encode()[:_HASH_KEY_LENGTH] if text else ssl.RAND_bytes(_HASH_KEY_LENGTH)


def snapshot(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The file to write; -: standard output.")
    ] = STANDARD_OUTPUT,
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    old_file: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", hidden=True, help="The old spelling of FILE.")
    ] = "",
    redact: Annotated[
        bool, typer.Option("--redact", help="Hash names, and leave out commands, images and messages.")
    ] = False,
    redact_key: Annotated[
        str, typer.Option(metavar="TEXT", help="With --redact: key of the hashes, to compare snapshots.")
    ] = "",
) -> None:
    """Write the state of a live cluster to a file, for why, eta, whatif, lint, simulate and compare. Read-only."""
    if redact_key and not redact:
        raise typer.BadParameter("--redact-key requires --redact: add it, or remove --redact-key")
    if old_file and file != STANDARD_OUTPUT:
        raise typer.BadParameter(f"--output {old_file} and {file} are two files: remove --output")
    if old_file:
        output.report_line(
            f"batchyard: -o is the output format in all commands; write `batchyard snapshot {old_file}` without it"
        )

    source = ClusterTarget(select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    run(SnapshotRequest(source, old_file or file, redact, redact_key))
