"""Where a container has the volumes of its pod."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.volumes import EmptyDirPlan, HostPathPlan, Mount, Plan, VolumeFiles, mounts_of
from unit.kubelet.local.local_make import container

PLANS: Mapping[str, Plan] = {"cm": VolumeFiles({}), "data": EmptyDirPlan(), "disk": HostPathPlan("/srv/data")}

NO_RECURSION = 'volume "data" requested recursive read-only mode, but it is not supported by the runtime'


def mounts(*rows: Mapping[str, Any]) -> list[Mount]:
    """The mounts of a container that has these."""
    return mounts_of(container(volumeMounts=list(rows)), {"POD": "pod-1", "EMPTY": ""}, PLANS)


def refused(**row: Any) -> tuple[str, str]:
    with pytest.raises(ContainerError) as caught:
        mounts({"name": "data", "mountPath": "/data", **row})
    return caught.value.reason, caught.value.message


def test_a_volume_is_mounted_from_the_folder_of_the_pod() -> None:
    (mount,) = mounts({"name": "data", "mountPath": "data/"})
    assert mount.row() == {"source": "volumes/data", "target": "/data", "readOnly": False}
    assert mount.row("volumes/data/real")["source"] == "volumes/data/real"


def test_what_is_the_machines_is_mounted_from_there() -> None:
    (mount,) = mounts({"name": "disk", "mountPath": "/d", "subPath": "a//b/", "mountPropagation": "Bidirectional"})
    assert mount.row() == {"source": "/srv/data/a/b", "target": "/d", "readOnly": False}


def test_files_are_never_written_the_rest_where_that_is_said() -> None:
    found = mounts({"name": "cm", "mountPath": "/a"}, {"name": "data", "mountPath": "/b", "readOnly": True})
    assert [mount.read_only for mount in found] == [True, True]


def test_a_part_of_a_volume_may_be_named_by_variables() -> None:
    (mount,) = mounts({"name": "data", "mountPath": "/data", "subPathExpr": "$(POD)/x"})
    assert (mount.sub_path, mount.source) == ("pod-1/x", "volumes/data/pod-1/x")
    (whole,) = mounts({"name": "data", "mountPath": "/data", "subPath": "."})
    assert whole.source == "volumes/data"


def test_outer_mounts_come_before_inner_ones() -> None:
    found = mounts(*({"name": "data", "mountPath": at} for at in ("/a/b/c", "/a", "/d/e")))
    assert [mount.target for mount in found] == ["/a", "/d/e", "/a/b/c"]


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"subPath": "/etc"}, "error SubPath `/etc` must not be an absolute path"),
        ({"subPath": "a/../../b"}, "unable to provision SubPath `a/../../b`: must not contain '..'"),
        ({"subPathExpr": "$(NO)/$(EMPTY)"}, "missing value for EMPTY, NO"),
        ({"name": "no"}, 'cannot find volume "no" to mount into container "main"'),
        (
            {"recursiveReadOnly": "Enabled"},
            f"failed to resolve recursive read-only mode: {NO_RECURSION}",
        ),
    ],
)
def test_what_cannot_be_mounted_is_told(row: Mapping[str, Any], reported: str) -> None:
    assert refused(**row) == ("CreateContainerConfigError", reported)
