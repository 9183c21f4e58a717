"""Webhook calls and forked work of requests, which the API server's thread does not wait for.

A request is a generator. It yields webhook calls, which are made in parallel, or one OutsideWork, and receives the
results. `CallRun` runs it to its end.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.apiserver.conversions import REPETITIONS_MAX, ConversionNeeded, ConversionScope
from batchyard.apiserver.handlers.prepared_writes import (
    PreparedWrite,
    WriteExecutor,
    decode_prepared_write,
    encode_prepared_write,
)
from batchyard.apiserver.request import AnyResponse, DeferredResponse, FinalResponse, StatusError, UserInfo

#: The maximum duration of the webhook calls of one request, in seconds. Source: k8s.io/apiserver,
#: pkg/endpoints/handlers/rest.go (requestTimeoutUpperBound).
REQUEST_SECONDS_MAX: Final = 34.0
_TIMEOUT_ERROR: Final = StatusError(504, "Timeout", "Timeout: request did not complete within requested timeout")


class WebhookCallError(Exception):
    """A webhook could not be called, or sent an invalid response; `code` is the status code in metrics."""

    def __init__(self, reason: str, code: int = 503) -> None:
        super().__init__(reason)
        self.code = code


class WebhookRequest(NamedTuple):
    """A call of a webhook: the client configuration, the path suffix of the timeout, and the body."""

    #: The name of the webhook, which shares a limit of calls in flight.
    name: str
    client_config: Mapping[str, Any]
    timeout_seconds: int
    body: bytes


WebhookReply: TypeAlias = bytes | WebhookCallError
"""The body of a successful response, or the error of the call."""


class TimedReply(NamedTuple):
    """The reply to a webhook call, and the duration of the call in seconds."""

    reply: WebhookReply
    seconds: float


class OutsideWork(NamedTuple):
    """A function to run for a user in a forked process."""

    user: UserInfo
    work: Callable[[], bytes]


WebhookCalls: TypeAlias = Generator[Any, Any, Any]
"""Yields the webhook calls to make in parallel, and receives their replies in the same order.

It may also yield an OutsideWork, and receives its output, or a StatusError if it was not run.
"""


class WebhookCaller(Protocol):
    """Calls webhooks over the network."""

    def seconds(self) -> float:
        """Return the seconds of a monotonic clock."""

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        """Call a webhook; the API server's thread later calls `on_reply` with the reply."""


class CallPorts(NamedTuple):
    """What a CallRun needs: a caller of webhooks, and an executor of forked work if the generator yields any."""

    caller: WebhookCaller
    executor: WriteExecutor | None = None


class CallRun:
    """Runs a stage of webhook calls to its end; `on_end` gets its result, or the StatusError that it raised."""

    def __init__(self, calls: WebhookCalls, ports: CallPorts, on_end: Callable[[Any], None]) -> None:
        self._calls = calls
        self._caller, self._executor = ports
        self._on_end = on_end
        self._ends_at = self._caller.seconds() + REQUEST_SECONDS_MAX
        self._replies: list[TimedReply | None] = []

    def start(self) -> None:
        """Start the first calls. An unexpected exception is raised, after `on_end` got an internal error."""
        self._advance(None)

    def _advance(self, results: Any) -> None:
        is_defect = True
        try:
            wanted = next(self._calls) if results is None else self._calls.send(results)
            is_defect = False
        except StopIteration as end:
            is_defect = False
            self._on_end(end.value)
            return
        except StatusError as error:
            is_defect = False
            self._on_end(error)
            return
        finally:
            if is_defect:
                self._on_end(internal_error("an unexpected exception ended the admission; see the server log"))
        if isinstance(wanted, OutsideWork):
            self._run_outside(wanted)
        else:
            self._call_webhooks(wanted)

    def _run_outside(self, outside_work: OutsideWork) -> None:
        assert self._executor is not None, "only requests with an executor run work outside"
        began_at = self._caller.seconds()

        def receive(output: bytes | StatusError) -> None:
            self._ends_at += self._caller.seconds() - began_at  # the limit is that of the calls
            self._advance(output)

        try:
            self._executor.submit(outside_work.user, outside_work.work, receive)
        except StatusError as error:
            self._calls.close()
            self._on_end(error)

    def _call_webhooks(self, requests: Sequence[WebhookRequest]) -> None:
        remaining_seconds = self._ends_at - self._caller.seconds()
        if remaining_seconds <= 0:
            self._calls.close()
            self._on_end(_TIMEOUT_ERROR)
            return
        self._replies = [None] * len(requests)
        for index, request in enumerate(requests):
            timeout = min(request.timeout_seconds, remaining_seconds)
            self._caller.call(request, timeout, self._reply_receiver(index))

    def _reply_receiver(self, index: int) -> Callable[[TimedReply], None]:
        replies = self._replies

        def receive(reply: TimedReply) -> None:
            replies[index] = reply
            if all(each is not None for each in replies):
                self._advance([each for each in replies if each is not None])

        return receive


def respond_later(
    calls: WebhookCalls, ports: CallPorts, finish: Callable[[AnyResponse], AnyResponse] = lambda response: response
) -> AnyResponse:
    """Run calls whose result is a response, and return that response, which may come later; errors become responses."""
    receivers: list[Callable[[FinalResponse], None]] = []
    results: list[AnyResponse] = []

    def end(result: AnyResponse | StatusError) -> None:
        response = finish(result.response() if isinstance(result, StatusError) else result)
        if not receivers:
            results.append(response)
        elif isinstance(response, DeferredResponse):
            response.then(receivers[0])
        else:
            receivers[0](response)

    CallRun(calls, ports, end).start()
    return results[0] if results else DeferredResponse(receivers.append)


def prepare_outside(prepare: Callable[[], PreparedWrite], user: UserInfo, scope: ConversionScope) -> WebhookCalls:
    """Prepare a write in a forked process, and return it. Raises StatusError if it is invalid."""
    work = partial(encode_prepared_write, partial(scope.run, prepare))
    for _ in range(REPETITIONS_MAX):
        output = yield OutsideWork(user, work)
        try:
            return decode_prepared_write(output)
        except ConversionNeeded as need:
            yield from need.converter.calls(need.objects, need.api_version, scope)
    raise _TIMEOUT_ERROR


def internal_error(message: str) -> StatusError:
    """Return Kubernetes's internal error with a cause."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})
