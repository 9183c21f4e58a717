"""Rounds of `kill -9` with concurrent writers, and checks of their acknowledged writes."""

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from batchyard.interfaces.client import EventType
from batchyard.server.platform.data_dir import JOURNAL_FILE
from batchyard.store.journal_file import read_journal
from e2e_platform.platform_process import UpProcess

WRITERS = 16
_PLACE = "/api/v1/namespaces/default/configmaps"
_ANEW = f"{_PLACE}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
_ENDS_WITHIN = 60
_BROKEN = (OSError, http.client.HTTPException)


@dataclass
class RoundResponses:
    """The responses of all rounds: by revision, and the expected state of each object."""

    #: Revision -> the written object and its word, or None after a delete.
    acknowledged: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    #: The possible words of an object: the last acknowledged word, and those of unanswered requests.
    expected: dict[str, list[str | None]] = field(default_factory=dict)
    #: Revision -> the events of a watch, in order.
    watched: list[tuple[int, str, str | None]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class PlainHttpClient:
    """A connection without TLS."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        assert place.hostname is not None
        self._connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_ENDS_WITHIN)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The code and the body of a response."""
        sent = None if body is None else json.dumps(body)
        self._connection.request(method, path, sent, {"content-type": "application/json"})
        response = self._connection.getresponse()
        return response.status, json.loads(response.read())

    def lines(self, path: str) -> Iterator[dict[str, Any]]:
        """The events of a watch until it ends."""
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        while line := response.readline():
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The code and the body of a single response."""
    with PlainHttpClient(url) as client:
        return client.ask(method, path, body)


def kill_round(folder: Path, number: int, answers: RoundResponses, *options: str) -> None:
    """Run writers and two watches, kill the platform after a number of responses, and check the result."""
    enough, stopped = threading.Event(), threading.Event()
    before = len(answers.acknowledged)
    expected = before + 30 + 97 * number % 400
    first = max(answers.acknowledged, default=0)
    with UpProcess(folder, "--insecure-loopback", *options) as running:
        _check_stored_objects(running.url, answers)
        watchers = (_watch, _watch_from_start)
        threads = [threading.Thread(target=each, args=(running.url, answers, stopped)) for each in watchers]
        threads += [
            threading.Thread(target=_write, args=(running.url, f"w{writer}", number, answers, (expected, enough)))
            for writer in range(WRITERS)
        ]
        for thread in threads:
            thread.start()
        assert enough.wait(_ENDS_WITHIN), "writers were not answered"
        stopped.set()
        running.kill()
        for thread in threads:
            thread.join(_ENDS_WITHIN)
    check_journal(folder, answers)
    again = [revision for revision in list(answers.acknowledged)[before:] if revision <= first]
    answers.faults += [f"revision {revision} was given before the last end" for revision in again]


def check_journal(folder: Path, answers: RoundResponses) -> None:
    """Compare the events of a watch with the journal: each change once, unchanged, and no revision twice."""
    contents = read_journal(folder / JOURNAL_FILE).store
    numbers = [change.revision for change in contents.changes]
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        answers.faults.append("the journal has a gap")
    reported = {revision: (name, word) for revision, name, word in answers.watched}
    last = max(reported, default=0)
    for change in contents.changes:
        if change.key.kind == "ConfigMap" and change.key.namespace == "default" and change.revision <= last:
            word = None if change.type is EventType.DELETED else change.obj["data"]["word"]
            if reported.get(change.revision) != (change.key.name, word):
                answers.faults.append(f"revision {change.revision} is {change.key.name}={word} in the journal")
    ahead = [revision for revision in reported if revision > contents.revision]
    answers.faults += [f"revision {revision} was told, and is not in the journal" for revision in ahead]


def check_final_state(folder: Path, answers: RoundResponses) -> None:
    """Check the final objects, and that the watch got all changes once and in order."""
    with UpProcess(folder, "--insecure-loopback") as running:
        kept = _check_stored_objects(running.url, answers)
        _catch_up(running.url, answers)
        assert running.end() == 0
    reported = [revision for revision, _, _ in answers.watched]
    if reported != sorted(set(reported)):
        answers.faults.append("the watch was told a revision twice, or an older one later")
    by_revision = {revision: (name, word) for revision, name, word in answers.watched}
    for revision, (name, word) in answers.acknowledged.items():
        if by_revision.get(revision) != (name, word):
            answers.faults.append(
                f"revision {revision} was {name}={word}, the watch was told {by_revision.get(revision)}"
            )
    folded: dict[str, str] = {}
    for _, name, word in answers.watched:
        folded.pop(name, None)
        if word is not None:
            folded[name] = word
    if folded != kept:
        answers.faults.append("what the watch was told is not what is there")


def _write(url: str, writer: str, number: int, answers: RoundResponses, until: tuple[int, threading.Event]) -> None:
    """Create, change and delete own objects, one after the other, until a request is not answered."""
    with PlainHttpClient(url) as client:
        _write_with(client, writer, number, answers, until)


def _write_with(
    client: PlainHttpClient, writer: str, number: int, answers: RoundResponses, until: tuple[int, threading.Event]
) -> None:
    for count in range(1_000_000):
        name, word = f"{writer}-{count % 5}", f"{number}.{count}"
        stands = answers.expected.get(name, [None])
        is_there = stands[-1] is not None
        is_over = is_there and count % 7 == 6
        expected = None if is_over else word
        answers.expected[name] = [*stands, expected]
        try:
            revision = _revision_of(client, name, expected, is_there=is_there)
        except _BROKEN:
            return
        except AssertionError as error:
            answers.faults.append(f"{name}: {error}")
            return
        answers.expected[name] = [expected]
        if revision:
            answers.acknowledged[revision] = (name, expected)
        if len(answers.acknowledged) >= until[0]:
            until[1].set()


def _revision_of(client: PlainHttpClient, name: str, word: str | None, *, is_there: bool) -> int:
    """The revision of a change, or 0 if the response does not contain it."""
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"word": word}}
    if word is None:
        code, answer = client.ask("DELETE", f"{_PLACE}/{name}")
    elif is_there:
        code, answer = client.ask("PUT", f"{_PLACE}/{name}", obj)
    else:
        code, answer = client.ask("POST", _PLACE, obj)
    assert code in {200, 201}, answer
    return 0 if word is None else int(answer["metadata"]["resourceVersion"])


def _check_stored_objects(url: str, answers: RoundResponses) -> dict[str, str]:
    """Compare the stored objects with the responses, and resolve unanswered requests."""
    _, listed = ask(url, "GET", _PLACE)
    kept = {item["metadata"]["name"]: item["data"]["word"] for item in listed["items"]}
    if int(listed["metadata"]["resourceVersion"]) < max(answers.acknowledged, default=0):
        answers.faults.append("the platform is behind what was acknowledged")
    for name, may_be in answers.expected.items():
        if kept.get(name) not in may_be:
            answers.faults.append(f"{name} is {kept.get(name)} and not one of {may_be}")
        answers.expected[name] = [kept.get(name)]
    return kept


def _watch(url: str, answers: RoundResponses, stopped: threading.Event) -> None:
    """Watch the objects from the last known revision."""
    try:
        with PlainHttpClient(url) as client:
            for event in client.lines(_watched_from(answers)):
                _record_event(event, answers)
    except _BROKEN:
        assert stopped.wait(_ENDS_WITHIN), "a watch broke before its platform was killed"


def _watch_from_start(url: str, answers: RoundResponses, stopped: threading.Event) -> None:
    """Watch from the initial events up to a bookmark; after that, revisions increase."""
    last, is_begun = 0, False
    try:
        with PlainHttpClient(url) as client:
            for event in client.lines(_ANEW):
                revision = int(event["object"]["metadata"]["resourceVersion"])
                if is_begun and revision <= last and event["type"] != "BOOKMARK":
                    answers.faults.append(f"revision {revision} was told after {last}")
                is_begun = is_begun or event["type"] == "BOOKMARK"
                last = max(last, revision)
    except _BROKEN:
        assert stopped.wait(_ENDS_WITHIN), "a watch broke before its platform was killed"
    if not is_begun:
        answers.faults.append("a watch was not told where it had begun")


def _catch_up(url: str, answers: RoundResponses) -> None:
    """Watch the objects until an object created for this purpose arrives."""
    with PlainHttpClient(url) as client:
        events = client.lines(_watched_from(answers))
        ask(url, "POST", _PLACE, {"metadata": {"name": "last"}, "data": {"word": "last"}})
        for event in events:
            if event["object"]["metadata"]["name"] == "last":
                break
            _record_event(event, answers)


def _watched_from(answers: RoundResponses) -> str:
    last = answers.watched[-1][0] if answers.watched else 1
    return f"{_PLACE}?watch=1&resourceVersion={last}"


def _record_event(event: dict[str, Any], answers: RoundResponses) -> None:
    metadata = event["object"]["metadata"]
    word = None if event["type"] == "DELETED" else event["object"]["data"]["word"]
    answers.watched.append((int(metadata["resourceVersion"]), metadata["name"], word))
