"""A platform process for benchmarks, and an HTTP client with persistent connections that uses little CPU."""

import asyncio
import base64
import ssl
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import yaml

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
_READY: Final = "listening on "
_encode = msgspec.json.Encoder().encode


class WireRequest(NamedTuple):
    """An HTTP request. `callback` receives the status code, the body, and the latency in seconds."""

    method: str
    path: str
    body: Any
    content_type: str
    callback: Callable[[int, bytes, float], None]
    accept: str = JSON


class _Connection(asyncio.Protocol):
    """A connection that handles one request at a time."""

    def __init__(self, client: "WireClient") -> None:
        self._client = client
        self._transport: Any = None
        self._request: WireRequest | None = None
        self._sent_at = 0.0
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.discard(self, self._request)

    def send(self, request: WireRequest) -> None:
        body = b"" if request.body is None else _encode(request.body)
        head = f"{request.method} {request.path} HTTP/1.1\r\nhost: {self._client.host}\r\n"
        head += f"content-type: {request.content_type}\r\naccept: {request.accept}\r\n"
        self._request, self._sent_at = request, time.perf_counter()
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._request is None:
            return
        head = bytes(self._received[:end]).lower()
        at = head.find(b"content-length:")
        if at < 0:  # chunked, as larger responses of the API server of Kubernetes
            body = _decode_chunks(self._received, end + 4)
            if body is None:
                return
        else:
            length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._received) < end + 4 + length:
                return
            body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        request, self._request = self._request, None
        request.callback(int(head[9:12]), body, time.perf_counter() - self._sent_at)
        self._client.release(self)


class WireClient:
    """A pool of connections to a platform; a request waits in a queue if no connection is free.

    Servers close idle connections. The pool replaces them when requests need them.
    """

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        self._address = address
        self.host = f"{address[0]}:{address[1]}"
        self._context = context
        self._free: deque[_Connection] = deque()
        self._queue: deque[WireRequest] = deque()
        #: The numbers of connections, and of those that `open` opened.
        self._count = 0
        self._wanted = 0
        self._connecting: set[asyncio.Task[None]] = set()

    async def open(self, connections: int) -> None:
        """Open this number of connections."""
        self._wanted += connections
        for _ in range(connections):
            self._count += 1
            await self._connect()

    async def _connect(self) -> None:
        host, port = self._address
        create = asyncio.get_running_loop().create_connection
        _, connection = await create(lambda: _Connection(self), host, port, ssl=self._context)
        self.release(connection)

    async def open_another(self, connections: int) -> "WireClient":
        """Return a second client of the same platform, with its own connections."""
        client = WireClient(self._address, self._context)
        await client.open(connections)
        return client

    def send(self, request: WireRequest) -> None:
        """Send a request, or queue it until a connection is free."""
        if self._free:
            self._free.popleft().send(request)
            return
        self._queue.append(request)
        if self._count < self._wanted:
            self._count += 1
            task = asyncio.ensure_future(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def discard(self, connection: _Connection, request: WireRequest | None) -> None:
        """Forget a closed connection, and send its request, if it has one, again on another connection."""
        self._count -= 1
        if connection in self._free:
            self._free.remove(connection)
        if request is not None:
            self.send(request)

    def release(self, connection: _Connection) -> None:
        """Reuse a connection that has received its response."""
        if self._queue:
            connection.send(self._queue.popleft())
        else:
            self._free.append(connection)

    async def request(self, method: str, path: str, body: Any = None, accept: str = JSON) -> tuple[int, bytes]:
        """Send a request and wait for the response; return the status code and the body."""
        response: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        callback = lambda code, content, _: response.set_result((code, content))  # noqa: E731
        self.send(WireRequest(method, path, body, JSON, callback, accept))
        return await response

    async def stream_lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the lines of a chunked response, such as a watch, on a separate connection.

        Raises ConnectionRefusedError if the status is not 200.
        """
        host, port = self._address
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context, limit=1 << 26)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\n\r\n".encode())
        status = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0]
        if b" 200 " not in status:
            raise ConnectionRefusedError(status)
        rest = b""
        while (size := await reader.readline()) and (
            length := int(size, 16)
        ):  # an aborted response ends without a size
            chunk = await reader.readexactly(length + 2)
            *lines, rest = (rest + chunk[:-2]).split(b"\n")
            for line in lines:
                yield line
        if rest:
            yield rest


class BenchmarkPlatform(NamedTuple):
    """A platform in a separate process, and a client with connections to it."""

    process: subprocess.Popen[str]
    client: WireClient
    kubeconfig: Path

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process so far."""
        return read_cpu_seconds(Path(f"/proc/{self.process.pid}/stat"))

    def main_thread_cpu_seconds(self) -> float:
        """Return the CPU time of the main thread so far; other threads write to the disk."""
        return read_cpu_seconds(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat"))

    def resident_memory(self) -> int:
        """Return the resident memory in MB, of 1,024 KiB each."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024


@asynccontextmanager
async def run_platform(*options: str, connections: int = 32) -> AsyncIterator[BenchmarkPlatform]:
    """Run `batchyard up` in an empty data directory and connect to it, with TLS unless --insecure-loopback is set."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "batchyard", "up", "--data-dir", folder, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            url = next(line for line in process.stderr if _READY in line).partition(_READY)[2].partition(",")[0].strip()
            host, _, port = url.rpartition("/")[2].rpartition(":")
            context = _tls_context(Path(folder)) if url.startswith("https") else None
            client = WireClient((host, int(port)), context)
            await client.open(connections)
            try:
                yield BenchmarkPlatform(process, client, Path(folder) / "kubeconfig")
            finally:
                process.terminate()


def _decode_chunks(received: bytearray, at: int) -> bytes | None:
    """Return the body of a chunked response that starts at an offset; None if its end is missing."""
    body = b""
    while (end := received.find(b"\r\n", at)) >= 0:
        length = int(received[at:end], 16)
        at = end + 2 + length + 2
        if len(received) < at:
            return None
        if length == 0:
            return body
        body += received[end + 2 : end + 2 + length]
    return None


def read_cpu_seconds(stat: Path) -> float:
    """Return the CPU time of a process or thread, from its file `stat`."""
    fields = stat.read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _tls_context(folder: Path) -> ssl.SSLContext:
    """Return a TLS context with the owner's client certificate."""
    config = yaml.safe_load((folder / "kubeconfig").read_text("utf-8"))
    user = config["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return context
