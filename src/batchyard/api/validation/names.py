"""Validation of names, label keys and label values: each function returns Kubernetes's error messages.

Source: k8s.io/apimachinery/pkg/util/validation. Results are cached, because names repeat often.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, TypeAlias

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.base.memoize import memoized_if_short

Messages: TypeAlias = tuple[str, ...]
NameRule: TypeAlias = Callable[[str], Messages]

LABEL_LENGTH_MAX: Final = 63
GKE_LENGTH_MAX: Final = 40
SUBDOMAIN_LENGTH_MAX: Final = 253
PORT_LENGTH_MAX: Final = 15

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_UNDERSCORED: Final = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SEARCH: Final = rf"{_UNDERSCORED}(\.{_UNDERSCORED})*"
_DNS1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE: Final = f"({_QUALIFIED})?"
_CONFIG_KEY: Final = "[-._a-zA-Z0-9]+"
_PATH: Final = r"[A-Za-z0-9/\-._~%!$&'()*+,;=:]+"

_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character"
)
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character"
)
_SEARCH_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must "
    "start and end with an alphanumeric character"
)
_DNS1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character"
)
_QUALIFIED_TEXT: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_LABEL_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character"
)
_NAME_EXAMPLES: Final = ("MyName", "my.name", "123-abc")
_CONFIG_KEY_TEXT: Final = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"


def _matches(pattern: str, text: str) -> bool:
    """Report whether the whole text matches the pattern."""
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def _too_long(text: str, length_max: int) -> Messages:
    """Return the message for texts of too many bytes."""
    return (f"must be no more than {length_max} characters",) if len(text.encode()) > length_max else ()


def _malformed(text: str, pattern: str, words: str, *examples: str) -> Messages:
    """Return the message for texts that do not match the pattern, with valid examples."""
    if _matches(pattern, text):
        return ()
    shown = ",  or ".join(f"'{example}'" for example in examples)
    return (f"{words} ({f'e.g. {shown}, ' if shown else ''}regex used for validation is '{pattern}')",)


@memoized_if_short(maxsize=65536)
def dns_label(text: str) -> Messages:
    """Validate an RFC 1123 label, at most 63 characters."""
    return _too_long(text, LABEL_LENGTH_MAX) + _malformed(text, _LABEL, _LABEL_TEXT, "my-name", "123-abc")


@memoized_if_short(maxsize=65536)
def dns_subdomain(text: str) -> Messages:
    """Validate an RFC 1123 subdomain, at most 253 characters: the name of most objects."""
    return _too_long(text, SUBDOMAIN_LENGTH_MAX) + _malformed(text, _SUBDOMAIN, _SUBDOMAIN_TEXT, "example.com")


def search_domain(text: str) -> Messages:
    """Validate a DNS search domain: a subdomain whose labels may have underscores."""
    return _too_long(text, SUBDOMAIN_LENGTH_MAX) + _malformed(text, _SEARCH, _SEARCH_TEXT, "example.com")


def port_name(text: str) -> Messages:
    """Validate an IANA port name: at most 15 characters, at least one letter."""
    wrong = _too_long(text, PORT_LENGTH_MAX)
    if not _matches("[-a-z0-9]+", text):
        wrong += ("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",)
    if not any("a" <= character <= "z" for character in text):
        wrong += ("must contain at least one letter (a-z)",)
    if "--" in text:
        wrong += ("must not contain consecutive hyphens",)
    if text.startswith("-") or text.endswith("-"):
        wrong += ("must not begin or end with a hyphen",)
    return wrong


def header_name(text: str) -> Messages:
    """Validate an HTTP header name."""
    words = "a valid HTTP header must consist of alphanumeric characters or '-'"
    return _malformed(text, "[-A-Za-z0-9]+", words, "X-Header-Name")


def is_word(text: str) -> bool:
    """Report whether a text is printable and has no spaces."""
    return text.isprintable() and " " not in text


@memoized_if_short(maxsize=65536)
def dns1035_label(text: str) -> Messages:
    """Validate an RFC 1035 label, which starts with a letter: the name of a Service."""
    return _too_long(text, LABEL_LENGTH_MAX) + _malformed(text, _DNS1035, _DNS1035_TEXT, "my-name", "abc-123")


@memoized_if_short(maxsize=65536)
def gke_name(text: str) -> Messages:
    """Validate an RFC 1035 label of at most 40 characters: the name of a GKE cluster or node pool."""
    return _too_long(text, GKE_LENGTH_MAX) + _malformed(text, _DNS1035, _DNS1035_TEXT, "my-name", "abc-123")


@memoized_if_short(maxsize=65536)
def qualified_name(text: str) -> Messages:
    """Validate a label key, annotation key or resource name: a name with an optional DNS prefix and '/'."""
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        words = f"a qualified name {_QUALIFIED_TEXT}"
        example = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        return tuple(message + example for message in _malformed("", _QUALIFIED, words, *_NAME_EXAMPLES))
    wrong: Messages = ()
    if slash and not prefix:
        wrong = ("prefix part must be non-empty",)
    elif slash:
        wrong = tuple(f"prefix part {message}" for message in dns_subdomain(prefix))
    if not name:
        return (*wrong, "name part must be non-empty")
    wrong += tuple(f"name part {message}" for message in _too_long(name, LABEL_LENGTH_MAX))
    return wrong + _malformed(name, _QUALIFIED, f"name part {_QUALIFIED_TEXT}", *_NAME_EXAMPLES)


@memoized_if_short(maxsize=65536)
def label_value(text: str) -> Messages:
    """Validate a label value: at most 63 characters, possibly empty."""
    examples = ("MyValue", "my_value", "12345")
    return _too_long(text, LABEL_LENGTH_MAX) + _malformed(text, _LABEL_VALUE, _LABEL_VALUE_TEXT, *examples)


def config_key(text: str) -> Messages:
    """Validate a key of a ConfigMap or Secret, which becomes a file name."""
    wrong = _too_long(text, SUBDOMAIN_LENGTH_MAX)
    wrong += _malformed(text, _CONFIG_KEY, _CONFIG_KEY_TEXT, "key.name", "KEY_NAME", "key-name")
    if text in {".", ".."}:
        return (*wrong, f"must not be '{text}'")
    return (*wrong, "must not start with '..'") if text.startswith("..") else wrong


def env_name(text: str) -> Messages:
    """Validate a name of an environment variable: printable ASCII without '='."""
    if text and all(" " <= character <= "~" and character != "=" for character in text):
        return ()
    return ("a valid environment variable name must consist only of printable ASCII characters other than '='",)


def domain_path(text: str) -> Messages:
    """Validate a domain-prefixed path such as `acme.io/foo`, for `managedBy` and admission gates."""
    domain, slash, path = text.partition("/")
    if not slash or not domain or not path:
        return ('must be a domain-prefixed path (such as "acme.io/foo")',)
    return dns_subdomain(domain) + _malformed(path, _PATH, "Invalid path")


def path_segment(text: str) -> Messages:
    """Validate the name of a role or binding: any single path segment."""
    if text in {".", ".."}:
        return (f"may not be '{text}'",)
    return tuple(f"may not contain '{character}'" for character in "/%" if character in text)


# --- paths ---
#
# Rules of paths of files and folders. Source: Kubernetes's pkg/apis/core/validation.


_MODE_MAX: Final = 0o777
_MODE_MESSAGE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_REMEDY: Final = "give a path below the folder"


def local_path_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate a relative path that stays below its folder."""
    if path.startswith("/"):
        yield faults.invalid(at, path, "must be a relative path", _REMEDY)
    yield from step_faults(path, at)


def step_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate a path without '..' and NUL."""
    if ".." in path.split("/"):
        yield faults.invalid(at, path, "must not contain '..'", _REMEDY)
    if "\0" in path:
        yield faults.invalid(at, path, "must not contain NUL", "drop it")


def file_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate the path of a file in a volume."""
    yield from local_path_faults(path, at)
    if path.startswith("..") and not path.startswith("../"):
        yield faults.invalid(at, path, "must not start with '..'", "give another name")


def mode_faults(mode: int | None, at: str) -> Iterator[FieldError]:
    """Validate the permissions of a file."""
    if mode is not None and not 0 <= mode <= _MODE_MAX:
        yield faults.invalid(at, mode, _MODE_MESSAGE, "give 420, which is 0644, or another number up to 511")
