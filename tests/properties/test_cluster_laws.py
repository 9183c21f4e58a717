"""The laws hold in random clusters: pools of every kind, Jobs and JobSets, faults of every kind.

When the faults are over a world goes on until nothing is left to happen: then whoever has not ended waits for something
that provably is not there. More worlds: `python tools/worlds.py 0 1000`.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.sim.generate import SeededDraws
from batchyard.sim.generate_cluster import random_cluster_scenario
from properties.worlds import event_log, told_of_cluster

SEEDS = range(3000, 3024)
CORPUS = [
    pytest.param(24, id="a pod is told why it waits though the first word of it met a conflict"),
]
TESTS = Path(__file__).parents[1]


def log_of(seed: int) -> str:
    """A world's event log as text."""
    return "\n".join(map(json.dumps, event_log(random_cluster_scenario(SeededDraws(seed)))))


@pytest.mark.parametrize("seed", [*SEEDS, *CORPUS])
def test_clusters_of_a_seed_keep_all_laws(seed: int) -> None:
    assert told_of_cluster(seed) == ""


def test_the_log_of_a_cluster_does_not_depend_on_the_hash_seed() -> None:
    seeds = SEEDS[:4]
    code = (
        "import json, sys\n"
        "from properties.test_cluster_laws import log_of\n"
        f"sys.stdout.write(json.dumps([log_of(seed) for seed in {list(seeds)}]))"
    )
    for hash_seed in (0, 1):
        environment = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(TESTS)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert json.loads(done.stdout) == [log_of(seed) for seed in seeds]
