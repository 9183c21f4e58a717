"""Certificates replace themselves, and whoever asks always knows the authority of what he is shown."""

from collections.abc import Iterator

from cryptography import x509

from batchyard.base.instant import SECOND, Instant
from batchyard.server.operator.webhooks import (
    CertificateGenerations,
    CertificateTerms,
    generations_of,
    next_generations,
)

TERMS = CertificateTerms(("hooks.ns.svc", "hooks.ns.svc.cluster.local", "hooks.ns"), 120 * SECOND)
START: Instant = 1_800_000_000 * SECOND


def lives(seconds: int, terms: CertificateTerms = TERMS) -> Iterator[tuple[Instant, CertificateGenerations]]:
    """What is held, second by second."""
    held = CertificateGenerations()
    for second in range(seconds):
        now = START + second * SECOND
        held = generations_of(next_generations(held, now, terms).data())
        yield now, held


def is_trusted(held: CertificateGenerations, bundle: bytes, now: Instant) -> bool:
    shown = x509.load_pem_x509_certificate(held.shown.certificate)
    assert shown.not_valid_before_utc.timestamp() * SECOND <= now < shown.not_valid_after_utc.timestamp() * SECOND
    for authority in x509.load_pem_x509_certificates(bundle):
        if authority.subject == shown.issuer:
            shown.verify_directly_issued_by(authority)
            return True
    return False


def test_what_is_shown_is_trusted_by_whoever_learned_of_authorities_late_or_has_just_been_shown_the_one_before() -> (
    None
):
    lag = TERMS.overlap // SECOND - 1
    reported: list[bytes] = []
    shown: list[CertificateGenerations] = []
    for now, held in lives(600):
        reported.append(held.authorities)
        shown.append(held)
        assert is_trusted(held, reported[max(0, len(reported) - lag)], now)
        assert is_trusted(shown[max(0, len(shown) - lag)], held.authorities, now)
    assert len(dict.fromkeys(each.shown for each in shown)) == 7


def test_no_more_is_held_than_is_needed() -> None:
    counts = {held.authorities.count(b"BEGIN") for _, held in lives(600)}
    assert counts == {1, 2}
    assert b"PRIVATE" not in next(iter(lives(1)))[1].authorities


def test_nothing_is_done_while_nothing_is_to_be_done() -> None:
    now, held = next(iter(lives(1)))
    assert next_generations(held, now + SECOND, TERMS) is held


def test_another_name_or_what_cannot_be_read_has_a_certificate_made_at_once() -> None:
    now, held = next(iter(lives(1)))
    moved = next_generations(held, now, CertificateTerms(("hooks.other.svc",), TERMS.lifetime))
    assert moved.shown != held.shown
    assert moved.authorities.endswith(held.authorities)
    spoiled = generations_of({**held.data(), "tls.crt": "bm8="})
    mended = next_generations(spoiled, now, TERMS)
    assert is_trusted(mended, mended.authorities, now)
