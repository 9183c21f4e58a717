"""A running platform under malformed requests, and the checks of its behavior."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import yaml

from e2e_platform.kill_rounds import ask
from e2e_platform.platform_process import UpProcess
from fuzz.requests import FuzzedResource, FuzzRequest, RequestGenerator
from fuzz.seeded_random import SeededRandom
from fuzz.wire import codes, dialer, garble, shapes

ROCKETS: Final = Path(__file__).parents[1] / "e2e_platform" / "rockets.yaml"
MAPS: Final = "/api/v1/namespaces/default/configmaps"
_OPTIONS: Final = ("--insecure-loopback", "--speed", "60x", "--cluster", "examples/refarch/cluster.yaml")
_WITHIN: Final = 60
_BROKEN: Final = (OSError, http.client.HTTPException)
#: Allowed server errors: overload, and future revisions.
_OWN: Final = (503, 504)
#: The same for schemathesis.
_STATUSES: Final = '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]\n'


class FuzzedPlatform:
    """A platform under malformed requests; `faults` lists failed checks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log: list[str] = []
        self.faults: list[str] = []
        self.codes: dict[int, int] = {}
        self._begin()
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        ask(self.url, "POST", definitions, yaml.safe_load(ROCKETS.read_text("utf-8")))
        ask(self.url, "POST", MAPS, {"metadata": {"name": "kept"}})
        self._places = list(places(self.url))

    @property
    def url(self) -> str:
        """The URL of the platform."""
        return self._running.url

    def send(self, count: int, *seed: object) -> None:
        """Send `count` requests after the valid ones."""
        fuzz = RequestGenerator(self._places, *seed)
        place = urlsplit(self.url)
        with closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=_WITHIN)) as connection:
            for asked in _with_good(fuzz, count):
                try:
                    self._take(_code(connection, asked), asked.reported)
                except _BROKEN:  # continue with another connection
                    connection.close()
                    self._check_answers(asked.reported)

    def send_shapes(self) -> None:
        """Send invalid requests."""
        dial = dialer(self.url)
        for shape in shapes():
            result = codes(dial, shape.sent)
            if len(result) > shape.answers_max:
                self.faults.append(f"{shape.what}: {len(result)} answers")
            for code in result:
                self._take(code, shape.what)
            self._check_answers(shape.what)

    def send_garbled(self, count: int, *seed: object) -> None:
        """Send `count` requests with changed bytes."""
        fuzz, dice, dial = RequestGenerator(self._places, *seed), SeededRandom(*seed), dialer(self.url)
        for _ in range(count):
            asked = fuzz.next()
            for code in codes(dial, garble(asked, dice), 0.05):
                self._take(code, asked.reported)
        self._check_answers("garbled requests")

    def send_by_schema(self, document: str, examples: int, phases: str = "fuzzing") -> None:
        """Send the requests that schemathesis derives from an OpenAPI document, unless its kinds are deleted."""
        if document not in self.documents():
            return
        (self._folder / "schemathesis.toml").write_text(_STATUSES, "ascii")
        path = self._folder / "document.json"
        path.write_text(json.dumps(_generable(ask(self.url, "GET", f"/openapi/v3/{document}")[1])))
        done = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("schemathesis")), "run", str(path)),
                *("--url", self.url, "--checks", "not_a_server_error", "--phases", phases, "--seed", "1"),
                *("--max-examples", str(examples), "--suppress-health-check", "all", "--no-color", "--warnings", "off"),
            ],
            cwd=self._folder,  # schemathesis writes a cache to its working directory
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            self.faults.append(f"schemathesis of {document}: {done.stdout[-3000:]}{done.stderr[-1000:]}")

    def documents(self) -> list[str]:
        """Return the paths of the OpenAPI documents."""
        return list(ask(self.url, "GET", "/openapi/v3")[1]["paths"])

    def resident(self) -> int:
        """Return the resident memory in megabytes."""
        status = Path(f"/proc/{self._running.process.pid}/status").read_text("ascii")
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) // 1024

    def end(self) -> None:
        """Kill the platform, check its recovery, stop it, and check its log."""
        last = ask(self.url, "GET", MAPS)[1]["metadata"]["resourceVersion"]
        self._running.kill()
        self._begin()
        kept = ask(self.url, "GET", MAPS)[1]["metadata"]["resourceVersion"]
        if int(kept) < int(last):
            self.faults.append(f"it went on from revision {kept}, and {last} was told")
        if self._running.end() != 0:
            self.faults.append("it did not end in order")
        reported = "".join(self._log)
        self.faults += [
            f"its log has {word}: {reported[:5000]}" for word in ("Traceback", "defect") if word in reported
        ]

    def _begin(self) -> None:
        self._running = UpProcess(self._folder, *_OPTIONS)
        threading.Thread(target=self._log.extend, args=(self._running.process.stderr,), daemon=True).start()

    def _take(self, code: int, reported: str) -> None:
        self.codes[code] = self.codes.get(code, 0) + 1
        if code >= 500 and code not in _OWN:
            self.faults.append(f"{code} to {reported}")

    def _check_answers(self, reported: str) -> None:
        """Check that the platform still answers a valid request."""
        code = ask(self.url, "GET", f"{MAPS}?limit=1")[0]
        if code != 200:
            self.faults.append(f"{code} to a good request after {reported}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__()


class StalledConnections:
    """Incomplete requests that never end, and watches whose clients read nothing."""

    def __init__(self, url: str, count: int) -> None:
        place = urlsplit(url)
        self._address = (str(place.hostname), int(place.port or 0))
        head = f"POST {MAPS} HTTP/1.1\r\nhost: localhost\r\n".encode()
        body = head + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        watch = f"GET {MAPS}?watch=1 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
        lists = (f"GET {MAPS} HTTP/1.1\r\nhost: localhost\r\n\r\n" * 20).encode()
        self._wires = [self._sent(sent) for sent in (b"", head, body, watch, lists) for _ in range(count)]

    def _sent(self, sent: bytes) -> socket.socket:
        wire = socket.socket()
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.settimeout(_WITHIN)
        wire.connect(self._address)
        wire.sendall(sent)
        return wire

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self._wires:
            with suppress(OSError):
                wire.close()


def _generable(schema: Any) -> Any:
    """Return a document without the patterns of Go that schemathesis does not support: those with flags."""
    if isinstance(schema, dict):
        return {k: _generable(v) for k, v in schema.items() if k != "pattern" or "(?" not in v}
    return [_generable(item) for item in schema] if isinstance(schema, list) else schema


def places(url: str) -> Iterator[FuzzedResource]:
    """Yield all resources that the platform's discovery lists."""
    versions = ["v1"] + [
        version["groupVersion"] for group in ask(url, "GET", "/apis")[1]["groups"] for version in group["versions"]
    ]
    for version in versions:
        result = ask(url, "GET", f"/apis/{version}" if "/" in version else f"/api/{version}")[1]["resources"]
        for each in result:
            parts = tuple(o["name"].partition("/")[2] for o in result if o["name"].startswith(f"{each['name']}/"))
            if "/" not in each["name"]:
                yield FuzzedResource(version, each["kind"], each["name"], each["namespaced"], parts)


def _with_good(fuzz: RequestGenerator, count: int) -> Iterator[FuzzRequest]:
    yield from fuzz.good()
    for _ in range(count):
        yield fuzz.next()


def _code(connection: http.client.HTTPConnection, asked: FuzzRequest) -> int:
    """Send a request; return the code of the response, or 0 if the client library rejects the request."""
    try:
        headers = {"host": "localhost", **asked.headers}
        connection.request(asked.method, asked.target, asked.body, {k: v.encode("latin-1") for k, v in headers.items()})
    except ValueError:
        connection.close()
        return 0
    response = connection.getresponse()
    if b"watch" not in asked.target.encode() or response.getheader("content-length"):
        response.read()
    else:
        connection.close()
    return response.status
