"""The user of a token of another issuer: attacks on its signature and claims, mappings, and rules."""

from typing import Any

import pytest

from batchyard.apiserver.external_tokens.configuration import parse_authentication
from batchyard.apiserver.external_tokens.signatures import TokenRejected, UnknownKey, parse_key_set, parse_token
from batchyard.apiserver.external_tokens.users import user_of_token
from batchyard.apiserver.request import UserInfo
from batchyard.base.instant import SECOND
from unit.apiserver.external_tokens.tokens import NOW, configuration, encode, key_set, rsa_key, token

KEYS = parse_key_set(key_set("a"))


def user(text: str, **fields: Any) -> UserInfo:
    """The user of a token, by a configuration with these fields."""
    (settings,) = parse_authentication(configuration(**fields), ())
    return user_of_token(parse_token(text), settings, KEYS, NOW * SECOND)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256"])
def test_claims_become_the_user(algorithm: str) -> None:
    groups = ("g:a", "g:b", "system:authenticated")
    assert user(token(algorithm)) == UserInfo("x:ada", groups)


@pytest.mark.parametrize("algorithm", ["none", "None", "", "HS256", "ES384", "EdDSA"])
def test_unsigned_symmetric_and_foreign_algorithms_are_rejected(algorithm: str) -> None:
    with pytest.raises(TokenRejected):
        user(token(algorithm))


@pytest.mark.parametrize("key", ["a", "ec"])
def test_key_does_not_verify_the_algorithm_of_another_type(key: str) -> None:
    algorithm = "ES256" if key == "a" else "RS256"
    with pytest.raises(UnknownKey):
        user(token(algorithm, header={"kid": key}))


def test_key_in_the_header_is_not_used() -> None:
    numbers = rsa_key("evil").public_key().public_numbers()
    own_key = {"kty": "RSA", "n": encode(numbers.n.to_bytes(256, "big")), "e": "AQAB"}
    for header in ({"jwk": own_key}, {"jku": "https://evil.example/keys"}, {"kid": "a"}, {"kid": ""}):
        with pytest.raises(UnknownKey):
            user(token(key="evil", header=header))


def test_changed_claims_are_rejected() -> None:
    head, _, signature = token().split(".")
    _, claims, _ = token(sub="eve").split(".")
    with pytest.raises(UnknownKey):
        user(f"{head}.{claims}.{signature}")
    with pytest.raises(UnknownKey):
        user(f"{head}.{claims}.")


def test_critical_header_is_rejected() -> None:
    with pytest.raises(TokenRejected, match="critical"):
        user(token(header={"crit": ["b64"], "b64": False}))


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW},
        {"exp": None},
        {"exp": "9999999999"},
        {"nbf": NOW + 301},
        {"nbf": "0"},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": None},
        {"aud": {"batch": 1}},
        {"iss": "https://issuer.example/"},
        {"sub": None},
        {"sub": 7},
        {"sub": ["ada"]},
        {"groups": {"a": 1}},
        {"groups": [1]},
    ],
)
def test_token_with_a_wrong_claim_is_rejected(claims: dict[str, Any]) -> None:
    with pytest.raises(TokenRejected):
        user(token(**claims))


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c.d", "é.é.é", f"{encode(b'[]')}.{encode(b'{}')}.", "x" * 20000])
def test_malformed_token_is_rejected(text: str) -> None:
    with pytest.raises(TokenRejected):
        parse_token(text)


def test_skew_of_five_minutes_is_allowed_before_the_start() -> None:
    assert user(token(nbf=NOW + 300)).name == "x:ada"


def test_group_claim_may_be_one_string_or_missing() -> None:
    assert user(token(groups="a")).groups == ("g:a", "system:authenticated")
    assert user(token(groups=None)).groups == ("system:authenticated",)


def test_any_audience_of_several_matches() -> None:
    issuer = {"audiences": ["other", "batch"], "audienceMatchPolicy": "MatchAny"}
    assert user(token(aud=["x", "batch"]), issuer=issuer).name == "x:ada"


def test_unverified_email_is_rejected() -> None:
    mappings = {"username": {"claim": "email", "prefix": ""}}
    assert user(token(email="a@b.c"), claimMappings=mappings).name == "a@b.c"
    for value in (False, "true"):
        with pytest.raises(TokenRejected, match="email not verified"):
            user(token(email="a@b.c", email_verified=value), claimMappings=mappings)


def test_expressions_compute_user_groups_uid_and_extra() -> None:
    mappings = {
        "username": {"expression": "claims.sub + '@' + claims.team"},
        "groups": {"expression": "claims.groups.map(g, 'cel:' + g)"},
        "uid": {"expression": "claims.id"},
        "extra": [{"key": "example.com/team", "valueExpression": "claims.team"}],
    }
    result = user(token(team="t", id="7", jti="j"), claimMappings=mappings)
    assert result[:3] == ("ada@t", ("cel:a", "cel:b", "system:authenticated"), "7")
    credential = ("authentication.kubernetes.io/credential-id", ("JTI=j",))
    assert result.extra == (credential, ("example.com/team", ("t",)))


def test_expression_of_a_missing_claim_rejects_the_token() -> None:
    with pytest.raises(TokenRejected, match="expression of username"):
        user(token(), claimMappings={"username": {"expression": "claims.team"}})


@pytest.mark.parametrize(
    ("rule", "accepts"),
    [
        ({"claim": "sub", "requiredValue": "ada"}, True),
        ({"claim": "sub", "requiredValue": "eve"}, False),
        ({"claim": "missing", "requiredValue": ""}, False),
        ({"expression": "claims.exp - claims.iat <= 3600"}, True),
        ({"expression": "claims.exp - claims.iat <= 10", "message": "too long"}, False),
        ({"expression": "claims.missing == 'x'"}, False),
    ],
)
def test_claim_rules_decide(rule: dict[str, Any], accepts: bool) -> None:
    text = token(iat=NOW)
    if accepts:
        assert user(text, claimValidationRules=[rule]).name == "x:ada"
    else:
        with pytest.raises(TokenRejected):
            user(text, claimValidationRules=[rule])


def test_user_rules_see_the_mapped_user() -> None:
    rule = {"expression": "!user.username.startsWith('system:') && user.groups.all(g, !g.startsWith('system:'))"}
    fields = {"claimMappings": {"groups": {"claim": "groups", "prefix": ""}}, "userValidationRules": [rule]}
    assert user(token(), **fields).name == "x:ada"
    with pytest.raises(TokenRejected, match="user validation"):
        user(token(groups=["system:masters"]), **fields)


def test_weak_and_encryption_keys_are_ignored() -> None:
    assert [key.key_id for key in KEYS] == ["a", "ec"]
    assert not parse_key_set(b'{"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "oct", "k": "YQ"}, 7]}')
    assert not parse_key_set(key_set("a").replace(b'"sig"', b'"enc"').replace(b'"EC"', b'"XC"'))
