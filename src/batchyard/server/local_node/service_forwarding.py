"""The tables of forwarded Service ports, and the process that forwards them (`service_proxy`)."""

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.base.instant import MILLISECOND, Instant
from batchyard.interfaces.client import ObjectReader, Reader, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult

_LOG: Final = logging.getLogger("batchyard")
_SERVICE_NAME: Final = "kubernetes.io/service-name"
_API_SERVICE: Final = meta.Key(scheme.SERVICE, "default", "kubernetes")
#: The key of the table of all Services.
_TABLE: Final = meta.Key(scheme.SERVICE, "", "")
_BATCH_PERIOD: Final = 100 * MILLISECOND
_RESTART_DELAY: Final = 1.0  # seconds
_PROTOCOLS: Final = frozenset({"TCP", "UDP"})
#: The most forwarded ports of a namespace, a quarter of what the process forwards.
NAMESPACE_PORTS_MAX: Final = 2048

TableRow = tuple[str, int, str, int, Sequence[tuple[str, int]]]


_EXCLUDED: Final = f"not forwarded: the Services of a namespace may have {NAMESPACE_PORTS_MAX} ports in total"


class ServiceTable(NamedTuple):
    """The forwarded ports, and the Services without forwarding because their namespace has too many ports."""

    rows: list[TableRow]
    excluded: list[meta.Key]


def service_table(reader: ObjectReader) -> ServiceTable:
    """Return the forwarded ports of all Services with a cluster IP, except those of the API server's Service."""
    slices: dict[tuple[str, str], list[meta.Obj]] = {}
    for each in reader.list(scheme.ENDPOINT_SLICE):
        if each["addressType"] == "IPv4":
            name = meta.label(each, _SERVICE_NAME) or ""
            slices.setdefault((each["metadata"]["namespace"], name), []).append(each)
    # Of Services with the same address, the oldest keeps it.
    owners: dict[str, meta.Obj] = {}
    for each in sorted(filter(is_forwarded, reader.list(scheme.SERVICE)), key=_age_key):
        owners.setdefault(each["spec"]["clusterIP"], each)
    table, counts = ServiceTable([], []), Counter[str]()
    for service in owners.values():
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        rows = list(_rows(service, slices.get((namespace, name), ())))
        counts[namespace] += len(rows)
        if counts[namespace] <= NAMESPACE_PORTS_MAX:
            table.rows.extend(rows)
        else:
            table.excluded.append(meta.key_of(service))
    return table


def _age_key(service: meta.Obj) -> tuple[str, str, str]:
    metadata = service["metadata"]
    return (metadata.get("creationTimestamp") or "", metadata["namespace"], metadata["name"])


def is_forwarded(service: meta.Obj) -> bool:
    """Return whether ports of a Service are forwarded: it has a cluster IP and is not the API server's."""
    has_address = service["spec"].get("clusterIP") not in {None, "", "None"}
    return has_address and meta.key_of(service) != _API_SERVICE


def _rows(service: meta.Obj, slices: Iterable[meta.Obj]) -> Iterator[TableRow]:
    spec = service["spec"]
    affinity = (spec.get("sessionAffinityConfig") or {}).get("clientIP") or {}
    affinity_seconds = affinity.get("timeoutSeconds", 10800) if spec.get("sessionAffinity") == "ClientIP" else 0
    slices = list(slices)
    for port in spec.get("ports") or ():
        protocol = port.get("protocol") or "TCP"
        if protocol in _PROTOCOLS:
            endpoints = _port_endpoints(slices, port.get("name") or "", protocol)
            yield (spec["clusterIP"], port["port"], protocol, affinity_seconds, endpoints)


def _port_endpoints(slices: Iterable[meta.Obj], name: str, protocol: str) -> list[tuple[str, int]]:
    """Return the addresses of the ready endpoints at a port; without any, those of serving terminating endpoints."""
    ready, serving = dict[tuple[str, int], None](), dict[tuple[str, int], None]()
    for each in slices:
        ports = [
            port["port"]
            for port in each.get("ports") or ()
            if (port.get("name") or "") == name and (port.get("protocol") or "TCP") == protocol and port.get("port")
        ]
        for endpoint in each.get("endpoints") or ():
            addresses = [(endpoint["addresses"][0], number) for number in ports]
            conditions: Mapping[str, Any] = endpoint.get("conditions") or {}
            if conditions.get("ready") is not False:
                ready |= dict.fromkeys(addresses)
            elif conditions.get("serving") and conditions.get("terminating"):
                serving |= dict.fromkeys(addresses)
    return sorted(ready or serving)


class ServiceForwarder:
    """Starts the process that forwards Services, passes tables to it, and restarts it if it ends."""

    def __init__(self, node: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._node, self._loop = node, loop
        self._table: bytes = b""
        self._has_new_table = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def update(self, table: Sequence[TableRow]) -> None:
        """Forward the ports of a table, and no others."""
        line = json.dumps(table, separators=(",", ":")).encode() + b"\n"
        if line == self._table or (not table and self._task is None):
            return
        self._table = line
        self._has_new_table.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def close(self) -> None:
        """End the process."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            with (self._node / "services.log").open("ab") as log:
                arguments = (sys.executable, "-I", "-m", "batchyard.server.local_node.service_proxy", str(self._node))
                process = await asyncio.create_subprocess_exec(*arguments, stdin=asyncio.subprocess.PIPE, stderr=log)
            self._has_new_table.set()
            sender = self._loop.create_task(self._send_tables(process))
            try:
                code = await process.wait()
            finally:
                sender.cancel()
                if process.returncode is None:
                    process.terminate()
            _LOG.warning("the forwarder of Services ended with code %s; read %s", code, self._node / "services.log")
            await asyncio.wait([sender], timeout=_RESTART_DELAY)
            await self._pause()

    async def _pause(self) -> None:
        resume = asyncio.Event()
        self._loop.call_later(_RESTART_DELAY, resume.set)
        await resume.wait()

    async def _send_tables(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None, "the process has a pipe"
        while True:
            await self._has_new_table.wait()
            self._has_new_table.clear()
            try:
                process.stdin.write(self._table)
                await process.stdin.drain()
            except ConnectionError:
                return  # the process has ended


class ServiceForwardingController:
    """Controller without writes: it passes the forwarded ports of Services to the forwarder, in batches."""

    name = "service-forwarding"
    rank = 0
    kinds = (scheme.SERVICE, scheme.ENDPOINT_SLICE)

    def __init__(self, forwarder: ServiceForwarder) -> None:
        self._forwarder = forwarder
        self._updated_at: Instant | None = None
        self._excluded: frozenset[meta.Key] = frozenset()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the table, if a change may affect it."""
        if event.key.kind == scheme.SERVICE:
            return [_TABLE] if is_forwarded(event.obj) or (event.old is not None and is_forwarded(event.old)) else ()
        return [_TABLE] if (meta.label(event.obj, _SERVICE_NAME) or _API_SERVICE.name) != _API_SERVICE.name else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Pass the current table to the forwarder, or requeue if the last one is recent."""
        if self._updated_at is not None and now < self._updated_at + _BATCH_PERIOD:
            return ReconcileResult(requeue_at=self._updated_at + _BATCH_PERIOD)
        self._updated_at = now
        table = service_table(reader)
        self._forwarder.update(table.rows)
        newly_excluded = [each for each in table.excluded if each not in self._excluded]
        self._excluded = frozenset(table.excluded)
        return ReconcileResult([], [EventRecord(each, "Warning", "TooManyPorts", _EXCLUDED) for each in newly_excluded])
