"""The subresource `eta` of Workloads and jobs."""

import pytest

from batchyard.api import scheme
from batchyard.apiserver.auth.authorization import ETA_SUBRESOURCE
from batchyard.apiserver.request import ApiRequest, DeferredResponse, StatusError
from batchyard.apiserver.subresources.queueing import ForecastRequest, with_forecasts
from unit.apiserver.api import OWNER, Api


class _IdleForecaster:
    """A forecast service whose responses never arrive."""

    def request_forecast(self, forecast_request: ForecastRequest) -> DeferredResponse:
        return DeferredResponse(lambda _respond: None)


def test_forecast_of_missing_job_is_not_found() -> None:
    api = Api()
    resources = with_forecasts(api.resources.all(), api.stored, _IdleForecaster())
    jobs = next(each for each in resources if each.served_kind.constant == scheme.JOB)
    get_forecast = jobs.handlers[ETA_SUBRESOURCE].by_method["GET"]
    request = ApiRequest("GET", "/apis/batch/v1/namespaces/team/jobs/none/eta", {}, {}, b"", OWNER)
    with pytest.raises(StatusError, match=r'jobs\.batch "none" not found') as raised:
        get_forecast(request, "team", "none")
    assert raised.value.details == {"name": "none", "group": "batch", "kind": "jobs"}
