"""What one team's worst requests do to another team, and to `batchyard down`.

    python benchmarks/worst_case.py [--load bodies|lists] [--seconds N] [--senders N] [--output json]

A platform with TLS and two teams. A process of the first team sends the bodies that cost most, or lists, watches and
tries to delete 60 objects of 1 MB and 2,000 objects with 300 labels, one request after the other on each of several
connections. Meanwhile the second team gets its ConfigMaps by plain requests and by `kubectl get`, the
owner asks for /livez, and at the end `batchyard down` ends the platform under load. The same is measured before the
load begins. Prints seconds: the median, the 99th percentile and the longest.
"""

import argparse
import base64
import json
import os
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

TEAMS: Final = ("team-a", "team-b")
_ROLE: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
_RESTS: Final = 0.05  # seconds between two requests of the second team
_QUIET: Final = 5  # seconds before the load
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"


class Caller:
    """A connection of a user, by their kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        user, cluster = config["users"][0]["user"], config["clusters"][0]["cluster"]
        self._url = urlsplit(cluster["server"])
        self._context = ssl.create_default_context(
            cadata=base64.b64decode(cluster["certificate-authority-data"]).decode()
        )
        with tempfile.NamedTemporaryFile() as pem:
            pem.write(base64.b64decode(user["client-certificate-data"]) + base64.b64decode(user["client-key-data"]))
            pem.flush()
            self._context.load_cert_chain(pem.name)
        self._connection: HTTPSConnection | None = None

    def ask(self, method: str, path: str, body: bytes = b"", content_type: str = _JSON) -> int:
        """The code of the answer; 0 where there is none."""
        try:
            if self._connection is None:
                assert self._url.hostname is not None
                self._connection = HTTPSConnection(
                    self._url.hostname, self._url.port, context=self._context, timeout=60
                )
            self._connection.request(method, path, body, {"content-type": content_type})
            with self._connection.getresponse() as response:
                response.read()
                return response.status
        except (OSError, HTTPException):
            self._connection = None
            return 0


def worst_bodies(namespace: str) -> Iterator[tuple[str, str, bytes, str]]:
    """Requests whose bodies cost the most, each of at most 3 MiB."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def named(**fields: Any) -> bytes:
        return json.dumps({"metadata": {"name": "worst", **fields.pop("about", {})}, **fields}).encode()

    yield "POST", maps, b"a: [" + b"a," * 1_400_000 + b"a]", _YAML
    yield "POST", maps, b"a:\n" + b"- a\n" * 190_000, _YAML
    yield "POST", maps, named(about={"finalizers": [f"a/b{i}" for i in range(190_000)]}), _JSON
    yield "POST", maps, named(**{f"f{i}": 1 for i in range(190_000)}), _JSON
    yield "POST", maps, b"[" * 3_000_000, _JSON
    yield "POST", maps, named(about={"labels": {f"k{i}": "_" for i in range(100_000)}}), _JSON
    containers = [{"name": f"c{i}", "image": "x", "env": [{"name": "a", "value": "b"}]} for i in range(20_000)]
    yield "POST", pods, named(spec={"containers": containers}), _JSON
    yield "POST", jobs, named(spec={"template": {"spec": {"restartPolicy": "Never", "containers": containers}}}), _JSON
    cpu = {"requests": {"cpu": "1" * 1_000_000 + "x"}}
    container = {"name": "a", "image": "x", "resources": cpu}
    yield "POST", jobs, named(spec={"template": {"spec": {"containers": [container]}}}), _JSON
    small = named(about={"finalizers": [None] * 5_000})
    yield "POST", maps, small, _JSON
    yield "PATCH", f"{maps}/kept", json.dumps({"data": {f"k{i}": "v" for i in range(90_000)}}).encode(), _MERGE


_MERGE: Final = "application/merge-patch+json"
_LARGE, _LABELED, _LABELS = 60, 2_000, 300


def long_lists(namespace: str) -> Iterator[tuple[str, str, bytes, str]]:
    """Requests whose answers cost the most; `make_many` made their objects."""
    maps, secrets = (f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("configmaps", "secrets"))
    terms = ",".join(f"k{number}" for number in range(_LABELS))
    yield "GET", maps, b"", _JSON
    yield "GET", f"{secrets}?labelSelector={terms}", b"", _JSON
    yield "GET", f"{maps}?watch=true&timeoutSeconds=1", b"", _JSON
    yield "DELETE", f"{maps}?dryRun=All", b"", _JSON
    yield "GET", f"{secrets}?labelSelector={terms.replace(',', '!=x,')},x", b"", _JSON
    yield "GET", f"{secrets}?watch=true&timeoutSeconds=1", b"", _JSON


def make_many(kubeconfig: Path) -> None:
    """Make the objects of `long_lists`."""
    caller, namespace = Caller(kubeconfig), TEAMS[0]
    maps, secrets = (f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("configmaps", "secrets"))
    for number in range(_LARGE):
        large = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * 1_000_000}}
        _expect(caller.ask("POST", maps, json.dumps(large).encode()), 201)
    labels = {f"k{number}": "v" for number in range(_LABELS)}
    for number in range(_LABELED):
        labeled = {"metadata": {"name": f"labeled-{number}", "labels": labels}}
        _expect(caller.ask("POST", secrets, json.dumps(labeled).encode()), 201)


LOADS: Final[Mapping[str, Callable[[str], Iterator[tuple[str, str, bytes, str]]]]] = {
    "bodies": worst_bodies,
    "lists": long_lists,
}


def send(kubeconfig: Path, senders: int, load: str) -> None:
    """Send the worst requests on several connections until this process is ended."""
    bodies = list(LOADS[load](TEAMS[0]))

    def run(number: int) -> None:
        caller = Caller(kubeconfig)
        while True:
            for index in range(len(bodies)):
                method, path, body, content_type = bodies[(index + number) % len(bodies)]
                code = caller.ask(method, path, body, content_type)
                if not code:
                    threading.Event().wait(_RESTS)  # the platform ends
                sys.stdout.write(f"{code}\n")
                sys.stdout.flush()

    for number in range(senders):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    threading.Event().wait()


def timed(work: Callable[[], object], until: float) -> list[float]:
    """How long something takes, done again and again until a moment."""
    found = []
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
        threading.Event().wait(_RESTS)
    return found


def measured(folder: Path, seconds: float) -> dict[str, list[float]]:
    """What the second team and the owner wait for."""
    until = time.perf_counter() + seconds
    team, owner = Caller(folder / "users" / "b.kubeconfig"), Caller(folder / "kubeconfig")
    found: dict[str, list[float]] = {}
    maps = f"/api/v1/namespaces/{TEAMS[1]}/configmaps"
    works: dict[str, Callable[[], object]] = {
        "get": lambda: _expect(team.ask("GET", maps)),
        "livez": lambda: _expect(owner.ask("GET", "/livez")),
    }
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        command = [kubectl, "--kubeconfig", str(folder / "users" / "b.kubeconfig"), "get", "configmaps"]
        works["kubectl get"] = lambda: subprocess.run(command, check=True, capture_output=True)

    def run(name: str) -> None:
        found[name] = timed(works[name], until)

    threads = [threading.Thread(target=run, args=(name,)) for name in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _expect(code: int, expected: int = 200) -> None:
    if code != expected:
        raise SystemExit(f"the answer was {code}")


def summary(times: Sequence[float]) -> Mapping[str, float]:
    """The median, the 99th percentile and the longest of some times."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"count": len(times), "p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


@contextmanager
def platform(folder: Path) -> Iterator[None]:
    """A platform with two teams and a user of each; ended by `batchyard down`."""
    batchyard("up", "--detach", "--data-dir", str(folder))
    try:
        owner = Caller(folder / "kubeconfig")
        for team, user in zip(TEAMS, "ab", strict=True):
            owner.ask("POST", "/api/v1/namespaces", json.dumps({"metadata": {"name": team}}).encode())
            subject = {"kind": "Group", "name": team, "apiGroup": "rbac.authorization.k8s.io"}
            role = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
            binding = {"metadata": {"name": "edit"}, "roleRef": role, "subjects": [subject]}
            owner.ask("POST", _ROLE.format(team), json.dumps(binding).encode())
            kept = {"metadata": {"name": "kept"}, "data": {"a": "b"}}
            owner.ask("POST", f"/api/v1/namespaces/{team}/configmaps", json.dumps(kept).encode())
            batchyard("user", user, "--group", team, "-n", team, "--data-dir", str(folder))
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            batchyard("down", "--data-dir", str(folder))


def batchyard(*arguments: str) -> None:
    """Run a command of ours."""
    subprocess.run([sys.executable, "-m", "batchyard", *arguments], check=True, capture_output=True)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--senders", type=int, default=16)
    parser.add_argument("--load", choices=[*LOADS], default="bodies")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--send", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.send is not None:
        send(given.send, given.senders, given.load)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "platform"
        with platform(folder):
            if given.load == "lists":
                make_many(folder / "users" / "a.kubeconfig")
            found = {f"{name}, before": times for name, times in measured(folder, _QUIET).items()}
            with (Path(place) / "codes").open("wb") as codes:
                command = [sys.executable, __file__, "--send", str(folder / "users" / "a.kubeconfig")]
                command += ["--senders", str(given.senders), "--load", given.load]
                sender = subprocess.Popen(command, stdout=codes)
                threading.Event().wait(2)
                try:
                    found |= measured(folder, given.seconds)
                    began = time.perf_counter()
                    batchyard("down", "--data-dir", str(folder))
                    found["down"] = [time.perf_counter() - began]
                finally:
                    sender.kill()
                    sender.wait()
            sent = Counter((Path(place) / "codes").read_text("ascii").split())
            blocked = (folder / "up.log").read_text("utf-8").count("is blocked")
    reported = {name: summary(times) for name, times in found.items()}
    if given.output == "json":
        sys.stdout.write(json.dumps({"times": reported, "sent": sent, "blocked": blocked}) + "\n")
        return
    for name, row in reported.items():
        figures = "  ".join(f"{field} {row[field]:.3f} s" for field in ("p50", "p99", "max"))
        sys.stdout.write(f"{name:22} {row['count']:5} times  {figures}\n")
    sys.stdout.write(f"sent: {dict(sent)}; blocked for more than a second: {blocked} times; {os.cpu_count()} CPUs\n")


if __name__ == "__main__":
    main()
