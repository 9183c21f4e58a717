"""Concurrent histories of a primary with a standby: clients draw operations from a seed while a fault happens."""

import http.client
import json
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from typing import Any, Final
from urllib.parse import urlsplit

from fuzz.linearizability import (
    CONFLICT,
    EXISTS,
    MISSING,
    NEVER,
    OK,
    UNKNOWN,
    Operation,
    SeenEvent,
    SeenList,
    event_faults,
    history_faults,
)
from fuzz.seeded_random import SeededRandom
from fuzz.standby_pair import PairNode, StandbyPair, wait_until

FAULTS: Final = ("none", "kill", "restart", "stop", "end")
CLIENTS: Final = 4
KEYS: Final = 3
OPERATIONS: Final = 14
_PATH: Final = "/api/v1/namespaces/default/configmaps"
_BROKEN: Final = (OSError, http.client.HTTPException, ValueError)
_GIVE_UP_SECONDS: Final = 90


class NodeClient:
    """A client of both nodes of a pair, which changes to the other node after a failure."""

    def __init__(self, nodes: list[PairNode], context: ssl.SSLContext, timeout: float = 5) -> None:
        self._nodes, self._context, self._timeout = nodes, context, timeout
        self._connection: http.client.HTTPSConnection | None = None

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the code and body of a response; a code of 0 without one. Change the node after a failure."""
        try:
            connection = self._connect()
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"content-type": "application/json"})
            response = connection.getresponse()
            code, answer = response.status, json.loads(response.read())
        except _BROKEN:
            code, answer = 0, None
        if code in {0, 429} or code >= 500:
            self.change_node()
            return 0, None
        return code, answer

    def lines(self, path: str) -> Iterator[Any]:
        """Yield the events of a watch until it ends or fails."""
        try:
            connection = self._connect()
            connection.request("GET", path)
            response = connection.getresponse()
            if response.status != 200:
                raise http.client.HTTPException(response.status)
            while (line := response.readline()).endswith(b"\n"):
                yield json.loads(line)
        except _BROKEN:
            pass
        self.change_node()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def change_node(self) -> None:
        """Close the connection, and use the other node from now on."""
        self.close()
        self._nodes = self._nodes[::-1]
        threading.Event().wait(0.05)

    def _connect(self) -> http.client.HTTPSConnection:
        if self._connection is None:
            place = urlsplit(self._nodes[0].url)
            assert place.hostname is not None
            self._connection = http.client.HTTPSConnection(
                place.hostname, place.port, timeout=self._timeout, context=self._context
            )
        return self._connection


class ConcurrentHistory:
    """The operations, events and lists of one history, and the fault that happens during it."""

    def __init__(self, pair: StandbyPair, seed: object, fault: str) -> None:
        self._pair, self._seed, self.fault = pair, seed, fault
        self.name = f"h{seed}"
        self._selector = f"labelSelector=history%3D{self.name}"
        self._instants = count()
        self.operations: list[Operation] = []
        self.events: list[SeenEvent] = []
        self.lists: list[SeenList] = []
        self._context = pair.client_context()
        self._done = threading.Event()

    def run(self) -> list[str]:
        """Run clients, a watch and the fault; return the violations."""
        with closing(self._client()) as first:
            return self._run_with(first)

    def _run_with(self, first: NodeClient) -> list[str]:
        _, answer = self._ask_until_answered(first, "GET", f"{_PATH}?{self._selector}")
        start = int(answer["metadata"]["resourceVersion"])
        clients = [threading.Thread(target=self._run_client, args=(number,)) for number in range(CLIENTS)]
        others = [threading.Thread(target=self._watch, args=(start,)), threading.Thread(target=self._probe)]
        for thread in (*others, *clients):
            thread.start()
        self._inject_fault()
        for thread in clients:
            thread.join(_GIVE_UP_SECONDS)
        _, answer = self._ask_until_answered(first, "GET", f"{_PATH}?{self._selector}")
        self._note_list(answer)
        self._write_end(first)
        self._done.set()
        for thread in others:
            thread.join(_GIVE_UP_SECONDS)
        faults = history_faults(self.operations)
        if any(thread.is_alive() for thread in (*clients, *others)):
            faults.append("a client or the watch did not end")
        return faults + list(event_faults(self.events, self.operations, self.lists))

    def _client(self, timeout: float = 5) -> NodeClient:
        return NodeClient([self._pair.primary, self._pair.standby], self._context, timeout)

    def _inject_fault(self) -> None:
        if self.fault == "none":
            return
        draw = SeededRandom(self._seed, "fault")
        after = draw.below(CLIENTS * OPERATIONS // 2)
        wait_until(lambda: len(self.operations) >= after, "operations", 30)
        primary = self._pair.primary
        if self.fault == "stop":
            primary.send(signal.SIGSTOP)
            self._pair.wait_for_takeover()
            primary.send(signal.SIGCONT)
        elif self.fault == "restart":
            primary.end()
            self._pair.restart(primary)
        else:
            primary.send(signal.SIGKILL if self.fault == "kill" else signal.SIGTERM)
            self._pair.wait_for_takeover()

    def _run_client(self, number: int) -> None:
        with closing(self._client()) as client:
            self._run_steps(client, number)

    def _run_steps(self, client: NodeClient, number: int) -> None:
        draw = SeededRandom(self._seed, number)
        known: dict[str, tuple[str, str]] = {}
        for step in range(OPERATIONS):
            key, value = f"{self.name}-{draw.below(KEYS)}", f"{number}.{step}"
            action = draw.one_of(("create", "update", "update", "update", "delete", "get", "get", "list"))
            is_conditional = action == "update" or draw.happens(50)
            if action == "update" and key not in known:
                action = "create"
            expected, revision = known.get(key, ("", "")) if is_conditional else ("", "")
            if action in {"create", "get", "list"}:
                expected = revision = ""
            if not self._execute(client, known, (action, key, value, expected, revision)):
                self._ask_until_answered(client, "GET", f"{_PATH}/{key}")

    def _execute(
        self, client: NodeClient, known: dict[str, tuple[str, str]], step: tuple[str, str, str, str, str]
    ) -> bool:
        """Execute an operation and record it; return whether it had a response."""
        action, key, value, expected, revision = step
        invoked_at = next(self._instants)
        code, answer = client.ask(*self._request(action, key, value, revision))
        returned_at = next(self._instants)
        if action == "list":
            if code == 200:
                self._note_list(answer, invoked_at, returned_at)
            return code != 0
        outcome = {0: UNKNOWN, 200: OK, 201: OK, 404: MISSING, 409: EXISTS if action == "create" else CONFLICT}[code]
        is_read = action == "get"
        if outcome == UNKNOWN:
            returned_at = NEVER
        new_revision = 0
        if outcome == OK and action != "delete":
            new_revision = int(answer["metadata"]["resourceVersion"])
            value = answer["data"]["word"] if is_read else value
            known[key] = value, str(new_revision)
        elif outcome == MISSING:
            known.pop(key, None)
        value = "" if action == "delete" or (is_read and outcome != OK) else value
        if not (is_read and outcome == UNKNOWN):
            self.operations.append(
                Operation(key, action, invoked_at, returned_at, outcome, value, expected, new_revision)
            )
        return code != 0

    def _request(self, action: str, key: str, value: str, revision: str) -> tuple[str, str, Any]:
        if action == "list":
            return "GET", f"{_PATH}?{self._selector}", None
        if action == "get":
            return "GET", f"{_PATH}/{key}", None
        if action == "delete":
            return "DELETE", f"{_PATH}/{key}", {"preconditions": {"resourceVersion": revision}} if revision else None
        metadata = {"name": key, "labels": {"history": self.name}} | ({"resourceVersion": revision} if revision else {})
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"word": value}}
        return ("POST", _PATH, obj) if action == "create" else ("PUT", f"{_PATH}/{key}", obj)

    def _note_list(self, answer: Any, invoked_at: int = -1, returned_at: int = -1) -> None:
        values = {item["metadata"]["name"]: item["data"]["word"] for item in answer["items"]}
        self.lists.append(SeenList(int(answer["metadata"]["resourceVersion"]), values))
        for number in range(KEYS) if invoked_at >= 0 else ():
            key = f"{self.name}-{number}"
            outcome = OK if key in values else MISSING
            self.operations.append(Operation(key, "get", invoked_at, returned_at, outcome, values.get(key, "")))

    def _probe(self) -> None:
        """Read from both nodes in turn, also from one that is stopped or superseded."""
        known: dict[str, tuple[str, str]] = {}
        with closing(self._client(timeout=10)) as client:
            while not self._done.wait(0.1):
                self._execute(client, known, ("get", f"{self.name}-0", "", "", ""))
                client.change_node()

    def _watch(self, revision: int) -> None:
        """Watch until the last object of the history; resume after each disconnect from the last revision."""
        with closing(self._client(timeout=10)) as client:
            self._watch_with(client, revision)

    def _watch_with(self, client: NodeClient, revision: int) -> None:
        for _ in range(500):
            for line in client.lines(f"{_PATH}?watch=1&{self._selector}&resourceVersion={revision}&timeoutSeconds=8"):
                obj = line["object"]
                if line["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
                    self.events.append(SeenEvent(0, "error", json.dumps(line)))
                    return
                revision = int(obj["metadata"]["resourceVersion"])
                if obj["metadata"]["name"].endswith("-end"):
                    return
                value = "" if line["type"] == "DELETED" else obj["data"]["word"]
                self.events.append(SeenEvent(revision, obj["metadata"]["name"], value))

    def _write_end(self, client: NodeClient) -> None:
        for _ in range(500):
            if client.ask(*self._request("create", f"{self.name}-end", "end", ""))[0] in {201, 409}:
                return

    @staticmethod
    def _ask_until_answered(client: NodeClient, method: str, path: str) -> tuple[int, Any]:
        for _ in range(1000):
            code, answer = client.ask(method, path)
            if code:
                return code, answer
        raise AssertionError("no node answers")


def run_histories(pair: StandbyPair, seeds: Iterator[int], fault_percent: int = 30) -> Iterator[tuple[str, list[str]]]:
    """Run histories, and make the pair whole again after each fault; yield each fault with its violations."""
    for seed in seeds:
        draw = SeededRandom("history", seed)
        fault = draw.one_of(FAULTS[1:]) if draw.happens(fault_percent) else "none"
        violations = ConcurrentHistory(pair, seed, fault).run()
        repair(pair, fault)
        yield fault, violations


def repair(pair: StandbyPair, fault: str) -> None:
    """Make the node that does not serve the standby of the other one."""
    if fault == "none":
        return
    if fault == "restart":  # the standby has taken over, or it follows the restarted primary again
        context, nodes = pair.client_context(), pair.nodes
        wait_until(lambda: any(_serves(node, context) for node in nodes), "a node serves")
        if _serves(pair.standby, context):
            pair.primary, pair.standby = pair.standby, pair.primary
        else:
            return
    with suppress(ProcessLookupError):
        pair.standby.end()
    pair.follow()


def settle(pair: StandbyPair) -> None:
    """Wait until the primary of a pair serves and the other node is its standby, also after an unexpected takeover."""
    repair(pair, "restart")
    if pair.standby.process is None or pair.standby.process.poll() is not None:
        pair.follow()


def _serves(node: PairNode, context: ssl.SSLContext) -> bool:
    with closing(NodeClient([node], context)) as client:
        return client.ask("GET", _PATH)[0] == 200
