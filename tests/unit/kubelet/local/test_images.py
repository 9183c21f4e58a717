"""The image rows that map images to environments of the node."""

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import (
    ImageMapping,
    find_image_mapping,
    image_pull_back_off_error,
    matches_image,
    parse_image_mapping,
)

ROWS = [
    ImageMapping("python:3.*", environment="/venvs/python"),
    ImageMapping("registry.example.com/*", root="/images/ours"),
    ImageMapping("busybox", machine=True),
]


def container_error(image: str) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        find_image_mapping(image, ROWS)
    return caught.value


def test_image_row_is_read_from_cluster() -> None:
    assert parse_image_mapping({"match": "a", "root": "/r"}) == ImageMapping("a", root="/r")
    assert parse_image_mapping({"match": "a", "machine": True, "root": ""}) == ImageMapping("a", machine=True)
    assert parse_image_mapping({"match": "a", "environment": "/e", "workingDir": "/w"}) == ImageMapping(
        "a", "/e", working_dir="/w"
    )


def test_first_matching_row_provides_image() -> None:
    assert find_image_mapping("python:3.11", ROWS).image_field("python:3.11") == {
        "name": "python:3.11",
        "environment": "/venvs/python",
    }
    name = "registry.example.com/team/train@sha256:" + "a" * 64
    assert find_image_mapping(name, ROWS).image_field(name) == {"name": name, "root": "/images/ours"}
    assert find_image_mapping("busybox", ROWS).image_field("busybox") == {"name": "busybox", "machine": True}
    assert find_image_mapping("busybox", [ImageMapping("*", root="/first"), *ROWS]).root == "/first"


@pytest.mark.parametrize(
    "image", ["busybox", "busybox:latest", "docker.io/library/busybox", "docker.io/busybox:latest"]
)
@pytest.mark.parametrize("pattern", ["busybox", "docker.io/library/busybox:latest", "busy*", "index.docker.io/busybox"])
def test_matching_normalizes_image_names(image: str, pattern: str) -> None:
    assert matches_image(image, pattern)


@pytest.mark.parametrize("image", ["busybox:1.36", "quay.io/busybox", "library/busybox", "Busybox"])
def test_different_images_do_not_match(image: str) -> None:
    assert not matches_image(image, "busybox")


def test_image_without_row_or_engine_is_not_pulled() -> None:
    error = container_error("train:1")
    assert error.reason == "ErrImagePull"
    assert error.message == (
        'no container engine can pull image "train:1":'
        " map it with --image 'train:1=DIRECTORY' or in spec.local.images of the Cluster, or install podman or docker"
    )
    waiting = image_pull_back_off_error("train:1", error)
    assert waiting.reason == "ImagePullBackOff"
    assert waiting.message == f'Back-off pulling image "train:1": ErrImagePull: {error.message}'


@pytest.mark.parametrize(
    ("image", "why"),
    [
        ("a b", "invalid reference format"),
        ("", "invalid reference format"),
        ("python:", "invalid reference format"),
        ("Python", "invalid reference format: repository name (library/Python) must be lowercase"),
        ("quay.io/Team/x:Tag", "invalid reference format: repository name (Team/x) must be lowercase"),
    ],
)
def test_invalid_image_name_is_rejected(image: str, why: str) -> None:
    error = container_error(image)
    assert error.reason == "InvalidImageName"
    parsed = f'couldn\'t parse image name "{image}": {why}'
    assert error.message == f'Failed to apply default image tag "{image}": {parsed}'


@pytest.mark.parametrize("image", ["localhost:5000/a/b:T-1", "a/b_c/d--e", "Host.io/a", "a@sha256:" + "0" * 64])
def test_valid_image_names_are_accepted(image: str) -> None:
    assert container_error(image).reason == "ErrImagePull"
