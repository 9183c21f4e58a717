"""A candidate at work: it tries for the Lease and renews it, and says when it has it and when no more."""

from collections.abc import Callable

from batchyard.base.chance import draw
from batchyard.base.instant import Duration
from batchyard.client.election import Election, lease_in
from batchyard.client.wire import HttpAnswer, HttpRequest, Transport
from batchyard.client.writes import trouble_of
from batchyard.ports.kernel import Kernel

#: A candidate waits up to so many hundredths of the retry period longer, so that not all try at once.
_JITTER = 120
#: It is not there; somebody else was faster.
_ABSENT = (404, 409)
_CONFLICT = 409


class Leadership:
    """See the module. It ends when it is lost: what leads then must not go on with what it knows."""

    def __init__(self, election: Election, timers: Kernel, transport: Transport) -> None:
        self._election = election
        self._timers = timers
        self._transport = transport
        self._has_led = False
        self._tries = 0
        self._is_over = False
        #: Told what keeps it from knowing who leads, once for each reason.
        self.on_trouble: Callable[[str], None] = _nobody_told
        self._trouble = ""
        self.on_leading: Callable[[], None] = _nobody
        self.on_lost: Callable[[], None] = _nobody

    def start(self) -> None:
        """Begin to try."""
        self._try()

    def may_write(self) -> bool:
        """Whether nobody else can hold the Lease yet. Once that was not so it never is again."""
        if self._is_over:
            return False
        if self._election.may_write(self._timers.now()):
            return True
        if self._has_led:
            self._lose()
        return False

    def end(self, released: Callable[[], None]) -> None:
        """Try no more; give the Lease up if it is ours."""
        if self._election.leads and not self._is_over:
            request = self._election.release(self._timers.now())
            self._transport.send(request, lambda answer: self._was_given_up(answer, released))
        else:
            released()
        self._is_over = True

    def _was_given_up(self, answer: HttpAnswer, released: Callable[[], None]) -> None:
        """Where a renewal that was under way came first, it is given up upon that: nobody has to wait for its end."""
        if answer.code != _CONFLICT:
            released()
            return

        def seen(answer: HttpAnswer) -> None:
            request = self._election.release_as_seen(answer, self._timers.now())
            if request is None:
                released()
            else:
                self._transport.send(request, lambda _answer: released())

        self._transport.send(self._election.look(), seen)

    def _try(self) -> None:
        if not self._is_over:
            self._tries += 1
            self._ask(self._election.begin(self._timers.now()))

    def _ask(self, request: HttpRequest) -> None:
        self._transport.send(request, self._answered)

    def _answered(self, answer: HttpAnswer) -> None:
        if self._is_over:
            return
        self._tell_trouble(answer)
        following = self._election.answered(answer, self._timers.now())
        if following is not None:
            self._ask(following)
            return
        if self.may_write() and not self._has_led:
            self._has_led = True
            self._watch_the_deadline()
            self.on_leading()
        elif self._has_led and not self._election.leads:
            self._lose()
            return
        self._timers.call_at(self._timers.now() + self._wait(), self._try)

    def _tell_trouble(self, answer: HttpAnswer) -> None:
        is_usual = answer.code in _ABSENT or lease_in(answer) is not None
        trouble = "" if is_usual else trouble_of(answer)
        if trouble and trouble != self._trouble:
            self.on_trouble(f"the Lease: {trouble}")
        self._trouble = trouble

    def _wait(self) -> Duration:
        terms = self._election.terms
        if self._has_led:
            return terms.retry_period
        return terms.retry_period * (100 + draw(0, terms.identity, str(self._tries)) % _JITTER) // 100

    def _watch_the_deadline(self) -> None:
        """See when the time is over in which we may work without having renewed the Lease."""
        if self.may_write():
            self._timers.call_at(self._election.deadline, self._watch_the_deadline)

    def _lose(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._timers.call_soon(self.on_lost)


def _nobody() -> None:
    pass


def _nobody_told(_trouble: str) -> None:
    pass
