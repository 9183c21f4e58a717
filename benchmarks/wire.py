"""A client of the API that costs little, so that the machine's time is the platform's: connections that stay open."""

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


class Ask(NamedTuple):
    """A request, and who hears of the answer: its code, its body, and the seconds it took."""

    method: str
    path: str
    body: Any
    content_type: str
    done: Callable[[int, bytes, float], None]
    accept: str = JSON


class _Connection(asyncio.Protocol):
    """One connection: one request at a time, a watch without end."""

    def __init__(self, wire: "Wire") -> None:
        self._wire = wire
        self._transport: Any = None
        self._ask: Ask | None = None
        self._sent_at = 0.0
        self._received = bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def send(self, ask: Ask) -> None:
        body = b"" if ask.body is None else _encode(ask.body)
        line = f"{ask.method} {ask.path} HTTP/1.1\r\nhost: {self._wire.host}\r\ncontent-type: {ask.content_type}\r\n"
        line += f"accept: {ask.accept}\r\n"
        self._ask, self._sent_at = ask, time.perf_counter()
        self._transport.write(f"{line}content-length: {len(body)}\r\n\r\n".encode() + body)

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._ask is None:
            return
        head = bytes(self._received[:end]).lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0])
        if len(self._received) < end + 4 + length:
            return
        body = bytes(self._received[end + 4 : end + 4 + length])
        self._received.clear()
        ask, self._ask = self._ask, None
        ask.done(int(head[9:12]), body, time.perf_counter() - self._sent_at)
        self._wire.free(self)


class Wire:
    """So many connections to a platform; who finds none free waits in line."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None) -> None:
        self._address = address
        self.host = f"{address[0]}:{address[1]}"
        self._context = context
        self._free: deque[_Connection] = deque()
        self._waiting: deque[Ask] = deque()

    async def open(self, connections: int) -> None:
        """Make the connections."""
        loop = asyncio.get_running_loop()
        host, port = self._address
        for _ in range(connections):
            _, connection = await loop.create_connection(lambda: _Connection(self), host, port, ssl=self._context)
            self._free.append(connection)

    async def another(self, connections: int) -> "Wire":
        """As many connections to the same platform as somebody else has."""
        wire = Wire(self._address, self._context)
        await wire.open(connections)
        return wire

    def ask(self, ask: Ask) -> None:
        """Send a request, or have it wait in line."""
        if self._free:
            self._free.popleft().send(ask)
        else:
            self._waiting.append(ask)

    def free(self, connection: _Connection) -> None:
        """A connection has its answer."""
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._free.append(connection)

    async def asked(self, method: str, path: str, body: Any = None, accept: str = JSON) -> tuple[int, bytes]:
        """Send a request, and wait for the answer."""
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        done = lambda code, content, _: answer.set_result((code, content))  # noqa: E731
        self.ask(Ask(method, path, body, JSON, done, accept))
        return await answer

    async def watched(self, path: str) -> AsyncIterator[bytes]:
        """The lines of a watch, without end."""
        host, port = self._address
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context, limit=1 << 26)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        while length := int(await reader.readline(), 16):
            chunk = await reader.readexactly(length + 2)
            for line in chunk[:-2].splitlines():
                yield line


class Running(NamedTuple):
    """A platform in a process of its own."""

    process: subprocess.Popen[str]
    wire: Wire
    kubeconfig: Path

    def cpu(self) -> float:
        """CPU seconds of the process so far."""
        return _cpu_of(Path(f"/proc/{self.process.pid}/stat"))

    def main_thread_cpu(self) -> float:
        """CPU seconds of its main thread so far, which does all but what is written."""
        return _cpu_of(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/stat"))

    def memory(self) -> int:
        """Its resident memory in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) // 1024


@asynccontextmanager
async def platform(*options: str, connections: int = 32) -> AsyncIterator[Running]:
    """A platform with an empty data directory, and connections to it; with `--insecure-loopback` without TLS."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "batchyard", "up", "--data-dir", folder, *options]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            url = next(line for line in process.stderr if _READY in line).partition(_READY)[2].partition(",")[0].strip()
            host, _, port = url.rpartition("/")[2].rpartition(":")
            wire = Wire((host, int(port)), _context(Path(folder)) if url.startswith("https") else None)
            await wire.open(connections)
            try:
                yield Running(process, wire, Path(folder) / "kubeconfig")
            finally:
                process.terminate()


def _cpu_of(stat: Path) -> float:
    fields = stat.read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _context(folder: Path) -> ssl.SSLContext:
    """TLS as the owner's kubeconfig says."""
    config = yaml.safe_load((folder / "kubeconfig").read_text("utf-8"))
    user = config["users"][0]["user"]
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with tempfile.NamedTemporaryFile() as pair:
        pair.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
        pair.flush()
        context.load_cert_chain(pair.name)
    return context
