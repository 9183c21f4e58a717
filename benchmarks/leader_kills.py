"""Runs two operators, kills the leader again and again, and checks all revisions of all Workloads.

    python benchmarks/leader_kills.py KUBECONFIG FOLDER QPS BURST

`operator_load.py --managers killed` starts this script as the manager of a load; the API server must have the CRDs of
Kueue. When the first operator leads, the script creates the file `ready` in FOLDER. Two seconds after an operator
becomes the leader, the script kills it with SIGKILL, and starts a new standby. At SIGINT, it writes `kills.json` to
FOLDER: the number of kills, the median and the longest time in seconds from a kill to the next reservation of quota,
the number of revisions, and the faults: revisions at which the usage of a ClusterQueue or of its Cohort exceeds the
quota, and Workloads that got quota twice without an eviction between.
"""

import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from batchyard.api.meta import parse_quantity

_API: Final = "/apis/kueue.x-k8s.io/v1beta2"
_ELECTION: Final = (
    *("--leader-elect-lease-duration", "3s"),
    *("--leader-elect-renew-deadline", "2s"),
    *("--leader-elect-retry-period", "500ms"),
)
_LEADS_WITHIN: Final = 60.0  # seconds
_LEADS_FOR: Final = 2.0  # seconds


class RevisionChecker:
    """The quota that Workloads hold, by ClusterQueue, checked at each of their revisions."""

    def __init__(self, kubeconfig: str) -> None:
        self._kubeconfig = kubeconfig
        self._admissions: dict[str, Any] = {}
        self._usage: dict[str, Counter[str]] = defaultdict(Counter)
        self._limits: dict[str, Mapping[str, int]] = {}
        self._cohorts: dict[str, str] = {}
        self.revisions = 0
        self.reserved_at: list[float] = []
        self.faults: list[str] = []
        self._revision = "0"
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while True:  # the API server ends a watch when the kind's CRD changes, and after some time
                path = f"{_API}/workloads?watch=true&resourceVersion={self._revision}"
                command = ["kubectl", "--kubeconfig", self._kubeconfig, "get", "--raw", path]
                watch = subprocess.Popen(command, stdout=subprocess.PIPE)
                assert watch.stdout is not None
                for line in watch.stdout:
                    event = json.loads(line)
                    self.faults += self._faults_of(event["type"], event["object"])
                watch.wait()
                Event().wait(0.1)
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            self.faults.append(f"the check failed: {error!r}")
            raise

    def _faults_of(self, event_type: str, workload: Mapping[str, Any]) -> Iterator[str]:
        """Yield the faults of one revision of a Workload; raise RuntimeError if the watch failed."""
        if event_type == "ERROR":
            raise RuntimeError(workload["message"])
        self.revisions += 1
        self._revision = workload["metadata"]["resourceVersion"]
        metadata, status = workload["metadata"], workload.get("status") or {}
        name = f"{metadata['namespace']}/{metadata['name']}"
        conditions = {each["type"] for each in status.get("conditions") or () if each["status"] == "True"}
        is_holding = event_type != "DELETED" and "Finished" not in conditions
        new, old = (status.get("admission") if is_holding else None), self._admissions.get(name)
        if new == old:
            return
        self._admissions[name] = new
        if new and old:
            yield f"{name} got quota twice: revision {metadata['resourceVersion']}"
        for admission, sign in ((old, -1), (new, 1)):
            if admission:
                self._count(admission, sign)
        if new:
            self.reserved_at.append(time.monotonic())
            yield from self._exceeded_quotas(new["clusterQueue"], metadata["resourceVersion"])

    def _count(self, admission: Mapping[str, Any], sign: int) -> None:
        usage = self._usage[admission["clusterQueue"]]
        for pod_set in admission["podSetAssignments"]:
            for resource, flavor in (pod_set.get("flavors") or {}).items():
                usage[f"{flavor} {resource}"] += sign * parse_quantity(pod_set["resourceUsage"][resource])

    def _exceeded_quotas(self, queue: str, revision: str) -> Iterator[str]:
        if queue not in self._limits:
            self._read_queues()
        cohort = self._cohorts[queue]
        members = [name for name, other in self._cohorts.items() if other == cohort]
        for what, amount in self._usage[queue].items():
            used = sum(self._usage[name][what] for name in members)
            nominal = sum(self._limits[name][what] for name in members)
            if used > nominal:
                yield f"revision {revision}: {used} of {nominal} of {what} are used in Cohort {cohort}"
            if amount > self._limits[queue][what] + self._limits[queue][f"borrowing {what}"]:
                yield f"revision {revision}: {amount} of {what} are used in ClusterQueue {queue}"

    def _read_queues(self) -> None:
        command = ["kubectl", "--kubeconfig", self._kubeconfig, "get", "--raw", f"{_API}/clusterqueues"]
        for queue in json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["items"]:
            name, spec = queue["metadata"]["name"], queue["spec"]
            self._cohorts[name] = spec.get("cohortName") or name
            limits = Counter[str]()
            for flavor in (flavor for group in spec["resourceGroups"] for flavor in group["flavors"]):
                for each in flavor["resources"]:
                    limits[f"{flavor['name']} {each['name']}"] = parse_quantity(each["nominalQuota"])
                    borrowing = parse_quantity(each.get("borrowingLimit", 0))
                    limits[f"borrowing {flavor['name']} {each['name']}"] = borrowing
            self._limits[name] = limits


class KilledOperators:
    """A leader and a standby, each with a log in the folder."""

    def __init__(self, kubeconfig: str, folder: Path, options: tuple[str, ...]) -> None:
        self._command = [sys.executable, "-m", "batchyard", "operator", "--kubeconfig", kubeconfig, *options]
        self._folder = folder
        self._number = 0
        self.killed_at: list[float] = []
        self._leader = self._start()
        self._standby = self._start()

    def _start(self) -> tuple[subprocess.Popen[bytes], Path]:
        self._number += 1
        log = self._folder / f"operator-{self._number}.log"
        with log.open("w") as file:
            return subprocess.Popen(self._command, stdout=file, stderr=file), log

    def kill_leaders(self, end: Event) -> None:
        """Kill each leader some time after it leads, until `end` is set."""
        while self._await_leader(end) and not end.wait(_LEADS_FOR):
            self._leader[0].kill()
            self.killed_at.append(time.monotonic())
            self._leader[0].wait()
            self._leader, self._standby = self._standby, self._start()
        for process, _ in (self._leader, self._standby):
            process.kill()

    def _await_leader(self, end: Event) -> bool:
        """Wait for a leader; return False at the end."""
        deadline = time.monotonic() + _LEADS_WITHIN
        while not end.wait(0.1):
            if "runs admission" in self._standby[1].read_text():
                self._leader, self._standby = self._standby, self._leader
            if "runs admission" in self._leader[1].read_text():
                (self._folder / "ready").touch()
                return True
            assert time.monotonic() < deadline, self._leader[1].read_text()[-2000:]
        return False


def main() -> None:
    """Kill leaders until SIGINT or SIGTERM, and write the outcome."""
    kubeconfig, folder, qps, burst = sys.argv[1:]
    end = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    checker = RevisionChecker(kubeconfig)
    limits = ("--kube-api-qps", qps, "--kube-api-burst", burst)
    # The runner writes with Kueue's field managers, as another manager of the same objects would.
    options = (*_ELECTION, *limits, "--controllers", "admission", "--beside-upstream")
    operators = KilledOperators(kubeconfig, Path(folder), options)
    operators.kill_leaders(end)
    pauses = [
        min((at for at in checker.reserved_at if at > killed_at), default=killed_at) - killed_at
        for killed_at in operators.killed_at
    ]
    outcome = {"kills": len(pauses), "revisions": checker.revisions, "faults": checker.faults[:20]}
    outcome |= {"pause": statistics.median(pauses or [0]), "longest pause": max(pauses, default=0)}
    (Path(folder) / "kills.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
