"""The mounts of pod volumes in a container."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.volumes import EmptyDirPlan, HostPathPlan, Mount, VolumeFiles, VolumePlan, mounts_of
from unit.kubelet.local.local_make import container

PLANS: Mapping[str, VolumePlan] = {"cm": VolumeFiles({}), "data": EmptyDirPlan(), "disk": HostPathPlan("/srv/data")}

NO_RECURSION = 'volume "data" requested recursive read-only mode, but it is not supported by the runtime'


def mounts(*rows: Mapping[str, Any]) -> list[Mount]:
    """The mounts of a container with these volumeMounts."""
    return mounts_of(container(volumeMounts=list(rows)), {"POD": "pod-1", "EMPTY": ""}, PLANS)


def container_error(**row: Any) -> tuple[str, str]:
    with pytest.raises(ContainerError) as caught:
        mounts({"name": "data", "mountPath": "/data", **row})
    return caught.value.reason, caught.value.message


def test_volume_is_mounted_from_pod_folder() -> None:
    (mount,) = mounts({"name": "data", "mountPath": "data/"})
    assert mount.to_spec() == {"source": "volumes/data", "target": "/data", "readOnly": False}
    assert mount.to_spec("volumes/data/real")["source"] == "volumes/data/real"


def test_host_path_is_mounted_from_node() -> None:
    (mount,) = mounts({"name": "disk", "mountPath": "/d", "subPath": "a//b/", "mountPropagation": "Bidirectional"})
    assert mount.to_spec() == {"source": "/srv/data/a/b", "target": "/d", "readOnly": False}


def test_volume_files_are_read_only_and_others_as_requested() -> None:
    result = mounts({"name": "cm", "mountPath": "/a"}, {"name": "data", "mountPath": "/b", "readOnly": True})
    assert [mount.read_only for mount in result] == [True, True]


def test_sub_path_expression_expands_variables() -> None:
    (mount,) = mounts({"name": "data", "mountPath": "/data", "subPathExpr": "$(POD)/x"})
    assert (mount.sub_path, mount.source) == ("pod-1/x", "volumes/data/pod-1/x")
    (whole,) = mounts({"name": "data", "mountPath": "/data", "subPath": "."})
    assert whole.source == "volumes/data"


def test_outer_mounts_precede_inner_mounts() -> None:
    result = mounts(*({"name": "data", "mountPath": at} for at in ("/a/b/c", "/a", "/d/e")))
    assert [mount.target for mount in result] == ["/a", "/d/e", "/a/b/c"]


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"subPath": "/etc"}, "error SubPath `/etc` must not be an absolute path"),
        ({"subPath": "a/../../b"}, "unable to provision SubPath `a/../../b`: must not contain '..'"),
        ({"subPathExpr": "$(NO)/$(EMPTY)"}, "missing value for EMPTY, NO"),
        ({"name": "no"}, 'cannot find volume "no" to mount into container "main"'),
        ({"recursiveReadOnly": "Enabled"}, f"failed to resolve recursive read-only mode: {NO_RECURSION}"),
    ],
)
def test_invalid_mount_is_rejected(row: Mapping[str, Any], reported: str) -> None:
    assert container_error(**row) == ("CreateContainerConfigError", reported)
