"""How much may be under way."""

import pytest

from batchyard.apiserver.request import Refused
from batchyard.live.overload import ALL_MAX, USER_MAX, WATCHES_MAX, Load


def test_whoever_asks_too_much_at_once_is_told_to_come_back() -> None:
    load = Load()
    for _ in range(USER_MAX):
        load.enter("anna")
    with pytest.raises(Refused) as refused:
        load.enter("anna")
    response = refused.value.response()
    assert (response.code, response.body["reason"], response.retry_after) == (429, "TooManyRequests", 1)
    load.enter("bob")
    load.leave("anna")
    load.enter("anna")


def test_all_together_have_a_bound() -> None:
    load = Load()
    for number in range(ALL_MAX):
        load.enter(f"user-{number}")
    with pytest.raises(Refused):
        load.enter("another")


def test_of_the_watches_of_one_some_places_are_left_to_others() -> None:
    load = Load()
    for _ in range(WATCHES_MAX):
        load.begin_watch("anna")
    with pytest.raises(Refused):
        load.enter("anna", is_watch=True)
    load.enter("anna")
    load.enter("bob", is_watch=True)
    load.end_watch("anna")
    load.enter("anna", is_watch=True)
