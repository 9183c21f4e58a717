"""Requests of the wire as work of the platform, and the answers once all they rest on is durable."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec

from batchyard.apiserver.request import Refused, Request, Response
from batchyard.apiserver.server import ApiServer
from batchyard.apiserver.streams import Begun, Conversation, Later, Ongoing, Reply
from batchyard.live.durability import GroupCommit
from batchyard.live.encoding import shared
from batchyard.live.kernel import LiveKernel
from batchyard.live.overload import Load
from batchyard.metrics.families import Labels
from batchyard.metrics.requests import RequestFigures
from batchyard.store.mark import JournalError

Answered: TypeAlias = Callable[[Begun], None]
"""Takes an answer; the body of a response is bytes by then."""
_Measured: TypeAlias = tuple[Labels, float]

_UNKEPT: Final = Refused(
    500, "InternalError", "Internal error occurred: the journal cannot be written, nothing is kept"
)
_encoder: Final = msgspec.json.Encoder()
_LOG: Final = logging.getLogger("batchyard")


class Answers:
    """See the module."""

    def __init__(
        self,
        server: ApiServer,
        kernel: LiveKernel,
        commit: GroupCommit,
        revision: Callable[[], int],
        figures: RequestFigures,
    ) -> None:
        self._server = server
        self._kernel = kernel
        self._commit = commit
        self._revision = revision
        self._figures = figures
        self._load = Load()
        #: Whose each watch is.
        self._watching: dict[Ongoing | Conversation, str] = {}
        self._defects = 0

    def known(self, request: Request) -> Request:
        """The request, its body yet to come, with the user who makes it; Refused where nobody is known."""
        return self._server.known(request)

    def ask(self, request: Request, answered: Answered) -> None:
        """Answer a request, later; or at once, that there are too many."""
        user = request.user.name
        try:
            self._load.enter(user, is_watch=request.flag("watch") and self._server.begins_watch(request))
        except Refused as refused:
            answered(encoded(refused.response()))
        else:
            began = self._figures.begin()
            self._kernel.post(partial(self._work, request, began, partial(self._settle, user, answered)))

    @property
    def watches(self) -> int:
        """How many answers go on."""
        return len(self._watching)

    def leave(self, ongoing: Ongoing | Conversation) -> None:
        """An answer has nobody any more who listens."""
        if not isinstance(ongoing, Conversation):
            self._commit.leave(ongoing)
            ongoing.end()
        user = self._watching.pop(ongoing, None)
        if user is not None:
            self._load.end_watch(user)

    def _work(
        self, request: Request, began: float, settle: Callable[[Reply, _Measured, JournalError | None], None]
    ) -> None:
        answer = self._answer(request)
        self._commit.when_durable(self._revision(), partial(settle, answer, (self._figures.latest, began)))

    def _settle(
        self, user: str, answered: Answered, answer: Reply, measured: _Measured, failure: JournalError | None
    ) -> None:
        if isinstance(answer, Later):
            answer.then(lambda response: self._come(user, answered, response, measured, failure))
            return
        self._load.leave(user)
        self._figures.settle(*measured)
        if not isinstance(answer, Response):
            self._watching[answer] = user
            self._load.begin_watch(user)
        answered(answer if failure is None else encoded(_UNKEPT.response()))

    def _come(
        self, user: str, answered: Answered, response: Response, measured: _Measured, failure: JournalError | None
    ) -> None:
        """The answer has come that was to come later."""
        self._figures.count(measured[0], response.code)
        self._settle(user, answered, encoded(response), measured, failure)

    def _answer(self, request: Request) -> Reply:
        """The answer; a defect of ours stops nobody else, and what it was is for the log alone."""
        try:
            answer = self._server.handle(request)
            return _sent(answer, request) if isinstance(answer, Response) else answer
        except Exception:  # noqa: BLE001 - whatever it is
            self._defects += 1
            name = f"{self._kernel.clock():x}-{self._defects}"
            _LOG.exception("defect %s in the answer to %s %r", name, request.method, request.path)
            told = f"Internal error occurred: defect {name}; the log of the server says what it is"
            return encoded(Refused(500, "InternalError", told).response())


def _sent(response: Response, request: Request) -> Response:
    """A response with its body as bytes: of what was written those that watches are sent, too."""
    if request.method == "GET" or not isinstance(response.body, dict):
        return encoded(response)
    return response._replace(body=shared(response.body) + b"\n")


def encoded(response: Response) -> Response:
    """A response with its body as bytes; an object ends with a newline, as Go's encoder writes it."""
    body = response.body
    if isinstance(body, bytes):
        return response
    text = body.encode() if isinstance(body, str) else _encoder.encode_lines([body])
    return response._replace(body=text)
