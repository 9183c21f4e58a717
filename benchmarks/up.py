"""How soon a platform answers kubectl, and how much memory it takes while nothing happens.

    python benchmarks/up.py [--runs N] [--cluster FILE]

Each run is `batchyard up --detach` in a new data directory, and `kubectl get nodes` once it has returned: prints the
wall time of the first alone and of both together, and the resident memory of the platform after a few seconds of rest.
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

REST: Final = 5  # seconds


class Run(NamedTuple):
    """Seconds until `up` returned and until kubectl was answered, and mebibytes after a rest."""

    returned: float
    answered: float
    resident: float


def measured(folder: Path, options: Sequence[str]) -> Run:
    """One platform, from its start to its end."""
    began = time.perf_counter()
    batchyard("up", "--detach", "--data-dir", str(folder), *options)
    returned = time.perf_counter() - began
    kubectl = shutil.which("kubectl")
    assert kubectl is not None, "there is a kubectl on this machine"
    call([kubectl, "--kubeconfig", str(folder / "kubeconfig"), "get", "nodes"])
    answered = time.perf_counter() - began
    try:
        threading.Event().wait(REST)
        return Run(returned, answered, resident_of(folder))
    finally:
        batchyard("down", "--data-dir", str(folder))


def resident_of(folder: Path) -> float:
    """The resident memory of the platform in a data directory."""
    pid = msgspec.json.decode(batchyard("status", "--data-dir", str(folder), "--output", "json"))["pid"]
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines() if "VmRSS" in line]
    return int(line.split()[1]) / 1024


def batchyard(*arguments: str) -> bytes:
    """What a command of ours prints."""
    return call([sys.executable, "-m", "batchyard", *arguments])


def call(command: Sequence[str]) -> bytes:
    """What a command prints that does not fail."""
    return subprocess.run(command, check=True, capture_output=True).stdout


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cluster")
    arguments = parser.parse_args()
    options = () if arguments.cluster is None else ("--cluster", arguments.cluster)
    runs = []
    for _ in range(arguments.runs):
        with tempfile.TemporaryDirectory() as name:
            runs.append(measured(Path(name), options))
    for title, figures in zip(("up returned", "kubectl answered", "at rest"), zip(*runs, strict=True), strict=True):
        unit = "MiB" if title == "at rest" else "s"
        print(f"{title}: median {statistics.median(figures):.2f} {unit}, {min(figures):.2f} to {max(figures):.2f}")


if __name__ == "__main__":
    main()
