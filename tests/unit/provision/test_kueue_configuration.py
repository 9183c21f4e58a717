"""Kueue's Configuration: that of the release, with the settings of the platform."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.api.kueue_configuration import read_configuration
from batchyard.base.instant import MINUTE
from batchyard.provision.loading import InvalidPlatformError, PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import ENGINE_FOLDER, render
from batchyard.scheduling.kueue_configuration import parse_kueue_settings
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy

pytestmark = pytest.mark.slow

TEXT = """\
apiVersion: platform.batchyard.dev/v1alpha1
kind: Platform
metadata: {name: small}
spec:
  engine: kueue
  flavors: [{name: any}]
  teams: [{name: red}]
"""
WEIGHED = "  cohorts: [{name: all, fairSharing: {weight: 2}}]\n"
RELEASE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: kueue-manager-config, namespace: kueue-system}
data: {controller_manager_config.yaml: "of the release"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: kueue-controller-manager, namespace: kueue-system}
spec:
  template:
    metadata: {annotations: {kubectl.kubernetes.io/default-container: manager}}
    spec: {containers: [{name: manager, image: kueue}]}
"""


def read_model(more: str = "", text: str = TEXT) -> PlatformModel:
    return read_platform(PlatformSource("p.yaml", text + more))


def kustomize(platform: PlatformModel, folder: Path) -> dict[str, Any]:
    """Build the engine's kustomization with kubectl; a local file replaces the releases. Return objects by kind."""
    whole = yaml.safe_load(render(platform)[f"{ENGINE_FOLDER}/kustomization.yaml"])
    (folder / "kustomization.yaml").write_text(yaml.dump({**whole, "resources": ["release.yaml"]}), "utf-8")
    (folder / "release.yaml").write_text(RELEASE, "utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}


def manager_configuration(platform: PlatformModel, folder: Path) -> Any:
    return yaml.safe_load(kustomize(platform, folder)["ConfigMap"]["data"]["controller_manager_config.yaml"])


def test_default_configuration_is_that_of_release(tmp_path: Path) -> None:
    assert manager_configuration(read_model(), tmp_path) == "of the release"


def test_platform_settings_are_merged_into_release_configuration(tmp_path: Path) -> None:
    stated = """\
  kueue:
    waitForPodsReady: {timeout: 10m, requeuingStrategy: {backoffLimitCount: 5}}
    resources: {transformations: [{input: nvidia.com/mig-1g.5gb, strategy: Replace, outputs: {example.com/gb: 5}}]}
"""
    result = manager_configuration(read_model(stated), tmp_path)
    assert result["waitForPodsReady"] == {"timeout": "10m", "requeuingStrategy": {"backoffLimitCount": 5}}
    (row,) = result["resources"]["transformations"]
    assert row == {"input": "nvidia.com/mig-1g.5gb", "strategy": "Replace", "outputs": {"example.com/gb": "5"}}
    assert "jobset.x-k8s.io/jobset" in result["integrations"]["frameworks"]
    assert "fairSharing" not in result


def test_fair_sharing_weight_enables_fair_sharing(tmp_path: Path) -> None:
    assert "preemptionStrategies" in manager_configuration(read_model(WEIGHED), tmp_path)["fairSharing"]
    operator = render(read_model(WEIGHED, TEXT.replace("engine: kueue", "engine: batchyard")))
    assert "--fair-sharing" in operator[f"{ENGINE_FOLDER}/deployment.yaml"]


def test_explicit_fair_sharing_setting_is_kept() -> None:
    assert read_model("  fairSharing: true\n").fair_sharing
    assert not read_model(f"{WEIGHED}  fairSharing: false\n").fair_sharing


def test_changed_configuration_restarts_manager(tmp_path: Path) -> None:
    annotations = []
    for timeout in ("5m", "6m"):
        platform = read_model(f"  kueue: {{waitForPodsReady: {{timeout: {timeout}}}}}\n")
        template = kustomize(platform, tmp_path)["Deployment"]["spec"]["template"]
        annotations.append(template["metadata"]["annotations"])
        assert template["spec"]["containers"] == [{"name": "manager", "image": "kueue"}]
    assert annotations[0] != annotations[1]


@pytest.mark.parametrize(
    ("stated", "reported"),
    [
        ("{waitForPodsReady: {timeot: 5m}}", "spec.kueue.waitForPodsReady.timeot: unknown field; did you mean"),
        ("{integrations: {frameworks: [batch/jobs]}}", "did you mean batch/job?"),
    ],
)
def test_invalid_kueue_configuration_is_rejected(stated: str, reported: str) -> None:
    with pytest.raises(InvalidPlatformError, match=r"p\.yaml:8: spec\.kueue") as caught:
        read_model(f"  kueue: {stated}\n")
    assert reported in str(caught.value)


OURS = TEXT.replace("engine: kueue", "engine: batchyard")


@pytest.mark.parametrize(
    ("stated", "reported"),
    [
        ("{featureGates: {PriorityBoost: true}}", "spec.kueue.featureGates.PriorityBoost: this"),
        (
            "{integrations: {frameworks: [batch/job, sparkoperator.k8s.io/sparkapplication]}}",
            "please enable SparkApplicationIntegration featuregate",
        ),
        ("{featureGates: {Nope: true}}", "spec.kueue.featureGates: Invalid value"),
    ],
)
def test_unsupported_operator_configuration_is_rejected(stated: str, reported: str) -> None:
    with pytest.raises(InvalidPlatformError) as caught:
        read_model(f"  kueue: {stated}\n", OURS)
    assert reported in str(caught.value)


def test_operator_receives_kueue_settings() -> None:
    stated = (
        "  fairSharing: true\n  kueue: {waitForPodsReady: {timeout: 10m}, integrations: {labelKeysToCopy: [team]}}\n"
    )
    files = render(read_model(stated, OURS))
    objects = {each["kind"]: each for each in yaml.safe_load_all(files[f"{ENGINE_FOLDER}/deployment.yaml"])}
    (text,) = objects["ConfigMap"]["data"].values()
    result = parse_kueue_settings(read_configuration("k", text))
    assert (result.pods_ready, result.copied_labels) == (PodsReadyPolicy(10 * MINUTE), ("team",))
    assert result.policy.fair_sharing
    assert "--fair-sharing" not in files[f"{ENGINE_FOLDER}/deployment.yaml"]
    assert parse_kueue_settings(read_configuration("k", files["configuration.yaml"])) == result


def test_platform_without_kueue_settings_has_no_configuration_file() -> None:
    assert "configuration.yaml" not in render(read_model("", OURS))
    stated = "  kueue: {manageJobsWithoutQueueName: true, waitForPodsReady: {timeout: 1m}}\n"
    settings = parse_kueue_settings(read_configuration("k", render(read_model(stated))["configuration.yaml"]))
    assert (settings.pods_ready, settings.managed_jobs.without_queue_name) == (PodsReadyPolicy(MINUTE), True)
