"""The page of a cluster on which a Kueue decides: what its objects say, as the page shows it of a platform of ours."""

from collections.abc import Sequence

from batchyard.apiserver.page import Models
from batchyard.client.rest import RestClient
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.live.operator_page import Hub
from batchyard.live.real_time import RealTime
from batchyard.live.reviewed import Reviewed
from batchyard.ports.client import WatchEvent
from batchyard.web.history import History
from batchyard.web.pages import Pages, Time


class ShadowPage:
    """See the module. Nothing is decided with the index: it knows queues, and who is in them."""

    def __init__(self, client: RestClient, time: RealTime, reviewed: Reviewed) -> None:
        self._index = AdmissionIndex()
        self._time = time
        self._history = History(time.now, self._index.cluster_queue_of)
        self._hub = Hub()
        pages = Pages(client, self._index, self._history, Time(time.now, 1.0))
        self.models = Models(pages, reviewed, self._hub, time), self._hub

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Something has changed, or is there from the start."""
        now = self._time.now()
        for event in events:
            self._index.observe(event, now)
        self._index.snapshot.settle()
        self._history.observe(events)
        self._hub.observe(events)
