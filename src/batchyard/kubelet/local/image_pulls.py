"""Image pulls through container engines: when a pull is requested, and the container status meanwhile.

The image is checked before each start according to the pull policy. Failed pulls are retried with exponential backoff:
10 s, doubled up to 5 minutes. Sources: pkg/kubelet/images/image_manager.go; pkg/kubelet/kubelet.go (imageBackOffPeriod,
MaxImageBackOff); pkg/credentialprovider/secrets.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.schema.computed import pull_policy
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.configs import find_secret
from batchyard.kubelet.local.container_status import UNKNOWN, StartProblem
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import ERR_IMAGE_NEVER_PULL, ERR_IMAGE_PULL, ImageRow, backing_off, reference
from batchyard.kubelet.local.pod_actions import ContainerStart
from batchyard.kubelet.local.runs import ObservedRun, image_run_request

_BACKOFF_MIN: Final = 10 * SECOND
_BACKOFF_MAX: Final = 5 * MINUTE
_DOUBLINGS_MAX: Final = 8
#: How long ErrImagePull is reported before ImagePullBackOff.
_ERROR_REPORTED_FOR: Final = SECOND
#: The data keys of Secrets of types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg.
_KEYS: Final = (".dockerconfigjson", ".dockercfg")


class ImageWait(NamedTuple):
    """A missing image: the reported reason, and when to check again; None means on the next change."""

    trouble: StartProblem | None
    until: Instant | None = None


class ImageRequest(NamedTuple):
    """An image that should be requested: the number of the request, and the failures so far for this start."""

    number: int
    failures: int


class ImageSources(NamedTuple):
    """The inputs of an image request beside its pod."""

    reader: Reader
    #: The size limit in bytes of unpacked images that no container uses.
    cache_bytes: int


def image_of(start: ContainerStart, now: Instant) -> Mapping[str, Any] | ImageWait | ImageRequest:
    """Return a present image's metadata as the engine reports it, or what to wait for or request."""
    container = start.container
    last = container.images[-1] if container.images else None
    if last is None or last.attempt != start.attempt:
        return ImageRequest(_number(last) + 1, 0)
    if last.is_alive:
        return ImageWait(previous_image_trouble(container.reported))
    if last.exit_code == 0:
        found: Mapping[str, Any] = last.status["image"]
        return found
    return _after_failure(last, now)


def image_pull_request(pod: Obj, start: ContainerStart, row: ImageRow, ask: ImageRequest, sources: ImageSources) -> Obj:
    """Return the run request for an image pull."""
    name: str = start.container.spec.get("image") or ""
    spec = {
        "kind": "image",
        "for": start.container.name,
        "number": ask.number,
        "attempt": start.attempt,
        "sandbox": start.container.sandbox,
        "failures": ask.failures,
        "image": name,
        "engine": row.engine,
        "cacheBytes": sources.cache_bytes,
        "named": row.image or name,
        "reference": reference(row.image or name),
        "policy": effective_policy(start.container.spec.get("imagePullPolicy") or "IfNotPresent", row),
        "workingDir": start.container.spec.get("workingDir") or "",
        "auth": credentials(pod, sources.reader),
    }
    return image_run_request(pod, spec)


def effective_policy(policy: str, row: ImageRow) -> str:
    """Return the pull policy; for a replaced image `Always` means that image's default policy."""
    return pull_policy(row.image) if policy == "Always" and row.image else policy


def credentials(pod: Obj, reader: Reader) -> dict[str, Any]:
    """Return the pod's registry credentials in the engines' format; empty for none. Missing Secrets are skipped."""
    found: dict[str, Any] = {}
    for named in pod["spec"].get("imagePullSecrets") or ():
        secret = find_secret(reader, pod["metadata"]["namespace"], named.get("name") or "")
        texts = {} if secret is None else secret.texts
        for key in _KEYS:
            for host, entry in _entries(texts.get(key, "")).items():
                found.setdefault(host, entry)
    return {"auths": found} if found else {}


def _entries(text: str) -> dict[str, Any]:
    """Return the registries of a Secret with their credentials."""
    try:
        document = json.loads(text or "{}")
        entries = document.get("auths", document) if isinstance(document, dict) else {}
        return {host: {"auth": _auth(entry)} for host, entry in entries.items()}
    except (ValueError, AttributeError, binascii.Error):
        return {}


def _auth(entry: Mapping[str, Any]) -> str:
    plain = f"{entry.get('username', '')}:{entry.get('password', '')}"
    return entry.get("auth") or base64.b64encode(plain.encode()).decode()


def _after_failure(last: ObservedRun, now: Instant) -> ImageWait | ImageRequest:
    failures = int(last.obj["spec"]["failures"])
    again = ImageRequest(_number(last) + 1, failures + 1)
    wait = min(_BACKOFF_MIN << min(failures, _DOUBLINGS_MAX), _BACKOFF_MAX)
    reason = last.status.get("reason") or ERR_IMAGE_PULL
    error = ContainerError(ERR_IMAGE_PULL if reason == UNKNOWN else reason, last.status.get("message") or "")
    if reason == ERR_IMAGE_NEVER_PULL:
        wait = _BACKOFF_MIN
    elif now >= last.ended_at + _ERROR_REPORTED_FOR:
        error = backing_off(str(last.obj["spec"]["image"]), error)
    if now >= last.ended_at + wait:
        return again
    until = last.ended_at + (_ERROR_REPORTED_FOR if error.reason == ERR_IMAGE_PULL else wait)
    return ImageWait(StartProblem(error.reason, error.message), until)


def previous_image_trouble(reported: Mapping[str, Any]) -> StartProblem | None:
    """Return the reason reported for the previous attempt; it stays until this attempt ends."""
    waiting = (reported.get("state") or {}).get("waiting") or {}
    is_about_image = "Image" in waiting.get("reason", "")
    return StartProblem(waiting["reason"], waiting.get("message", "")) if is_about_image else None


def _number(last: ObservedRun | None) -> int:
    return -1 if last is None else int(last.obj["spec"]["number"])
