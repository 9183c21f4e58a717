"""Terms: common rows of two nodes, stored states, and claims in a witness folder."""

import os
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
from batchyard.server.replication.terms import ReplicationState, TermClaim, TermStart, WitnessFolder
from batchyard.store.journal_file import SupersededError

HISTORY = [TermStart(1, 0, "a"), TermStart(3, 100, "b"), TermStart(4, 250, "a")]


@pytest.mark.parametrize(
    ("term", "owner", "revision", "resumes"),
    [
        (1, "a", 100, True),
        (1, "a", 101, False),  # rows that the next term does not contain
        (3, "b", 250, True),
        (3, "b", 251, False),
        (3, "a", 200, False),  # a term of the same number after two promotions
        (4, "a", 300, True),
        (4, "a", 301, False),  # newer than the primary
        (2, "a", 50, False),  # a term that the primary does not know
        (0, "", 0, False),
    ],
)
def test_only_common_rows_are_resumed(term: int, owner: str, revision: int, resumes: bool) -> None:
    assert terms.can_resume(HISTORY, 300, (term, owner), revision) is resumes


@pytest.mark.parametrize(
    ("term", "owner", "is_superseded"),
    [
        (5, "b", True),
        (4, "b", True),  # began a term of the same number
        (3, "c", True),  # took over while this node restarted several times
        (3, "b", False),  # an earlier primary that this node has followed
        (0, "", False),
    ],
)
def test_notice_of_an_unknown_term_supersedes(term: int, owner: str, is_superseded: bool) -> None:
    assert terms.is_superseded(ReplicationState("a", HISTORY), term, owner) is is_superseded


def test_state_survives_a_restart(tmp_path: Path) -> None:
    state = ReplicationState("a", (TermStart(1, 0, "a"), TermStart(2, 7, "b")), True, "b", has_claim=True)
    terms.write_state(tmp_path, state)
    assert terms.read_state(tmp_path) == state
    assert (tmp_path / REPLICATION_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": "a"}', '{"node": "a", "history": [[1]]}'])
def test_damaged_state_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / REPLICATION_FILE).write_text(text, "utf-8")
    with pytest.raises(SupersededError, match="is damaged"):
        terms.read_state(tmp_path)


def test_shared_primary_stays_in_its_term_and_needs_its_partner(tmp_path: Path) -> None:
    shared = ReplicationState("a").with_term(1, 0)._replace(is_shared=True, partner="b")
    assert terms.begin_term(shared, None, 50) == shared
    alone = terms.begin_term(shared.alone(), None, 50)
    assert (alone.term, alone.is_shared, alone.partner) == (2, False, "")


def test_exactly_one_of_many_claims_a_term(tmp_path: Path) -> None:
    results: list[tuple[str, bool]] = []

    def claim(owner: str) -> None:
        results.append((owner, WitnessFolder(tmp_path).claim(TermClaim(7, owner), 0)))

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
    assert all(witness.claim(TermClaim(term, "a"), term - 1) for term in range(1, 40))
    assert len(list(tmp_path.iterdir())) == 16
    assert not witness.claim(TermClaim(3, "b"), 2)
    assert not witness.claim(TermClaim(39, "b"), 38)


def test_slow_claim_of_a_removed_term_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = WitnessFolder(tmp_path)
    assert witness.claim(TermClaim(1, "a"), 0)

    def link_later(*paths: Path) -> None:  # other claims happen between the check and the link
        monkeypatch.undo()
        assert all(witness.claim(TermClaim(term, "a"), term - 1) for term in range(2, 20))
        assert not (tmp_path / "term-000000000002").exists()
        os.link(*paths)

    monkeypatch.setattr(os, "link", link_later)
    assert not witness.claim(TermClaim(2, "b"), 1)
    assert witness.latest() == TermClaim(19, "a")


def test_claim_in_another_folder_fails(tmp_path: Path) -> None:
    folder = tmp_path / "not-mounted"
    with pytest.raises(OSError, match="claim of term 4 is missing"):
        WitnessFolder(folder).claim(TermClaim(5, "b"), 4)
    assert not folder.exists()


def test_claim_after_a_kill_keeps_the_earlier_claim(tmp_path: Path) -> None:
    witness = WitnessFolder(tmp_path)
    assert witness.claim(TermClaim(1, "a", "b"), 0)
    os.link(tmp_path / "term-000000000001", tmp_path / ".a.new")  # a kill between the link and the removal
    text = (tmp_path / "term-000000000001").read_text("utf-8")
    assert witness.claim(TermClaim(2, "a"), 1)
    assert (tmp_path / "term-000000000001").read_text("utf-8") == text


def test_restarted_primary_is_superseded_by_a_claim_of_another_node(tmp_path: Path) -> None:
    witness, state = WitnessFolder(tmp_path), ReplicationState("a")
    state = terms.begin_term(state, witness, 0)
    state = terms.begin_term(state, witness, 5)
    assert state.term == 2
    assert witness.claim(TermClaim(3, "b"), 2)
    with pytest.raises(SupersededError, match="taken over in term 3"):
        terms.begin_term(state, witness, 5)


def test_restarted_primary_refuses_an_empty_witness_folder(tmp_path: Path) -> None:
    state = terms.begin_term(ReplicationState("a"), WitnessFolder(tmp_path / "one"), 0)
    with pytest.raises(OSError, match="claim of term 1 is missing"):
        terms.begin_term(state, WitnessFolder(tmp_path / "two"), 5)


def test_platform_changes_its_use_of_a_witness_only_after_promotion(tmp_path: Path) -> None:
    witness = WitnessFolder(tmp_path)
    state = terms.begin_term(ReplicationState("a"), witness, 0)
    with pytest.raises(SupersededError, match="the same --witness"):
        terms.begin_term(state, None, 5)
    shared = ReplicationState("b").with_term(1, 0)._replace(is_shared=True, partner="c")
    with pytest.raises(SupersededError, match="without a witness"):
        terms.begin_term(shared, witness, 5)


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
