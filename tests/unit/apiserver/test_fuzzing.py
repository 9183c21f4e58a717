"""Whatever is sent is answered, and no controller breaks over what was taken."""

import pytest

from fuzz.requests import Fuzz
from fuzz.world import FuzzedApi, Noted

COUNT = 700
#: 504 is for revisions that are yet to come.
ANSWERS = {200, 201, 400, 401, 403, 404, 405, 406, 409, 410, 413, 415, 422, 504}


@pytest.mark.parametrize("seed", ["one", "two"])
def test_whatever_is_asked_is_answered_and_breaks_nothing(seed: str) -> None:
    api = FuzzedApi()
    fuzz = Fuzz(api.places(), seed)
    for asked in fuzz.good():
        api.meet(asked)
    for number in range(COUNT):
        asked = fuzz.next()
        with Noted(asked.reported):
            assert api.meet(asked) in ANSWERS
            if number % 50 == 0:
                api.pass_time(5)
