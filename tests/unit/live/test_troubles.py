"""What an operator tells of lists and watches that fail: once, and that it is over."""

from batchyard.api import scheme
from batchyard.api.scheme import kind_info
from batchyard.client.cache import Cache
from batchyard.client.informer import Informer
from batchyard.client.transport import HttpAnswer
from batchyard.server.operator.definitions import Troubles

LISTED = HttpAnswer(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')


class Told:
    """Informers of two kinds, and what is told of them."""

    def __init__(self) -> None:
        cache = Cache()
        self.jobs = Informer(kind_info(scheme.JOB), cache, 0)
        self.templates = Informer(kind_info(scheme.POD_TEMPLATE), cache, 0)
        self._troubles = Troubles("look at the terms")

    def listed(self, informer: Informer, answer: HttpAnswer) -> str:
        informer.listed(answer)
        return self._troubles.news(informer, (self.jobs, self.templates))


def test_a_trouble_is_told_once_and_that_it_is_over() -> None:
    told = Told()
    away = HttpAnswer(0, trouble="nobody listens")
    assert told.listed(told.jobs, away) == "no answer: nobody listens"
    assert told.listed(told.templates, away) == ""
    assert told.listed(told.jobs, LISTED) == "", "the other has not been heard again"
    assert told.listed(told.templates, LISTED) == "recovered"
    assert told.listed(told.jobs, away) == "no answer: nobody listens", "it is a new trouble"


def test_a_kind_that_is_not_served_keeps_nothing_from_going_on() -> None:
    told = Told()
    unserved = told.listed(told.templates, HttpAnswer(404))
    assert unserved.startswith("podtemplates are not served: ")
    assert unserved.endswith("; look at the terms")
    assert told.listed(told.jobs, HttpAnswer(503)) == "503: no reason was given"
    assert told.listed(told.jobs, LISTED) == "recovered"
    assert told.listed(told.templates, HttpAnswer(404)) == "", "it was told, and is as it was"
    assert told.listed(told.jobs, HttpAnswer(503)) == "503: no reason was given"
