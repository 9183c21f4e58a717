"""How much may be under way."""

from contextlib import ExitStack

import pytest

from batchyard.apiserver.request import Refused
from batchyard.live.overload import ALL_MAX, USER_MAX, Load


def test_whoever_asks_too_much_at_once_is_told_to_come_back() -> None:
    load = Load()
    with ExitStack() as under_way:
        for _ in range(USER_MAX):
            under_way.enter_context(load.of("anna"))
        with pytest.raises(Refused) as refused, load.of("anna"):
            pass
        response = refused.value.response()
        assert (response.code, response.body["reason"], response.retry_after) == (429, "TooManyRequests", 1)
        with load.of("bob"):
            pass
    with load.of("anna"):
        pass


def test_all_together_have_a_bound() -> None:
    load = Load()
    with ExitStack() as under_way:
        for number in range(ALL_MAX):
            under_way.enter_context(load.of(f"user-{number}"))
        with pytest.raises(Refused), load.of("another"):
            pass
