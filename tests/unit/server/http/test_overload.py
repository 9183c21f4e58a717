"""How much may be under way."""

import pytest

from batchyard.apiserver.request import MASTERS, StatusError, UserInfo
from batchyard.server.http.flow_control import ALL_MAX, USER_MAX, WATCHES_MAX, ConcurrencyLimiter

ANNA = UserInfo("anna", ())
BOB = UserInfo("bob", ())


def test_whoever_asks_too_much_at_once_is_told_to_come_back() -> None:
    load = ConcurrencyLimiter()
    for _ in range(USER_MAX):
        load.enter(ANNA)
    with pytest.raises(StatusError) as refused:
        load.enter(ANNA)
    response = refused.value.response()
    assert (response.code, response.body["reason"], response.retry_after) == (429, "TooManyRequests", 1)
    load.enter(BOB)
    load.leave(ANNA)
    load.enter(ANNA)


def test_all_together_have_a_bound() -> None:
    load = ConcurrencyLimiter()
    for number in range(ALL_MAX):
        load.enter(UserInfo(f"user-{number}", ()))
    with pytest.raises(StatusError):
        load.enter(UserInfo("another", ()))
    load.enter(UserInfo("admin", (MASTERS,)))


def test_of_the_watches_of_one_some_places_are_left_to_others() -> None:
    load = ConcurrencyLimiter()
    for _ in range(WATCHES_MAX):
        load.begin_watch(ANNA)
    with pytest.raises(StatusError):
        load.enter(ANNA, is_watch=True)
    load.enter(ANNA)
    load.enter(BOB, is_watch=True)
    load.end_watch(ANNA)
    load.enter(ANNA, is_watch=True)
