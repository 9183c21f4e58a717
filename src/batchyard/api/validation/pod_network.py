"""Rules of what a pod knows of hosts: host aliases and the configuration of DNS, which become lines of files.

Source: Kubernetes's pkg/apis/core/validation (ValidateHostAliases, validatePodDNSConfig).
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, names

_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCHES_LENGTH_MAX: Final = 2048
_HOST_REMEDY: Final = "give a host name, in lower case"


def host_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate host aliases and DNS."""
    for i, alias in enumerate(spec.get("hostAliases") or ()):
        at = f"{path}.hostAliases[{i}]"
        yield from ip_faults(alias.get("ip") or "", f"{at}.ip")
        for j, hostname in enumerate(alias.get("hostnames") or ()):
            for message in names.dns_subdomain(hostname):
                yield faults.invalid(f"{at}.hostnames[{j}]", hostname, message, _HOST_REMEDY)
    yield from _dns_faults(spec.get("dnsConfig"), spec.get("dnsPolicy"), f"{path}.dnsConfig")


def ip_faults(address: str, path: str) -> Iterator[FieldError]:
    """Validate an IP address; it has no zone, and no leading zeros."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or "%" in address:
        message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield faults.invalid(path, address, message, "give an address such as 10.9.8.7")
    elif isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        message = "must not be an IPv4-mapped IPv6 address"
        yield faults.invalid(path, address, message, f"write {parsed.ipv4_mapped}")


def _dns_faults(config: Mapping[str, Any] | None, policy: str | None, path: str) -> Iterator[FieldError]:
    nameservers: Sequence[str] = (config or {}).get("nameservers") or ()
    if policy == "None" and not nameservers:
        missing = "at least one DNS nameserver" if config is not None else "`dnsConfig`"
        at = f"{path}.nameservers" if config is not None else path
        yield faults.required(at, f"must provide {missing} when `dnsPolicy` is None", "give a nameserver")
        return
    config = config or {}
    if len(nameservers) > _NAMESERVERS_MAX:
        message = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        yield faults.invalid(f"{path}.nameservers", nameservers, message, "drop some")
    for i, address in enumerate(nameservers):
        yield from ip_faults(address, f"{path}.nameservers[{i}]")
    yield from _search_faults(config.get("searches") or (), f"{path}.searches")
    for i, option in enumerate(config.get("options") or ()):
        yield from _option_faults(option, f"{path}.options[{i}]")


def _search_faults(searches: Sequence[str], path: str) -> Iterator[FieldError]:
    if len(searches) > _SEARCHES_MAX:
        message = f"must not have more than {_SEARCHES_MAX} search paths"
        yield faults.invalid(path, searches, message, "drop some")
    if len(" ".join(searches).encode()) > _SEARCHES_LENGTH_MAX:
        message = f"must not have more than {_SEARCHES_LENGTH_MAX} characters (including spaces) in the search list"
        yield faults.invalid(path, searches, message, "drop some")
    for i, search in enumerate(searches):
        for message in names.search_domain(search.removesuffix(".")) if search != "." else ():
            yield faults.invalid(f"{path}[{i}]", search.removesuffix("."), message, _HOST_REMEDY)


def _option_faults(option: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """An option has a name. It is one word of a line of resolv.conf, and so is its value: Kubernetes does not check."""
    if not option.get("name"):
        yield faults.required(path, "must not be empty", "name the option")
    for field in ("name", "value"):
        text = option.get(field) or ""
        if not names.is_word(text):
            message = "must not contain spaces or control characters"
            yield faults.invalid(f"{path}.{field}", text, message, "give one word")
