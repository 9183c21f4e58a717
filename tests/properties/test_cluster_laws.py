"""The invariants hold in random clusters: pools of each kind, Jobs and JobSets, faults of each kind.

After the faults a world runs until no work is left. Each Workload that is then unfinished must wait for something that
provably does not exist. More worlds: `python tools/worlds.py 0 1000`; with more faults:
`python tools/worlds.py 0 1000 --conflicts 0.2 --crash-every 61`.
"""

import json
import os
import subprocess
import sys

import pytest

from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws
from properties.worlds import cluster_violations, event_log

SEEDS = range(3000, 3024)
CORPUS = [
    pytest.param(24, id="scheduling condition of a pod written after a conflict"),
    pytest.param(1158, id="ResizeRequest counted machine of an earlier request of its name"),
    pytest.param(1188, id="Job lost a pod after success of its leader pod"),
]
TROUBLED = [
    pytest.param(3002, 0.2, 61, id="both"),
    pytest.param(3003, 0.37, 11, id="many of both"),
    pytest.param(37, 0.0, 23, id="restarted platform received deletion of an unseen Job"),
    pytest.param(65, 0.2, 0, id="endless creation of a pool for a gang that no zones can hold"),
    pytest.param(260, 0.5, 0, id="machines of a slice requested and refused one by one"),
]


def log_of(seed: int) -> str:
    """Return a world's event log as text."""
    return "\n".join(map(json.dumps, event_log(random_cluster_scenario(SeededDraws(seed)))))


@pytest.mark.parametrize("seed", [*SEEDS, *CORPUS])
def test_random_clusters_keep_all_invariants(seed: int) -> None:
    assert cluster_violations(seed) == ""


@pytest.mark.parametrize(("seed", "conflicts", "crash_every"), TROUBLED)
def test_clusters_keep_invariants_despite_conflicts_and_crashes(seed: int, conflicts: float, crash_every: int) -> None:
    assert cluster_violations(seed, conflicts=conflicts, crash_every=crash_every) == ""


def test_cluster_log_is_independent_of_hash_seed() -> None:
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
