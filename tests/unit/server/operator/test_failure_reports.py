"""An operator reports each failure of a list or watch once, and its recovery."""

from batchyard.api import scheme
from batchyard.api.scheme import kind_info
from batchyard.client.informer import Informer, ObjectCache
from batchyard.client.transport import HttpResponse
from batchyard.server.operator.definitions import WatchErrorLog

LISTED = HttpResponse(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')


class TwoInformers:
    """Informers of two kinds, and the reports about them."""

    def __init__(self) -> None:
        cache = ObjectCache()
        self.jobs = Informer(kind_info(scheme.JOB), cache, 0)
        self.templates = Informer(kind_info(scheme.POD_TEMPLATE), cache, 0)
        self._troubles = WatchErrorLog("look at the terms")

    def listed(self, informer: Informer, answer: HttpResponse) -> str:
        informer.process_list_page(answer)
        return self._troubles.new_message(informer, (self.jobs, self.templates))


def test_watch_error_is_reported_once_and_recovery_is_reported() -> None:
    reported = TwoInformers()
    away = HttpResponse(0, trouble="nobody listens")
    assert reported.listed(reported.jobs, away) == "no response: nobody listens"
    assert reported.listed(reported.templates, away) == ""
    assert reported.listed(reported.jobs, LISTED) == "", "the other informer has not recovered"
    assert reported.listed(reported.templates, LISTED) == "recovered: all lists and watches work again"
    assert reported.listed(reported.jobs, away) == "no response: nobody listens", "this is a new error"


def test_unserved_kind_does_not_prevent_recovery_report() -> None:
    reported = TwoInformers()
    unserved = reported.listed(reported.templates, HttpResponse(404))
    assert unserved.startswith("podtemplates are not served by the API server; ")
    assert unserved.endswith("; look at the terms")
    assert reported.listed(reported.jobs, HttpResponse(503)) == "503: unknown reason"
    assert reported.listed(reported.jobs, LISTED) == "recovered: all lists and watches work again"
    assert reported.listed(reported.templates, HttpResponse(404)) == "", "the error is reported and unchanged"
    assert reported.listed(reported.jobs, HttpResponse(503)) == "503: unknown reason"
