"""The page of a cluster on which a Kueue decides: what its objects say, as the page shows it of a platform of ours."""

from collections.abc import Callable, Sequence

from batchyard.apiserver.page import Models
from batchyard.client.rest import RestClient
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.shadow.findings import Counts, Finding
from batchyard.live.operator_page import Hub
from batchyard.live.real_time import RealTime
from batchyard.live.reviewed import Reviewed
from batchyard.ports.client import WatchEvent
from batchyard.web.comparison import Comparison, Parted
from batchyard.web.history import History
from batchyard.web.pages import Pages, Time


class ShadowPage:
    """See the module. Nothing is decided with the index: it knows queues, and who is in them."""

    def __init__(self, client: RestClient, time: RealTime, reviewed: Reviewed, counts: Callable[[], Counts]) -> None:
        self._index = AdmissionIndex()
        self._time = time
        self._history = History(time.now, self._index.cluster_queue_of)
        self._comparison = Comparison(lambda: sum(counts().agreed.values()), lambda: counts().divergences)
        self._history.comparison = self._comparison
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

    def found(self, finding: Finding) -> None:
        """Both part."""
        since = finding.at if finding.since is None else finding.since
        told = finding.parting.value, finding.workload, finding.message
        self._comparison.partings.appendleft(Parted(finding.at, since, *told, finding.why(), finding.look))
        self._hub.touch()
