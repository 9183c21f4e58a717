"""The contents of pod volumes."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.kubelet.local.errors import InputError, VolumeError
from batchyard.kubelet.local.volumes import (
    EmptyDirPlan,
    HostPathPlan,
    VolumeFile,
    VolumeFiles,
    VolumePlan,
    VolumeSources,
    is_within_any,
    memory_volumes,
    volume_plan,
    volume_plans,
)
from unit.kubelet.local.local_make import NOTHING, FixedObjects, config_map, container, node, pod, secret

FAILED = 'MountVolume.SetUp failed for volume "v" : '


def token(namespace: str, account: str, audience: str, seconds: int) -> str:
    """A token that contains its parameters."""
    if account == "nobody":
        raise InputError(f'serviceaccounts "{account}" not found')
    return f"{namespace}/{account}/{audience}/{seconds}"


def plan(reader: FixedObjects = NOTHING, *, of: Mapping[str, Any] | None = None, **volume: Any) -> VolumePlan:
    """The plan of a volume of this type in a pod."""
    return volume_plan(of or pod(), {"name": "v", **volume}, VolumeSources(reader, token, ["/srv/data"]))


def files(
    reader: FixedObjects = NOTHING, *, of: Mapping[str, Any] | None = None, **volume: Any
) -> Mapping[str, VolumeFile]:
    """The files of a volume of this type."""
    created = plan(reader, of=of, **volume)
    assert isinstance(created, VolumeFiles)
    return created.files


def contents(reader: FixedObjects = NOTHING, **volume: Any) -> dict[str, bytes]:
    return {path: file.content for path, file in files(reader, **volume).items()}


def volume_error(reader: FixedObjects = NOTHING, *, of: Mapping[str, Any] | None = None, **volume: Any) -> str:
    """The error message of a volume, without the common prefix."""
    with pytest.raises(VolumeError) as caught:
        plan(reader, of=of, **volume)
    assert str(caught.value).startswith(FAILED)
    return str(caught.value).removeprefix(FAILED)


def test_config_map_volume_has_file_per_entry() -> None:
    objects = FixedObjects(config_map("cm", {"raw": b"\xff"}, text="hello"))
    result = files(objects, configMap={"name": "cm", "defaultMode": 0o400})
    assert result == {"raw": VolumeFile(b"\xff", 0o400), "text": VolumeFile(b"hello", 0o400)}


def test_secret_volume_is_decoded() -> None:
    assert contents(FixedObjects(secret("s", key=b"\0hidden")), secret={"secretName": "s"}) == {"key": b"\0hidden"}


def test_items_select_entries_with_path_and_mode() -> None:
    objects = FixedObjects(config_map("cm", a="1", b="2"))
    items = [{"key": "a", "path": "x/./y", "mode": 0}, {"key": "b", "path": "z"}]
    assert files(objects, configMap={"name": "cm", "items": items}) == {
        "x/y": VolumeFile(b"1", 0),
        "z": VolumeFile(b"2", 0o644),
    }


def test_missing_reference_is_reported_with_kubelet_message() -> None:
    objects = FixedObjects(config_map("cm"), secret("s"))
    items = [{"key": "k", "path": "p"}]
    assert volume_error(configMap={"name": "x"}) == 'configmap "x" not found'
    assert volume_error(secret={"secretName": "x"}) == 'secret "x" not found'
    reported = volume_error(objects, configMap={"name": "cm", "items": items})
    assert reported == "configmap references non-existent config key: k"
    assert volume_error(objects, secret={"secretName": "s", "items": items}) == "references non-existent secret key: k"


def test_missing_optional_reference_is_ignored() -> None:
    items = [{"key": "k", "path": "p"}, {"key": "a", "path": "a"}]
    assert contents(configMap={"name": "x", "optional": True, "items": items}) == {}
    assert contents(secret={"secretName": "x", "optional": True}) == {}
    objects = FixedObjects(config_map("cm", a="1"))
    assert contents(objects, configMap={"name": "cm", "optional": True, "items": items}) == {"a": b"1"}


def test_downward_api_fields_are_sorted_and_quoted_like_go() -> None:
    of = pod(labels={"b": "2", "a": "1"}, annotations={"note": 'a "word"\nand\x01 é'})
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "./notes", "fieldRef": {"fieldPath": "metadata.annotations"}, "mode": 0o600},
    ]
    result = files(of=of, downwardAPI={"items": items})
    assert result["labels"] == VolumeFile(b'a="1"\nb="2"', 0o644)
    assert result["notes"] == VolumeFile('note="a \\"word\\"\\nand\\x01 é"'.encode(), 0o600)


def test_downward_api_resource_defaults_to_node_allocatable() -> None:
    source = {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}
    items = [{"path": "memory", "resourceFieldRef": source}]
    assert contents(FixedObjects(node(memory="2Gi")), downwardAPI={"items": items}) == {"memory": b"2048"}


def test_all_invalid_downward_api_fields_are_reported_at_once() -> None:
    items = [{"path": p, "fieldRef": {"fieldPath": p}} for p in ("spec.a", "spec.b", "spec.a")]
    assert (
        volume_error(downwardAPI={"items": items}) == "[unsupported fieldPath: spec.a, unsupported fieldPath: spec.b]"
    )


def test_projected_volume_merges_its_sources() -> None:
    objects = FixedObjects(config_map("cm", a="1", b="1"), secret("s", b=b"2"))
    parts = [
        {"configMap": {"name": "cm"}},
        {"secret": {"name": "s"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600, "audience": "vault"}},
    ]
    result = files(objects, projected={"sources": parts, "defaultMode": 0o440})
    assert {path: file.content for path, file in result.items()} == {
        "a": b"1",
        "b": b"2",
        "name": b"pod",
        "token": b"team/default/vault/600",
    }
    assert {file.mode for file in result.values()} == {0o440}


def test_empty_projected_source_is_ignored() -> None:
    assert contents(projected={"sources": [{}, {"configMap": None}]}) == contents(projected={}) == {}


def test_all_invalid_projected_sources_are_reported_at_once() -> None:
    parts = [{"configMap": {"name": "x"}}, {"secret": {"name": "y"}}, {"clusterTrustBundle": {"path": "ca"}}]
    reported = volume_error(projected={"sources": parts})
    assert reported.startswith(
        '[configmap "x" not found, secret "y" not found, clusterTrustBundle cannot be projected here'
    )
    of = pod(serviceAccountName="nobody")
    only = {"sources": [{"serviceAccountToken": {"path": "t"}}]}
    assert volume_error(of=of, projected=only) == 'serviceaccounts "nobody" not found'


def test_token_mode_is_restricted_when_all_containers_share_user() -> None:
    parts = {"sources": [{"serviceAccountToken": {"path": "t"}}]}
    own, side = container(securityContext={"runAsUser": 7}), container("side")
    assert files(of=pod(own), projected=parts)["t"].mode == 0o640
    assert files(of=pod(own, side), projected=parts)["t"].mode == 0o644
    assert files(of=pod(own, side, securityContext={"runAsUser": 7}), projected=parts)["t"].mode == 0o640


def test_fs_group_can_read_volume_files() -> None:
    of = pod(securityContext={"fsGroup": 2000})
    created = plan(FixedObjects(config_map("cm", a="1")), of=of, configMap={"name": "cm", "defaultMode": 0o400})
    assert created == VolumeFiles({"a": VolumeFile(b"1", 0o440)}, group=2000)


@pytest.mark.parametrize(
    ("path", "reported"),
    [
        ("", 'invalid path: must not be empty: ""'),
        ("/etc/passwd", "invalid path: must be relative path: /etc/passwd"),
        ("a/../b", "invalid path: must not contain '..': a/../b"),
        ("..data", "invalid path: must not start with '..': ..data"),
        ("a" * 256, "invalid path: filenames must be less than or equal to 255 characters"),
        ("a/" * 2049, "invalid path: must be less than or equal to 4096 characters"),
    ],
)
def test_paths_outside_volume_are_rejected(path: str, reported: str) -> None:
    objects = FixedObjects(config_map("cm", k="1"))
    assert volume_error(objects, configMap={"name": "cm", "items": [{"key": "k", "path": path}]}) == reported


def test_volume_creates_mount_points_of_nested_mounts() -> None:
    targets = ("/etc/v", "/etc/v/a", "/etc/v/a/b", "/etc/v-other", "/etc/v/c")
    mounts = [{"name": "v" if at == "/etc/v" else "other", "mountPath": at} for at in targets]
    created = plan(FixedObjects(config_map("cm")), of=pod(container(volumeMounts=mounts)), configMap={"name": "cm"})
    assert created == VolumeFiles({}, ("a", "c"))


def test_empty_dir_has_size_limit_and_mode() -> None:
    assert plan() == plan(emptyDir={}) == EmptyDirPlan()
    assert plan(emptyDir={"sizeLimit": "-1"}) == EmptyDirPlan()
    assert plan(emptyDir={"sizeLimit": "1Gi"}) == EmptyDirPlan(size_bytes=2**30)
    assert plan(emptyDir={"stickyBit": True}) == EmptyDirPlan(mode=0o1777)


@pytest.mark.parametrize(
    ("size", "limits", "size_bytes"),
    [
        (None, [], 8 * 2**30),
        (None, ["1Gi", "2Gi"], 3 * 2**30),
        (None, ["1Gi", None], 8 * 2**30),
        ("1Gi", ["1Gi", "2Gi"], 2**30),
        ("16Gi", [], 8 * 2**30),
    ],
)
def test_memory_empty_dir_is_bounded_by_pod_or_node_memory(
    size: str | None, limits: list[str | None], size_bytes: int
) -> None:
    containers = [container(f"c{n}", resources={"limits": {"memory": m} if m else {}}) for n, m in enumerate(limits)]
    source = {"medium": "Memory", **({"sizeLimit": size} if size else {})}
    assert plan(FixedObjects(node(memory="8Gi")), of=pod(*containers), emptyDir=source) == EmptyDirPlan(
        True, size_bytes
    )


def test_host_path_requires_allowed_folder() -> None:
    assert plan(hostPath={"path": "/srv/data/x/", "type": "Directory"}) == HostPathPlan("/srv/data/x", "Directory")
    assert volume_error(hostPath={"path": "/srv/database"}) == (
        "hostPath /srv/database is not allowed here: list the path, or a folder above it, "
        "in spec.local.hostPaths of the Cluster, or use up --host-path"
    )
    assert (
        volume_error(hostPath={"path": "/srv/data/../x"}) == "invalid HostPath `/srv/data/../x`: must not contain '..'"
    )


@pytest.mark.parametrize("kind", ["nfs", "csi", "ephemeral", "image"])
def test_unsupported_volume_type_is_rejected(kind: str) -> None:
    volume: dict[str, Any] = {kind: {}}
    assert volume_error(**volume).startswith(f"volumes of type {kind} are not supported here: use one of emptyDir, ")
    assert "HugePages" in volume_error(emptyDir={"medium": "HugePages"})


def test_volume_plans_are_keyed_by_name() -> None:
    of = pod(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "x"}}])
    with pytest.raises(VolumeError, match='volume "b"'):
        volume_plans(of, VolumeSources(NOTHING, token))
    assert volume_plans(pod(), VolumeSources(NOTHING, token)) == {}


def test_memory_volumes_are_listed_for_sandbox() -> None:
    plans: dict[str, VolumePlan] = {
        "a": EmptyDirPlan(),
        "b": EmptyDirPlan(True, 7),
        "c": VolumeFiles({}),
        "d": EmptyDirPlan(True),
    }
    assert memory_volumes(plans) == [{"volume": "b", "bytes": 7}, {"volume": "d", "bytes": None}]


def test_lies_below_compares_whole_path_segments() -> None:
    assert is_within_any("/a", ["/a"])
    assert is_within_any("/a/b", ["/x", "/a/"])
    assert is_within_any("/a", ["/"])
    assert not is_within_any("/ab", ["/a"])
    assert not is_within_any("/a", [])


CLAIM_UID = "00000000-0000-0000-0000-000000000001"
CLAIM_VOLUME = f"pvc-{CLAIM_UID}"


def claim_objects(
    volume_name: str = CLAIM_VOLUME, phase: str = "Bound", uid: str = CLAIM_UID, **spec: Any
) -> FixedObjects:
    """A claim and its volume; keywords replace the source of the volume."""
    claim_spec = {"volumeName": volume_name}
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "team", "uid": CLAIM_UID}}
    claim |= {"apiVersion": "v1", "spec": claim_spec, "status": {"phase": phase}}
    annotations = {"pv.kubernetes.io/provisioned-by": "batchyard.dev/folder"}
    source = spec or {"csi": {"driver": "batchyard.dev/folder", "volumeHandle": "/etc"}}
    stored = {"kind": "PersistentVolume", "metadata": {"name": volume_name, "annotations": annotations}}
    stored |= {"apiVersion": "v1", "spec": {"claimRef": {"uid": uid}, **source}}
    return FixedObjects(claim, stored)


def claim_plan(objects: FixedObjects, **source: Any) -> VolumePlan:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "c", **source}}
    return volume_plan(pod(), volume, VolumeSources(objects, token, ["/srv/data"], "/node/claims"))


def test_claim_is_a_folder_with_the_name_of_its_volume() -> None:
    plan = claim_plan(claim_objects(), readOnly=True)
    assert plan == HostPathPlan(f"/node/claims/{CLAIM_VOLUME}", "DirectoryOrCreate", is_read_only=True, mode=0o777)


@pytest.mark.parametrize(
    ("objects", "problem"),
    [
        (FixedObjects(), 'persistentvolumeclaim "c" not found'),
        (claim_objects(phase="Pending"), "PVC is not bound"),
        (claim_objects(uid="other"), "PVC is not bound"),
        (claim_objects("../../etc"), "is not supported here"),
        (claim_objects("pvc-x"), "is not supported here"),
        (claim_objects(hostPath={"path": "/etc"}), "hostPath /etc is not allowed here"),
        (claim_objects(local={"path": "/srv/data/../../etc"}), "must not contain '..'"),
    ],
)
def test_unusable_claims_are_reported(objects: FixedObjects, problem: str) -> None:
    with pytest.raises(VolumeError, match=re.escape(problem)):
        claim_plan(objects)
