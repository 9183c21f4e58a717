"""Image mapping: a configured environment of this machine, or else the image itself from a container engine.

A mapped image is not pulled, so `imagePullPolicy` does not apply to it. Sources: pkg/kubelet/images/image_manager.go;
pkg/util/parsers; github.com/distribution/reference (the syntax of names, and their short form).
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from batchyard.kubelet.local.errors import ContainerError, quoted

ERR_IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
ERR_IMAGE_PULL: Final = "ErrImagePull"
IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
INVALID_IMAGE_NAME: Final = "InvalidImageName"

_PART: Final = r"[a-zA-Z0-9]+(?:(?:\.|_|__|-+)[a-zA-Z0-9]+)*"
_NAME: Final = rf"(?:[a-zA-Z0-9.:\[\]-]+/)?{_PART}(?:/{_PART})*"
_REFERENCE: Final = re.compile(
    rf"(?P<name>{_NAME})(?::(?P<tag>[\w][\w.-]{{0,127}}))?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
_DEFAULT_HOSTS: Final = ("docker.io/", "index.docker.io/")


class ImageRow(NamedTuple):
    """A mapping for all images whose name matches: to an environment, a root, the machine or an engine."""

    #: A glob over the image's name, as written or in its short form (`*` also covers `/`).
    match: str
    #: The directory of a virtual environment.
    environment: str = ""
    #: The directory of a root filesystem.
    root: str = ""
    #: The machine itself, unchanged.
    machine: bool = False
    #: The machine's directory that containers see and use as their working directory; '' for none.
    working_dir: str = ""
    #: The container engine that provides the image; '' for none.
    engine: str = ""
    #: The image to request from the engine instead; '' for the same.
    image: str = ""

    def place(self, image: str) -> dict[str, Any]:
        """Return the mapped image in the format of a run's spec."""
        if self.environment:
            return {"name": image, "environment": self.environment}
        return {"name": image, "root": self.root} if self.root else {"name": image, "machine": True}


def image_row(fields: Mapping[str, Any]) -> ImageRow:
    """Return a mapping from a validated row of a Cluster."""
    return ImageRow(
        fields["match"],
        fields.get("environment") or "",
        fields.get("root") or "",
        fields.get("machine") or False,
        fields.get("workingDir") or "",
        fields.get("engine") or "",
        fields.get("image") or "",
    )


def find_row(image: str, rows: Sequence[ImageRow], engines: Sequence[str] = ()) -> ImageRow:
    """Return the first row that matches, else the first usable engine; ContainerError if there is none."""
    _refuse_invalid(image)
    first = engines[0] if engines else ""
    row = next((row for row in rows if matches(image, row.match)), ImageRow(image, engine=first))
    if row.engine and row.engine not in engines:
        raise ContainerError(
            ERR_IMAGE_PULL, f"image {quoted(image)} comes from {row.engine}, which is not usable on this node"
        )
    if row.engine or row.environment or row.root or row.machine:
        return row
    raise ContainerError(ERR_IMAGE_PULL, not_mapped(image))


def reference(image: str) -> str:
    """Return the full reference to pull: with the default host if none is named, and a tag or digest."""
    host, slash, _ = image.partition("/")
    has_host = bool(slash) and (host == "localhost" or "." in host or ":" in host)
    whole = image if has_host else f"docker.io/{image if slash else f'library/{image}'}"
    return whole if "@" in whole or ":" in whole.rpartition("/")[2] else f"{whole}:latest"


def matches(image: str, pattern: str) -> bool:
    """Whether a glob matches an image. `python` and `docker.io/library/python:latest` match each other."""
    return fnmatchcase(image, pattern) or fnmatchcase(short_name(image), short_name(pattern))


def short_name(image: str) -> str:
    """Return a name without its defaults: the default host, its `library/`, the tag `latest`."""
    name = image
    for host in _DEFAULT_HOSTS:
        if name.startswith(host):
            name = name.removeprefix(host).removeprefix("library/")
            break
    return name.removesuffix(":latest")


def not_mapped(image: str) -> str:
    """Return the message for an image that is neither mapped nor available from an engine."""
    return (
        f"no container engine can pull image {quoted(image)}:"
        f" map it with --image '{image}=DIRECTORY' or in spec.local.images of the Cluster, or install podman or docker"
    )


def backing_off(image: str, error: ContainerError) -> ContainerError:
    """Return the error that is reported while the pull backs off after `error`."""
    return ContainerError(
        IMAGE_PULL_BACK_OFF, f"Back-off pulling image {quoted(image)}: {error.reason}: {error.message}"
    )


def _refuse_invalid(image: str) -> None:
    match = _REFERENCE.fullmatch(image)
    why = "" if match is not None else "invalid reference format"
    if match is not None and (capital := _capital_repository(match["name"])):
        why = f"invalid reference format: repository name ({capital}) must be lowercase"
    if why:
        reason = f"couldn't parse image name {quoted(image)}: {why}"
        raise ContainerError(INVALID_IMAGE_NAME, f"Failed to apply default image tag {quoted(image)}: {reason}")


def _capital_repository(name: str) -> str:
    """Return the repository of a name if it has capitals; only the host part may have some."""
    host, slash, rest = name.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host or host != host.lower()):
        repository = rest
    else:
        repository = name if slash else f"library/{name}"
    return "" if repository == repository.lower() else repository
