"""Prometheus and Grafana in the cluster, as a platform's file enables them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from batchyard.api.manifests import decode
from batchyard.package_data import read_folder
from batchyard.provision.loading import InvalidPlatformError, PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.system_pods import system_pod_errors, system_pods

pytestmark = pytest.mark.slow

EXAMPLES = read_folder("examples/platforms", ".yaml")
ENGINES = ["batchyard", "kueue"]
FILE = "manifests/80-monitoring-stack.yaml"
ACCESS = "manifests/00-engine/monitoring-access.yaml"


def platform(
    engine: str = "batchyard", stack: str = "{enabled: true}", name: str = "refarch", more: str = ""
) -> PlatformModel:
    text = EXAMPLES[f"{name}.yaml"].replace("\n  engine: batchyard", "")
    stated = f"\nspec:\n  engine: {engine}\n  monitoring: {{stack: {stack}{more}}}\n"
    return read_platform(PlatformSource("p.yaml", text.replace("\nspec:\n", stated)))


def objects(engine: str, path: str = FILE, **stated: str) -> list[Any]:
    return list(yaml.safe_load_all(render(platform(engine, **stated))[path]))


def by_name(found: list[Any], kind: str) -> dict[str, Any]:
    return {obj["metadata"]["name"]: obj for obj in found if obj["kind"] == kind}


def configuration(engine: str) -> Any:
    return yaml.safe_load(by_name(objects(engine), "ConfigMap")["prometheus-configuration"]["data"]["prometheus.yml"])


def test_monitoring_stack_is_disabled_by_default() -> None:
    texts = render(platform(stack="{}"))
    assert FILE not in texts
    assert ACCESS not in texts
    assert [pod.name for pod in system_pods(platform(stack="{}"))] == ["batchyard-operator"]


@pytest.mark.parametrize("engine", ENGINES)
def test_monitoring_objects_are_valid(engine: str) -> None:
    result = [*objects(engine), *objects(engine, ACCESS)]
    assert [fault for obj in result for fault in decode(obj).faults] == []
    assert {obj["metadata"].get("namespace", "monitoring") for obj in objects(engine)} == {"monitoring"}


@pytest.mark.parametrize(("engine", "names"), [("batchyard", 2), ("kueue", 3)])
def test_monitoring_pods_are_restricted_and_images_pinned(engine: str, names: int) -> None:
    deployments = by_name(objects(engine), "Deployment")
    assert len(deployments) == names
    for deployment in deployments.values():
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert container["image"].rpartition(":")[2].removeprefix("v")[0].isdigit()
    namespace = by_name(objects(engine), "Namespace")["monitoring"]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_grafana_has_service_of_guide_and_dashboards() -> None:
    result = objects("kueue")
    service = by_name(result, "Service")["grafana"]
    assert (service["metadata"]["namespace"], service["spec"]["ports"][0]["port"]) == ("monitoring", 3000)
    maps = by_name(result, "ConfigMap")
    texts = {name: text for each in maps.values() for name, text in each["data"].items()}
    assert json.loads(texts["kueue.json"])["title"] == "Kueue Dashboard"
    source = yaml.safe_load(maps["grafana-provisioning-datasources"]["data"]["batchyard.yml"])["datasources"][0]
    prometheus = by_name(result, "Service")["prometheus"]
    assert source["url"] == f"http://prometheus.monitoring.svc:{prometheus['spec']['ports'][0]['port']}"
    spec = by_name(result, "Deployment")["grafana"]["spec"]["template"]["spec"]
    named = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
    projected = [volume["projected"]["sources"] for volume in spec["volumes"] if "projected" in volume]
    named |= {source["configMap"]["name"] for sources in projected for source in sources}
    assert named == set(maps) - {"prometheus-configuration"}


def test_mounted_volumes_of_monitoring_pods_exist() -> None:
    maps = by_name(objects("batchyard"), "ConfigMap")
    assert all(len(json.dumps(each)) < 1 << 18 for each in maps.values())  # the size limit of kubectl apply
    spec = by_name(objects("batchyard"), "Deployment")["prometheus"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert "--config.file=/etc/prometheus/prometheus.yml" in container["args"]
    assert set(maps["prometheus-configuration"]["data"]) == {"prometheus.yml", "batchyard.rules.yml"}


def test_operator_is_scraped_at_its_metrics_port() -> None:
    deployment = by_name(objects("batchyard", "manifests/00-engine/deployment.yaml"), "Deployment")[
        "batchyard-operator"
    ]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (port, *_) = deployment["spec"]["template"]["spec"]["containers"][0]["ports"]
    for job in configuration("batchyard")["scrape_configs"]:
        assert job["kubernetes_sd_configs"] == [{"role": "pod", "namespaces": {"names": ["batchyard-system"]}}]
        kept = {row["source_labels"][0]: row["regex"] for row in job["relabel_configs"] if row.get("action") == "keep"}
        assert kept["__meta_kubernetes_pod_label_app_kubernetes_io_name"] == labels["app.kubernetes.io/name"]
        assert kept["__meta_kubernetes_pod_label_app_kubernetes_io_instance"] == labels["app.kubernetes.io/instance"]
        assert f"$1:{port['containerPort']}" in [row.get("replacement") for row in job["relabel_configs"]]


def test_kueue_is_scraped_with_reader_token() -> None:
    kueue, exporter = configuration("kueue")["scrape_configs"]
    assert (kueue["scheme"], exporter["job_name"]) == ("https", "kube-state-metrics")
    assert kueue["authorization"]["credentials_file"].endswith("serviceaccount/token")
    binding = by_name(objects("kueue", ACCESS), "ClusterRoleBinding")["gke-batch-refarch-prometheus-kueue"]
    assert binding["roleRef"]["name"] == "kueue-metrics-reader"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"}]


@pytest.mark.parametrize("engine", ENGINES)
def test_prometheus_may_only_list_pods_in_scraped_namespaces(engine: str) -> None:
    result = [*objects(engine), *objects(engine, ACCESS)]
    roles = [obj for obj in result if obj["kind"] == "Role"]
    assert all(
        role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
        for role in roles
    )
    scraped = {
        name
        for job in configuration(engine)["scrape_configs"]
        for name in job["kubernetes_sd_configs"][0]["namespaces"]["names"]
    }
    assert {role["metadata"]["namespace"] for role in roles} == scraped
    assert set(by_name(result, "ClusterRole")) <= {"gke-batch-refarch-kube-state-metrics"}


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_installs_monitoring_access(engine: str) -> None:
    texts = render(platform(engine))
    assert "monitoring-access.yaml" in yaml.safe_load(texts["manifests/00-engine/kustomization.yaml"])["resources"]
    assert "80-monitoring-stack.yaml" in yaml.safe_load(texts["manifests/kustomization.yaml"])["resources"]


def test_images_and_retention_are_configurable() -> None:
    stated = "{enabled: true, grafanaImage: example.com/grafana:1.2.3, retentionDays: 30}"
    deployments = by_name(objects("batchyard", stack=stated), "Deployment")
    containers = {name: each["spec"]["template"]["spec"]["containers"][0] for name, each in deployments.items()}
    assert containers["grafana"]["image"] == "example.com/grafana:1.2.3"
    assert "--storage.tsdb.retention.time=30d" in containers["prometheus"]["args"]


def test_rules_and_dashboards_are_optional() -> None:
    maps = by_name(objects("batchyard", more=", rules: false, dashboards: false"), "ConfigMap")
    assert set(maps) == {
        "prometheus-configuration",
        "grafana-provisioning-datasources",
        "grafana-provisioning-dashboards",
    }
    assert set(maps["prometheus-configuration"]["data"]) == {"prometheus.yml"}


def annotations(found: list[Any], name: str) -> Mapping[str, str]:
    reported: Mapping[str, str] = by_name(found, "Deployment")[name]["spec"]["template"]["metadata"]["annotations"]
    return reported


def test_changed_configuration_restarts_prometheus() -> None:
    with_rules, without = objects("batchyard"), objects("batchyard", more=", rules: false")
    assert annotations(with_rules, "prometheus") != annotations(without, "prometheus")
    assert annotations(with_rules, "grafana") == annotations(without, "grafana")


@pytest.mark.parametrize(
    ("stack", "reported"),
    [
        ("{enabled: yes please}", "stack.enabled"),
        ("{enabled: true, prometheusImage: 'a b'}", 'stack.prometheusImage: "a b" is not an image reference'),
        ("{enabled: true, retentionDays: 0}", "stack.retentionDays"),
    ],
)
def test_invalid_monitoring_stack_is_rejected(stack: str, reported: str) -> None:
    with pytest.raises(InvalidPlatformError, match=reported):
        platform(stack=stack)


def test_team_in_monitoring_namespace_is_rejected() -> None:
    text = EXAMPLES["refarch.yaml"].replace("name: team-a\n", "name: team-a\n      namespace: monitoring\n", 1)
    assert "namespace: monitoring" in text
    read_platform(PlatformSource("p.yaml", text))
    with pytest.raises(
        InvalidPlatformError, match="the namespace monitoring is reserved for Kubernetes, the engine or its monitoring"
    ):
        read_platform(
            PlatformSource("p.yaml", text.replace("\nspec:\n", "\nspec:\n  monitoring: {stack: {enabled: true}}\n"))
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_monitoring_pods_count_as_system_pods(engine: str) -> None:
    names = [pod.name for pod in system_pods(platform(engine))]
    assert {"prometheus", "grafana"} < set(names)
    assert ("kube-state-metrics" in names) is (engine == "kueue")
    assert not list(system_pod_errors(platform(engine, "{}", "dws")))
    (fault,) = system_pod_errors(platform(engine, name="dws"))
    assert "1 x prometheus (200m CPU, 512Mi) and 1 x grafana" in fault.problem
