"""Compares `batchyard operator` with Kueue's scheduler on one Kubernetes API server, under Kueue's performance runner.

    python benchmarks/operator_load.py KUEUE PROGRAMS LOAD [--managers kueue,operator] [--runs N] [--divide N]

KUEUE is a checkout of Kueue. PROGRAMS is a folder with etcd, kube-apiserver, and two programs of Kueue's
`test/performance/scheduler`: `runner` and `minimalkueue`. LOAD is a generator configuration of the runner, such as
`configs/baseline/generator.yaml` there; `--divide` divides its numbers of Workloads. If LOAD has a topology, as
`configs/tas/generator.yaml` has, the runner enables topology-aware scheduling. The managers take turns, `--runs`
times each: `kueue` is minimalkueue as shipped, with 50 requests a second and a burst of 100; `kueue300` and `operator`
have 300 and 500. For `kueue300`, minimalkueue must be a build that takes its limits from KUEUE_QPS and KUEUE_BURST.
`killed` is two operators with leader election, whose leader is killed again and again (`leader_kills.py`).

The runner starts etcd and the API server, creates the Workloads, finishes each some time after its admission, and ends
evictions. Prints for each manager the medians of its runs, with the lowest and the highest wall time: seconds from the
first Workload to the last, mean seconds from creation to admission by class, evictions, CPU seconds (API server,
manager, the others), and the requests to the API server per Workload by kind.
"""

import argparse
import csv
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import yaml

LIMITS: Final = {"kueue": (50, 100), "kueue300": (300, 500), "operator": (300, 500), "killed": (300, 500)}
READY_PATHS: Final = {"kueue": "/metrics", "kueue300": "/metrics", "operator": "/readyz"}
#: The runner starts this script instead of minimalkueue, and interrupts it at the end.
MANAGER_SCRIPT: Final = """#!/bin/bash
scrape() { kubectl --kubeconfig "$kubeconfig" get --raw /metrics > "$OUT/$1.prom"; }
kubeconfig=$2
scrape start
%s > "$OUT/manager.log" 2>&1 &
manager=$!
stop() {
  scrape end
  cp "/proc/$manager/stat" "$OUT/manager.stat"
  kill -INT $manager; sleep 5; kill -KILL $manager 2> /dev/null
}
trap stop INT TERM
wait $manager
"""
_REQUESTS: Final = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_CPU: Final = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)
_READ_VERBS: Final = frozenset({"GET", "LIST", "WATCH"})
_START_MAX: Final = 120.0  # seconds


class LoadRun(NamedTuple):
    """What one run of a manager took; times in seconds."""

    wall: float
    #: The mean time from creation to admission by class.
    waits: Mapping[str, float]
    evictions: int
    #: CPU seconds by program: "API server", "manager", and "others" for etcd and the runner.
    cpu: Mapping[str, float]
    #: The number of requests per Workload by verb and resource.
    requests: Mapping[str, float]
    #: The outcome of `leader_kills.py`.
    kills: str = ""


def main() -> None:
    """Run the managers in turn, and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kueue", type=Path)
    parser.add_argument("programs", type=Path)
    parser.add_argument("load", type=Path)
    parser.add_argument("--managers", default="kueue,kueue300,operator")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--divide", type=int, default=1)
    options = parser.parse_args()
    # A shell's background command ignores SIGINT, and so would the manager's script, which the runner interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    load = divided_load(yaml.safe_load(options.load.read_text()), options.divide)
    runs: dict[str, list[LoadRun]] = defaultdict(list)
    for number in range(options.runs):
        for name in options.managers.split(","):
            with tempfile.TemporaryDirectory(prefix="load-", dir="/dev/shm") as folder:
                run = run_load(name, options.kueue.absolute(), options.programs.absolute(), load, Path(folder))
            print(f"run {number + 1} of {name}: {run.wall:.1f} s{run.kills}", file=sys.stderr, flush=True)
            runs[name].append(run)
    print_runs(runs)


def divided_load(load: Any, divisor: int) -> Any:
    """Return a generator configuration whose numbers of Workloads are divided; at least one of each class remains."""
    for cohort in load["cohorts"]:
        for queue_set in cohort["queuesSets"]:
            for workload_set in queue_set["workloadsSets"]:
                workload_set["count"] = max(1, workload_set["count"] // divisor)
    return load


def run_load(name: str, kueue: Path, programs: Path, load: Any, folder: Path) -> LoadRun:
    """Run the load once with a manager."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "manager.sh").write_text(MANAGER_SCRIPT % manager_command(name, programs, port))
    (folder / "manager.sh").chmod(0o755)
    (folder / "kubectl").symlink_to("/bin/true")  # envtest looks for it beside the two others
    for program in ("etcd", "kube-apiserver"):
        (folder / program).symlink_to(programs / program)
    os.mkfifo(folder / "generator.yaml")  # the runner waits for its configuration until the manager is ready
    qps, burst = LIMITS[name]
    environment = os.environ | {"KUEUE_QPS": str(qps), "KUEUE_BURST": str(burst), "OUT": str(folder)}
    environment |= {"KUBEBUILDER_ASSETS": str(folder), "TMPDIR": str(folder), "PROJECT_DIR": str(kueue / "x")}
    command = [str(programs / "runner"), "-o", str(folder), "--crds", str(kueue / "config/components/crd/bases")]
    command += ["--generatorConfig", str(folder / "generator.yaml"), "--minimalKueue", str(folder / "manager.sh")]
    if "topology" in load:
        command.append("--enableTAS")
    with (folder / "runner.log").open("w") as log:
        runner = subprocess.Popen([*command, "--timeout", "60m"], env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}{READY_PATHS[name]}" if name in READY_PATHS else (folder / "ready").as_uri()
    wait_until_ready(url, runner)
    (folder / "generator.yaml").write_text(yaml.safe_dump(load))
    started_at = time.monotonic()
    while "Recorder done" not in (folder / "runner.log").read_text():
        assert runner.poll() is None, (folder / "runner.log").read_text()[-4000:]
        Event().wait(0.2)
    wall = time.monotonic() - started_at
    _, status, usage = os.wait4(runner.pid, 0)
    assert status == 0, (folder / "runner.log").read_text()[-4000:]
    return read_run(folder, wall, usage.ru_utime + usage.ru_stime)


def manager_command(name: str, programs: Path, port: int) -> str:
    """Return the shell command that starts a manager with its metrics on a port."""
    qps, burst = LIMITS[name]
    if name == "killed":
        script = Path(__file__).with_name("leader_kills.py")
        return f'"{sys.executable}" "{script}" "$kubeconfig" "$OUT" {qps} {burst}'
    if name != "operator":
        return f'"{programs / "minimalkueue"}" "$@" --metricsPort {port}'
    # The runner writes with Kueue's field managers, as another manager of the same objects would.
    settings = f"--controllers admission --kube-api-qps {qps} --kube-api-burst {burst} --port {port} --beside-upstream"
    return f'"{sys.executable}" -m batchyard operator --kubeconfig "$kubeconfig" --no-leader-elect {settings}'


def wait_until_ready(url: str, runner: subprocess.Popen[bytes]) -> None:
    """Wait until a manager answers."""
    deadline = time.monotonic() + _START_MAX
    while time.monotonic() < deadline and runner.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        Event().wait(0.2)
    raise SystemExit(f"{url} does not answer")


def read_run(folder: Path, wall: float, cpu_total: float) -> LoadRun:
    """Read the files that the runner and the manager's script have left in a folder."""
    with (folder / "wlStates.csv").open() as file:
        rows = list(csv.DictReader(file))
    waits: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        waits[row["class name"]].append(int(row["ms to admitted"]) / 1000)
    start, end = ((folder / f"{name}.prom").read_text() for name in ("start", "end"))
    cpu = {"API server": cpu_of(end) - cpu_of(start)}
    stat = (folder / "manager.stat").read_text().rpartition(")")[2].split()
    cpu["manager"] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
    cpu["others"] = cpu_total - cpu_of(end) - cpu["manager"]
    before = requests_of(start)
    requests = {kind: (count - before[kind]) / len(rows) for kind, count in requests_of(end).items()}
    means = {name: statistics.mean(values) for name, values in sorted(waits.items())}
    evictions = sum(int(row["num evictions"]) for row in rows)
    kills = folder / "kills.json"
    return LoadRun(wall, means, evictions, cpu, requests, f"; {kills.read_text()}" if kills.exists() else "")


def cpu_of(metrics: str) -> float:
    """Return the CPU seconds of the API server."""
    found = _CPU.search(metrics)
    assert found is not None, "process_cpu_seconds_total is missing"
    return float(found[1])


def requests_of(metrics: str) -> Counter[str]:
    """Return the numbers of writes so far by verb and resource."""
    counts: Counter[str] = Counter()
    for labels_text, count in _REQUESTS.findall(metrics):
        labels = dict(_LABEL.findall(labels_text))
        if labels["verb"] not in _READ_VERBS:
            resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            counts[f"{labels['verb']} {resource}"] += float(count)  # type: ignore[assignment]
    return counts


def print_runs(runs: Mapping[str, Sequence[LoadRun]]) -> None:
    """Print the medians of each manager as tables."""
    classes = next(iter(runs.values()))[0].waits
    print(f"| manager | wall s | {' | '.join(f'{name} s' for name in classes)} | evictions | CPU-s |")
    print(f"| --- | --- |{' --- |' * len(classes)} --- | --- |")
    for name, each in runs.items():
        walls = [run.wall for run in each]
        wall = f"{statistics.median(walls):.0f} ({min(walls):.0f} to {max(walls):.0f})"
        waits = " | ".join(f"{statistics.median(run.waits[label] for run in each):.1f}" for label in classes)
        evictions = statistics.median(run.evictions for run in each)
        cpu = ", ".join(f"{part} {statistics.median(run.cpu[part] for run in each):.0f}" for part in each[0].cpu)
        print(f"| {name} | {wall} | {waits} | {evictions:.0f} | {cpu} |")
    kinds = Counter[str]()
    medians = {name: median_requests(each) for name, each in runs.items()}
    for requests in medians.values():
        kinds.update(requests)
    print(f"\n| writes per Workload | {' | '.join(runs)} |\n| --- |{' --- |' * len(runs)}")
    for kind in sorted(kind for kind, count in kinds.items() if count >= 0.05):
        print(f"| {kind} | {' | '.join(f'{requests.get(kind, 0):.2f}' for requests in medians.values())} |")


def median_requests(runs: Sequence[LoadRun]) -> Mapping[str, float]:
    """Return the median number of requests per Workload by kind."""
    kinds = {kind for run in runs for kind in run.requests}
    return {kind: statistics.median(run.requests.get(kind, 0) for run in runs) for kind in kinds}


if __name__ == "__main__":
    main()
