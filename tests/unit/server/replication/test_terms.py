"""Terms: common rows of two nodes, stored states, and claims in a witness folder."""

import threading
from pathlib import Path

import pytest

from batchyard.server.platform.data_dir import REPLICATION_FILE
from batchyard.server.replication import terms
from batchyard.server.replication.protocol import (
    STANDBY_MESSAGE_BYTES_MAX,
    MessageParser,
    ReplicationError,
    StandbyAck,
    encode_message,
    standby_decoder,
)
from batchyard.server.replication.terms import ReplicationState, TermClaim, WitnessFolder
from batchyard.store.journal_file import SupersededError

HISTORY = [(1, 0), (3, 100), (4, 250)]


@pytest.mark.parametrize(
    ("term", "revision", "resumes"),
    [
        (1, 100, True),
        (1, 101, False),  # rows that the next term does not contain
        (3, 250, True),
        (3, 251, False),
        (4, 300, True),
        (4, 301, False),  # newer than the primary
        (2, 50, False),  # a term that the primary does not know
        (0, 0, False),
    ],
)
def test_only_common_rows_are_resumed(term: int, revision: int, resumes: bool) -> None:
    assert terms.can_resume(HISTORY, 300, term, revision) is resumes


def test_state_survives_a_restart(tmp_path: Path) -> None:
    state = ReplicationState("a", ((1, 0), (2, 7)), is_shared=True, partner="b")
    terms.write_state(tmp_path, state)
    assert terms.read_state(tmp_path) == state
    assert (tmp_path / REPLICATION_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": "a"}', '{"node": "a", "history": [[1]]}'])
def test_damaged_state_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / REPLICATION_FILE).write_text(text, "utf-8")
    with pytest.raises(SupersededError, match="is damaged"):
        terms.read_state(tmp_path)


def test_shared_primary_stays_in_its_term_and_needs_its_partner(tmp_path: Path) -> None:
    shared = ReplicationState("a", ((1, 0),), is_shared=True, partner="b")
    assert terms.begin_term(shared, None, 50) == shared
    alone = terms.begin_term(shared.alone(), None, 50)
    assert (alone.term, alone.is_shared, alone.partner) == (2, False, "")


def test_exactly_one_of_many_claims_a_term(tmp_path: Path) -> None:
    results: list[tuple[str, bool]] = []

    def claim(owner: str) -> None:
        results.append((owner, WitnessFolder(tmp_path).claim(TermClaim(7, owner))))

    threads = [threading.Thread(target=claim, args=(f"n{number}",)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [owner for owner, is_claimed in results if is_claimed]
    assert len(winners) == 1
    assert WitnessFolder(tmp_path).latest() == TermClaim(7, winners[0])


def test_older_terms_cannot_be_claimed_although_their_files_are_gone(tmp_path: Path) -> None:
    witness = WitnessFolder(tmp_path)
    assert all(witness.claim(TermClaim(term, "a")) for term in range(1, 40))
    assert len(list(tmp_path.iterdir())) == 16
    assert not witness.claim(TermClaim(3, "b"))
    assert not witness.claim(TermClaim(39, "b"))


def test_restarted_primary_is_superseded_by_a_claim_of_another_node(tmp_path: Path) -> None:
    witness, state = WitnessFolder(tmp_path), ReplicationState("a")
    state = terms.begin_term(state, witness, 0)
    state = terms.begin_term(state, witness, 5)
    assert state.term == 2
    assert witness.claim(TermClaim(3, "b"))
    with pytest.raises(SupersededError, match="taken over in term 3"):
        terms.begin_term(state, witness, 5)


def test_damaged_claim_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "term-000000000001").write_text("", "utf-8")
    with pytest.raises(OSError, match="damaged"):
        WitnessFolder(tmp_path).latest()


def test_messages_are_split_and_bounded() -> None:
    message = StandbyAck(5, 1.5)
    data = encode_message(message) * 3
    parser = MessageParser(STANDBY_MESSAGE_BYTES_MAX)
    parsed = [each for index in range(len(data)) for each in parser.feed_bytes(data[index : index + 1])]
    assert [standby_decoder.decode(each) for each in parsed] == [message] * 3
    with pytest.raises(ReplicationError, match="longer"):
        list(parser.feed_bytes(b"\xff\xff\xff\x7f"))
