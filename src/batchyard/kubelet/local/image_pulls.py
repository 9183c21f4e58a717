"""The image of a container that a container engine has or pulls: when it is asked for, and what is said meanwhile.

It is looked for before each start, as the policy says. What fails is tried again later and later: 10 s, doubled up to 5
minutes. Sources: pkg/kubelet/images/image_manager.go; pkg/kubelet/kubelet.go (imageBackOffPeriod, MaxImageBackOff);
pkg/credentialprovider/secrets.
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
from batchyard.kubelet.local.container_status import UNKNOWN, Trouble
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.images import ERR_IMAGE_NEVER_PULL, ERR_IMAGE_PULL, ImageRow, backing_off, reference
from batchyard.kubelet.local.pod_actions import Start
from batchyard.kubelet.local.runs import Run, image_wish

_BACKOFF_MIN: Final = 10 * SECOND
_BACKOFF_MAX: Final = 5 * MINUTE
_DOUBLINGS_MAX: Final = 8
#: How long it is told why a pull failed, before it is told that the next one waits.
_TOLD: Final = SECOND
#: Under which secrets of types kubernetes.io/dockerconfigjson and kubernetes.io/dockercfg have what they say.
_KEYS: Final = (".dockerconfigjson", ".dockercfg")


class Waits(NamedTuple):
    """An image that is not there yet: what is said, and when to look again; None: when something is told."""

    trouble: Trouble | None
    until: Instant | None = None


class Ask(NamedTuple):
    """An image that is to be looked for: the how manyth time, and how often that failed for this start."""

    number: int
    failures: int


class Sources(NamedTuple):
    """What a wish for an image rests on beside its pod."""

    reader: Reader
    #: How many bytes unpacked images may take that no container uses.
    cache_bytes: int


def image_of(start: Start, now: Instant) -> Mapping[str, Any] | Waits | Ask:
    """What an image is that is there, as its engine tells it; or what there is to do, or to wait for."""
    container = start.container
    last = container.images[-1] if container.images else None
    if last is None or last.attempt != start.attempt:
        return Ask(_number(last) + 1, 0)
    if last.is_alive:
        return Waits(told_before(container.told))
    if last.exit_code == 0:
        found: Mapping[str, Any] = last.status["image"]
        return found
    return _after_failure(last, now)


def wish_for(pod: Obj, start: Start, row: ImageRow, ask: Ask, sources: Sources) -> Obj:
    """The wish that an image be there."""
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
    return image_wish(pod, spec)


def effective_policy(policy: str, row: ImageRow) -> str:
    """The pull policy; if another image stands for the pod's, `Always` is its own default, not that of the pod's."""
    return pull_policy(row.image) if policy == "Always" and row.image else policy


def credentials(pod: Obj, reader: Reader) -> dict[str, Any]:
    """The pod's secrets for registries, as engines read them; empty for none. One that is not there is left out."""
    found: dict[str, Any] = {}
    for named in pod["spec"].get("imagePullSecrets") or ():
        secret = find_secret(reader, pod["metadata"]["namespace"], named.get("name") or "")
        texts = {} if secret is None else secret.texts
        for key in _KEYS:
            for host, entry in _entries(texts.get(key, "")).items():
                found.setdefault(host, entry)
    return {"auths": found} if found else {}


def _entries(text: str) -> dict[str, Any]:
    """The registries of a secret, and what to say to each."""
    try:
        said = json.loads(text or "{}")
        entries = said.get("auths", said) if isinstance(said, dict) else {}
        return {host: {"auth": _auth(entry)} for host, entry in entries.items()}
    except (ValueError, AttributeError, binascii.Error):
        return {}


def _auth(entry: Mapping[str, Any]) -> str:
    plain = f"{entry.get('username', '')}:{entry.get('password', '')}"
    return entry.get("auth") or base64.b64encode(plain.encode()).decode()


def _after_failure(last: Run, now: Instant) -> Waits | Ask:
    failures = int(last.obj["spec"]["failures"])
    again = Ask(_number(last) + 1, failures + 1)
    wait = min(_BACKOFF_MIN << min(failures, _DOUBLINGS_MAX), _BACKOFF_MAX)
    reason = last.status.get("reason") or ERR_IMAGE_PULL
    error = ContainerError(ERR_IMAGE_PULL if reason == UNKNOWN else reason, last.status.get("message") or "")
    if reason == ERR_IMAGE_NEVER_PULL:
        wait = _BACKOFF_MIN
    elif now >= last.ended_at + _TOLD:
        error = backing_off(str(last.obj["spec"]["image"]), error)
    if now >= last.ended_at + wait:
        return again
    until = last.ended_at + (_TOLD if error.reason == ERR_IMAGE_PULL else wait)
    return Waits(Trouble(error.reason, error.message), until)


def told_before(told: Mapping[str, Any]) -> Trouble | None:
    """What was said when it was tried before: that goes on being said until this try has ended."""
    waiting = (told.get("state") or {}).get("waiting") or {}
    is_about_image = "Image" in waiting.get("reason", "")
    return Trouble(waiting["reason"], waiting.get("message", "")) if is_about_image else None


def _number(last: Run | None) -> int:
    return -1 if last is None else int(last.obj["spec"]["number"])
