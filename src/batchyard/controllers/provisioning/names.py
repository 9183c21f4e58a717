"""The names of ProvisioningRequests and their templates. Source: provisioning.go beside Kueue's controller."""

from hashlib import sha1
from typing import Final

_HASH_LENGTH: Final = 5
_PREFIX_MAX: Final = 252 - _HASH_LENGTH
_ATTEMPTS_MAX: Final = 1000
_DIGITS_MAX: Final = len(str(_ATTEMPTS_MAX))


def request_name(workload: str, check: str, attempt: int) -> str:
    """The name of a Workload's request for a check at an attempt."""
    return _limited(f"{workload}-{check}-{attempt}")


def template_name(request: str, pod_set: str) -> str:
    """The name of the template of a pod set."""
    return _limited(f"ppt-{request}-{pod_set}")


def attempt_of(request: str, workload: str, check: str) -> int | None:
    """Which attempt a request is; None if it is not one of that Workload for that check.

    The number of a name that was cut is in its hash, and has to be tried out.
    """
    prefix = f"{workload}-{check}-"
    number = request.removeprefix(prefix)
    if number != request and number.isdecimal():
        return int(number)
    if len(prefix) < _PREFIX_MAX - _DIGITS_MAX:
        return None
    return next((n for n in range(1, _ATTEMPTS_MAX) if request_name(workload, check, n) == request), None)


def _limited(name: str) -> str:
    """A name as long as may be: the rest becomes a hash."""
    if len(name) <= _PREFIX_MAX:
        return name
    return f"{name[:_PREFIX_MAX]}-{sha1(name.encode(), usedforsecurity=False).hexdigest()[:_HASH_LENGTH]}"
