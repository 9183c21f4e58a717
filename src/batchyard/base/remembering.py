"""Caches of results for short arguments: a cache that keeps long texts of clients would hold much memory for good."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

#: Letters or bytes of an argument whose result is kept, unless the function has another bound.
LENGTH_MAX: Final = 512
_SizedT = TypeVar("_SizedT", str, bytes)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def remembered(
    maxsize: int, length_max: int = LENGTH_MAX
) -> Callable[[Callable[Concatenate[_SizedT, _P], _R]], Callable[Concatenate[_SizedT, _P], _R]]:
    """Cache the results of a function of a text; those of longer texts are computed each time."""

    def decorate(function: Callable[Concatenate[_SizedT, _P], _R]) -> Callable[Concatenate[_SizedT, _P], _R]:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def call(text: _SizedT, *args: _P.args, **kwargs: _P.kwargs) -> _R:
            if len(text) <= length_max:
                return cached(text, *args, **kwargs)  # type: ignore[arg-type]
            return function(text, *args, **kwargs)

        return call

    return decorate
