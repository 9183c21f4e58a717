"""What creating and destroying consist of, as data."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from batchyard.provision.loading import PlatformSource, read_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.provision.steps import google
from batchyard.provision.steps.cluster import ClusterConnection
from batchyard.provision.steps.destroy import create, destroy, leftovers
from batchyard.provision.steps.model import PlatformStep

REFARCH = Path(__file__).parents[4] / "examples/platforms/refarch.yaml"
OWN = ClusterConnection(".batchyard/kubeconfig")
ELSEWHERE = ClusterConnection("", "somewhere")


@cache
def rendered(is_on_google: bool) -> tuple[PlatformModel, Mapping[str, str]]:
    """The reference architecture on GKE, or on a cluster that is there."""
    text = REFARCH.read_text("utf-8")
    if not is_on_google:
        begin, end = text.index("  # What is particular to GKE"), text.index("  # The nodes, as kind Cluster")
        text = text[:begin] + text[end:]
    platform = read_platform(PlatformSource("platform.yaml", text))
    return platform, render(platform)


@cache
def creating(is_on_google: bool) -> list[PlatformStep]:
    return create(*rendered(is_on_google), OWN if is_on_google else ELSEWHERE)


@cache
def destroying(is_on_google: bool) -> list[PlatformStep]:
    return destroy(*rendered(is_on_google), OWN if is_on_google else ELSEWHERE)


def place_of(steps: list[PlatformStep], name: str) -> int:
    return [step.name for step in steps].index(name)


@pytest.mark.parametrize("is_on_google", [True, False])
@pytest.mark.parametrize("steps_of", [creating, destroying])
def test_every_step_has_a_name_of_its_own(steps_of: object, is_on_google: bool) -> None:
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
        ("apply-70-monitoring", "last-check"),
    ],
)
def test_what_is_needed_comes_first(first: str, then: str) -> None:
    assert place_of(creating(True), first) < place_of(creating(True), then)


def test_elsewhere_only_kubectl_is_called_and_always_at_the_same_cluster() -> None:
    steps = [*creating(False)[1:], *destroying(False)[1:]]
    commands = [command for step in steps for command in step.commands]
    commands += [probe.command for step in steps for probe in step.probes]
    assert {command.argv[:2] for command in commands} == {("kubectl", "--context=somewhere")}


@pytest.mark.parametrize("is_on_google", [True, False])
def test_nothing_that_changes_something_comes_before_the_first_question(is_on_google: bool) -> None:
    steps = creating(is_on_google)
    asking = next(index for index, step in enumerate(steps) if step.consent is not None)
    assert [step.name for step in steps[:asking] if step.commands] == (["first-apis"] if is_on_google else [])


@pytest.mark.parametrize("is_on_google", [True, False])
def test_nothing_is_deleted_before_the_question(is_on_google: bool) -> None:
    steps = destroying(is_on_google)
    before = steps[: place_of(steps, "confirm")]
    assert [step.name for step in before if step.commands] == (
        ["terraform-init", "credentials"] if is_on_google else []
    )


def test_what_runs_goes_before_terraform_deletes_the_cluster() -> None:
    steps = destroying(True)
    assert place_of(steps, "stop-queues") < place_of(steps, "empty-team-a") < place_of(steps, "terraform-destroy")


@pytest.mark.parametrize("is_on_google", [True, False])
def test_the_engine_works_while_what_has_finalizers_goes(is_on_google: bool) -> None:
    names = [step.name for step in destroying(is_on_google)]
    assert "empty-team-a" in names
    assert "empty-batchyard-system" not in names


def test_elsewhere_the_engine_goes_last_and_only_if_nobody_else_has_queues() -> None:
    last = destroying(False)[-1]
    assert last.name == "delete-00-engine"
    assert last.only_if is not None


def test_the_bucket_that_is_made_is_the_one_that_terraform_is_told_of() -> None:
    platform, files = rendered(True)
    assert platform.google is not None
    assert f'bucket = "{google.state_bucket(platform, platform.google)}"' in files["terraform/backend.tf"]


def test_a_secret_is_never_kept() -> None:
    printing = [
        probe.command for step in creating(True) for probe in step.probes if "token" in " ".join(probe.command.argv)
    ]
    assert [command.is_secret for command in printing] == [True]


@pytest.mark.parametrize("is_on_google", [True, False])
def test_whatever_is_left_has_a_command_that_removes_it(is_on_google: bool) -> None:
    platform, _ = rendered(is_on_google)
    rows = list(leftovers(platform, OWN, "folder"))
    assert all(row.removal for row in rows)
    assert {"state bucket", "disks", "reservations", "images", "APIs"} <= {row.name for row in rows} or not is_on_google


def test_future_reservations_are_left_only_where_some_were_submitted() -> None:
    platform, _ = rendered(True)
    assert platform.google is not None
    submitted = replace(platform, google=replace(platform.google, submitted=["december"]))
    found = [{row.name for row in leftovers(each, OWN, "folder")} for each in (platform, submitted)]
    assert found[1] - found[0] == {"future reservations"}
