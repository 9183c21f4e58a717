"""Which options of lists and watches go together.

Sources: k8s.io/apimachinery, pkg/apis/meta/internalversion/validation; k8s.io/apiserver, pkg/storage/interfaces.go.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.apiserver.request import Refused, Request, bad_request, causes_of

_MATCH: Final = "resourceVersionMatch"
_INITIAL: Final = "sendInitialEvents"
_EXACT: Final = "Exact"
_NOT_OLDER: Final = "NotOlderThan"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


def check_list_options(request: Request) -> None:
    """Refused where a list is asked for with options that it cannot have."""
    query = request.query
    timeout_of(request)
    _check(_faults_of_list(query))
    if query.get("continue") and query.get("resourceVersion", "0") not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")


def check_watch_options(request: Request) -> None:
    """Refused where a watch is asked for with options that it cannot have."""
    timeout_of(request)
    _check(_faults_of_watch(request.query))


def timeout_of(request: Request) -> int:
    """After how many seconds it is to end, be it less than none; 0: nothing is said. Refused if it is no number."""
    text = request.query.get("timeoutSeconds", "0")
    if not _INTEGER.fullmatch(text):
        raise bad_request(f'timeoutSeconds: "{text}" is no number')
    return int(text)


def limit_of(request: Request) -> int:
    """How many objects are asked for at most; none: all. Refused where it is no number."""
    text = request.query.get("limit", "")
    if not text:
        return 0
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'limit: "{text}" is no number')
    return max(0, int(text))


def _faults_of_list(query: Mapping[str, str]) -> Iterator[FieldError]:
    if match := query.get(_MATCH, ""):
        version = query.get("resourceVersion", "")
        if not version:
            yield _forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided")
        if query.get("continue"):
            yield _forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided")
        if match not in (_EXACT, _NOT_OLDER):
            yield _unsupported(match, f'"{_EXACT}", "{_NOT_OLDER}"')
        if match == _EXACT and version == "0":
            yield _forbidden(_MATCH, f'{_MATCH} "{_EXACT}" is forbidden for resourceVersion "0"')
    if _INITIAL in query:
        yield _forbidden(_INITIAL, f"{_INITIAL} is forbidden for list")


def _faults_of_watch(query: Mapping[str, str]) -> Iterator[FieldError]:
    match, says_initial = query.get(_MATCH, ""), _INITIAL in query
    if says_initial and match != _NOT_OLDER:
        yield _forbidden(_MATCH, f"{_INITIAL} requires setting {_MATCH} to {_NOT_OLDER}")
    if match:
        if not says_initial:
            yield _forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless {_INITIAL} is provided")
        if match != _NOT_OLDER:
            yield _unsupported(match, f'"{_NOT_OLDER}"')
        if query.get("continue"):
            yield _forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided")


def _forbidden(field: str, problem: str) -> FieldError:
    return FieldError(field, f"Forbidden: {problem}")


def _unsupported(match: str, supported: str) -> FieldError:
    return FieldError(_MATCH, f'Unsupported value: "{match}": supported values: {supported}')


def _check(found: Iterator[FieldError]) -> None:
    if faults := tuple(found):
        listed = ", ".join(map(str, faults))
        told = f"ListOptions.meta.k8s.io is invalid: {listed if len(faults) == 1 else f'[{listed}]'}"
        raise Refused(
            422, "Invalid", told, {"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes_of(faults)}
        )
