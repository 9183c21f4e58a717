"""Limits of concurrent requests."""

import pytest

from batchyard.apiserver.request import MASTERS_GROUP, StatusError, UserInfo
from batchyard.server.http.flow_control import REQUESTS_MAX, USER_REQUESTS_MAX, USER_WATCHES_MAX, ConcurrencyLimiter

ANNA = UserInfo("anna", ())
BOB = UserInfo("bob", ())


def test_limiter_rejects_excess_requests_of_user_with_retry_after() -> None:
    load = ConcurrencyLimiter()
    for _ in range(USER_REQUESTS_MAX):
        load.enter(ANNA)
    with pytest.raises(StatusError) as refused:
        load.enter(ANNA)
    response = refused.value.response()
    assert (response.code, response.body["reason"], response.retry_after) == (429, "TooManyRequests", 1)
    load.enter(BOB)
    load.leave(ANNA)
    load.enter(ANNA)


def test_limiter_bounds_total_requests_except_admins() -> None:
    load = ConcurrencyLimiter()
    for number in range(REQUESTS_MAX):
        load.enter(UserInfo(f"user-{number}", ()))
    with pytest.raises(StatusError):
        load.enter(UserInfo("another", ()))
    load.enter(UserInfo("admin", (MASTERS_GROUP,)))


def test_limiter_bounds_watches_of_one_user() -> None:
    load = ConcurrencyLimiter()
    for _ in range(USER_WATCHES_MAX):
        load.begin_watch(ANNA)
    with pytest.raises(StatusError):
        load.enter(ANNA, is_watch=True)
    load.enter(ANNA)
    load.enter(BOB, is_watch=True)
    load.end_watch(ANNA)
    load.enter(ANNA, is_watch=True)
