"""The same world gives the same log, byte for byte, for each hash seed and each order of documents."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from batchyard.api.well_known import SUBMIT_AT
from batchyard.sim.random_worlds import SeededDraws, WorldBounds, random_objects, scenario_of
from properties.worlds import event_log

SEEDS = range(2000, 2012)
HASH_SEEDS = (0, 1, 2)


def objects_of(seed: int) -> tuple[bool, list[dict[str, Any]]]:
    """Return a world's objects; every second world uses fair sharing."""
    return random_objects(SeededDraws(seed), WorldBounds(fair_sharing=seed % 2 == 0))


def log_of(seed: int) -> str:
    """Return a world's event log as text."""
    fair_sharing, objects = objects_of(seed)
    return "\n".join(map(json.dumps, event_log(scenario_of(objects, fair_sharing=fair_sharing))))


@cache
def logs_under(hash_seed: int) -> Sequence[str]:
    """Return the logs of all seeds, from another process."""
    code = (
        "import json, sys\n"
        "from properties.test_determinism import SEEDS, log_of\n"
        "sys.stdout.write(json.dumps([log_of(seed) for seed in SEEDS]))"
    )
    environment = {"PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    logs: list[str] = json.loads(done.stdout)
    return logs


@pytest.mark.parametrize("hash_seed", HASH_SEEDS)
def test_log_is_independent_of_hash_seed(hash_seed: int) -> None:
    assert list(logs_under(hash_seed)) == [log_of(seed) for seed in SEEDS]


@pytest.mark.parametrize("seed", SEEDS)
def test_log_is_independent_of_order_of_documents(seed: int) -> None:
    fair_sharing, objects = objects_of(seed)
    apart = [_with_unique_submit_time(obj, number) for number, obj in enumerate(objects)]
    logs = [event_log(scenario_of(order, fair_sharing=fair_sharing)) for order in (apart, apart[::-1])]
    assert logs[0] == logs[1]


def _with_unique_submit_time(obj: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the object with a unique submit time: simultaneous objects arrive microseconds apart."""
    metadata = obj["metadata"]
    annotations = metadata.get("annotations", {})
    due = annotations.get(SUBMIT_AT, "0s")
    return {**obj, "metadata": {**metadata, "annotations": {**annotations, SUBMIT_AT: _plus(due, number)}}}


def _plus(moment: str, microseconds: int) -> str:
    """Return a later instant: `12.07s` and 3 yield `12.07s3us`."""
    return f"{moment}{microseconds}us"


def test_repeated_run_gives_same_log() -> None:
    assert log_of(SEEDS[0]) == log_of(SEEDS[0])
