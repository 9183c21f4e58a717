"""The laws hold in random clusters: pools of every kind, Jobs and JobSets, faults of every kind.

When the faults are over a world goes on until nothing is left to happen: then whoever has not ended waits for something
that provably is not there. More worlds: `python tools/worlds.py 0 1000`; with more trouble:
`python tools/worlds.py 0 1000 --conflicts 0.2 --crash-every 61`.
"""

import json
import os
import subprocess
import sys

import pytest

from batchyard.sim.random_worlds.cluster import random_cluster_scenario
from batchyard.sim.random_worlds.queues import SeededDraws
from properties.worlds import event_log, told_of_cluster

SEEDS = range(3000, 3024)
CORPUS = [
    pytest.param(24, id="a pod is told why it waits though the first word of it met a conflict"),
    pytest.param(1158, id="a ResizeRequest took the last machine of an earlier one of its name for its own"),
    pytest.param(1188, id="a Job lost a pod after its first one, which that would follow, had succeeded"),
]
TROUBLED = [
    pytest.param(3002, 0.2, 61, id="both"),
    pytest.param(3003, 0.37, 11, id="much of both"),
    pytest.param(37, 0.0, 23, id="a platform that started anew heard that a Job went which it never saw"),
    pytest.param(65, 0.2, 0, id="a pool was made and dropped for ever for a gang that no zones together could take"),
    pytest.param(260, 0.5, 0, id="of a slice one machine after the other was asked for, and each refused alone"),
]


def log_of(seed: int) -> str:
    """A world's event log as text."""
    return "\n".join(map(json.dumps, event_log(random_cluster_scenario(SeededDraws(seed)))))


@pytest.mark.parametrize("seed", [*SEEDS, *CORPUS])
def test_clusters_of_a_seed_keep_all_laws(seed: int) -> None:
    assert told_of_cluster(seed) == ""


@pytest.mark.parametrize(("seed", "conflicts", "crash_every"), TROUBLED)
def test_they_keep_them_though_writes_meet_conflicts_and_the_platform_crashes(
    seed: int, conflicts: float, crash_every: int
) -> None:
    assert told_of_cluster(seed, conflicts=conflicts, crash_every=crash_every) == ""


def test_the_log_of_a_cluster_does_not_depend_on_the_hash_seed() -> None:
    seeds = SEEDS[:4]
    code = (
        "import json, sys\n"
        "from properties.test_cluster_laws import log_of\n"
        f"sys.stdout.write(json.dumps([log_of(seed) for seed in {list(seeds)}]))"
    )
    for hash_seed in (0, 1):
        environment = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert json.loads(done.stdout) == [log_of(seed) for seed in seeds]
