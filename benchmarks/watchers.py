"""Measures many watches of one kind, some of whose clients do not read.

    python benchmarks/watchers.py [--watchers N] [--slow N] [--rate UPDATES] [--seconds S] [--bytes B] [--objects N]

The watches list with `sendInitialEvents` and request bookmarks. A client updates ConfigMaps at a rate. Checks that each
reading watch receives the initial objects, the bookmark that ends them, and every update once. Prints the rate, the
platform's CPU time for each delivered event, the delay of events, and the memory that the slow watches cost.
"""

import argparse
import asyncio
import re
import time
from functools import partial
from typing import Any, Final

import uvloop
from http_creates import format_percentiles
from wire import JSON, BenchmarkPlatform, WireRequest, run_platform

_MAPS: Final = "/api/v1/namespaces/default/configmaps"
_WATCH: Final = (
    f"{_MAPS}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    "&labelSelector=benchmark%3Dwatchers"
)
_END_OF_EVENT: Final = b"}\n"
_TICK_SECONDS: Final = 0.01
_SENT_AT: Final = re.compile(rb'"at":"([0-9.]+)"')
_WAIT_SECONDS: Final = 120


class WatchConnection(asyncio.Protocol):
    """A connection that counts the events of its watch, or stops to read after the first bytes."""

    def __init__(self, host: str, *, is_slow: bool, is_sample: bool) -> None:
        self._host = host
        self._is_slow = is_slow
        self._is_sample = is_sample
        self._last_byte = b""
        self.transport: Any = None
        self.events = 0
        self.has_bookmark = False
        self.is_closed = False
        self.delays: list[float] = []

    def connection_made(self, transport: Any) -> None:
        """Start the watch."""
        self.transport = transport
        transport.write(f"GET {_WATCH} HTTP/1.1\r\nhost: {self._host}\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Count events."""
        if self._is_slow:
            self.transport.pause_reading()
        self.events += (self._last_byte + data).count(_END_OF_EVENT)
        self._last_byte = data[-1:]
        if not self.has_bookmark:
            self.has_bookmark = b"initial-events-end" in data
        elif self._is_sample:
            now = time.perf_counter()
            self.delays += [now - float(sent_at) for sent_at in _SENT_AT.findall(data)]

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end."""
        self.is_closed = True


class UpdateLoad:
    """Updates of ConfigMaps at a rate."""

    def __init__(self, platform: BenchmarkPlatform, objects: int, length: int) -> None:
        self._platform = platform
        self._objects = objects
        self._text = "x" * length
        self._sent = 0
        self.answered = 0

    def _config_map(self, number: int) -> dict[str, Any]:
        metadata = {"name": f"m-{number % self._objects}", "labels": {"benchmark": "watchers"}}
        return {"metadata": metadata, "data": {"x": self._text, "at": f"{time.perf_counter():.6f}"}}

    async def create(self) -> None:
        """Create the ConfigMaps."""
        for number in range(self._objects):
            code, body = await self._platform.client.request("POST", _MAPS, self._config_map(number))
            assert code == 201, body

    async def run(self, rate: int, seconds: float) -> tuple[int, float]:
        """Send updates; return the number of answered ones, and the time that they took in seconds."""
        start = time.perf_counter()
        while (elapsed := time.perf_counter() - start) < seconds:
            while self._sent < elapsed * rate and self._sent - self.answered < rate:
                self._send()
            await _pause(_TICK_SECONDS)
        while self.answered < self._sent:
            await _pause(_TICK_SECONDS)
        return self.answered, time.perf_counter() - start

    def _send(self) -> None:
        number, self._sent = self._sent, self._sent + 1
        path = f"{_MAPS}/m-{number % self._objects}"
        self._platform.client.send(WireRequest("PUT", path, self._config_map(number), JSON, self._count_answer))

    def _count_answer(self, code: int, body: bytes, _seconds: float) -> None:
        assert code == 200, body
        self.answered += 1


async def _pause(seconds: float) -> None:
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(seconds, done.set_result, None)
    await done


def _return_watch(watch: WatchConnection) -> WatchConnection:
    return watch


async def _open_watches(platform: BenchmarkPlatform, count: int, *, is_slow: bool) -> list[WatchConnection]:
    host, _, port = platform.client.host.rpartition(":")
    watches = []
    for number in range(count):
        watch = WatchConnection(platform.client.host, is_slow=is_slow, is_sample=number == 0)
        await asyncio.get_running_loop().create_connection(partial(_return_watch, watch), host, int(port))
        watches.append(watch)
    return watches


async def _wait_for_events(watches: list[WatchConnection], expected: int) -> None:
    for _ in range(int(_WAIT_SECONDS / _TICK_SECONDS)):
        if all(watch.events >= expected for watch in watches):
            return
        await _pause(_TICK_SECONDS)
    raise TimeoutError(f"a watch has {min(watch.events for watch in watches)} of {expected} events")


async def main() -> None:
    """Run the updates, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=200)
    parser.add_argument("--slow", type=int, default=20)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--bytes", type=int, default=1000)
    parser.add_argument("--objects", type=int, default=100)
    args = parser.parse_args()
    async with run_platform("--insecure-loopback") as platform:
        load = UpdateLoad(platform, args.objects, args.bytes)
        await load.create()
        watches = await _open_watches(platform, args.watchers, is_slow=False)
        await _wait_for_events(watches, args.objects + 1)
        slow_watches = await _open_watches(platform, args.slow, is_slow=True)
        memory_before, cpu_before = platform.resident_memory(), platform.cpu_seconds()
        updates, seconds = await load.run(args.rate, args.seconds)
        await _wait_for_events(watches, args.objects + 1 + updates)
        cpu_per_event = (platform.cpu_seconds() - cpu_before) / (updates * max(1, args.watchers)) * 1e6
        assert all(watch.has_bookmark for watch in watches), "a watch has no bookmark after its initial events"
        print(
            f"{updates / seconds:.0f} updates/s to {args.watchers} watches, "
            f"{cpu_per_event:.1f} us of CPU per delivered event, delay {format_percentiles(watches[0].delays)}; "
            f"memory {memory_before} MB, then {platform.resident_memory()} MB with {args.slow} slow watches"
        )
        for watch in slow_watches:
            watch.transport.resume_reading()
        await _pause(1.0)
        print(f"{sum(watch.is_closed for watch in slow_watches)} of {args.slow} slow watches were ended")


if __name__ == "__main__":
    uvloop.run(main())
