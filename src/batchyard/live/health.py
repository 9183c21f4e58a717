"""What an operator says of itself over HTTP: whether it lives, whether it is ready, and figures.

The names are those of controller-runtime and client-go where these have such figures.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from batchyard.live.operator_page import OperatorPage
from batchyard.live.site import Site, health_routes
from batchyard.metrics.exposition import Exposition
from batchyard.metrics.families import text_of
from batchyard.metrics.names import metric

if TYPE_CHECKING:
    from batchyard.live.operator import Operator


def health(operator: "Operator", place: tuple[str, int], tell: Callable[[str], None]) -> Site:
    """Where an operator tells how it is, and shows the page."""
    program = [("program", lambda: _texts(operator)), ("program", operator.asked)]
    exposition = Exposition([*program, *operator.figures.sources()])
    page = OperatorPage(operator.reviewed, lambda: operator.models)
    return Site([*health_routes(exposition, lambda: _missing(operator)), *page.routes()], place, tell)


def _missing(operator: "Operator") -> str:
    """What it waits for. Ready is who can do its part: who leads and knows all there is, and who waits to."""
    if not operator.answers():
        return "the certificates of the webhooks"
    if operator.leads and operator.platform is None:
        return ", ".join(kind for kind, informer in operator.client.informers.items() if not informer.is_synced)
    return ""


def _texts(operator: "Operator") -> Iterator[str]:
    """What an operator tells besides its controllers."""
    yield text_of(metric("leader_election_master_status"), [(("batchyard",), int(operator.leads))])
    answers = operator.client.outbox.answers
    rows = (((str(code), method), answers[method, code]) for method, code in sorted(answers))
    yield text_of(metric("rest_client_requests_total"), rows)
    informers = operator.client.informers.items()
    yield text_of(metric("batchyard_lists_total"), (((kind,), each.lists) for kind, each in informers))
    yield text_of(metric("batchyard_watches_total"), (((kind,), each.watches) for kind, each in informers))
