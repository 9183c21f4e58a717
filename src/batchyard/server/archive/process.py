"""The platform's side of the archive: it starts the archiver process, restarts it, and reports its metrics."""

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from batchyard.base.instant import SECOND, exponential_backoff
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import gauge_text
from batchyard.server.archive.archiver import FLUSH_COMMAND, REJECTED_EXIT_CODE, ArchiverSettings, ArchiverStatus
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.data_dir import PlatformOptions
from batchyard.store.journal_file import JournalError

_MODULE: Final = "batchyard.server.archive.archiver"
#: Seconds to wait for the start of the process, then for its first request to the storage, and for the last uploads.
_LOAD_SECONDS: Final = 60.0
_START_SECONDS: Final = 15.0
_END_SECONDS: Final = 10.0
_BACKOFF_FIRST: Final = 1 * SECOND
_BACKOFF_MAX: Final = 60 * SECOND
_LOG: Final = logging.getLogger("batchyard.archive")
_decode: Final = msgspec.json.Decoder(ArchiverStatus).decode
_NO_STATUS: Final = ArchiverStatus(
    is_claimed=False, archived_revision=0, last_revision=0, complete_until=0, uploaded_bytes=0, failures=0
)


class ArchiverProcess:
    """The archiver process of a platform: its last status, and the counts of the processes before it."""

    def __init__(self, settings: ArchiverSettings, loop: asyncio.AbstractEventLoop) -> None:
        self._settings, self._loop = settings, loop
        self._status = _NO_STATUS
        self._started_at = wall_clock()
        self._failures = self._uploaded_bytes = 0
        self._is_loaded, self._has_status = asyncio.Event(), asyncio.Event()
        self._is_serving = False
        self._process: asyncio.subprocess.Process | None = None
        self._task = loop.create_task(self._run())

    async def wait_until_started(self) -> None:
        """Wait for the first status. Raise JournalError if the platform must not write into the archive."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOAD_SECONDS):
                await self._is_loaded.wait()
            async with asyncio.timeout(_START_SECONDS):
                await self._has_status.wait()
        if self._status.rejection:
            raise JournalError(self._status.rejection)
        self._is_serving = True

    async def close(self) -> None:
        """Let the process upload the last changes and end; kill it if that takes too long."""
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            with suppress(OSError, TimeoutError):
                process.stdin.write(FLUSH_COMMAND)
                process.stdin.close()
                async with asyncio.timeout(_END_SECONDS):
                    await asyncio.shield(self._task)
        self._task.cancel()
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            _LOG.warning("the last changes are not archived; the next start archives them")

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the archive, as Prometheus text."""
        status = self._status
        lag = max(0, wall_clock() - (status.complete_until or self._started_at)) / SECOND
        values = {
            "batchyard_archive_lag_seconds": lag,
            "batchyard_archive_lag_revisions": max(0, status.last_revision - status.archived_revision),
            "batchyard_archive_failures_total": self._failures + status.failures,
            "batchyard_archive_uploaded_bytes_total": self._uploaded_bytes + status.uploaded_bytes,
        }
        for name, value in values.items():
            yield gauge_text(metric(name), [((), value)])

    async def _run(self) -> None:
        attempts = 0
        while True:
            exit_code = await self._run_process()
            self._is_loaded.set()
            self._has_status.set()
            if exit_code in {0, REJECTED_EXIT_CODE}:
                if self._status.rejection and self._is_serving:
                    _LOG.error("%s; the platform serves without archive", self._status.rejection)
                return
            attempts += 1
            delay = exponential_backoff(_BACKOFF_FIRST, _BACKOFF_MAX, attempts) // SECOND
            _LOG.error("the archiver ended with code %d; it starts again in %d s", exit_code, delay)
            due = asyncio.Event()
            self._loop.call_later(delay, due.set)
            await due.wait()

    async def _run_process(self) -> int:
        arguments = msgspec.json.encode(self._settings).decode()
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, arguments, stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert process.stdout is not None, "the standard output is a pipe"
        async for line in process.stdout:
            self._status = status = _decode(line)
            self._is_loaded.set()
            if status.is_claimed or status.rejection or status.error:
                self._has_status.set()
        self._failures += self._status.failures + 1
        self._uploaded_bytes += self._status.uploaded_bytes
        self._status = msgspec.structs.replace(self._status, failures=0, uploaded_bytes=0)
        return await process.wait()


async def start_archiver(options: PlatformOptions, speed: float, *, is_json: bool) -> ArchiverProcess:
    """Start the archiver process. Raise JournalError if the platform must not write into the archive."""
    settings = ArchiverSettings(
        options.archive,
        str(options.folder),
        options.archive_keep,
        speed,
        bool(options.standby or options.follow),
        socket.gethostname(),
        is_json,
    )
    archiver = ArchiverProcess(settings, asyncio.get_running_loop())
    try:
        await archiver.wait_until_started()
    except JournalError:
        await archiver.close()
        raise
    return archiver
