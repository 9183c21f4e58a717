"""Measures how the most expensive requests of one team delay another team and `batchyard down`.

    python benchmarks/worst_case.py [--load bodies|lists] [--seconds N] [--senders N] [--output json]

The platform has TLS and two teams. A process of the first team sends requests one after another on each of several
connections. With `--load bodies` they have the bodies that are most expensive to parse. With `--load lists` they list,
watch and delete (as a dry run) 60 objects of 1 MB and 2,000 objects with 300 labels. Meanwhile the second team reads
its ConfigMaps over HTTP and with `kubectl get`, and the owner requests /livez. At the end `batchyard down` stops the
platform under load. The latencies are also measured before the load. Prints seconds: median, 99th percentile, maximum.
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
_PAUSE_SECONDS: Final = 0.05  # between two requests of the second team
_BASELINE_SECONDS: Final = 5  # the time of the measurement without load
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"


class UserConnection:
    """An HTTPS connection with the credentials of a kubeconfig; reconnects after an error."""

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

    def request(self, method: str, path: str, body: bytes = b"", content_type: str = _JSON) -> int:
        """Send a request; return the status code, or 0 without a response."""
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
    """Yield the requests whose bodies cost the most CPU time; each body has at most 3 MiB."""
    maps = f"/api/v1/namespaces/{namespace}/configmaps"
    pods = f"/api/v1/namespaces/{namespace}/pods"
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def encode(**fields: Any) -> bytes:
        return json.dumps({"metadata": {"name": "worst", **fields.pop("metadata", {})}, **fields}).encode()

    yield "POST", maps, b"a: [" + b"a," * 1_400_000 + b"a]", _YAML
    yield "POST", maps, b"a:\n" + b"- a\n" * 190_000, _YAML
    yield "POST", maps, encode(metadata={"finalizers": [f"a/b{i}" for i in range(190_000)]}), _JSON
    yield "POST", maps, encode(**{f"f{i}": 1 for i in range(190_000)}), _JSON
    yield "POST", maps, b"[" * 3_000_000, _JSON
    yield "POST", maps, encode(metadata={"labels": {f"k{i}": "_" for i in range(100_000)}}), _JSON
    containers = [{"name": f"c{i}", "image": "x", "env": [{"name": "a", "value": "b"}]} for i in range(20_000)]
    yield "POST", pods, encode(spec={"containers": containers}), _JSON
    yield "POST", jobs, encode(spec={"template": {"spec": {"restartPolicy": "Never", "containers": containers}}}), _JSON
    cpu = {"requests": {"cpu": "1" * 1_000_000 + "x"}}
    container = {"name": "a", "image": "x", "resources": cpu}
    yield "POST", jobs, encode(spec={"template": {"spec": {"containers": [container]}}}), _JSON
    small = encode(metadata={"finalizers": [None] * 5_000})
    yield "POST", maps, small, _JSON
    yield "PATCH", f"{maps}/kept", json.dumps({"data": {f"k{i}": "v" for i in range(90_000)}}).encode(), _MERGE


_MERGE: Final = "application/merge-patch+json"
_LARGE, _LABELED, _LABELS = 60, 2_000, 300


def long_lists(namespace: str) -> Iterator[tuple[str, str, bytes, str]]:
    """Yield the requests whose responses cost the most CPU time; `create_objects` creates their objects."""
    maps, secrets = (f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("configmaps", "secrets"))
    terms = ",".join(f"k{number}" for number in range(_LABELS))
    yield "GET", maps, b"", _JSON
    yield "GET", f"{secrets}?labelSelector={terms}", b"", _JSON
    yield "GET", f"{maps}?watch=true&timeoutSeconds=1", b"", _JSON
    yield "DELETE", f"{maps}?dryRun=All", b"", _JSON
    yield "GET", f"{secrets}?labelSelector={terms.replace(',', '!=x,')},x", b"", _JSON
    yield "GET", f"{secrets}?watch=true&timeoutSeconds=1", b"", _JSON


def create_objects(kubeconfig: Path) -> None:
    """Create the objects of `long_lists`."""
    connection, namespace = UserConnection(kubeconfig), TEAMS[0]
    maps, secrets = (f"/api/v1/namespaces/{namespace}/{kind}" for kind in ("configmaps", "secrets"))
    for number in range(_LARGE):
        large = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * 1_000_000}}
        _expect(connection.request("POST", maps, json.dumps(large).encode()), 201)
    labels = {f"k{number}": "v" for number in range(_LABELS)}
    for number in range(_LABELED):
        labeled = {"metadata": {"name": f"labeled-{number}", "labels": labels}}
        _expect(connection.request("POST", secrets, json.dumps(labeled).encode()), 201)


LOADS: Final[Mapping[str, Callable[[str], Iterator[tuple[str, str, bytes, str]]]]] = {
    "bodies": worst_bodies,
    "lists": long_lists,
}


def send_load(kubeconfig: Path, senders: int, load: str) -> None:
    """Send the most expensive requests on several connections until this process is killed; print the status codes."""
    bodies = list(LOADS[load](TEAMS[0]))

    def run(number: int) -> None:
        connection = UserConnection(kubeconfig)
        while True:
            for index in range(len(bodies)):
                method, path, body, content_type = bodies[(index + number) % len(bodies)]
                code = connection.request(method, path, body, content_type)
                if not code:
                    threading.Event().wait(_PAUSE_SECONDS)  # the platform is stopping
                sys.stdout.write(f"{code}\n")
                sys.stdout.flush()

    for number in range(senders):
        threading.Thread(target=run, args=(number,), daemon=True).start()
    threading.Event().wait()


def measure_durations(action: Callable[[], object], until: float) -> list[float]:
    """Repeat an action until a time of the performance counter; return the durations in seconds."""
    durations = []
    while time.perf_counter() < until:
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
        threading.Event().wait(_PAUSE_SECONDS)
    return durations


def measure_latencies(folder: Path, seconds: float) -> dict[str, list[float]]:
    """Return the latencies of the second team and of the owner, by request."""
    until = time.perf_counter() + seconds
    team, owner = UserConnection(folder / "users" / "b.kubeconfig"), UserConnection(folder / "kubeconfig")
    latencies: dict[str, list[float]] = {}
    maps = f"/api/v1/namespaces/{TEAMS[1]}/configmaps"
    actions: dict[str, Callable[[], object]] = {
        "get": lambda: _expect(team.request("GET", maps)),
        "livez": lambda: _expect(owner.request("GET", "/livez")),
    }
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        command = [kubectl, "--kubeconfig", str(folder / "users" / "b.kubeconfig"), "get", "configmaps"]
        actions["kubectl get"] = lambda: subprocess.run(command, check=True, capture_output=True)

    def run(name: str) -> None:
        latencies[name] = measure_durations(actions[name], until)

    threads = [threading.Thread(target=run, args=(name,)) for name in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies


def _expect(code: int, expected: int = 200) -> None:
    if code != expected:
        raise SystemExit(f"status code {code} instead of {expected}")


def summarize(times: Sequence[float]) -> Mapping[str, float]:
    """Return the count, the median, the 99th percentile and the maximum."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return {"count": len(times), "p50": statistics.median(ordered), "p99": p99, "max": ordered[-1]}


@contextmanager
def run_platform(folder: Path) -> Iterator[None]:
    """Run a platform with two teams and one user per team; stop it with `batchyard down`."""
    run_batchyard("up", "--detach", "--data-dir", str(folder))
    try:
        owner = UserConnection(folder / "kubeconfig")
        for team, user in zip(TEAMS, "ab", strict=True):
            owner.request("POST", "/api/v1/namespaces", json.dumps({"metadata": {"name": team}}).encode())
            subject = {"kind": "Group", "name": team, "apiGroup": "rbac.authorization.k8s.io"}
            role = {"kind": "ClusterRole", "name": "edit", "apiGroup": "rbac.authorization.k8s.io"}
            binding = {"metadata": {"name": "edit"}, "roleRef": role, "subjects": [subject]}
            owner.request("POST", _ROLE.format(team), json.dumps(binding).encode())
            kept = {"metadata": {"name": "kept"}, "data": {"a": "b"}}
            owner.request("POST", f"/api/v1/namespaces/{team}/configmaps", json.dumps(kept).encode())
            run_batchyard("user", user, "--group", team, "-n", team, "--data-dir", str(folder))
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            run_batchyard("down", "--data-dir", str(folder))


def run_batchyard(*arguments: str) -> None:
    """Run a batchyard command; raise an error if it fails."""
    subprocess.run([sys.executable, "-m", "batchyard", *arguments], check=True, capture_output=True)


def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--senders", type=int, default=16)
    parser.add_argument("--load", choices=[*LOADS], default="bodies")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--send", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.send is not None:
        send_load(arguments.send, arguments.senders, arguments.load)
        return
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "platform"
        with run_platform(folder):
            if arguments.load == "lists":
                create_objects(folder / "users" / "a.kubeconfig")
            baseline = measure_latencies(folder, _BASELINE_SECONDS)
            latencies = {f"{name}, before": times for name, times in baseline.items()}
            with (Path(work) / "codes").open("wb") as codes:
                command = [sys.executable, __file__, "--send", str(folder / "users" / "a.kubeconfig")]
                command += ["--senders", str(arguments.senders), "--load", arguments.load]
                sender = subprocess.Popen(command, stdout=codes)
                threading.Event().wait(2)
                try:
                    latencies |= measure_latencies(folder, arguments.seconds)
                    start = time.perf_counter()
                    run_batchyard("down", "--data-dir", str(folder))
                    latencies["down"] = [time.perf_counter() - start]
                finally:
                    sender.kill()
                    sender.wait()
            sent = Counter((Path(work) / "codes").read_text("ascii").split())
            blocked = (folder / "up.log").read_text("utf-8").count("is blocked")
    summaries = {name: summarize(times) for name, times in latencies.items()}
    if arguments.output == "json":
        sys.stdout.write(json.dumps({"times": summaries, "sent": sent, "blocked": blocked}) + "\n")
        return
    for name, row in summaries.items():
        figures = "  ".join(f"{field} {row[field]:.3f} s" for field in ("p50", "p99", "max"))
        sys.stdout.write(f"{name:22} {row['count']:5} samples  {figures}\n")
    sys.stdout.write(f"requests by status code (0: no response): {dict(sent)}\n")
    sys.stdout.write(f"event loop blocked: {blocked} times; {os.cpu_count()} CPUs\n")


if __name__ == "__main__":
    main()
