"""Reading of platform.yaml: defaults, and faults with their lines."""

from pathlib import Path

import pytest

from batchyard.api.scheme import field_table
from batchyard.package_data import find_folder
from batchyard.provision.loading import InvalidPlatformError, PlatformSource, read_platform
from batchyard.provision.model import LocalQueue, MetricsCollector, PlatformEngine, PlatformModel

SMALL = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: small}
spec:
  flavors:
    - name: on-demand
    - name: spot
  queueClasses:
    - name: lp
      flavors:
        - {name: on-demand, resources: {cpu: {nominalQuota: 4}, memory: {nominalQuota: 8Gi}}}
  teams:
    - name: red
      cohortName: colours
      queues:
        - {class: lp}
"""
GOOGLE = """\
  google: {project: my-project}
  cluster: {zones: [us-central1-a]}
"""
DISKS = """\
  google: {project: my-project, nodes: {diskType: hyperdisk-balanced}}
  cluster:
    zones: [us-central1-a]
    nodePools:
      - {name: a, machineType: e2-medium, nodeCount: 1}
      - {name: b, machineType: ct6e-standard-4t, tpuTopology: 2x2, nodeCount: 1}
"""


def read(text: str = SMALL) -> PlatformModel:
    return read_platform(PlatformSource("p.yaml", text))


def faults(text: str) -> str:
    with pytest.raises(InvalidPlatformError) as caught:
        read(text)
    return str(caught.value)


def examples() -> list[Path]:
    folder = find_folder("examples/platforms")
    assert folder is not None
    return sorted(folder.glob("*.yaml"))


@pytest.mark.parametrize("path", examples(), ids=lambda path: path.stem)
def test_each_example_is_valid(path: Path) -> None:
    assert read_platform(PlatformSource(str(path), path.read_text())).google is not None


def test_omitted_fields_have_defaults() -> None:
    platform = read()
    (team,) = platform.teams
    assert (platform.engine, platform.monitoring.collector) == (PlatformEngine.BATCHYARD, MetricsCollector.NONE)
    assert (team.namespace, team.identity.name, team.identity.google_name) == ("red", "red-ksa", "wi-red")


def test_queue_of_class_is_named_by_team_and_class() -> None:
    (queue,) = read().queues
    assert (queue.name, queue.cohort) == ("cq-red-lp", "colours")
    assert queue.local_queues == [LocalQueue("red", "lq-red-lp")]
    assert queue.namespace_selector == {"matchLabels": {"kubernetes.io/metadata.name": "red"}}


def test_queue_settings_of_team_override_class() -> None:
    own = "{class: lp, cohortName: other, flavors: [{name: on-demand, resources: {cpu: {nominalQuota: 9}}}]}"
    (queue,) = read(SMALL.replace("{class: lp}", own)).queues
    assert queue.cohort == "other"
    assert queue.flavors[0].resources == {"cpu": {"nominalQuota": "9"}, "memory": {"nominalQuota": "8Gi"}}


def test_shared_queue_has_local_queue_in_each_team() -> None:
    shared = """\
    - name: blue
  queues:
    - {name: all, flavors: [{name: spot, resources: {cpu: {nominalQuota: 1}}}]}
"""
    (queue,) = read(SMALL + shared).shared_queues
    assert queue.local_queues == [LocalQueue("red", "all"), LocalQueue("blue", "all")]
    assert queue.namespace_selector["matchExpressions"][0]["values"] == ["red", "blue"]


def test_google_cloud_defaults_to_managed_prometheus() -> None:
    assert read(SMALL + GOOGLE).monitoring.collector is MetricsCollector.POD_MONITORING


def test_project_argument_overrides_file() -> None:
    google = read_platform(PlatformSource("p.yaml", SMALL + GOOGLE), "another-one").google
    assert google is not None
    assert google.project == "another-one"


@pytest.mark.parametrize(
    ("old", "new", "stated"),
    [
        pytest.param("class: lp}", "clas: lp}", "p.yaml:16: spec.teams[0].queues[0].clas: unknown field", id="field"),
        pytest.param("class: lp}", "class: hp}", 'spec.teams[0].queues[0].class: this file defines no', id="class"),
        pytest.param("name: on-demand, r", "name: ondemand, r", "did you mean on-demand?", id="flavor"),
        pytest.param("nominalQuota: 4", "nominalQuota: four", "p.yaml:11: spec.queueClasses[0]", id="quantity"),
        pytest.param("{cpu:", "{cup:", "resources[cup]: Kubernetes has no resource", id="resource"),
        pytest.param("kind: Platform", "kind: Cluster", "p.yaml:2: kind: the document is of kind Cluster", id="kind"),
        pytest.param("    - name: spot", "   - name: spot", "p.yaml:7: ", id="yaml"),
        pytest.param("name: small", "name: Small", "p.yaml:3: metadata.name", id="name"),
        pytest.param("- name: spot", "- {name: spot, pools: [np]}", 'this file defines no node pool "np"', id="pool"),
    ],
)  # fmt: skip
def test_fault_is_reported_with_line_and_path(old: str, new: str, stated: str) -> None:
    assert old in SMALL
    assert stated in faults(SMALL.replace(old, new))


@pytest.mark.parametrize(
    ("added", "stated"),
    [
        pytest.param("    - {name: blue, namespace: red}\n", "team red already has", id="namespaces"),
        pytest.param("    - {name: blue, queues: [{class: lp, clusterQueue: cq-red-lp}]}\n", "also named", id="queues"),
        pytest.param("  cohorts: [{name: a, parentName: b}, {name: b, parentName: a}]\n", "own ancestor", id="cohorts"),
        pytest.param("  cohorts: [{name: colors}]\n", "did you mean colors?", id="cohort"),
        pytest.param("  admissionChecks: [{name: a}]\n", "the admission check a names no controller", id="check"),
        pytest.param("  monitoring: {collector: PodMonitoring}\n", "PodMonitoring needs GKE", id="monitoring"),
        pytest.param("  google: {}\n", "describe the GKE cluster", id="no cluster"),
        pytest.param(GOOGLE.replace("my-project", "P"), "is not a valid project ID", id="project"),
        pytest.param(DISKS, "spec.google.nodes.diskType: the machine types of pools a cannot boot from", id="disks"),
        pytest.param(GOOGLE.replace("[us", "[us-east1-b, us"), "or change spec.cluster.region", id="zone"),
    ],
)  # fmt: skip
def test_inconsistent_settings_are_rejected(added: str, stated: str) -> None:
    assert stated in faults(SMALL + added)


@pytest.mark.parametrize(
    ("added", "stated"),
    [
        pytest.param(
            "    - {name: kube-system}\n", "p.yaml:17: spec.teams[1].namespace: the namespace kube-system is", id="kube"
        ),
        pytest.param(
            "    - {name: b, namespace: kueue-system}\n", "is reserved for Kubernetes, the engine", id="engine"
        ),
        pytest.param("    - {name: b, members: {users: [system:anonymous]}}\n", "includes all users", id="anonymous"),
        pytest.param("    - {name: b, admins: {groups: [system:serviceaccounts]}}\n", "includes all users", id="pods"),
        pytest.param(
            "  versions: {kueue: latest}\n", 'spec.versions.kueue: "latest" is not a release version', id="release"
        ),
        pytest.param("  operator: {image: a b}\n", '"a b" is not an image reference', id="image"),
        pytest.param(
            "  admissionChecks: [{name: a, provisioning: {}, parameters: {apiGroup: g, kind: K, name: n}}]\n",
            "spec.admissionChecks[0].parameters: provisioning and parameters are both set",
            id="parameters",
        ),
    ],
)
def test_reserved_names_and_broad_subjects_are_rejected(added: str, stated: str) -> None:
    assert stated in faults(SMALL + added)


def test_cohort_of_class_must_be_listed() -> None:
    text = SMALL.replace("- name: lp", "- name: lp\n      cohortName: nowhere")
    assert 'this file defines no cohort "nowhere"' in faults(text + "  cohorts: [{name: colours}]\n")


@pytest.mark.parametrize(
    ("google", "team", "stated"),
    [
        pytest.param("", "roles: [roles/owner]", "roles[0]: roles/owner would let the team's pods", id="owner"),
        pytest.param("", "roles: [bigquery]", '"bigquery" is not a valid IAM role', id="role"),
        pytest.param("", "buckets: ['gs://data']", "buckets[0]: ", id="bucket"),
        pytest.param(
            "",
            "googleName: small-nodes",
            "the platform itself already uses the account small-nodes",
            id="account of nodes",
        ),
        pytest.param(", repository: Images", "", '"Images" is not a valid repository name', id="repository"),
        pytest.param(", state: {bucket: Mine}", "", '"Mine" is not a valid bucket name', id="state"),
        pytest.param(", labels: {Team: x}", "", "spec.google.labels[Team]", id="label"),
        pytest.param(", labels: {team: X}", "", '"X" is not a valid label value', id="value of a label"),
        pytest.param(", nodes: {diskType: floppy}", "", "use pd-standard", id="disk"),
        pytest.param(
            ", network: {privateEndpoint: true, authorized: [{name: a, cidr: 8.8.8.0/24}]}",
            "",
            "is a public range",
            id="public",
        ),
        pytest.param(", network: {nodes: 10.0.0.0/30}", "", "10.0.0.0/30 is too small: at least a /29", id="subnet"),
    ],
)
def test_invalid_google_cloud_settings_are_rejected(google: str, team: str, stated: str) -> None:
    text = SMALL.replace("cohortName: colours", f"serviceAccount: {{{team}}}")
    assert stated in faults(text + GOOGLE.replace("my-project", f"my-project{google}"))


def test_shared_google_service_account_of_teams_is_rejected() -> None:
    text = SMALL + "    - {name: blue, serviceAccount: {googleName: wi-red}}\n" + GOOGLE
    assert "p.yaml:17: spec.teams[1].serviceAccount.googleName: red already uses the account wi-red" in faults(text)


def test_overlong_state_bucket_name_is_rejected() -> None:
    text = SMALL.replace("name: small", f"name: {'s' * 40}") + GOOGLE.replace("my-project", "my-project-0123456")
    assert "spec.google.state.bucket" in faults(text)


@pytest.mark.parametrize(
    ("field", "cidr", "stated"),
    [
        ("pods", "10.4.0.0/20", "has 4,096 addresses, but 5,120 are needed for up to 20 machines; use a /19 or larger"),
        ("nodes", "10.0.0.0/28", "has 16 addresses, but 24 are needed for up to 20 machines; use a /27 or larger"),
    ],
)
def test_address_ranges_cover_all_machines_and_pods(field: str, cidr: str, stated: str) -> None:
    pool = "nodePools: [{name: np, machineType: e2-standard-4, nodeCount: 20}]"
    google = GOOGLE.replace("my-project", f"my-project, network: {{{field}: {cidr}}}").replace("a]}", f"a], {pool}}}")
    assert f"spec.google.network.{field}: {cidr} {stated}" in faults(SMALL + google)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("nominalQuota: 4", "nominalQuota: -4", "11: spec.queueClasses[0].flavors[0].resources[cpu].nominalQuota"),
        (
            "{cpu: {nominalQuota: 4}, memory: {nominalQuota: 8Gi}}",
            "{}",
            "11: spec.queueClasses[0].flavors[0].resources",
        ),
        ("{class: lp}", "{class: lp, clusterQueue: a b}", "16: spec.teams[0].queues[0].clusterQueue"),
        ("cohortName: colours", "budget: {dollars: -1}", "14: spec.teams[0].budget.dollars"),
        ("- name: spot", "- {name: spot, nodeLabels: {a b: c}}", "7: spec.flavors[1].nodeLabels"),
    ],
)
def test_object_fault_is_reported_once_at_its_line(old: str, new: str, place: str) -> None:
    assert old in SMALL
    blue = "    - {name: blue, queues: [{class: lp}]}\n"
    (fault, *more) = faults(SMALL.replace(old, new, 1) + blue).splitlines()
    assert fault.startswith(f"p.yaml:{place}")
    assert [each for each in more if each.split(": ")[1] != fault.split(": ")[1]] == []


def test_overlapping_address_ranges_are_rejected() -> None:
    text = SMALL + GOOGLE.replace(
        "my-project}", "my-project, network: {nodes: 10.8.0.0/20, controlPlane: 10.0.0.0/24}}"
    )
    assert "10.8.0.0/20 overlaps nodes (10.8.0.0/20)" in faults(text)
    assert "must be a /28 range" in faults(text)


def test_flavors_of_same_resource_group_need_same_resources() -> None:
    more = "        - {name: spot, resources: {cpu: {nominalQuota: 4}}}\n  teams:"
    assert "have quota for cpu, but not both for memory" in faults(SMALL.replace("  teams:", more))


def test_budget_is_rejected_for_kueue_engine() -> None:
    text = SMALL.replace("cohortName: colours", "budget: {dollars: 5}").replace("spec:", "spec:\n  engine: kueue")
    assert "Kueue does not enforce budgets" in faults(text)


def test_all_faults_are_reported_together() -> None:
    text = SMALL.replace("class: lp}", "class: hp}").replace("name: on-demand, r", "name: ondemand, r")
    assert len(faults(text).splitlines()) == 2


def test_each_field_is_documented() -> None:
    reported = (Path(__file__).parents[3] / "docs" / "how-to" / "platform.md").read_text("utf-8")
    types = {name: fields for name, fields in field_table("platform.v1alpha1").items() if name != "Platform"}
    assert [
        f"{name}.{field}" for name, fields in types.items() for field in fields if f"`{field}`" not in reported
    ] == []
