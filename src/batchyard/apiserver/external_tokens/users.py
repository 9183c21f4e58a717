"""The user of a verified JSON Web Token: checks of its claims, claim mappings and validation rules.

Source: k8s.io/apiserver, plugin/pkg/authenticator/token/oidc/oidc.go; github.com/coreos/go-oidc, oidc/verify.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeGuard

from batchyard.apiserver.cel_library import evaluate_program
from batchyard.apiserver.external_tokens.configuration import ClaimMapping, TokenIssuerSettings, TokenRule
from batchyard.apiserver.external_tokens.signatures import SignedToken, TokenRejected, VerificationKey, verify_signature
from batchyard.apiserver.request import AUTHENTICATED_GROUP, UserInfo
from batchyard.base.instant import SECOND, Instant

#: How far in the future `nbf` may lie, in seconds; as go-oidc allows for clock skew.
_NOT_BEFORE_LEEWAY: Final = 300
_CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"
_EMAIL: Final = "email"
_EMAIL_VERIFIED: Final = "email_verified"


def user_of_token(
    token: SignedToken, settings: TokenIssuerSettings, keys: Sequence[VerificationKey], now: Instant
) -> UserInfo:
    """Verify a token of an issuer at a time, and return its user.

    Raises TokenRejected if the token is not valid, and UnknownKey if none of the keys has signed it.
    """
    verify_signature(token, keys)
    claims = token.unverified_claims
    _check_claims(claims, settings, now)
    user = UserInfo(
        _username(settings.username, claims),
        _groups(settings.groups, claims),
        _text(settings.uid, claims, "uid"),
        tuple(_extra(settings.extra, claims)),
    )
    for claim, required_value in settings.required_claims.items():
        if claims.get(claim) != required_value or not isinstance(claims.get(claim), str):
            raise TokenRejected(f"required claim {claim} value does not match")
    _check_rules(settings.claim_rules, {"claims": claims}, "claim validation")
    _check_rules(
        settings.user_rules, {"user": {"groups": [], "uid": "", "extra": {}, **user.to_json()}}, "user validation"
    )
    return user._replace(groups=tuple(dict.fromkeys((*user.groups, AUTHENTICATED_GROUP))))


def expiry_of(token: SignedToken) -> Instant:
    """Return the time at which a token expires; 0 without a valid `exp`."""
    expiry = token.unverified_claims.get("exp")
    return int(expiry * SECOND) if _is_number(expiry) else 0


def _check_claims(claims: Mapping[str, Any], settings: TokenIssuerSettings, now: Instant) -> None:
    audiences = claims.get("aud")
    audiences = [audiences] if isinstance(audiences, str) else audiences
    if claims.get("iss") != settings.url:
        raise TokenRejected("the token has another issuer")
    if not isinstance(audiences, list) or not any(each in settings.audiences for each in audiences):
        raise TokenRejected(f"expected audience in {list(settings.audiences)} got {audiences}")
    now_seconds, expiry, not_before = now / SECOND, claims.get("exp"), claims.get("nbf")
    if not _is_number(expiry) or expiry <= now_seconds:
        raise TokenRejected("token is expired")
    if not_before is not None and (not _is_number(not_before) or not_before > now_seconds + _NOT_BEFORE_LEEWAY):
        raise TokenRejected("current time is before the nbf (not before) time")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _username(mapping: ClaimMapping, claims: Mapping[str, Any]) -> str:
    if mapping.claim == _EMAIL and claims.get(_EMAIL_VERIFIED, True) is not True:
        raise TokenRejected("email not verified")
    name = _text(mapping, claims, "username")
    if not name:
        raise TokenRejected("the username is empty")
    return name


def _text(mapping: ClaimMapping, claims: Mapping[str, Any], name: str) -> str:
    if not mapping.claim and mapping.program is None:
        return ""
    value = claims.get(mapping.claim) if mapping.claim else _evaluate(mapping.program, claims, name)
    if not isinstance(value, str):
        raise TokenRejected(f"the {name} is not a string")
    return mapping.prefix + value


def _groups(mapping: ClaimMapping, claims: Mapping[str, Any]) -> tuple[str, ...]:
    if mapping.claim:
        value = claims.get(mapping.claim)
    else:
        value = None if mapping.program is None else _evaluate(mapping.program, claims, "groups")
    return tuple(mapping.prefix + each for each in _texts(value, "groups"))


def _extra(programs: Mapping[str, Any], claims: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(claims.get("jti"), str) and claims["jti"]:
        yield _CREDENTIAL_ID, (f"JTI={claims['jti']}",)
    for key, program in programs.items():
        if values := _texts(_evaluate(program, claims, key), key):
            yield key, values


def _texts(value: Any, name: str) -> tuple[str, ...]:
    """Return a string, or a list of strings, as a tuple; empty strings and null are left out, as in Kubernetes."""
    values = [value] if isinstance(value, str) else value
    if values is None:
        return ()
    if not isinstance(values, list | tuple) or not all(isinstance(each, str) for each in values):
        raise TokenRejected(f"{name} is not a string or a list of strings")
    return tuple(filter(None, values))


def _evaluate(program: Any, claims: Mapping[str, Any], name: str) -> Any:
    value, problem = evaluate_program(program, {"claims": claims})
    if problem:
        raise TokenRejected(f"error evaluating the expression of {name}: {problem}")
    return value


def _check_rules(token_rules: Sequence[TokenRule], variables: Mapping[str, Any], name: str) -> None:
    for rule in token_rules:
        result, problem = evaluate_program(rule.program, variables)
        if result is not True:
            raise TokenRejected(f"{name} expression {rule.expression!r} failed: {problem or rule.message}")
