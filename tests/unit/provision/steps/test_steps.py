"""The steps of create and destroy, as data."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.steps import google
from batchyard.provision.steps.cluster import ClusterConnection, resume_queues_steps
from batchyard.provision.steps.destroy import creation_steps, destruction_steps, leftovers
from batchyard.provision.steps.model import CommandOutput, PlatformStep
from batchyard.provision.yaml_output import labels_of

REFARCH = Path(__file__).parents[4] / "examples/platforms/refarch.yaml"
OWN = ClusterConnection(".batchyard/kubeconfig")
ELSEWHERE = ClusterConnection("", "somewhere")


@cache
def rendered_platform(is_on_google: bool, *, with_stack: bool = False) -> tuple[PlatformModel, Mapping[str, str]]:
    """Return the reference architecture on GKE or on an existing cluster, with the monitoring stack or without."""
    text = REFARCH.read_text("utf-8")
    if not is_on_google:
        begin, end = text.index("  # What is particular to GKE"), text.index("  # The nodes, as kind Cluster")
        text = text[:begin] + text[end:]
    if with_stack:
        text = text.replace("\nspec:\n", "\nspec:\n  monitoring: {stack: {enabled: true}}\n")
    platform = read_platform(PlatformSource("platform.yaml", text))
    return platform, render(platform)


@cache
def creating(is_on_google: bool) -> list[PlatformStep]:
    return creation_steps(*rendered_platform(is_on_google), OWN if is_on_google else ELSEWHERE)


@cache
def destroying(is_on_google: bool) -> list[PlatformStep]:
    return destruction_steps(*rendered_platform(is_on_google), OWN if is_on_google else ELSEWHERE)


def place_of(steps: list[PlatformStep], name: str) -> int:
    return [step.name for step in steps].index(name)


@pytest.mark.parametrize("is_on_google", [True, False])
@pytest.mark.parametrize("steps_of", [creating, destroying])
def test_step_names_are_unique(steps_of: object, is_on_google: bool) -> None:
    assert callable(steps_of)
    names = [step.name for step in steps_of(is_on_google)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("billing", "state-bucket"),
        ("state-versions", "terraform-init"),
        ("terraform-apply", "credentials"),
        ("api-server", "image-batchyard"),
        ("image-batchyard", "apply-00-engine"),
        ("kinds", "webhooks"),
        ("available-batchyard-operator", "webhooks"),
        ("webhooks", "apply-30-flavors"),
        ("apply-60-queues", "cluster-queues"),
        ("apply-70-monitoring", "final-check"),
    ],
)
def test_create_steps_follow_dependencies(first: str, then: str) -> None:
    assert place_of(creating(True), first) < place_of(creating(True), then)


def test_external_cluster_uses_only_kubectl_with_its_context() -> None:
    steps = [*creating(False)[1:], *destroying(False)[1:]]
    commands = [command for step in steps for command in step.commands]
    commands += [probe.command for step in steps for probe in step.probes]
    assert {command.argv[:2] for command in commands} == {("kubectl", "--context=somewhere")}


@pytest.mark.parametrize("is_on_google", [True, False])
def test_nothing_is_changed_before_first_consent(is_on_google: bool) -> None:
    steps = creating(is_on_google)
    asking = next(index for index, step in enumerate(steps) if step.consent is not None)
    assert [step.name for step in steps[:asking] if step.commands] == (["first-apis"] if is_on_google else [])


@pytest.mark.parametrize("is_on_google", [True, False])
def test_nothing_is_deleted_before_consent(is_on_google: bool) -> None:
    steps = destroying(is_on_google)
    before = steps[: place_of(steps, "confirm")]
    assert [step.name for step in before if step.commands] == (
        ["terraform-init", "credentials"] if is_on_google else []
    )


def test_workloads_are_removed_before_terraform_deletes_cluster() -> None:
    steps = destroying(True)
    assert place_of(steps, "stop-queues") < place_of(steps, "empty-team-a") < place_of(steps, "terraform-destroy")


@pytest.mark.parametrize("is_on_google", [True, False])
def test_engine_keeps_running_while_finalizers_are_removed(is_on_google: bool) -> None:
    names = [step.name for step in destroying(is_on_google)]
    assert "empty-team-a" in names
    assert "empty-batchyard-system" not in names


@pytest.mark.parametrize("is_on_google", [True, False])
def test_only_team_namespaces_are_emptied_of_jobs_and_pods(is_on_google: bool) -> None:
    steps = destruction_steps(*rendered_platform(is_on_google, with_stack=True), OWN if is_on_google else ELSEWHERE)
    emptied = [step.name for step in steps if step.name.startswith("empty-")]
    assert emptied == [f"empty-team-{letter}" for letter in "abcd"]


def test_question_about_destroy_lists_monitoring_namespace() -> None:
    steps = destruction_steps(*rendered_platform(False, with_stack=True), ELSEWHERE)
    consent = steps[place_of(steps, "confirm")].consent
    assert consent is not None
    assert "team-d, monitoring" in consent.question


@pytest.mark.parametrize("steps_of", [creation_steps, destruction_steps])
def test_namespace_of_others_stops_create_and_destroy_before_any_change(
    steps_of: Callable[..., list[PlatformStep]],
) -> None:
    steps = steps_of(*rendered_platform(False, with_stack=True), ELSEWHERE)
    index = place_of(steps, "own-namespaces")
    assert not [step.name for step in steps[:index] if step.commands]
    assert steps[index].is_prerequisite
    (probe,) = steps[index].probes
    assert {"team-a", "monitoring"} <= {*probe.command.argv}
    assert "batchyard-system" not in probe.command.argv
    foreign: dict[str, Any] = {"kind": "Namespace", "metadata": {"name": "monitoring"}}
    own = {"kind": "Namespace", "metadata": {"name": "team-a", "labels": labels_of("gke-batch-refarch")}}
    other = {"kind": "Namespace", "metadata": {"name": "team-b", "labels": labels_of("other")}}
    for items, description in (
        ([], ""),
        ([own], ""),
        ([own, foreign, other], "without the labels of the platform: 2 (monitoring, team-b)"),
    ):
        listed = CommandOutput(0, json.dumps({"kind": "List", "items": items}))
        assert probe.parser(listed) == (not description, description)


def test_create_on_gke_checks_namespaces_before_applying_manifests() -> None:
    steps = creating(True)
    assert place_of(steps, "api-server") < place_of(steps, "own-namespaces") < place_of(steps, "apply-00-engine")


def queue(name: str, stopped_by: str = "") -> dict[str, Any]:
    annotations = {"platform.batchyard.dev/stopped-by": stopped_by} if stopped_by else {}
    metadata = {"name": name, "annotations": annotations, "resourceVersion": "7"}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": metadata, "spec": {}}


def test_create_resumes_only_queues_that_destroy_has_stopped() -> None:
    platform, _ = rendered_platform(False)
    first, second, third = platform.queues[:3]
    stopped = replace(third, spec={**third.spec, "stopPolicy": "Hold"})
    resume, unmark = resume_queues_steps(ELSEWHERE, [first, second, stopped])
    for step, asked in ((resume, {first.name, second.name}), (unmark, {third.name})):
        assert asked == {first.name, second.name, third.name} & {*step.probes[0].command.argv}
        assert step.stdin_from_probes is not None
        listed = {"kind": "List", "items": [queue(first.name, "destroy"), queue(second.name)]}
        sent = json.loads(step.stdin_from_probes([CommandOutput(0, json.dumps(listed))]))
        assert [each["metadata"] for each in sent["items"]] == [{"name": first.name}]
    assert "stopPolicy" in resume.commands[0].argv[-1]
    assert "stopPolicy" not in unmark.commands[0].argv[-1]


def test_external_engine_is_deleted_last_and_conditionally() -> None:
    last = destroying(False)[-1]
    assert last.name == "delete-00-engine"
    assert last.only_if is not None


def test_terraform_backend_uses_created_bucket() -> None:
    platform, files = rendered_platform(True)
    assert platform.google is not None
    assert f'bucket = "{google.state_bucket(platform, platform.google)}"' in files["terraform/backend.tf"]


def test_token_probe_is_secret() -> None:
    printing = [
        probe.command for step in creating(True) for probe in step.probes if "token" in " ".join(probe.command.argv)
    ]
    assert [command.is_secret for command in printing] == [True]


@pytest.mark.parametrize("is_on_google", [True, False])
def test_each_leftover_has_removal_command(is_on_google: bool) -> None:
    platform, _ = rendered_platform(is_on_google)
    rows = list(leftovers(platform, OWN, "folder"))
    assert all(row.removal for row in rows)
    assert {"state bucket", "disks", "reservations", "images", "APIs"} <= {row.name for row in rows} or not is_on_google


def test_future_reservations_are_leftovers_only_when_submitted() -> None:
    platform, _ = rendered_platform(True)
    assert platform.google is not None
    submitted = replace(platform, google=replace(platform.google, submitted_reservations=["december"]))
    result = [{row.name for row in leftovers(each, OWN, "folder")} for each in (platform, submitted)]
    assert result[1] - result[0] == {"future reservations"}
