"""The objects of a platform on a cluster: equivalent to hand-written manifests, and minimal."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, key_of
from batchyard.package_data import find_folder
from batchyard.provision.loading import InvalidPlatformError, PlatformSource, read_platform
from batchyard.provision.manifests import platform_objects
from batchyard.provision.model import PlatformModel
from batchyard.sim.scenario import files_below

SHARED = Path(__file__).parents[4] / "shared" / "refarch" / "platform"
#: Kinds that a platform has besides these manifests: access rights, and isolation of teams.
BESIDES = {scheme.ROLE, scheme.ROLE_BINDING, scheme.CLUSTER_ROLE, scheme.CLUSTER_ROLE_BINDING, scheme.NETWORK_POLICY}


def example(name: str, **changes: str) -> PlatformModel:
    """Return the platform of an example, with replaced texts."""
    folder = find_folder("examples/platforms")
    assert folder is not None
    text = (folder / f"{name}.yaml").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return read_platform(PlatformSource(f"{name}.yaml", text))


def objects(platform: PlatformModel) -> list[Obj]:
    return [each.obj for group in platform_objects(platform).values() for each in group]


def by_key(found: Iterable[Obj]) -> dict[Key, Obj]:
    """Return complete objects, as the API stores them, by kind and name."""
    manifests = read_manifests((str(index), msgspec.json.encode(obj).decode()) for index, obj in enumerate(found))
    assert not manifests.faults
    return {key_of(manifest.obj): manifest.obj for manifest in manifests.objects}


def by_hand(folder: Path) -> dict[Key, Obj]:
    """Return the objects of a folder of manifests."""
    manifests = read_manifests((path.name, path.read_text()) for path in files_below(folder))
    return {key_of(each.obj): each.obj for each in manifests.objects}


def meaning(obj: Obj) -> Mapping[str, Any]:
    """Return the meaning of an object, independent of labels, descriptions and the order of taints.

    GKE's taint of GPUs has the value `present`; the value `true` in manifests is equivalent, because only a toleration
    of any value tolerates both.
    """
    spec = dict(obj.get("spec") or {})
    if "nodeTaints" in spec:
        taints = [{**taint, "value": ""} if taint["key"] == "nvidia.com/gpu" else taint for taint in spec["nodeTaints"]]
        spec["nodeTaints"] = sorted(taints, key=lambda taint: str(taint["key"]))
    rest = {field: value for field, value in obj.items() if field not in {"metadata", "spec", "status", "description"}}
    return {**rest, "spec": spec}


def assert_same_meaning(platform: dict[Key, Obj], hand: dict[Key, Obj]) -> None:
    own = {key: obj for key, obj in platform.items() if key.kind not in BESIDES}
    assert {key for key in own if key not in hand} == set()
    assert {key for key in hand if key not in own} == set()
    assert {key: meaning(obj) for key, obj in own.items()} == {key: meaning(obj) for key, obj in hand.items()}


def test_example_matches_own_reference_architecture() -> None:
    folder = find_folder("examples/refarch/platform")
    assert folder is not None
    assert_same_meaning(by_key(objects(example("refarch"))), by_hand(folder))


def test_example_matches_original_reference_architecture() -> None:
    if not SHARED.is_dir():
        pytest.skip("../shared/refarch is not there")
    hand = {key: obj for folder in ("teams", "priorityclass", "kueue") for key, obj in by_hand(SHARED / folder).items()}
    assert len([key for key in hand if key.kind == scheme.CLUSTER_QUEUE]) == 12
    assert_same_meaning(by_key(objects(example("refarch"))), hand)


@pytest.mark.parametrize("name", ["multislice", "dws", "hotswap"])
def test_example_matches_its_folder(name: str) -> None:
    folder = find_folder(f"examples/{name}")
    assert folder is not None
    hand = {
        key_of(each.obj): each.obj for each in read_manifests([("p", (folder / "platform.yaml").read_text())]).objects
    }
    kinds = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.RESOURCE_FLAVOR, scheme.ADMISSION_CHECK)
    own = by_key(objects(example(name)))
    for kind in (*kinds, scheme.PROVISIONING_REQUEST_CONFIG):
        of_hand = {key: meaning(obj) for key, obj in hand.items() if key.kind == kind}
        assert {key: meaning(obj) for key, obj in own.items() if key.kind == kind} == of_hand


def test_clusters_of_examples_match_their_folders() -> None:
    for name in ("refarch", "multislice", "hotswap"):
        folder = find_folder(f"examples/{name}")
        assert folder is not None
        (cluster,) = read_manifests([("c", (folder / "cluster.yaml").read_text())]).objects
        assert example(name).cluster == cluster.obj


def test_service_account_has_google_account_on_gke() -> None:
    account = by_key(objects(example("refarch")))[Key(scheme.SERVICE_ACCOUNT, "team-a", "team-a-ksa")]
    stated = account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
    assert stated == "wi-team-a@my-project.iam.gserviceaccount.com"


def test_flavor_selects_pool_by_name_when_labels_are_ambiguous() -> None:
    own = "{name: dws-flavor, pools: [dws-a100-nodepool]}"
    platform = example("dws", **{"- name: dws-flavor\n\n": f"- {own}\n\n"})
    flavor = by_key(objects(platform))[Key(scheme.RESOURCE_FLAVOR, "", "dws-flavor")]
    assert flavor["spec"]["nodeLabels"]["cloud.google.com/gke-accelerator"] == "nvidia-tesla-a100"
    assert "cloud.google.com/gke-nodepool" not in flavor["spec"]["nodeLabels"]
    system = example(
        "refarch", **{"- {name: gpu-l4-spot, pools: [spot-np]}": "- {name: gpu-l4-spot, pools: [default-pool]}"}
    )
    flavor = by_key(objects(system))[Key(scheme.RESOURCE_FLAVOR, "", "gpu-l4-spot")]
    assert flavor["spec"]["nodeLabels"]["cloud.google.com/gke-nodepool"] == "default-pool"


def test_team_members_cannot_change_platform_objects() -> None:
    rules = [rule for obj in objects(example("refarch")) if obj["kind"] == "Role" for rule in obj["rules"]]
    kept = {"resourcequotas", "limitranges", "localqueues", "clusterqueues", "rolebindings", "networkpolicies"}
    changing = [rule for rule in rules if set(rule["resources"]) & kept and {"create", "update"} & set(rule["verbs"])]
    assert rules
    assert changing == []
    assert not any("*" in (*rule["verbs"], *rule["resources"], *rule["apiGroups"]) for rule in rules)
    assert not any("secrets" in rule["resources"] for rule in rules)


def test_flavors_with_other_resources_form_separate_groups() -> None:
    old = "- name: dws-flavor\n          resources:\n"
    new = "- {name: licences, resources: {example.com/licence: {nominalQuota: 3}}}\n        " + old
    platform = example("dws", **{"- name: dws-flavor\n\n": "- name: dws-flavor\n    - name: licences\n\n", old: new})
    queue = by_key(objects(platform))[Key(scheme.CLUSTER_QUEUE, "", "dws-cluster-queue")]
    covered = [group["coveredResources"] for group in queue["spec"]["resourceGroups"]]
    assert covered == [["example.com/licence"], ["cpu", "memory", "nvidia.com/gpu"]]


def test_invalid_value_is_reported_with_its_path() -> None:
    with pytest.raises(InvalidPlatformError) as reported:
        example(
            "refarch", **{"cpu: {nominalQuota: 0, borrowingLimit: 4}": "cpu: {nominalQuota: -1, borrowingLimit: 4}"}
        )
    assert "spec.queueClasses[0].flavors[0].resources[cpu].nominalQuota: Invalid value" in str(reported.value)


def test_flavor_of_several_pools_has_common_labels_and_taints() -> None:
    both = {"- {name: gpu-l4-spot, pools: [spot-np]}": "- {name: gpu-l4-spot, pools: [spot-np, ondemand-np]}"}
    flavor = by_key(objects(example("refarch", **both)))[Key(scheme.RESOURCE_FLAVOR, "", "gpu-l4-spot")]
    assert flavor["spec"]["nodeLabels"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert [taint["key"] for taint in flavor["spec"]["nodeTaints"]] == ["nvidia.com/gpu"]
