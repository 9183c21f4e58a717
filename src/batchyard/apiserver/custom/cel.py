"""The Common Expression Language, as the rules of CustomResourceDefinitions use it. Loads the library when imported.

Sources: k8s.io/apiserver, pkg/cel/library, and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from cel_expr_python import cel
from cel_expr_python.ext.ext_bindings import ExtBindings
from cel_expr_python.ext.ext_encoders import ExtEncoders
from cel_expr_python.ext.ext_math import ExtMath
from cel_expr_python.ext.ext_optional import ExtOptional
from cel_expr_python.ext.ext_strings import ExtStrings

from batchyard.apiserver.custom.cel_functions import further_functions

#: Functions that Kubernetes has and we have not.
LACKING: Final = frozenset(
    {"authorizer", "format", "isSemver", "semver", "transformList", "transformMap", "transformMapEntry"}
)
_MISSING: Final = re.compile(r"(?:undeclared reference to|no matching overload for) '([^']*)'")
_RESULTS: Final = ("BOOL", "DYN")


class Expression(NamedTuple):
    """An expression that can be evaluated."""

    program: Any
    #: Whether it compares with what was there before, and so holds where nothing was.
    uses_old: bool


class NotCompiled(ValueError):  # noqa: N818 - what it is
    """An expression cannot be used; `lacking` is what Kubernetes has for it and we have not."""

    def __init__(self, message: str, lacking: str = "") -> None:
        super().__init__(message)
        self.lacking = lacking


def rule(text: str, *, optional_old: bool) -> Expression:
    """The expression of a rule; NotCompiled if it is none."""
    found = expression(_with_optional_old(text) if optional_old else text)
    if found.program.return_type().name() not in _RESULTS:
        raise NotCompiled("must evaluate to a bool")
    return found


def expression(text: str) -> Expression:
    """An expression over `self` and `oldSelf`; NotCompiled if it is none."""
    try:
        return Expression(_environment(with_old=False).compile(text), uses_old=False)
    except RuntimeError:
        pass
    try:
        return Expression(_environment(with_old=True).compile(text), uses_old=True)
    except RuntimeError as error:
        missing = dict.fromkeys(_MISSING.findall(str(error)))
        lacking = ", ".join(name for name in missing if name in LACKING)
        raise NotCompiled(f"compilation failed: {error}", lacking) from error


def evaluated(program: Any, variables: Mapping[str, Any]) -> tuple[Any, str]:
    """The result of a program, and what went wrong, one of them empty."""
    try:
        result = program.eval(data=variables)
    except RuntimeError as error:  # its own bounds: more steps than a rule may take
        return None, f"call cost exceeds limit: {error}"
    if result.type() == cel.Type.ERROR:
        return None, str(result.plain_value()).partition(": ")[2]
    return result.plain_value(), ""


def _with_optional_old(text: str) -> str:
    return f"cel.bind(oldSelf, wasThere ? optional.of(before) : optional.none(), {text}\n)"


@cache
def _environment(*, with_old: bool) -> Any:
    variables = {"self": cel.Type.DYN, "before": cel.Type.DYN, "wasThere": cel.Type.BOOL}
    if with_old:
        variables["oldSelf"] = cel.Type.DYN
    extensions = [ExtBindings(), ExtEncoders(), ExtMath(), ExtOptional(), ExtStrings(), further_functions()]
    return cel.NewEnv(variables=variables, extensions=extensions)
