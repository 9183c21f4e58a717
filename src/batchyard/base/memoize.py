"""Memoization for functions of short texts: caching long texts of clients would hold much memory permanently."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, TypeVar, cast

#: The maximum length of a cached argument, in characters or bytes, unless the function has another limit.
LENGTH_MAX: Final = 512
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def memoized_if_short(maxsize: int, length_max: int = LENGTH_MAX) -> Callable[[_FunctionT], _FunctionT]:
    """Cache the results of a function of a text; those of longer texts are computed each time."""

    def decorate(function: _FunctionT) -> _FunctionT:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def call(text: str | bytes, *args: Any) -> Any:
            return cached(text, *args) if len(text) <= length_max else function(text, *args)

        return cast("_FunctionT", call)

    return decorate
