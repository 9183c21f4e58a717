"""Measures the time until a new platform answers kubectl, and its memory at rest.

    python benchmarks/up.py [--runs N] [--cluster FILE]

Each run executes `batchyard up --detach` in a new data directory, and then `kubectl get nodes`. Prints the wall time of
the first command and of both together, and the resident memory of the platform after 5 s of rest.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

REST_SECONDS: Final = 5


class StartupTimes(NamedTuple):
    """Seconds until `up` returned and until kubectl printed the nodes, and the memory at rest in MiB."""

    up: float
    kubectl: float
    resident: float


def measure_startup(folder: Path, options: Sequence[str]) -> StartupTimes:
    """Start a platform, measure it, and stop it."""
    start = time.perf_counter()
    run_batchyard("up", "--detach", "--data-dir", str(folder), *options)
    up_seconds = time.perf_counter() - start
    kubectl = shutil.which("kubectl")
    assert kubectl is not None, "kubectl is not installed"
    run_command([kubectl, "--kubeconfig", str(folder / "kubeconfig"), "get", "nodes"])
    kubectl_seconds = time.perf_counter() - start
    try:
        threading.Event().wait(REST_SECONDS)
        return StartupTimes(up_seconds, kubectl_seconds, resident_memory(folder))
    finally:
        run_batchyard("down", "--data-dir", str(folder))


def resident_memory(folder: Path) -> float:
    """Return the resident memory in MiB of the platform in a data directory."""
    pid = msgspec.json.decode(run_batchyard("status", "--data-dir", str(folder), "--output", "json"))["pid"]
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines() if "VmRSS" in line]
    return int(line.split()[1]) / 1024


def run_batchyard(*arguments: str) -> bytes:
    """Run a batchyard command; return its output."""
    return run_command([sys.executable, "-m", "batchyard", *arguments])


def run_command(command: Sequence[str]) -> bytes:
    """Run a command; return its output, or raise an error if it fails."""
    return subprocess.run(command, check=True, capture_output=True).stdout


def main() -> None:
    """Run all measurements, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cluster")
    arguments = parser.parse_args()
    options = () if arguments.cluster is None else ("--cluster", arguments.cluster)
    runs = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory() as name:
            runs.append(measure_startup(Path(name), options))
    for title, figures in zip(("up returned", "kubectl answered", "at rest"), zip(*runs, strict=True), strict=True):
        unit = "MiB" if title == "at rest" else "s"
        print(f"{title}: median {statistics.median(figures):.2f} {unit}, {min(figures):.2f} to {max(figures):.2f}")


if __name__ == "__main__":
    main()
