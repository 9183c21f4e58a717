"""The metrics of a platform in a real Prometheus, and all expressions of all dashboards."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from batchyard.metrics.definitions import GROUPS
from batchyard.metrics.registry import HISTOGRAM
from e2e_platform.platform_process import UpProcess
from e2e_platform.prometheus import DEPLOY, FOUND, NONE, Prometheus, expressions_of

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
DASHBOARDS: Final = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
THEIRS: Final = ROOT.parent / "shared" / "refarch" / "platform" / "monitoring" / "kueue-dashboard.json"
_SAMPLE: Final = re.compile(r"(\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? \S+")
_LABEL: Final = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not FOUND, reason=NONE),
]

JOB: Final = """
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
  labels: {{kueue.x-k8s.io/queue-name: {queue}, kueue.x-k8s.io/priority-class: "{priority}"}}
  annotations: {{batchyard.dev/runtime: {runtime}, batchyard.dev/exit-code: "{code}"}}
spec:
  suspend: true
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      tolerations: [{{operator: Exists}}]
      nodeSelector: {selector}
      containers:
      - name: main
        image: python:3.12
        resources: {{requests: {{cpu: {cpu}, memory: 64Mi}}, limits: {{{gpus}}}}}
---
"""
T4: Final = {"selector": "{cloud.google.com/gke-accelerator: nvidia-tesla-t4}", "gpus": "nvidia.com/gpu: 1"}
H100: Final = {"selector": "{cloud.google.com/gke-accelerator: nvidia-h100-80gb}", "gpus": "nvidia.com/gpu: 8"}


FLAVOR: Final = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: ResourceFlavor\nmetadata: {name: another}\n"


def job(name: str, queue: str, cpu: str, runtime: str, *, priority: str = "", **where: str) -> str:
    reported = {"selector": "{}", "gpus": "", "code": "0", **where}
    text = JOB.format(name=name, queue=queue, cpu=cpu, runtime=runtime, priority=priority, **reported)
    return text if priority else text.replace(', kueue.x-k8s.io/priority-class: ""', "")


class MonitoredUp(NamedTuple):
    """A platform after events of many kinds, and the Prometheus that scrapes it."""

    platform: UpProcess
    prometheus: Prometheus
    #: The result of each expression of the dashboards.
    answers: dict[str, list[Any]]


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredUp]:
    """Research borrows quota, is preempted, waits, and requests machines that do not exist."""
    folder, cluster = tmp_path_factory.mktemp("platform"), str(HERE / "monitored.yaml")
    with (
        UpProcess(folder, "--speed", "30x", "--cluster", cluster) as platform,
        Prometheus(tmp_path_factory.mktemp("prometheus"), platform) as prometheus,
    ):
        platform.kubectl("apply", "-f", str(HERE / "monitored_queues.yaml"))
        first = [job("short", "research", "100m", "10s"), job("fails", "checked", "100m", "10s", code="1")]
        first += [job("trains", "research", "100m", "2h", **T4), job("large", "research", "100m", "2h", **H100)]
        platform.kubectl("create", "-f", "-", sent="".join(first))
        platform.kubectl("wait", "--for=condition=Failed", "job/fails", "--timeout=60s")
        prometheus.answers(['kueue_admission_attempts_total{result="success"}'], 150)
        platform.kubectl("create", "-f", "-", sent=job("borrows", "research", "2500m", "2h"))
        platform.kubectl("wait", "--for=jsonpath={.status.active}=1", "job/borrows", "--timeout=60s")
        second = [job("claims", "production", "1", "2h"), job("waits", "research", "2500m", "2h")]
        second += [job("passes", "checked", "100m", "10s")]
        platform.kubectl("create", "-f", "-", sent="".join(second))
        platform.kubectl("get", "--raw", "/apis/batch/v1/namespaces/default/jobs/waits/eta")
        platform.kubectl("create", "--dry-run=server", "-f", "-", sent=FLAVOR)
        answers = prometheus.answers([text for text in every_expression() if not is_documented_without_data(text)], 150)
        answers |= {text: prometheus.query(text) for text in every_expression() if is_documented_without_data(text)}
        yield MonitoredUp(platform, prometheus, answers)


def every_expression() -> list[str]:
    paths = [*DASHBOARDS, *([THEIRS] if THEIRS.exists() else [])]
    return list(dict.fromkeys(text for path in paths for text in expressions_of(path)))


def without_data() -> list[str]:
    """The metrics that docs/reference/metrics.md lists as metrics without data."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    part = text.partition("## Metrics without data\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)`", part, re.MULTILINE)


def is_documented_without_data(expression: str) -> bool:
    """Whether the documentation lists a metric of the expression as without data."""
    return any(name in expression for name in without_data())


def test_dashboards_contain_expressions() -> None:
    assert len(every_expression()) > 60
    assert len(without_data()) > 3


def test_dashboard_expressions_return_data_unless_documented_otherwise(monitored: MonitoredUp) -> None:
    missing = [
        text for text, result in monitored.answers.items() if not result and not is_documented_without_data(text)
    ]
    assert not missing, "\n".join(missing)


def test_metrics_documented_without_data_return_none(monitored: MonitoredUp) -> None:
    assert [name for name in without_data() if monitored.prometheus.query(name)] == []


def test_reference_architecture_expressions_return_data(monitored: MonitoredUp) -> None:
    if not THEIRS.exists():
        pytest.skip("the reference architecture is not beside the repository")
    missing = [text for text in expressions_of(THEIRS) if not monitored.answers[text]]
    assert not missing, "\n".join(missing)


def test_budget_metrics_report_spent_and_remaining_amounts(monitored: MonitoredUp) -> None:
    of = '{budget="dollars",unit="dollars"}'
    spent, left = f"batchyard_budget_spent{of}", f"batchyard_budget_remaining{of}"
    expected = [f"{spent} > 0", f"abs({spent} + {left} - batchyard_budget_amount{of}) < 0.02"]
    assert all(monitored.prometheus.answers(expected, 150).values())


def test_deferred_responses_are_counted_by_code(monitored: MonitoredUp) -> None:
    labels = ('resource="jobs",subresource="eta"', 'resource="resourceflavors",dry_run="All"')
    request = [f"sum by (code) (apiserver_request_total{{{each}}})" for each in labels]
    result = monitored.prometheus.answers(request, 150)
    reported = [[(one["metric"]["code"], one["value"][1]) for one in result[text]] for text in request]
    assert reported == [[("200", "1")], [("201", "1")]]


def test_metrics_require_permission(monitored: MonitoredUp) -> None:
    platform = monitored.platform
    refused = platform.kubectl("get", "--raw", "/metrics", "--as=anna", fails=True)
    assert 'User "anna" cannot get path "/metrics"' in refused
    reported = platform.kubectl("get", "--raw", "/metrics", "--as=anna", "--as-group=system:monitoring")
    assert "kueue_pending_workloads{" in reported


def test_metrics_can_be_limited_to_groups(monitored: MonitoredUp) -> None:
    reported = monitored.platform.kubectl("get", "--raw", "/metrics?collect[]=gpus&collect[]=batchyard")
    names = set(re.findall(r"^# TYPE (\w+)", reported, re.MULTILINE))
    assert {name.partition("_")[0] for name in names} == {"DCGM", "batchyard"}
    wrong = monitored.platform.kubectl("get", "--raw", "/metrics?collect[]=nodes", fails=True)
    assert "not nodes" in wrong


def test_rules_are_healthy(monitored: MonitoredUp) -> None:
    groups = monitored.prometheus.get("rules")["groups"]
    reported = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert len(reported) > 8
    assert set(reported.values()) == {"ok"}


def test_served_metrics_match_table(monitored: MonitoredUp) -> None:
    table = {metric.name: metric for group in GROUPS.values() for metric in group}
    text = monitored.platform.kubectl("get", "--raw", "/metrics")
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {name: table[name].kind for name in kinds} == kinds
    for name, labels in samples(text, kinds):
        assert labels == list(table[name].labels), name


def samples(text: str, kinds: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """The family and the label names of each sample, without the label of buckets."""
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            family = name if kinds.get(name, HISTOGRAM) != HISTOGRAM else name.rpartition("_")[0]
            yield family, [label for label in _LABEL.findall(line) if label != "le"]


def test_promtool_accepts_metrics(monitored: MonitoredUp) -> None:
    text = monitored.platform.kubectl("get", "--raw", "/metrics")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    ours = [line for line in checked.stderr.splitlines() if line.startswith(("kueue_", "batchyard_", "error"))]
    assert ours == []


@pytest.mark.parametrize(
    "command", [("check", "rules", "batchyard.rules.yml"), ("test", "rules", "batchyard.rules_test.yml")]
)
def test_promtool_accepts_rules_and_their_tests(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
