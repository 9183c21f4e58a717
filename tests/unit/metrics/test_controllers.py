"""Work queue and reconcile metrics have the counts of their controller."""

import re

from batchyard.interfaces.client import Create
from batchyard.metrics.controllers import ControllerMetrics
from unit.controller_runtime.test_runner import RunnerBench, ScriptedController, always, job


def test_queue_metrics_have_counts_of_controller() -> None:
    bench = RunnerBench(ScriptedController(script=always()))
    bench.run(Create(job()))
    bench.touch()
    reported = "".join(ControllerMetrics(lambda: 0).texts(bench.runner))
    assert re.findall(r'^workqueue_(\w+){.*"scripted".*} (\d+)$', reported, re.MULTILINE) == [
        ("depth", "1"),
        ("adds_total", "2"),
        ("retries_total", "0"),
        ("unfinished_work_seconds", "0"),
        ("longest_running_processor_seconds", "0"),
    ]
    assert re.findall(r'_reconcile_total{.*result="(\w+)"} (\d+)$', reported, re.MULTILINE) == [
        ("success", "1"),
        ("requeue_after", "0"),
        ("error", "0"),
    ]
    assert 'batchyard_failing_keys{controller="scripted"} 0' in reported
