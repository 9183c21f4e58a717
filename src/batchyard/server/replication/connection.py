"""The standby's connections to a primary: TLS with a client certificate, HTTP upgrade, and the notice of a new term."""

import asyncio
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from batchyard.base.instant import SECOND
from batchyard.server.clocks.wall import sleep_for, wall_clock
from batchyard.server.platform import data_dir
from batchyard.server.platform.credentials import CA_FILE, CertificateAuthority, CredentialsError
from batchyard.server.platform.data_dir import JOURNAL_FILE, STANDBY_USER, PlatformOptions
from batchyard.server.replication import protocol, terms
from batchyard.server.replication.protocol import ReplicationError
from batchyard.store.journal_file import read_commit_record

#: The files of the primary's data directory that the standby needs: the keys that sign certificates and tokens.
_KEY_FILES: Final = ("ca.key", CA_FILE, "tokens.key")
_CERTIFICATE_FILE: Final = "standby.pem"
#: Seconds for a connection attempt. A takeover waits for none.
_CONNECT_SECONDS: Final = 5.0
#: How often a new primary tries to reach the old one.
_NOTICE_INTERVAL: Final = 2 * SECOND


def primary_folder(options: PlatformOptions) -> Path | None:
    """Return the data directory of the primary if it is on this machine."""
    return None if "://" in options.follow else Path(options.follow)


def find_url(options: PlatformOptions) -> str:
    """Return the URL of the primary. Raise OSError if it is on this machine and does not run."""
    folder = primary_folder(options)
    if folder is None:
        return options.follow
    process = data_dir.running_process_in(folder)
    if process is None:
        raise OSError(0, f"no platform runs in {folder}")
    return process.url


async def open_connection(url: str, folder: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the replication endpoint of a platform. Raises OSError, TimeoutError, EOFError or ReplicationError."""
    place = urlsplit(url)
    context = await asyncio.get_running_loop().run_in_executor(None, _client_context, folder)
    async with asyncio.timeout(_CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(place.hostname, place.port or 443, ssl=context)
        with ExitStack() as on_failure:
            on_failure.callback(writer.close)
            head = [f"GET {data_dir.REPLICATION_PATH} HTTP/1.1", f"Host: {place.netloc}", "Connection: Upgrade"]
            writer.write("\r\n".join([*head, f"Upgrade: {protocol.UPGRADE_PROTOCOL}", "", ""]).encode())
            await _check_response(reader)
            on_failure.pop_all()
    return reader, writer


async def announce_term(options: PlatformOptions) -> None:
    """Send the term of this primary to the platform that it followed, until that one has received it and stops."""
    while True:
        try:
            reader, writer = await open_connection(find_url(options), options.folder)
            state = terms.read_state(options.folder)
            notice = protocol.TermNotice(_journal_identity(options), state.term, state.owner)
            writer.write(protocol.encode_message(notice))
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1), _CONNECT_SECONDS)
            writer.close()
        except (OSError, TimeoutError, EOFError, ReplicationError):
            await sleep_for(_NOTICE_INTERVAL)
        else:
            return


def _journal_identity(options: PlatformOptions) -> bytes:
    record = read_commit_record(options.folder / JOURNAL_FILE)
    return b"" if record is None else record.identity


async def _check_response(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1] if head.count(b" ") > 1 else b""
    if status != b"101":
        reasons = {
            b"401": "the primary does not accept the certificate; copy its ca.key and ca.crt",
            b"403": "the primary does not permit the standby; check the ClusterRole of its user",
            b"404": "the primary serves no standby; start it with --standby sync or --standby async",
        }
        code = status.decode("ascii", "replace")
        raise ReplicationError(reasons.get(status, f"the primary answers with the status {code}"))


def _client_context(folder: Path) -> ssl.SSLContext:
    """Return the TLS context with a certificate of the standby's user, which the CA of both platforms signs."""
    authority = CertificateAuthority(folder, wall_clock())
    certificate = authority.issue_client_certificate(STANDBY_USER, [])
    data_dir.write_private(folder / _CERTIFICATE_FILE, certificate.certificate + certificate.key)
    context = ssl.create_default_context(cafile=str(authority.certificate_file))
    context.load_cert_chain(str(folder / _CERTIFICATE_FILE))
    return context


def prepare_keys(options: PlatformOptions) -> None:
    """Copy the keys from the primary's data directory on this machine, and check that the standby has them.

    Raises CredentialsError if keys are missing or differ.
    """
    source_folder = primary_folder(options)
    for name in _KEY_FILES:
        path = options.folder / name
        if source_folder is None:
            if not path.exists():
                remedy = f"copy {', '.join(_KEY_FILES)} from the data directory of the primary into {options.folder}"
                raise CredentialsError(f"{path} is missing; {remedy}")
        elif not path.exists():
            content = (source_folder / name).read_bytes()
            data_dir.write_private(path, content)
        elif path.read_bytes() != (source_folder / name).read_bytes():
            raise CredentialsError(f"{path} differs from the file of the primary; use another data directory")
