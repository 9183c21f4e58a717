"""The manifests of the operator: permissions, Pods, and the generated files in deploy/."""

import json
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import make
from batchyard.api.manifests import decode
from batchyard.apiserver.crd.definitions import DefinitionStrategy
from batchyard.cli.commands.install import option_problems
from batchyard.controller_groups import KUBERNETES_GROUPS, REMOTE_GROUPS
from batchyard.operator_manifests import InstallSettings, Scraping, manifests
from batchyard.server.operator.coexistence import OPERATOR_CONFIG_MAP
from unit.operator_manifests.normalized_manifests import DEPLOY, ROOT, by_name, objects_printed_by, rules_of

pytestmark = pytest.mark.slow

files = runpy.run_path(str(ROOT / "tools/installation_files.py"))["files"]
HELM = shutil.which("helm") or shutil.which("helm", path=str(ROOT / ".helm"))
CHART = str(DEPLOY / "charts/batchyard")
NAME = "batchyard-operator"
WEBHOOK_CONFIGURATIONS = [f"{phase}WebhookConfiguration/{NAME}-webhooks" for phase in ("Mutating", "Validating")]
CONFIGURATION = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
waitForPodsReady:
  timeout: 5m
"""


def role(settings: InstallSettings, kind: str = "ClusterRole") -> set[tuple[str, ...]]:
    (result,) = (obj for obj in manifests(settings) if obj["kind"] == kind and obj["metadata"]["name"] == NAME)
    return rules_of(result)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_deploy_files_are_up_to_date(path: Path) -> None:
    assert path.read_text("utf-8") == files()[path], "run tools/installation_files.py"


@pytest.mark.parametrize("settings", [InstallSettings(), InstallSettings(controllers=REMOTE_GROUPS, webhooks=False)])
def test_api_server_accepts_all_manifests(settings: InstallSettings) -> None:
    definitions = DefinitionStrategy()
    for obj in manifests(settings):
        decoded = definitions.decode(obj, "") if obj["kind"] == "CustomResourceDefinition" else decode(obj)
        assert decoded.faults == [], obj["metadata"]["name"]


def test_roles_have_no_wildcards_and_no_access_to_rbac_or_all_secrets() -> None:
    cluster = role(InstallSettings(controllers=[group for group in REMOTE_GROUPS if group != "namespaces"]))
    assert not [rule for rule in cluster | role(InstallSettings(), "Role") if "*" in "".join(rule)]
    assert not [rule for rule in cluster if rule[0] == "rbac.authorization.k8s.io" or rule[1] == "secrets"]


def test_role_rules_depend_on_enabled_controllers() -> None:
    admission, jobset = (
        role(InstallSettings(controllers=("admission",))),
        role(InstallSettings(controllers=("jobset",))),
    )
    assert ("kueue.x-k8s.io", "workloads/status", "patch", "") in admission - jobset
    assert ("batch", "jobs", "create", "") in jobset - admission
    assert admission | jobset <= role(InstallSettings())


def test_group_that_places_pods_may_bind_them() -> None:
    pod_rules = {rule for rule in role(InstallSettings(controllers=("placement",))) if rule[1].startswith("pods")}
    assert ("", "pods/binding", "create", "") in pod_rules
    assert {rule[2] for rule in pod_rules if rule[1] == "pods"} == {"delete", "list", "patch", "watch"}


@pytest.mark.parametrize("settings", [InstallSettings(webhooks=False), InstallSettings(controllers=("provisioning",))])
def test_definitions_without_webhooks_have_one_version_and_no_conversion(settings: InstallSettings) -> None:
    result = by_name(manifests(settings))
    assert not [name for name in result if "Webhook" in name or "webhooks" in name]
    specs = [obj["spec"] for name, obj in result.items() if name.startswith("CustomResource")]
    assert {len(spec["versions"]) for spec in specs} == {1}
    assert not [spec for spec in specs if "conversion" in spec]


def test_manifests_without_webhooks_omit_webhook_objects_and_rules() -> None:
    assert role(InstallSettings(webhooks=False), "Role") == {
        ("coordination.k8s.io", "leases", "create", ""),
        ("coordination.k8s.io", "leases", "get", NAME),
        ("coordination.k8s.io", "leases", "update", NAME),
    }


def test_operator_pods_meet_restricted_pod_security_standard() -> None:
    pod: Any = by_name(manifests(InstallSettings()))[f"Deployment/{NAME}"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "volumes" not in pod


def test_configuration_is_mounted_and_its_change_restarts_pods() -> None:
    one, other = (
        by_name(manifests(InstallSettings(configuration=text))) for text in (CONFIGURATION, CONFIGURATION + "#")
    )
    template: Any = one[f"Deployment/{NAME}"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    (mount,) = container["volumeMounts"]
    (volume,) = template["spec"]["volumes"]
    (key,) = one[f"ConfigMap/{volume['configMap']['name']}"]["data"]
    assert f"--config={mount['mountPath']}/{key}" in container["args"]
    assert (mount["name"], mount["readOnly"]) == (volume["name"], True)
    assert (OPERATOR_CONFIG_MAP.namespace, OPERATOR_CONFIG_MAP.name) == (
        "batchyard-system",
        volume["configMap"]["name"],
    )
    assert template["metadata"] != other[f"Deployment/{NAME}"]["spec"]["template"]["metadata"]
    assert f"ConfigMap/{NAME}-configuration" not in by_name(manifests(InstallSettings()))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_kustomize_base_equals_generated_manifests() -> None:
    assert by_name(objects_printed_by("kubectl", "kustomize", str(DEPLOY / "operator/base"))) == by_name(
        manifests(InstallSettings())
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
def test_kustomize_overlays_change_expected_objects_only() -> None:
    base = by_name(manifests(InstallSettings()))
    gke = by_name(objects_printed_by("kubectl", "kustomize", str(DEPLOY / "operator/overlays/gke")))
    scraped = by_name(manifests(InstallSettings(scraping=Scraping.POD_MONITORING)))
    assert gke.keys() == scraped.keys()
    assert {name for name in gke if gke[name] != scraped[name]} == {f"PodMonitoring/{NAME}", f"Deployment/{NAME}"}
    small = by_name(objects_printed_by("kubectl", "kustomize", str(DEPLOY / "operator/overlays/development")))
    assert base.keys() - small.keys() == {f"PodDisruptionBudget/{NAME}", f"ResourceQuota/{NAME}"}
    assert small[f"Deployment/{NAME}"]["spec"]["replicas"] == 1


VALUES: Any = [
    ((), InstallSettings()),
    (
        ("--set", "replicas=1,webhooks.enabled=false,scraping=ServiceMonitor"),
        InstallSettings(replicas=1, webhooks=False, scraping=Scraping.SERVICE_MONITOR),
    ),
    (
        ("--set", "controllers={jobset},priorityClass=,userRoles=false,page=false"),
        InstallSettings(controllers=("jobset",), priority_class="", user_roles=False, page=False),
    ),
    (("--set", "controllers={pods}"), InstallSettings(controllers=("pods",))),
    (
        (
            "--set",
            f"controllers={{{','.join(REMOTE_GROUPS)}}},definitions=false,fairSharing=true,scraping=PodMonitoring",
        ),
        InstallSettings(
            controllers=REMOTE_GROUPS, definitions=False, fair_sharing=True, scraping=Scraping.POD_MONITORING
        ),
    ),
    (
        ("--set", "name=queues,image.repository=there/it,image.tag=v2,arguments={--log-level=info}"),
        InstallSettings(name="queues", image="there/it:v2", arguments=("--log-level=info",)),
    ),
    (
        (
            *("--set", "configuration.apiVersion=config.kueue.x-k8s.io/v1beta2,configuration.kind=Configuration"),
            *("--set", "configuration.waitForPodsReady.timeout=5m"),
        ),
        InstallSettings(configuration=CONFIGURATION),
    ),
]


@pytest.mark.skipif(HELM is None, reason="there is no helm on this machine: make helm")
@pytest.mark.parametrize(("values", "settings"), VALUES)
def test_helm_chart_renders_generated_manifests(values: tuple[str, ...], settings: InstallSettings) -> None:
    rendered = by_name(
        objects_printed_by(str(HELM), "template", "release", CHART, "--namespace", "batchyard-system", *values)
    )
    expected = by_name(manifests(settings))
    del expected["Namespace/batchyard-system"]  # helm creates it with --create-namespace
    assert rendered == expected


@pytest.mark.skipif(HELM is None, reason="there is no helm on this machine: make helm")
def test_helm_chart_gives_job_kinds_rights_and_webhooks() -> None:
    value = "jobKinds[0].group=ml.example.com,jobKinds[0].version=v1,jobKinds[0].kind=Training"
    options = ("--namespace", "batchyard-system", "--set", f"{value},jobKinds[0].resource=trainings")
    rendered = by_name(objects_printed_by(str(HELM), "template", "release", CHART, *options))
    expected = by_name(manifests(InstallSettings(job_kinds=[make.job_kind()])))
    for name, field in ((f"ClusterRole/{NAME}", "rules"), *((each, "webhooks") for each in WEBHOOK_CONFIGURATIONS)):
        assert sorted_items(rendered[name][field]) == sorted_items(expected[name][field])


def sorted_items(items: Sequence[Any]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in items)


@pytest.mark.skipif(HELM is None, reason="there is no helm on this machine: make helm")
def test_helm_chart_passes_helm_lint() -> None:
    objects_printed_by(str(HELM), "lint", "--strict", CHART, "--quiet")


def test_schema_of_helm_values_names_all_controllers() -> None:
    schema = json.loads((Path(CHART) / "values.schema.json").read_text("utf-8"))
    assert set(schema["properties"]["controllers"]["items"]["enum"]) == set(REMOTE_GROUPS)


def test_helm_chart_enables_default_controllers_of_operator() -> None:
    (values,) = objects_printed_by("cat", f"{CHART}/values.yaml")
    assert tuple(values["controllers"]) == KUBERNETES_GROUPS


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (InstallSettings(namespace="Here"), "namespace"),
        (InstallSettings(name="9-lives"), "name"),
        (InstallSettings(name="n" * 56), "name"),
        (InstallSettings(image="a b"), "image"),
    ],
)
def test_invalid_install_settings_are_rejected(settings: InstallSettings, option: str) -> None:
    assert [option for option, _ in option_problems(settings)] == [option]
    assert [*option_problems(InstallSettings())] == []
