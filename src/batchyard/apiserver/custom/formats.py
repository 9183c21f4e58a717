"""The formats of strings that schemas may ask for; others are not looked at.

Source: k8s.io/kube-openapi, pkg/validation/strfmt, and k8s.io/apiextensions-apiserver, pkg/apiserver/validation.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final

from batchyard.api.times import parse_time
from batchyard.base.instant import parse_duration

_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_EMAIL: Final = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_HOSTNAME: Final = re.compile(r"(?=.{1,255}$)[a-z0-9]([-a-z0-9]{0,62})?(\.[a-z0-9][-a-z0-9]{0,62})*\.?", re.IGNORECASE)
_MAC: Final = re.compile(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}", re.IGNORECASE)
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S+|/\S*", re.IGNORECASE)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def is_of_format(text: str, name: str) -> bool:
    """Whether a text is of a format; any is of one that is not known."""
    check = _CHECKS.get(name)
    return check is None or check(text)


def _of(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _read_by(read: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            read(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _date(text: str) -> object:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return parse_time(f"{text}T00:00:00Z")


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _read_by(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _read_by(lambda text: ipaddress.ip_network(text, strict=False)),
    "date": _read_by(_date),
    "date-time": _read_by(parse_time),
    "datetime": _read_by(parse_time),
    "duration": _read_by(parse_duration),
    "email": _of(_EMAIL),
    "hostname": _of(_HOSTNAME),
    "ipv4": _read_by(ipaddress.IPv4Address),
    "ipv6": _read_by(ipaddress.IPv6Address),
    "mac": _of(_MAC),
    "uri": _of(_URI),
    "uuid": _of(_UUID),
}
