"""Common kubectl commands on a running platform."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
#: The Namespaces of the teams come first.
PLATFORM = [f"--filename={EXAMPLES / 'refarch/platform' / part}" for part in ("teams", "priorityclass", "kueue")]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module."""
    folder = tmp_path_factory.mktemp("platform")
    with UpProcess(folder, "--cluster", str(EXAMPLES / "refarch/cluster.yaml"), "--speed", "60x") as started:
        started.kubectl("apply", "-R", *PLATFORM)
        yield started


CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: told, namespace: team-a}
data: {who: somebody, when: now}
"""


def test_repeated_apply_keeps_generations(platform: UpProcess) -> None:
    generations = ("get", "clusterqueues,localqueues", "-A", "-o", "jsonpath={.items[*].metadata.generation}")
    before = platform.kubectl(*generations)
    reported = platform.kubectl("apply", "-R", *PLATFORM)
    # As with Kueue, kubectl sends numeric quotas again, because they are stored as strings.
    assert {line.rpartition(" ")[2] for line in reported.splitlines()} == {"unchanged", "configured"}
    assert platform.kubectl(*generations) == before


def test_kubectl_lists_reserved_nodes(platform: UpProcess) -> None:
    header, *nodes = platform.kubectl("get", "nodes", "-l", "cloud.google.com/gke-nodepool=reserved-np").splitlines()
    assert header.split() == ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    assert len(nodes) == 4


def test_cluster_queues_have_columns_of_kueue(platform: UpProcess) -> None:
    header = platform.kubectl("get", "clusterqueues", "-o", "wide").splitlines()[0]
    assert header.split() == ["NAME", "COHORT", "STRATEGY", "PENDING", "WORKLOADS", "ADMITTED", "WORKLOADS"]


def test_kubectl_creates_changes_and_deletes_object(platform: UpProcess) -> None:
    assert platform.kubectl("create", "-f", "-", sent=CONFIG_MAP) == "configmap/told created\n"
    platform.kubectl("label", "-n", "team-a", "configmap", "told", "colour=green")
    platform.kubectl("patch", "-n", "team-a", "configmap", "told", "--type", "merge", "-p", '{"data":{"when":null}}')
    seen = platform.kubectl("get", "-n", "team-a", "cm", "told", "-o", "jsonpath={.metadata.labels.colour} {.data}")
    assert seen == 'green {"who":"somebody"}'
    assert "deleted" in platform.kubectl("delete", "-n", "team-a", "configmap", "told")
    assert "NotFound" in platform.kubectl("get", "-n", "team-a", "configmap", "told", fails=True)


def test_jobs_complete_under_quota(platform: UpProcess) -> None:
    steps = EXAMPLES / "first-steps"
    platform.kubectl("apply", "-f", str(steps / "platform.yaml"), "-f", str(steps / "jobs.yaml"))
    platform.kubectl("wait", "-n", "team", "--for=condition=Complete", "--timeout=50s", "job", "--all")
    assert "Completed" in platform.kubectl("events", "-n", "team", "--for", "job/train-a")
    assert "QuotaReserved" in platform.kubectl("describe", "-n", "team", "workloads")
    shown = platform.kubectl("get", "-n", "team", "workloads", "-o", "jsonpath={.items[*].status.conditions[*].type}")
    assert shown.split().count("Finished") == 3


def test_drained_node_has_no_pods(platform: UpProcess) -> None:
    platform.kubectl("run", "held", "--image=python:3.12", "--restart=Never", "--", "sleep", "1000000")
    platform.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "pod/held")
    node = platform.kubectl("get", "pod", "held", "-o", "jsonpath={.spec.nodeName}")
    assert "evicting pod default/held" in platform.kubectl("drain", node, "--force", "--timeout=30s")
    assert platform.kubectl("get", "pods", "--field-selector", f"spec.nodeName={node}", "-o", "name") == ""
    platform.kubectl("uncordon", node)


def test_acknowledged_object_survives_kill(tmp_path: Path) -> None:
    with UpProcess(tmp_path) as first:
        first.kubectl("create", "namespace", "kept")
        version = first.kubectl("get", "namespace", "kept", "-o", "jsonpath={.metadata.resourceVersion}")
        first.kill()
    with UpProcess(tmp_path) as second:
        again = second.kubectl("get", "namespace", "kept", "-o", "jsonpath={.metadata.resourceVersion}")
        assert again == version
        assert second.end() == 0


def test_protobuf_objects_of_kubectl_generators_are_stored(platform: UpProcess) -> None:
    platform.kubectl("create", "configmap", "typed", "--from-literal=a=1", "--from-literal=b=2")
    assert platform.kubectl("get", "configmap", "typed", "-o", "jsonpath={.data}") == '{"a":"1","b":"2"}'
    platform.kubectl("create", "secret", "generic", "hidden", "--from-literal=word=hush")
    assert platform.kubectl("get", "secret", "hidden", "-o", "jsonpath={.data.word}") == "aHVzaA=="
    platform.kubectl("create", "job", "counted", "--image=python:3.12", "--", "sleep", "1")
    template = platform.kubectl("get", "job", "counted", "-o", "jsonpath={.spec.template.spec}")
    assert '"command":["sleep","1"]' in template
    assert '"restartPolicy":"Never"' in template
    platform.kubectl("run", "alone", "--image=python:3.12", "--restart=Never", "--", "sleep", "1")
    platform.kubectl("delete", "job/counted", "pod/alone", "configmap/typed", "secret/hidden")


def test_kubectl_explains_fields(platform: UpProcess) -> None:
    reported = platform.kubectl("explain", "clusterqueue.spec.queueingStrategy")
    assert reported.splitlines()[:2] == ["GROUP:      kueue.x-k8s.io", "KIND:       ClusterQueue"]
    assert "ENUM:\n    StrictFIFO\n    BestEffortFIFO\n" in reported
    assert "backoffLimit" in platform.kubectl("explain", "job.spec")
    assert "The number of pods that must succeed." in platform.kubectl("explain", "job.spec.completions")
