"""Terms of a platform and its standby: who may serve, which rows are common, and the claims in a witness folder.

A term belongs to one node. Its history lists each term with its owner and the revision at which it begins. A node that
has rows of a term up to a revision can follow another node if the other's next term begins at this revision or later.
Two nodes that were both promoted can begin terms of the same number. Their owners distinguish these.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509

from batchyard.server.platform.data_dir import REPLICATION_FILE
from batchyard.store.journal_file import SupersededError

#: A file in the data directory that asks the running platform to serve without its partner.
PROMOTION_FILE: Final = "promotion.request"
_HISTORY_MAX: Final = 64
_NODE_DIGITS: Final = 16
_CLAIMS_KEPT: Final = 16
_CLAIM_PREFIX: Final = "term-"


class TermStart(NamedTuple):
    """The beginning of a term: the last revision before it, and the node that writes the rows after it."""

    term: int
    revision: int
    owner: str


class ReplicationState(NamedTuple):
    """The state of a node that survives its restart."""

    node: str
    #: The terms in order; the last one is the current term.
    history: Sequence[TermStart] = ()
    #: Whether another node may take over without a message, so that this node needs its answers to serve.
    is_shared: bool = False
    #: The other node; '' if the data is not shared.
    partner: str = ""
    #: Whether the current term was claimed in a witness folder, so that another node may claim the next one there.
    has_claim: bool = False

    @property
    def term(self) -> int:
        """The current term; 0 before the first."""
        return self.history[-1].term if self.history else 0

    @property
    def owner(self) -> str:
        """The node that wrote the rows of the current term; '' before the first."""
        return self.history[-1].owner if self.history else ""

    def with_term(self, term: int, revision: int) -> "ReplicationState":
        """Return the state with a new term of this node that begins after a revision, without a standby."""
        return self._replace(history=(*self.history[-_HISTORY_MAX:], TermStart(term, revision, self.node))).alone()

    def alone(self) -> "ReplicationState":
        """Return the state of a node that serves without another one."""
        return self._replace(is_shared=False, partner="")


def new_node() -> str:
    """Return a random name of a node."""
    return f"{x509.random_serial_number():x}"[:_NODE_DIGITS]


def read_state(folder: Path) -> ReplicationState:
    """Return the state of a data directory; a new one if it has none. Raise SupersededError if the file is damaged."""
    path = folder / REPLICATION_FILE
    try:
        fields = json.loads(path.read_text("utf-8"))
        history = tuple(TermStart(int(term), int(revision), str(owner)) for term, revision, owner in fields["history"])
        flags = bool(fields["isShared"]), str(fields["partner"]), bool(fields["hasClaim"])
        return ReplicationState(str(fields["node"]), history, *flags)
    except FileNotFoundError:
        return ReplicationState(new_node())
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = f"{path} is damaged, so the platform cannot know whether its standby has taken over"
        raise SupersededError(f"{message}; follow the new primary with --follow, or remove the file") from error


def write_state(folder: Path, state: ReplicationState) -> None:
    """Write the state of a data directory, so that it survives a power loss."""
    fields = {"node": state.node, "history": state.history, "isShared": state.is_shared, "partner": state.partner}
    _write_durably(folder / REPLICATION_FILE, json.dumps({**fields, "hasClaim": state.has_claim}).encode())


def can_resume(history: Sequence[TermStart], revision: int, last_term: tuple[int, str], last_revision: int) -> bool:
    """Return whether a node with rows of `last_term` up to `last_revision` has only rows that this history contains.

    `revision` is the last revision of the history, and `last_term` is a term with its owner.
    """
    terms = [(start.term, start.owner) for start in history]
    if last_term not in terms:
        return False
    next_index = terms.index(last_term) + 1
    return last_revision <= (history[next_index].revision if next_index < len(history) else revision)


def is_superseded(state: ReplicationState, term: int, owner: str) -> bool:
    """Return whether a node that began a term from a copy of this node's rows has taken over.

    Its term is later than the current one, or unknown to this node, which restarted in the meantime.
    """
    if term > state.term or not state.history:
        return term > state.term
    return term >= state.history[0].term and all((term, owner) != (start.term, start.owner) for start in state.history)


def take_promotion_request(folder: Path) -> bool:
    """Remove a request for promotion; return whether one existed."""
    with suppress(FileNotFoundError):
        (folder / PROMOTION_FILE).unlink()
        return True
    return False


class TermClaim(NamedTuple):
    """A claim in a witness folder: the term, the node that owns it, and the standby that may claim the next term."""

    term: int
    owner: str
    standby: str = ""


class WitnessFolder:
    """A folder that both nodes share. One file for each term, created by exactly one node, decides who serves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def latest(self) -> TermClaim | None:
        """Return the claim of the highest term. Raise OSError if the folder cannot be read."""
        terms = sorted(self._terms())
        if not terms:
            return None
        try:
            fields = json.loads(self._path(terms[-1]).read_text("utf-8"))
            return TermClaim(terms[-1], str(fields["owner"]), str(fields["standby"]))
        except (ValueError, LookupError, TypeError) as error:
            raise OSError(0, "this file is damaged", str(self._path(terms[-1]))) from error

    def claim(self, claim: TermClaim, previous_term: int) -> bool:
        """Claim a term; return False if another node or another request has claimed it or a higher one.

        The folder must contain the claim of `previous_term`, unless that is 0. A folder without it is another one: its
        file system is not mounted. Raise OSError in this case, or if the folder cannot be written.
        """
        known_terms = set(self._terms())
        if any(term >= claim.term for term in known_terms):
            return False
        if previous_term and previous_term not in known_terms:
            raise OSError(
                0, f"the claim of term {previous_term} is missing, so this is another folder", str(self._folder)
            )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft_path = self._folder / f".{claim.owner}.new"
        draft_path.unlink(missing_ok=True)  # of a killed process: it can be a link to an earlier claim
        _write_file(draft_path, json.dumps({"owner": claim.owner, "standby": claim.standby}).encode())
        try:
            os.link(draft_path, self._path(claim.term))  # fails if the file exists, also on a network file system
        except FileExistsError:  # also if a network file system repeats a request that succeeded
            return self.latest() == claim
        finally:
            draft_path.unlink(missing_ok=True)
        _flush_folder(self._folder)
        terms = sorted(self._terms())
        if terms[-1] > claim.term:  # a slow request: the file of this term was already removed as an old one
            self._path(claim.term).unlink(missing_ok=True)
            return False
        for term in terms[:-_CLAIMS_KEPT]:
            self._path(term).unlink(missing_ok=True)
        return True

    def _path(self, term: int) -> Path:
        return self._folder / f"{_CLAIM_PREFIX}{term:012}"

    def _terms(self) -> Iterator[int]:
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                number = path.name.removeprefix(_CLAIM_PREFIX)
                if number != path.name and number.isdecimal():
                    yield int(number)


def begin_term(state: ReplicationState, witness: WitnessFolder | None, revision: int) -> ReplicationState:
    """Return the state of a primary that starts. With a witness it claims the next term.

    Without a witness, a node that shares its data stays in its term, and begins the next one with the other node.
    Raise SupersededError if another node has claimed a term or may have done so, and OSError if the folder cannot be
    used.
    """
    if (witness is None and state.has_claim) or (witness is not None and state.is_shared and not state.has_claim):
        problem = "the platform has shared its data with" + (" a witness" if witness is None else "out a witness")
        remedy = "start it with the same --witness as before, or run `batchyard promote` if no other platform serves"
        raise SupersededError(f"{problem}; {remedy}")
    if witness is None:
        return state if state.is_shared else state.with_term(state.term + 1, revision)
    latest = witness.latest()
    if latest is not None and latest.owner != state.node:
        raise superseded_error(latest.term)
    term = max(state.term, latest.term if latest is not None else 0) + 1
    if not witness.claim(TermClaim(term, state.node), state.term if state.has_claim else 0):
        raise superseded_error(term)
    return state.with_term(term, revision)._replace(has_claim=True)


def superseded_error(term: int) -> SupersededError:
    """Return the error of a node that must not serve, because another node has claimed a term."""
    remedy = "start this platform with --follow and the address of the other one"
    return SupersededError(f"another platform has taken over in term {term}; {remedy}")


def _write_durably(path: Path, content: bytes) -> None:
    draft_path = path.with_name(f".{path.name}.new")
    _write_file(draft_path, content)
    draft_path.replace(path)
    _flush_folder(path.parent)


def _write_file(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
