"""Measures the three paths of a newcomer: the commands, and the seconds until each path gives its result.

    python benchmarks/first_hour.py [--clone FOLDER]

Clones the repository to a temporary folder (or uses a clone without .venv), and runs the commands there: a simulation
of 40 new Jobs, `why` about a Job of a cluster, and a Job that runs on a platform of this machine. Prints each command
with its wall time and CPU time. pip uses its package cache; run the script twice to exclude downloads. The cluster of
the second path is a platform, which the script starts before the measurement.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PLATFORM: Final = ROOT / "examples" / "first-steps" / "platform.yaml"
JOB: Final = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train-{number}
  namespace: team
  labels: {{kueue.x-k8s.io/queue-name: jobs}}
spec:
  parallelism: 1
  template:
    spec:
      restartPolicy: Never
      containers: [{{name: main, image: example/train, resources: {{requests: {{cpu: {cpus}}}}}}}]
"""
#: The CPUs that the first Job requests, more than the quota of the queue.
TOO_MANY: Final = 40
SIMULATE: Final = "simulate mine"
CLUSTER: Final = "why, of a cluster"
LAPTOP: Final = "a Job on this machine"
PATHS: Final = {
    SIMULATE: ("make setup", ".venv/bin/batchyard simulate mine"),
    CLUSTER: (
        ".venv/bin/batchyard snapshot --kubeconfig cluster/kubeconfig state.yaml",
        ".venv/bin/batchyard why job/train-0 -n team -f state.yaml",
    ),
    LAPTOP: (
        ".venv/bin/batchyard up --detach",
        "kubectl --kubeconfig .batchyard/kubeconfig apply -f mine/platform.yaml",
        ".venv/bin/batchyard submit -n team --cpus 1 -- sleep 1",
    ),
}


def write_inputs(clone: Path) -> None:
    """Write a queue and 40 Jobs to the folder `mine`; the first Job requests more than the quota."""
    folder = clone / "mine"
    folder.mkdir()
    shutil.copy(PLATFORM, folder)
    jobs = [JOB.format(number=number, cpus=1 if number else TOO_MANY) for number in range(40)]
    (folder / "jobs.yaml").write_text("---\n".join(jobs), "utf-8")


def run_path(clone: Path, title: str) -> None:
    """Run the commands of a path, and print their times and the last output line of the last command."""
    walls, cpus, output = [], [], ""
    for command in PATHS[title]:
        before, start = children_cpu_seconds(), time.perf_counter()
        done = subprocess.run(
            command.split(), cwd=clone, env=environment(), capture_output=True, text=True, check=False
        )
        walls.append(time.perf_counter() - start)
        cpus.append(children_cpu_seconds() - before)
        output = done.stdout or done.stderr
        print(f"  {command}: {walls[-1]:.1f} s, {cpus[-1]:.1f} CPU-s")
        if done.returncode:
            sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
    print(
        f"{title}: {len(walls)} commands, {sum(walls):.1f} s, {sum(cpus):.1f} CPU-s; {output.strip().splitlines()[-1]}"
    )


def children_cpu_seconds() -> float:
    """Return the CPU time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def environment() -> dict[str, str]:
    """Return the environment variables of a newcomer's shell, without an activated virtual environment."""
    hidden = {"VIRTUAL_ENV", "KUBECONFIG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def start_cluster(clone: Path) -> None:
    """Start the cluster of the second path, with the queue and the Jobs."""
    program = clone / ".venv/bin/batchyard"
    subprocess.run([program, "up", "--detach", "--data-dir", "cluster"], cwd=clone, check=True, capture_output=True)
    for name in ("platform.yaml", "jobs.yaml"):
        apply = ["kubectl", "--kubeconfig", "cluster/kubeconfig", "apply", "-f", f"mine/{name}"]
        subprocess.run(apply, cwd=clone, check=True, capture_output=True)


def main() -> None:
    """Run the paths one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clone", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        clone = options.clone or Path(name) / "batchyard"
        if options.clone is None:
            subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        write_inputs(clone)
        run_path(clone, SIMULATE)
        start_cluster(clone)
        try:
            run_path(clone, CLUSTER)
            run_path(clone, LAPTOP)
        finally:
            for folder in ("cluster", ".batchyard"):
                down = [clone / ".venv/bin/batchyard", "down", "--data-dir", folder]
                subprocess.run(down, cwd=clone, check=False, capture_output=True)


if __name__ == "__main__":
    main()
