"""Image names, the replacement of images by files of this machine, and image pulls by a container engine.

A mapped image is not pulled, so `imagePullPolicy` does not apply to it. Sources: pkg/kubelet/images/image_manager.go;
pkg/util/parsers; github.com/distribution/reference (the syntax of names, and their short form).
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.schema.scalars import default_pull_policy
from batchyard.base.instant import MINUTE, SECOND, Instant, exponential_backoff
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import ContainerError, find_secret, quote_like_go
from batchyard.kubelet.local.pod_actions import ContainerStart
from batchyard.kubelet.local.runs import ObservedRun, image_run_request
from batchyard.kubelet.local.status import LOST_REASON, StartProblem

ERR_IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
ERR_IMAGE_PULL: Final = "ErrImagePull"
IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
INVALID_IMAGE_NAME: Final = "InvalidImageName"

_NAME_COMPONENT: Final = r"[a-zA-Z0-9]+(?:(?:\.|_|__|-+)[a-zA-Z0-9]+)*"
_NAME: Final = rf"(?:[a-zA-Z0-9.:\[\]-]+/)?{_NAME_COMPONENT}(?:/{_NAME_COMPONENT})*"
_REFERENCE: Final = re.compile(
    rf"(?P<name>{_NAME})(?::(?P<tag>[\w][\w.-]{{0,127}}))?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
_DEFAULT_HOSTS: Final = ("docker.io/", "index.docker.io/")


class ImageMapping(NamedTuple):
    """A configured replacement of images by a Python environment, a root filesystem, the machine, or another image."""

    #: A glob for the image's name, as written or in its short form; `*` also matches `/`.
    match: str
    #: The directory of a virtual environment.
    environment: str = ""
    #: The directory of a root filesystem.
    root: str = ""
    #: Whether containers see the machine's own programs, unchanged.
    machine: bool = False
    #: The machine's directory that containers see and use as their working directory; '' for none.
    working_dir: str = ""
    #: The container engine that provides the image; '' for none.
    engine: str = ""
    #: The image to request from the engine instead; '' for the same.
    image: str = ""

    def image_field(self, image: str) -> dict[str, Any]:
        """Return the field `image` of a container's Run spec: what replaces the image with the name `image`.

        This mapping must replace the image by files of this machine, not by another image.
        """
        if self.environment:
            return {"name": image, "environment": self.environment}
        return {"name": image, "root": self.root} if self.root else {"name": image, "machine": True}


def parse_image_mapping(fields: Mapping[str, Any]) -> ImageMapping:
    """Return the image replacement configured in a validated row of `spec.local.images` of a Cluster object."""
    return ImageMapping(
        fields["match"],
        fields.get("environment") or "",
        fields.get("root") or "",
        fields.get("machine") or False,
        fields.get("workingDir") or "",
        fields.get("engine") or "",
        fields.get("image") or "",
    )


def find_image_mapping(image: str, mappings: Sequence[ImageMapping], engines: Sequence[str] = ()) -> ImageMapping:
    """Return the first configured replacement that matches an image, else a mapping to the default engine.

    Raises ContainerError if the image name is invalid, or if neither a replacement nor a usable engine provides the
    image.
    """
    _reject_invalid(image)
    default_engine = engines[0] if engines else ""
    mapping = next(
        (mapping for mapping in mappings if matches_image(image, mapping.match)),
        ImageMapping(image, engine=default_engine),
    )
    if mapping.engine and mapping.engine not in engines:
        raise ContainerError(
            ERR_IMAGE_PULL,
            f"image {quote_like_go(image)} is mapped to {mapping.engine}, which is not usable on this node:"
            f" install {mapping.engine}, or change --image or spec.local.images of the Cluster",
        )
    if mapping.engine or mapping.environment or mapping.root or mapping.machine:
        return mapping
    raise ContainerError(ERR_IMAGE_PULL, not_mapped_message(image))


def full_image_reference(image: str) -> str:
    """Return the full reference of an image: `docker.io/`, `library/` and the tag `latest` are added where missing."""
    host, slash, _ = image.partition("/")
    has_host = bool(slash) and (host == "localhost" or "." in host or ":" in host)
    with_host = image if has_host else f"docker.io/{image if slash else f'library/{image}'}"
    return with_host if "@" in with_host or ":" in with_host.rpartition("/")[2] else f"{with_host}:latest"


def matches_image(image: str, pattern: str) -> bool:
    """Return whether an image name matches a glob; `python` also matches `docker.io/library/python:latest`."""
    return fnmatchcase(image, pattern) or fnmatchcase(short_name(image), short_name(pattern))


def short_name(image: str) -> str:
    """Return an image name without the default registry host, its `library/`, and the tag `latest`."""
    name = image
    for host in _DEFAULT_HOSTS:
        if name.startswith(host):
            name = name.removeprefix(host).removeprefix("library/")
            break
    return name.removesuffix(":latest")


def not_mapped_message(image: str) -> str:
    """Return the error message for an image that is not configured and that no container engine can provide."""
    return (
        f"no container engine can pull image {quote_like_go(image)}:"
        f" map it with --image '{image}=DIRECTORY' or in spec.local.images of the Cluster, or install podman or docker"
    )


def image_pull_back_off_error(image: str, error: ContainerError) -> ContainerError:
    """Return the ImagePullBackOff error for a delayed image pull; `error` is the failure of the previous pull."""
    message = f"Back-off pulling image {quote_like_go(image)}: {error.reason}: {error.message}"
    return ContainerError(IMAGE_PULL_BACK_OFF, message)


def _reject_invalid(image: str) -> None:
    match = _REFERENCE.fullmatch(image)
    error = "" if match is not None else "invalid reference format"
    if match is not None and (repository := _repository_with_uppercase(match["name"])):
        error = f"invalid reference format: repository name ({repository}) must be lowercase"
    if error:
        reason = f"couldn't parse image name {quote_like_go(image)}: {error}"
        raise ContainerError(INVALID_IMAGE_NAME, f"Failed to apply default image tag {quote_like_go(image)}: {reason}")


def _repository_with_uppercase(name: str) -> str:
    """Return an image name's repository part if it has uppercase letters, which are invalid outside the host, or ''."""
    host, slash, path = name.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host or host != host.lower()):
        repository = path
    else:
        repository = name if slash else f"library/{name}"
    return "" if repository == repository.lower() else repository


# Requests for image pulls by a container engine, and the status of containers that wait for an image.
#
# Before each container start, the pull policy decides whether to pull. Failed pulls are retried with exponential
# backoff: 10 s, doubled up to 5 minutes. Sources: pkg/kubelet/images/image_manager.go; pkg/kubelet/kubelet.go
# (imageBackOffPeriod, MaxImageBackOff); pkg/credentialprovider/secrets.


_BACKOFF_MIN: Final = 10 * SECOND
_BACKOFF_MAX: Final = 5 * MINUTE
#: How long a failed pull is reported as ErrImagePull before it is reported as ImagePullBackOff.
_ERROR_REPORT_TIME: Final = SECOND
#: The data keys of Secrets of types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg.
_PULL_SECRET_KEYS: Final = (".dockerconfigjson", ".dockercfg")


class ImageWait(NamedTuple):
    """A container start that must wait: the problem to report, if any, and when to check again, if known."""

    problem: StartProblem | None
    check_at: Instant | None = None


class ImageRequest(NamedTuple):
    """An image pull to start: its number, and how many pulls failed before for the same container start."""

    pull_number: int
    failed_pulls: int


class ImageSources(NamedTuple):
    """What an image pull needs besides its pod: an object reader, and the size limit of the image cache."""

    reader: Reader
    #: The size limit of all unpacked images, in bytes; images in use are kept even above the limit.
    cache_bytes: int


def resolve_pulled_image(start: ContainerStart, now: Instant) -> Mapping[str, Any] | ImageWait | ImageRequest:
    """Return a container's image metadata, or the pull to start, or an ImageWait while a pull runs or is delayed."""
    container = start.container
    last_pull = container.images[-1] if container.images else None
    if last_pull is None or last_pull.attempt != start.attempt:
        return ImageRequest(_last_pull_number(last_pull) + 1, 0)
    if last_pull.is_alive:
        return ImageWait(previous_image_problem(container.status))
    if last_pull.exit_code == 0:
        metadata: Mapping[str, Any] = last_pull.status["image"]
        return metadata
    return _retry_after_failure(last_pull, now)


def image_pull_request(
    pod: Obj, start: ContainerStart, mapping: ImageMapping, pull_request: ImageRequest, sources: ImageSources
) -> Obj:
    """Return the Run object that requests the pull of a container's image."""
    name: str = start.container.spec.get("image") or ""
    spec = {
        "kind": "image",
        "for": start.container.name,
        "number": pull_request.pull_number,
        "attempt": start.attempt,
        "sandbox": start.container.sandbox_number,
        "failures": pull_request.failed_pulls,
        "image": name,
        "engine": mapping.engine,
        "cacheBytes": sources.cache_bytes,
        "named": mapping.image or name,
        "reference": full_image_reference(mapping.image or name),
        "policy": effective_pull_policy(start.container.spec.get("imagePullPolicy") or "IfNotPresent", mapping),
        "workingDir": start.container.spec.get("workingDir") or "",
        "auth": registry_credentials(pod, sources.reader),
    }
    return image_run_request(pod, spec)


def effective_pull_policy(policy: str, mapping: ImageMapping) -> str:
    """Return `policy`; if another image replaces the container's, `Always` becomes that image's default policy."""
    return default_pull_policy(mapping.image) if policy == "Always" and mapping.image else policy


def registry_credentials(pod: Obj, reader: Reader) -> dict[str, Any]:
    """Return the registry credentials of a pod's imagePullSecrets, in docker's config format; empty for none."""
    auths: dict[str, Any] = {}
    for secret_reference in pod["spec"].get("imagePullSecrets") or ():
        secret = find_secret(reader, pod["metadata"]["namespace"], secret_reference.get("name") or "")
        secret_values = {} if secret is None else secret.variable_values
        for key in _PULL_SECRET_KEYS:
            for host, entry in _parse_pull_secret(secret_values.get(key, "")).items():
                auths.setdefault(host, entry)
    return {"auths": auths} if auths else {}


def _parse_pull_secret(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
        entries_by_host = document.get("auths", document) if isinstance(document, dict) else {}
        return {host: {"auth": _basic_auth(entry)} for host, entry in entries_by_host.items()}
    except (ValueError, AttributeError, binascii.Error):
        return {}


def _basic_auth(registry_entry: Mapping[str, Any]) -> str:
    user_and_password = f"{registry_entry.get('username', '')}:{registry_entry.get('password', '')}"
    return registry_entry.get("auth") or base64.b64encode(user_and_password.encode()).decode()


def _retry_after_failure(last_pull: ObservedRun, now: Instant) -> ImageWait | ImageRequest:
    failed_pulls = int(last_pull.obj["spec"]["failures"])
    next_request = ImageRequest(_last_pull_number(last_pull) + 1, failed_pulls + 1)
    backoff = exponential_backoff(_BACKOFF_MIN, _BACKOFF_MAX, failed_pulls + 1)
    reason = last_pull.status.get("reason") or ERR_IMAGE_PULL
    error = ContainerError(ERR_IMAGE_PULL if reason == LOST_REASON else reason, last_pull.status.get("message") or "")
    if reason == ERR_IMAGE_NEVER_PULL:
        backoff = _BACKOFF_MIN
    elif now >= last_pull.ended_at + _ERROR_REPORT_TIME:
        error = image_pull_back_off_error(str(last_pull.obj["spec"]["image"]), error)
    if now >= last_pull.ended_at + backoff:
        return next_request
    end_time = last_pull.ended_at + (_ERROR_REPORT_TIME if error.reason == ERR_IMAGE_PULL else backoff)
    return ImageWait(StartProblem(error.reason, error.message), end_time)


def previous_image_problem(reported_status: Mapping[str, Any]) -> StartProblem | None:
    """Return the image problem in a container's reported status, or None."""
    waiting_state = (reported_status.get("state") or {}).get("waiting") or {}
    is_about_image = "Image" in waiting_state.get("reason", "")
    return StartProblem(waiting_state["reason"], waiting_state.get("message", "")) if is_about_image else None


def _last_pull_number(last_pull: ObservedRun | None) -> int:
    return -1 if last_pull is None else int(last_pull.obj["spec"]["number"])
