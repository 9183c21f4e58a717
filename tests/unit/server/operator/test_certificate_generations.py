"""Rotation of certificates: each client always knows the authority of the served certificate."""

from collections.abc import Iterator

from cryptography import x509

from batchyard.base.instant import SECOND, Instant
from batchyard.server.operator.webhooks import (
    CertificateGenerations,
    CertificateRequirements,
    next_generations,
    parse_generations,
)

REQUIREMENTS = CertificateRequirements(("hooks.ns.svc", "hooks.ns.svc.cluster.local", "hooks.ns"), 120 * SECOND)
START: Instant = 1_800_000_000 * SECOND


def rotate(
    seconds: int, requirements: CertificateRequirements = REQUIREMENTS
) -> Iterator[tuple[Instant, CertificateGenerations]]:
    """Yield the generations, second by second."""
    held = CertificateGenerations()
    for second in range(seconds):
        now = START + second * SECOND
        held = parse_generations(next_generations(held, now, requirements).data())
        yield now, held


def is_trusted(held: CertificateGenerations, bundle: bytes, now: Instant) -> bool:
    shown = x509.load_pem_x509_certificate(held.served.certificate)
    assert shown.not_valid_before_utc.timestamp() * SECOND <= now < shown.not_valid_after_utc.timestamp() * SECOND
    for authority in x509.load_pem_x509_certificates(bundle):
        if authority.subject == shown.issuer:
            shown.verify_directly_issued_by(authority)
            return True
    return False


def test_served_certificate_verifies_with_delayed_or_updated_authorities() -> None:
    lag = REQUIREMENTS.overlap // SECOND - 1
    reported: list[bytes] = []
    shown: list[CertificateGenerations] = []
    for now, held in rotate(600):
        reported.append(held.authorities)
        shown.append(held)
        assert is_trusted(held, reported[max(0, len(reported) - lag)], now)
        assert is_trusted(shown[max(0, len(shown) - lag)], held.authorities, now)
    assert len(dict.fromkeys(each.served for each in shown)) == 7


def test_at_most_two_authorities_are_published_without_private_keys() -> None:
    counts = {held.authorities.count(b"BEGIN") for _, held in rotate(600)}
    assert counts == {1, 2}
    assert b"PRIVATE" not in next(iter(rotate(1)))[1].authorities


def test_unexpired_certificate_is_kept() -> None:
    now, held = next(iter(rotate(1)))
    assert next_generations(held, now + SECOND, REQUIREMENTS) is held


def test_changed_name_or_unreadable_data_renews_certificate_at_once() -> None:
    now, held = next(iter(rotate(1)))
    moved = next_generations(held, now, CertificateRequirements(("hooks.other.svc",), REQUIREMENTS.lifetime))
    assert moved.served != held.served
    assert moved.authorities.endswith(held.authorities)
    spoiled = parse_generations({**held.data(), "tls.crt": "bm8="})
    mended = next_generations(spoiled, now, REQUIREMENTS)
    assert is_trusted(mended, mended.authorities, now)
