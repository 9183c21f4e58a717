"""What an operator tells of lists and watches that fail: once, and that it is over."""

from batchyard.api import scheme
from batchyard.api.scheme import kind_info
from batchyard.client.informer import Cache, Informer
from batchyard.client.transport import HttpAnswer
from batchyard.server.operator.definitions import WatchErrorLog

LISTED = HttpAnswer(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')


class Told:
    """Informers of two kinds, and what is told of them."""

    def __init__(self) -> None:
        cache = Cache()
        self.jobs = Informer(kind_info(scheme.JOB), cache, 0)
        self.templates = Informer(kind_info(scheme.POD_TEMPLATE), cache, 0)
        self._troubles = WatchErrorLog("look at the terms")

    def listed(self, informer: Informer, answer: HttpAnswer) -> str:
        informer.listed(answer)
        return self._troubles.news(informer, (self.jobs, self.templates))


def test_a_trouble_is_told_once_and_that_it_is_over() -> None:
    reported = Told()
    away = HttpAnswer(0, trouble="nobody listens")
    assert reported.listed(reported.jobs, away) == "no answer: nobody listens"
    assert reported.listed(reported.templates, away) == ""
    assert reported.listed(reported.jobs, LISTED) == "", "the other has not been heard again"
    assert reported.listed(reported.templates, LISTED) == "recovered"
    assert reported.listed(reported.jobs, away) == "no answer: nobody listens", "it is a new trouble"


def test_a_kind_that_is_not_served_keeps_nothing_from_going_on() -> None:
    reported = Told()
    unserved = reported.listed(reported.templates, HttpAnswer(404))
    assert unserved.startswith("podtemplates are not served: ")
    assert unserved.endswith("; look at the terms")
    assert reported.listed(reported.jobs, HttpAnswer(503)) == "503: no reason was given"
    assert reported.listed(reported.jobs, LISTED) == "recovered"
    assert reported.listed(reported.templates, HttpAnswer(404)) == "", "it was told, and is as it was"
    assert reported.listed(reported.jobs, HttpAnswer(503)) == "503: no reason was given"
