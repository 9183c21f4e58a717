"""Errors of an AuthenticationConfiguration, in Kubernetes' words."""

from typing import Any

import pytest

from batchyard.apiserver.external_tokens.configuration import InvalidAuthentication, parse_authentication
from unit.apiserver.external_tokens.tokens import URL, configuration


def problems(document: Any) -> str:
    """The errors of a document."""
    with pytest.raises(InvalidAuthentication) as caught:
        parse_authentication(document, ("https://own.example",))
    return str(caught.value)


def test_discovery_is_below_the_issuer_or_at_another_url() -> None:
    (settings,) = parse_authentication(configuration(f"{URL}/"), ())
    assert settings.discovery_url == f"{URL}/.well-known/openid-configuration"
    (settings,) = parse_authentication(configuration(issuer={"discoveryURL": "https://d.example/x"}), ())
    assert settings.discovery_url == "https://d.example/x"


@pytest.mark.parametrize("document", [None, [], {"kind": "Other"}, {**configuration(), "apiVersion": "v1"}])
def test_other_document_is_rejected(document: Any) -> None:
    assert "the file must contain" in problems(document)


@pytest.mark.parametrize(
    ("issuer", "problem"),
    [
        ({"url": "http://x.example"}, 'jwt[0].issuer.url: Invalid value: "http://x.example": URL scheme must be https'),
        ({"url": "https://a:b@x.example"}, "URL must not contain a username or password"),
        ({"url": "https://x.example?q=1"}, "URL must not contain a query"),
        ({"url": "https://own.example"}, "URL must not overlap with disallowed issuers"),
        ({"discoveryURL": f"{URL}/"}, "discoveryURL must be different from URL"),
        ({"audiences": []}, "jwt[0].issuer.audiences: Required value: at least one"),
        ({"audiences": ["a", "a"]}, 'jwt[0].issuer.audiences[1]: Duplicate value: "a"'),
        ({"audiences": ["a", "b"]}, "audienceMatchPolicy must be MatchAny for multiple audiences"),
        ({"certificateAuthority": "x"}, "data does not contain any valid RSA or ECDSA certificates"),
        ({"audience": "a"}, "jwt[0].issuer.audience: unknown field"),
        ({"url": 7}, "jwt[0].issuer.url: Invalid value: must be a string"),
    ],
)
def test_invalid_issuer_is_rejected(issuer: dict[str, Any], problem: str) -> None:
    assert problem in problems(configuration(issuer=issuer))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"claimMappings": {"username": {}}},
            "claimMappings.username: Required value: claim or expression is required",
        ),
        ({"claimMappings": {"username": {"claim": "sub"}}}, "prefix is required when claim is set"),
        ({"claimMappings": {"username": {"expression": "1 + 1"}}}, "must evaluate to string"),
        ({"claimMappings": {"username": {"expression": "claims."}}}, "compilation failed"),
        ({"claimMappings": {"username": {"expression": "claims.email"}}}, "claims.email_verified must be used in"),
        (
            {"claimMappings": {"uid": {"claim": "a", "expression": "claims.b"}}},
            "claim and expression can't both be set",
        ),
        (
            {"claimMappings": {"extra": [{"key": "a.k8s.io/x", "valueExpression": "'a'"}]}},
            "are reserved for Kubernetes",
        ),
        (
            {"claimMappings": {"extra": [{"key": "batchyard.dev/x", "valueExpression": "'a'"}]}},
            "reserved for batchyard",
        ),
        ({"claimMappings": {"extra": [{"key": "x", "valueExpression": "'a'"}]}}, "must be a domain-prefixed path"),
        ({"claimValidationRules": [{}]}, "claimValidationRules[0]: Required value: claim or expression is required"),
        ({"claimValidationRules": [{"expression": "'a'"}]}, "must evaluate to bool"),
        ({"claimValidationRules": [{"claim": "a"}, {"claim": "a"}]}, "claimValidationRules[1].claim: Duplicate value"),
        ({"userValidationRules": [{"message": "m"}]}, "userValidationRules[0].expression: Required value"),
    ],
)
def test_invalid_mapping_or_rule_is_rejected(fields: dict[str, Any], problem: str) -> None:
    assert problem in problems(configuration(**fields))


def test_issuers_have_distinct_urls_and_anonymous_requests_are_not_configurable() -> None:
    document = configuration()
    assert f'jwt[1].issuer.url: Duplicate value: "{URL}"' in problems({**document, "jwt": document["jwt"] * 2})
    assert "anonymous" in problems({**document, "anonymous": {"enabled": True}})


def test_verified_email_may_be_the_username() -> None:
    expression = "claims.?email_verified.orValue(true) == true ? claims.email : claims.sub"
    parse_authentication(configuration(claimMappings={"username": {"expression": expression}}), ())
