"""The commands of kubectl on a running platform, with their output."""

import os
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e_platform.platform_process import UpProcess

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: told, labels: {app: told}}
data: {a: "1"}
"""
ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: read, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform for the tests of this module, with one team's Jobs."""
    folder, files = tmp_path_factory.mktemp("platform"), EXAMPLES / "refarch"
    with UpProcess(folder, "--cluster", str(files / "cluster.yaml"), "--speed", "60x") as started:
        parts = [files / "platform" / part for part in ("teams", "priorityclass", "kueue")]
        started.kubectl("apply", "-R", *(f"--filename={part}" for part in parts))
        started.kubectl("create", "-R", "-f", str(files / "low_priority/workloads/team-a"))
        yield started


def run(platform: UpProcess, command: str, sent: str = "") -> str:
    """The output of a command, or its error if the command begins with `!`."""
    fails = command.startswith("!")
    return platform.kubectl(*shlex.split(command.removeprefix("!")), sent=sent, fails=fails)


#: Each command with a pattern that its output must match at the start of a line.
READS = [
    ("get nodes -o wide", r"NAME .*INTERNAL-IP +EXTERNAL-IP +OS-IMAGE +KERNEL-VERSION +CONTAINER-RUNTIME"),
    ("get jobs --all-namespaces", r"team-a +team-a-low-priority-job-0 +\w+ +\d/2"),
    ("get job team-a-low-priority-job-0 -n team-a -o yaml", r"kind: Job"),
    ("get jobs -n team-a -o name", r"job\.batch/team-a-low-priority-job-0"),
    ("get jobs -n team-a -o jsonpath='{.items[0].spec.completions}'", r"2$"),
    ("get jobs -n team-a -o go-template='{{len .items}}'", r"4$"),
    ("get jobs -A -o custom-columns=N:.metadata.name,Q:.metadata.labels.kueue\\.x-k8s\\.io/queue-name", r"N +Q$"),
    ("get jobs -A --sort-by=.metadata.name --no-headers", r"team-a +team-a-low-priority-job-0"),
    ("get jobs -n team-a --show-labels", r"NAME .*LABELS$"),
    ("get jobs -n team-a -L kueue.x-k8s.io/queue-name", r".* lq-team-a-lp$"),
    ("get jobs -A --chunk-size=2 -o name", r"job\.batch/team-a-low-priority-job-3"),
    ("get nodes --field-selector spec.unschedulable=true -o name", r"$"),
    ("get nodes -l 'cloud.google.com/gke-nodepool in (reserved-np)' -o name", r"node/gke-"),
    ("get clusterqueues -o wide", r"cq-team-a-lp +team-a-b +StrictFIFO +\d+ +\d+$"),
    ("get cq,lq,rf -n team-a", r"localqueue\.kueue\.x-k8s\.io/lq-team-a-lp +cq-team-a-lp"),
    ("get workloads.v1beta1.kueue.x-k8s.io -n team-a -o name", r"workload\.kueue\.x-k8s\.io/job-team-a-low"),
    ("get all -n team-a", r"pod/team-a-low-priority-job-0-0-\w+ "),
    ("get --raw /apis/kueue.x-k8s.io/v1beta2/clusterqueues?limit=1", r'\{"kind":"ClusterQueueList"'),
    ("get --raw '/readyz?verbose'", r"readyz check passed$"),
    ("!get pods none", r'Error from server \(NotFound\): pods "none" not found$'),
    ("!get nothing", r'error: the server doesn\'t have a resource type "nothing"$'),
    ("!get pods --field-selector a=b", r".*field label not supported: a$"),
    ("describe nodes -l cloud.google.com/gke-nodepool=reserved-np", r"Allocated resources:"),
    ("describe clusterqueue cq-team-a-lp", r"  Flavors Reservation:"),
    ("describe localqueue -n team-a", r"    Message: +Can submit new workloads to localQueue$"),
    ("describe workloads -n team-a", r"  Admission:"),
    (
        "describe job team-a-low-priority-job-0 -n team-a",
        r"Pods Statuses: +\d Active \(\d Ready\) / \d Succeeded / 0 Failed",
    ),
    ("describe pods -n team-a", r"Service Account: +team-a-ksa$"),
    ("describe namespace team-a", r"Status: +Active$"),
    ("describe priorityclass", r"PreemptionPolicy: +Never$"),
    ("describe clusterrole view", r"PolicyRule:$"),
    ("describe service -n team-a", r"IP: +None$"),
    ("describe cluster.cloud.batchyard.dev", r"Kind: +Cluster$"),
    ("api-resources", r"workloads +kwl,kueueworkload,kueueworkloads +kueue.x-k8s.io/v1beta2 +true +Workload$"),
    ("api-resources --categories=all -o name", r"pods\nreplicationcontrollers\nservices\n"),
    ("api-versions", r"kueue\.x-k8s\.io/v1beta2$"),
    ("explain workload.spec.podSets --recursive", r"  count\t<integer>"),
    ("explain clusterqueue --api-version=kueue.x-k8s.io/v1beta1", r"VERSION:    v1beta1$"),
    ("!explain job.spec.nothing", r'error: field "nothing" does not exist$'),
    ("auth whoami", r"Username +admin$"),
    ("auth can-i create jobs", r"yes$"),
    ("!auth can-i list secrets --as=somebody", r"no$"),
    ("auth can-i --list", r"\*\.\* +\[\] +\[\] +\[\*\]$"),
    ("version", r"Server Version: v1\.36\.0\+batchyard$"),
    ("cluster-info", r".*Kubernetes control plane.* is running at "),
    ("api-resources --api-group=certificates.k8s.io -o name", r"certificatesigningrequests\.certificates\.k8s\.io$"),
    ("!get csinodes", r'error: the server doesn\'t have a resource type "csinodes"$'),
]


@pytest.mark.parametrize(("command", "wanted"), READS, ids=[command for command, _ in READS])
def test_read_command_prints_expected_output(platform: UpProcess, command: str, wanted: str) -> None:
    reported = run(platform, command)
    assert re.search(f"^{wanted}", reported, re.MULTILINE), reported


#: Each generator of `kubectl create` with the object that it creates.
GENERATORS = [
    ("namespace made", "namespace/made"),
    ("quota made --hard=count/jobs.batch=1000", "resourcequota/made"),
    ("secret generic made --from-literal=a=1", "secret/made"),
    ("secret docker-registry made-too --docker-username=u --docker-password=p", "secret/made-too"),
    ("serviceaccount made", "serviceaccount/made"),
    ("role made --verb=get --resource=pods,jobs.batch", "role.rbac.authorization.k8s.io/made"),
    ("rolebinding made --role=made --serviceaccount=default:made", "rolebinding.rbac.authorization.k8s.io/made"),
    ("clusterrole made --verb=get --resource=nodes", "clusterrole.rbac.authorization.k8s.io/made"),
    ("clusterrolebinding made --clusterrole=made --user=u", "clusterrolebinding.rbac.authorization.k8s.io/made"),
    ("deployment made --image=nginx --replicas=2", "deployment.apps/made"),
    ("service clusterip made --tcp=80:8080", "service/made"),
    ("ingress made --rule=example.com/=made:80", "ingress.networking.k8s.io/made"),
    ("cronjob made --image=python:3.12 --schedule='*/1 * * * *' -- sleep 1", "cronjob.batch/made"),
    ("job made --from=cronjob/made", "job.batch/made"),
    ("poddisruptionbudget made --selector=app=x --min-available=1", "poddisruptionbudget.policy/made"),
    ("priorityclass made --value=5", "priorityclass.scheduling.k8s.io/made"),
]


def test_generators_create_their_objects(platform: UpProcess) -> None:
    reported = [run(platform, f"create {words}") for words, _ in GENERATORS]
    assert reported == [f"{created} created\n" for _, created in GENERATORS]
    assert run(platform, "create token made").count(".") == 2
    deleted = run(platform, "delete " + " ".join(created for _, created in GENERATORS[:0:-1]))
    assert deleted.count('"made') == len(GENERATORS) - 1


def test_config_map_is_applied_compared_and_replaced(platform: UpProcess) -> None:
    assert run(platform, "apply -f -", MAP) == "configmap/told created\n"
    assert run(platform, "apply -f -", MAP) == "configmap/told unchanged\n"
    assert run(platform, "diff -f -", MAP) == ""
    other = MAP.replace('"1"', '"2"')
    assert '-  a: "1"\n+  a: "2"\n' in run(platform, "!diff -f -", other)
    assert run(platform, "apply -f -", other) == "configmap/told configured\n"
    assert '"a":"2"' in run(platform, "apply view-last-applied configmap told -o json").replace(" ", "")
    assert run(platform, "replace -f -", MAP) == "configmap/told replaced\n"
    assert 'configmap "told" deleted' in run(platform, "replace --force -f -", MAP)
    assert run(platform, "get configmap told -o jsonpath={.metadata.annotations}") == ""


def test_apply_conflict_is_reported_and_forced(platform: UpProcess) -> None:
    shared = MAP.replace("told", "shared")
    assert run(platform, "apply --server-side -f -", shared) == "configmap/shared serverside-applied\n"
    other = "apply --server-side --field-manager=other -f -"
    reported = run(platform, f"!{other}", shared.replace('"1"', '"2"'))
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .data.a' in reported
    run(platform, f"{other} --force-conflicts", shared.replace('"1"', '"2"'))
    assert run(platform, "get configmap shared -o jsonpath={.data.a}") == "2"
    managers = run(
        platform, "get configmap shared --show-managed-fields -o jsonpath={.metadata.managedFields[*].manager}"
    )
    assert managers.split() == ["kubectl", "other"]


def test_apply_prunes_objects_missing_from_manifest(platform: UpProcess) -> None:
    both = MAP.replace("told", "first") + "---" + MAP.replace("told", "second")
    run(platform, "apply -f -", both.replace("app: first", "app: pruned").replace("app: second", "app: pruned"))
    one = MAP.replace("told", "first").replace("app: first", "app: pruned")
    assert "configmap/second pruned\n" in run(platform, "apply --prune -l app=pruned -f -", one)


def test_kustomization_is_applied_and_deleted(platform: UpProcess, tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text(MAP, "utf-8")
    (tmp_path / "kustomization.yaml").write_text("namePrefix: more-\nresources: [map.yaml]\n", "utf-8")
    assert run(platform, f"apply -k {tmp_path}") == "configmap/more-told created\n"
    assert run(platform, f"delete -k {tmp_path}") == 'configmap "more-told" deleted\n'


def test_object_is_patched_labelled_annotated_and_edited(platform: UpProcess, tmp_path: Path) -> None:
    run(platform, "create -f -", MAP.replace("told", "worked"))
    patches = (
        """--type=strategic -p '{"data":{"b":"2"}}'""",
        """--type=merge -p '{"data":{"a":null}}'""",
        """--type=json -p '[{"op":"add","path":"/data/c","value":"3"}]'""",
    )
    for patch in patches:
        assert run(platform, f"patch configmap worked {patch}") == "configmap/worked patched\n"
    assert run(platform, "label configmap worked colour=red") == "configmap/worked labeled\n"
    assert "--overwrite is false" in run(platform, "!label configmap worked colour=blue")
    assert run(platform, "annotate configmap worked said=yes") == "configmap/worked annotated\n"
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/c: "3"/c: "4"/\' "$1"\n', "utf-8")
    editor.chmod(0o755)
    command = ["kubectl", "--kubeconfig", str(platform.kubeconfig), "edit", "configmap", "worked"]
    done = subprocess.run(command, env={**os.environ, "KUBE_EDITOR": str(editor)}, capture_output=True, check=True)
    assert done.stdout == b"configmap/worked edited\n"
    assert run(platform, "get configmap worked -o jsonpath={.data}") == '{"b":"2","c":"4"}'
    assert run(platform, "delete configmap worked --dry-run=server") == 'configmap "worked" deleted (server dry run)\n'
    assert run(platform, "delete configmap worked") == 'configmap "worked" deleted\n'


def test_deployment_is_set_and_restarted(platform: UpProcess) -> None:
    run(platform, "create deployment set --image=nginx")
    for words in ("image deploy/set nginx=nginx:2", "env deploy/set A=B", "resources deploy/set --limits=cpu=1000m"):
        assert "deployment.apps/set" in run(platform, f"set {words}")
    container = run(platform, "get deploy set -o jsonpath={.spec.template.spec.containers[0]}")
    assert ('"image":"nginx:2"' in container, '"limits":{"cpu":"1"}' in container) == (True, True)
    assert run(platform, "rollout restart deploy/set") == "deployment.apps/set restarted\n"
    assert run(platform, "rollout history deploy/set").startswith("deployment.apps/set \nREVISION  CHANGE-CAUSE\n1 ")
    assert "successfully rolled out" in run(platform, "rollout status deploy/set --timeout=60s")


def test_roles_are_reconciled(platform: UpProcess) -> None:
    assert run(platform, "auth reconcile -f -", ROLE) == "role.rbac.authorization.k8s.io/read reconciled\n"
    assert run(platform, "auth reconcile -f -", ROLE) == "role.rbac.authorization.k8s.io/read reconciled\n"


def test_nodes_are_tainted_and_cordoned(platform: UpProcess) -> None:
    node = run(platform, "get nodes -l cloud.google.com/gke-nodepool=default-pool -o name").split()[0]
    name = node.partition("/")[2]
    assert run(platform, f"taint node {name} a=b:NoSchedule") == f"{node} tainted\n"
    assert run(platform, f"taint node {name} a-") == f"{node} untainted\n"
    assert run(platform, f"cordon {name}") == f"{node} cordoned\n"
    assert "SchedulingDisabled" in run(platform, f"get {node}")
    assert run(platform, f"uncordon {name}") == f"{node} uncordoned\n"


JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: NAME, annotations: {batchyard.dev/runtime: 10m}}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}
"""


@pytest.mark.parametrize(("cascade", "left"), [("background", 0), ("foreground", 0), ("orphan", 1)])
def test_delete_of_job_cascades_to_pods(platform: UpProcess, cascade: str, left: int) -> None:
    run(platform, "create -f -", JOB.replace("NAME", cascade))
    run(platform, f"wait --for=create pod -l job-name={cascade} --timeout=20s")
    assert f'job.batch "{cascade}" deleted' in run(platform, f"delete job {cascade} --cascade={cascade}")
    if not left:
        run(platform, f"wait --for=delete pod -l job-name={cascade} --timeout=20s")
    assert len(run(platform, f"get pods -l job-name={cascade} -o name").split()) == left


def test_wait_ends_when_condition_is_met(platform: UpProcess) -> None:
    run(platform, "create -f -", JOB.replace("NAME", "awaited").replace("10m", "30s"))
    assert run(platform, "wait --for=create job/awaited") == "job.batch/awaited condition met\n"
    assert (
        run(platform, "wait --for=condition=complete job/awaited --timeout=20s") == "job.batch/awaited condition met\n"
    )
    assert (
        run(platform, "wait --for=jsonpath='{.status.succeeded}'=1 job/awaited") == "job.batch/awaited condition met\n"
    )
    assert "timed out" in run(platform, "!wait --for=condition=failed job/awaited --timeout=1s")
    assert "SuccessfulCreate" in run(platform, "events --for job/awaited")
    assert "awaited" in run(platform, "get events --field-selector reason=Completed --sort-by=.lastTimestamp")


def test_watch_prints_events(platform: UpProcess) -> None:
    command = [
        "kubectl",
        "--kubeconfig",
        str(platform.kubeconfig),
        "get",
        "configmaps",
        "--watch-only",
        "--output-watch-events",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        # The watch may begin after the first of these.
        for number in range(30):
            run(platform, f"create configmap watched-{number}")
            if select.select([watching.stdout], [], [], 1)[0]:
                break
        else:
            watching.terminate()
        seen = [watching.stdout.readline().split() for _ in range(2)]
        watching.terminate()
    assert seen[0] == ["EVENT", "NAME", "DATA", "AGE"]
    assert (seen[1][0], seen[1][1][:8]) == ("ADDED", "watched-")


def test_cluster_info_is_dumped(platform: UpProcess, tmp_path: Path) -> None:
    reported = run(platform, f"cluster-info dump --namespaces=default --output-directory={tmp_path}")
    assert reported == f"Cluster info dumped to {tmp_path}\n"
    assert '"kind": "NodeList"' in (tmp_path / "nodes.json").read_text("utf-8")
