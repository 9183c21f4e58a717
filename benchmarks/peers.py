"""Runs the loads that KAI and YuniKorn have published figures for.

    PYTHONPATH=tests python benchmarks/peers.py [--environment up|api-server] [--shapes NAME,NAME] [--runs N]
    PYTHONPATH=tests python benchmarks/peers.py --write-page

Each run starts a new cluster of simulated nodes: `up` is `batchyard up` in real time, through its HTTP API with TLS;
`api-server` is the API server of Kubernetes with `batchyard operator` (KUBEBUILDER_ASSETS is the folder of etcd and
kube-apiserver). Each run writes its raw data to a file in the folder. --write-page
reads all files of the folder, and writes the table of docs/explanation/peers-loads.md. --list prints the shapes.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import peer_shapes as shapes
from peer_clusters import api_server, embedded, run_until_signal
from peer_shapes import ObjectWatch, ShapeOutcome, ShapeRun

ROOT: Final = Path(__file__).parent.parent
DATA: Final = ROOT / "benchmarks" / "data" / "peers"
PAGE: Final = ROOT / "docs" / "explanation" / "peers-loads.md"
ENVIRONMENTS: Final = {"up": embedded, "api-server": api_server}
_BEGIN, _END = "<!-- begin: benchmarks/peers.py --write-page -->", "<!-- end -->"
#: The load average per CPU above which a measurement counts as disturbed by other processes.
_QUIET: Final = 0.25


class PeerShape(NamedTuple):
    """A load of a peer: what runs, and the seconds that the peer has published."""

    run: Callable[[ShapeRun], Awaitable[ShapeOutcome]]
    published: float
    title: str
    nodes: int = shapes.NODES
    has_topology: bool = False
    #: Runs only if it is named, because it takes about an hour.
    is_long: bool = False


SHAPES: Final[Mapping[str, PeerShape]] = {
    "kai-fill": PeerShape(shapes.kai_fill, 397.8, "KAI: 4,000 Jobs of one GPU fill 500 nodes"),
    "kai-fill-running": PeerShape(shapes.kai_fill_running, 460.5, "KAI: the same, created while the scheduler runs"),
    "kai-fill-pending": PeerShape(shapes.kai_fill_pending, 398.1, "KAI: the same beside 400 pending Jobs"),
    "kai-gang": PeerShape(shapes.kai_gang, 49.4, "KAI: one Job of 512 pods on 512 nodes", nodes=shapes.GANG_NODES),
    "kai-gang-topology": PeerShape(
        shapes.kai_gang_topology, 48.7, "KAI: the same, preferring racks", nodes=shapes.GANG_NODES, has_topology=True
    ),
    "kai-unschedulable": PeerShape(
        shapes.kai_unschedulable, 249.5, "KAI: until a Job of 10 pods is reported as unschedulable, mean of 10"
    ),
    "kai-reclaim-250": PeerShape(shapes.kai_reclaim_250, 102, "KAI: a Job of 250 pods reclaims 2,000 GPUs"),
    "kai-reclaim-500": PeerShape(shapes.kai_reclaim_500, 85, "KAI: a Job of 500 pods reclaims 4,000 GPUs"),
    "kai-reclaim-one": PeerShape(shapes.kai_reclaim_one, 13.9, "KAI: a Job reclaims one GPU, mean of 10"),
    "kai-reclaim-4000": PeerShape(shapes.kai_reclaim_4000, 694.5, "KAI: 4,000 Jobs reclaim one GPU each"),
    "kai-reclaim-gangs": PeerShape(shapes.kai_reclaim_gangs, 716.9, "KAI: 50 Jobs of 10 pods reclaim 2,500 GPUs"),
    "kai-consolidation": PeerShape(shapes.kai_consolidation, 455.7, "KAI: 41 Jobs of 10 pods need moved pods"),
    "kai-nccl": PeerShape(shapes.kai_nccl, 5098.7, "KAI: 45,990 pods of 20 to 40 s", is_long=True),
    "yunikorn-1": PeerShape(partial(shapes.yunikorn, applications=1), 6, "YuniKorn: 5,000 pods, 1 application"),
    "yunikorn-5": PeerShape(partial(shapes.yunikorn, applications=5), 9, "YuniKorn: 5,000 pods, 5 applications"),
    "yunikorn-25": PeerShape(partial(shapes.yunikorn, applications=25), 32, "YuniKorn: 5,000 pods, 25 applications"),
}


async def run_shape(environment: str, name: str, divisor: int) -> dict[str, Any]:
    """Run a shape in a new cluster; return its raw data. CPU seconds are those of the measured part and its set-up."""
    shape = SHAPES[name]
    load = os.getloadavg()[0]
    async with ENVIRONMENTS[environment](shape.nodes // divisor, has_topology=shape.has_topology) as cluster:
        watch = ObjectWatch(cluster)
        before, own = cluster.cpu_seconds(), time.process_time()
        waited = cluster.waited_seconds()
        outcome = await shape.run(ShapeRun(cluster, watch, divisor))
        cpu = {key: round(value - before.get(key, 0), 1) for key, value in cluster.cpu_seconds().items()}
        waited = cluster.waited_seconds() - waited
        watch.close()
    cpu["client"] = round(time.process_time() - own, 1)
    return {
        "shape": name,
        "environment": environment,
        "divisor": divisor,
        "seconds": outcome.seconds and round(outcome.seconds, 3),
        "publishedSeconds": shape.published,
        "pods": outcome.pods,
        "scheduled": outcome.scheduled,
        "evicted": len(watch.evicted),
        "cpuSeconds": cpu,
        "cpuWaitSeconds": round(waited, 1),
        "details": outcome.details,
        "loadBefore": round(load, 2),
        "nice": os.nice(0),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **machine(),
    }


def machine() -> dict[str, Any]:
    """Return the processor, the number of CPUs and the Python version of this machine."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": models[0] if models else platform.machine(), "cpus": os.cpu_count()} | {
        "python": platform.python_version()
    }


def main() -> None:
    """Run the shapes, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", choices=tuple(ENVIRONMENTS), default="up")
    parser.add_argument("--shapes", default=",".join(name for name, shape in SHAPES.items() if not shape.is_long))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--divide", type=int, default=1, help="divide the numbers of nodes, Jobs and pods, to try out")
    parser.add_argument("--folder", type=Path, default=DATA)
    parser.add_argument("--output", choices=("text", "json"), default="text")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write-page", action="store_true")
    options = parser.parse_args()
    names = options.shapes.split(",")
    if unknown := [name for name in names if name not in SHAPES]:
        parser.error(f"unknown shapes: {', '.join(unknown)}; known are: {', '.join(SHAPES)}")
    if options.list:
        print("\n".join(f"{name:20} {shape.published:7.1f} s  {shape.title}" for name, shape in SHAPES.items()))
    elif options.write_page:
        write_page(read_data(options.folder))
    else:
        run_shapes(options, names)


def run_shapes(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Run shapes in turn, write the raw data of each run to a file, and print it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for _ in range(options.runs):
        for name in names:
            row = run_until_signal(run_shape(options.environment, name, options.divide))
            stem = f"{options.environment}-{name}-{row['at'].replace(':', '')}"
            (options.folder / f"{stem}.json").write_text(json.dumps(row, indent=1) + "\n")
            rows.append(row)
            print(describe(row), file=sys.stderr, flush=True)
    if options.output == "json":
        print(json.dumps(rows, indent=1))


def describe(row: Mapping[str, Any]) -> str:
    """Return the raw data of a run as one line of text."""
    seconds = f"{row['seconds']:.1f} s" if row["seconds"] is not None else "not completed"
    cpu = ", ".join(f"{name} {value}" for name, value in row["cpuSeconds"].items())
    published = f"published: {row['publishedSeconds']} s"
    scale = published if row["divisor"] == 1 else f"at 1/{row['divisor']} of the size"
    result = f"{row['environment']} {row['shape']}: {seconds} ({scale})"
    result += f"; {row['scheduled']} of {row['pods']} pods scheduled, {row['evicted']} Workloads evicted"
    result += f"; CPU-s: {cpu}; waited for a CPU: {row['cpuWaitSeconds']} s; load {row['loadBefore']}"
    return f"{result}; {json.dumps(row['details'])}"


def read_data(folder: Path) -> list[dict[str, Any]]:
    """Return the raw data of all runs in a folder."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def write_page(rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the generated part of the page."""
    head, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    table = "\n".join(page_lines(rows))
    PAGE.write_text(f"{head}{_BEGIN}\n\n{table}\n\n{_END}{rest.partition(_END)[2]}")


def page_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table: for each shape the published time, and the median of its runs in each environment."""
    grouped = defaultdict(list)
    for row in rows:
        if row["divisor"] != 1:
            continue
        grouped[row["shape"], row["environment"]].append(row)
    yield "| load | published | `up` | API server of Kubernetes | CPU seconds |"
    yield "| --- | --- | --- | --- | --- |"
    for name, shape in SHAPES.items():
        if any((name, environment) in grouped for environment in ENVIRONMENTS):
            each = [grouped.get((name, environment), []) for environment in ENVIRONMENTS]
            cells = " | ".join(_time_cell(runs, shape.published) for runs in each)
            cpu = "; ".join(_cpu_cell(runs) for runs in each if runs)
            yield f"| {shape.title} | {shape.published:g} s | {cells} | {cpu} |"


def _time_cell(runs: Sequence[Mapping[str, Any]], published: float) -> str:
    if not runs:
        return "not measured"
    times = [run["seconds"] for run in runs if run["seconds"] is not None]
    if len(times) < len(runs):
        return f"not completed: {min(run['scheduled'] for run in runs)} of {runs[0]['pods']} pods"
    middle = statistics.median(times)
    spread = f", {min(times):.3g} to {max(times):.3g}" if len(times) > 1 else ""
    mark = "" if all(run["loadBefore"] <= _QUIET * run["cpus"] for run in runs) else " *"
    comparison = "slower" if middle > published else "faster"
    factor = max(middle / published, published / middle)
    return f"{middle:.3g} s{spread} ({factor:.{0 if factor >= 10 else 1}f} times {comparison}){mark}"


def _cpu_cell(runs: Sequence[Mapping[str, Any]]) -> str:
    parts = (name for name in runs[0]["cpuSeconds"] if name != "client")
    return ", ".join(f"{name} {statistics.median(run['cpuSeconds'][name] for run in runs):.3g}" for name in parts)


if __name__ == "__main__":
    main()
