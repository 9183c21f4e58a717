"""The Pod Security policy of a namespace, from its labels.

Source: k8s.io/pod-security-admission, api/{constants,helpers}.go. The defaults are those of a cluster without a
PodSecurityConfiguration: every mode is `privileged:latest`.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from batchyard.api.errors import FieldError

PREFIX: Final = "pod-security.kubernetes.io/"
PRIVILEGED: Final = "privileged"
BASELINE: Final = "baseline"
RESTRICTED: Final = "restricted"
#: From the most permissive to the strictest.
LEVELS: Final = (PRIVILEGED, BASELINE, RESTRICTED)
_LATEST: Final = "latest"
_ENFORCE, _AUDIT, _WARN = "enforce", "audit", "warn"
_VERSION: Final = re.compile(r"v1\.(0|[1-9][0-9]{0,18})")
_INT64_MAX: Final = 2**63 - 1


class LevelVersion(NamedTuple):
    """A level, and the minor version of Kubernetes whose checks apply."""

    level: str = PRIVILEGED
    #: None: the latest version.
    minor: int | None = None

    def __str__(self) -> str:
        """`restricted:v1.25`, `baseline:latest`."""
        return f"{self.level}:{_LATEST if self.minor is None else f'v1.{self.minor}'}"

    @property
    def strictness(self) -> int:
        """The position of the level among all levels."""
        return LEVELS.index(self.level)


class PodSecurityPolicy(NamedTuple):
    """The level and version of each mode."""

    enforce: LevelVersion = LevelVersion()
    audit: LevelVersion = LevelVersion()
    warn: LevelVersion = LevelVersion()

    @property
    def is_privileged(self) -> bool:
        """Whether no mode checks anything."""
        return all(mode.level == PRIVILEGED for mode in self)


def namespace_policy(labels: Mapping[str, str]) -> PodSecurityPolicy:
    """Return the policy that labels set. An invalid level means `restricted` for enforce, else `privileged`.

    An invalid version means the latest. Without a warn level, the enforce level also warns.
    """
    if not any(label.startswith(PREFIX) for label in labels):
        return PodSecurityPolicy()
    enforce = LevelVersion(_level(labels, _ENFORCE, RESTRICTED), _minor(labels, _ENFORCE))
    audit = LevelVersion(_level(labels, _AUDIT, PRIVILEGED), _minor(labels, _AUDIT))
    warn = LevelVersion(_level(labels, _WARN, PRIVILEGED), _minor(labels, _WARN))
    is_enforced = labels.get(PREFIX + _ENFORCE) in LEVELS
    if PREFIX + _WARN not in labels and is_enforced and enforce.strictness > warn.strictness:
        has_version = f"{PREFIX}{_WARN}-version" in labels
        warn = LevelVersion(enforce.level, warn.minor if has_version else enforce.minor)
    return PodSecurityPolicy(enforce, audit, warn)


def label_faults(labels: Mapping[str, str]) -> list[FieldError]:
    """Return the faults of policy labels, in the API's words."""
    faults = []
    for mode in (_ENFORCE, _AUDIT, _WARN):
        level, version = labels.get(PREFIX + mode), labels.get(f"{PREFIX}{mode}-version")
        if level is not None and level not in LEVELS:
            faults.append(_fault(mode, level, f"must be one of {', '.join(LEVELS)}"))
        if version is not None and not _is_version(version):
            faults.append(_fault(f"{mode}-version", version, 'must be "latest" or "v1.x"'))
    return faults


def _fault(name: str, value: str, problem: str) -> FieldError:
    return FieldError(f"metadata.labels[{PREFIX}{name}]", f'Invalid value: "{value}": {problem}')


def _level(labels: Mapping[str, str], mode: str, invalid: str) -> str:
    level = labels.get(PREFIX + mode, PRIVILEGED)
    return level if level in LEVELS else invalid


def _minor(labels: Mapping[str, str], mode: str) -> int | None:
    text = labels.get(f"{PREFIX}{mode}-version", _LATEST)
    return int(text.removeprefix("v1.")) if text != _LATEST and _is_version(text) else None


def _is_version(text: str) -> bool:
    found = _VERSION.fullmatch(text)
    return text == _LATEST or (found is not None and int(found[1]) <= _INT64_MAX)
