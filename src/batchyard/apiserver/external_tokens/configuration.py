"""AuthenticationConfiguration (apiserver.config.k8s.io): its issuers of JSON Web Tokens, with all their errors.

Source: k8s.io/apiserver, pkg/apis/apiserver/v1/types.go, pkg/apis/apiserver/validation/validation.go and
pkg/authentication/cel/compile.go.
"""

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from batchyard.api.errors import FieldError
from batchyard.api.validation import rules
from batchyard.apiserver.cel_library import new_environment

API_VERSIONS: Final = tuple(f"apiserver.config.k8s.io/{version}" for version in ("v1", "v1beta1", "v1alpha1"))
KIND: Final = "AuthenticationConfiguration"
_ISSUERS_MAX: Final = 64
#: Domains of extra attributes that only the platform sets.
_RESERVED_DOMAINS: Final = ("kubernetes.io", "k8s.io", "batchyard.dev")
_EXTRA_KEY: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/_.~!$&'()*+,;=:@%-]+"
)
_EMAIL_CLAIM: Final = re.compile(r"""\bclaims\s*(\.\s*(?:\?\s*)?email\b(?!_)|\[\s*(?:\?\s*)?['"]email['"]\s*\])""")
_EMAIL_VERIFIED_CLAIM: Final = re.compile(
    r"""\bclaims\s*(\.\s*(?:\?\s*)?email_verified\b|\[\s*(?:\?\s*)?['"]email_verified['"]\s*\])"""
)
_BOOLEAN: Final = ("BOOL",)
_TEXT: Final = ("STRING", "DYN", "ANY")
_TEXTS: Final = (*_TEXT, "LIST")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("apiVersion", "kind", "jwt", "anonymous"),
    "jwt": ("issuer", "claimValidationRules", "claimMappings", "userValidationRules"),
    "issuer": (
        *("url", "discoveryURL", "certificateAuthority", "audiences", "audienceMatchPolicy", "egressSelectorType"),
    ),
    "claimMappings": ("username", "groups", "uid", "extra"),
    "mapping": ("claim", "prefix", "expression"),
    "uid": ("claim", "expression"),
    "extra": ("key", "valueExpression"),
    "claimRule": ("claim", "requiredValue", "expression", "message"),
    "userRule": ("expression", "message"),
}


class ClaimMapping(NamedTuple):
    """How a user attribute is computed: from a claim with a prefix, or by a program over the claims."""

    claim: str = ""
    prefix: str = ""
    program: Any = None


class TokenRule(NamedTuple):
    """A condition on the claims or the user that must evaluate to true."""

    program: Any
    expression: str
    message: str


class TokenIssuerSettings(NamedTuple):
    """A trusted issuer of JSON Web Tokens, and how its tokens become users."""

    url: str
    #: The URL of the discovery document.
    discovery_url: str
    #: The certificate authorities of the issuer's server as PEM; '' for those of the machine.
    certificate_authority: str
    audiences: tuple[str, ...]
    username: ClaimMapping
    groups: ClaimMapping
    uid: ClaimMapping
    #: Programs of extra attributes, by key.
    extra: Mapping[str, Any]
    #: Required values by claim.
    required_claims: Mapping[str, str]
    claim_rules: tuple[TokenRule, ...]
    user_rules: tuple[TokenRule, ...]


class InvalidAuthentication(ValueError):  # noqa: N818 - named after the condition
    """An AuthenticationConfiguration is invalid; `faults` are its errors."""

    def __init__(self, faults: Sequence[FieldError]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


def parse_authentication(document: Any, own_issuers: Sequence[str]) -> list[TokenIssuerSettings]:
    """Return the issuers of an AuthenticationConfiguration. `own_issuers` are URLs that it may not name.

    Raises InvalidAuthentication with all errors.
    """
    faults = list(_document_errors(document))
    if not faults:
        faults = list(_issuers_errors(document, own_issuers))
    if faults:
        raise InvalidAuthentication(faults)
    return [_issuer_settings(each) for each in document.get("jwt") or ()]


def compile_expression(variable: str, expression: str) -> Any:
    """Compile a CEL expression over the variable `claims` or `user`. Raises ValueError if it is invalid."""
    try:
        return _environment(variable).compile(expression)
    except RuntimeError as error:
        raise ValueError(f"compilation failed: {error}") from error


@cache
def _environment(variable: str) -> Any:
    return new_environment(variable)


def _document_errors(document: Any) -> Iterator[FieldError]:
    if not isinstance(document, Mapping):
        yield FieldError("", "the file must contain one object")
        return
    if document.get("kind") != KIND or document.get("apiVersion") not in API_VERSIONS:
        yield FieldError("kind", f"the file must contain an {KIND} of {API_VERSIONS[0]}")
        return
    yield from _unknown_fields(document, "", "")
    if "anonymous" in document:
        yield FieldError("anonymous", "Forbidden: batchyard does not serve anonymous requests, except to public paths")
    issuers = document.get("jwt")
    if not isinstance(issuers, list) or not all(isinstance(each, Mapping) for each in issuers):
        yield FieldError("jwt", "Required value: must be a list of objects")
        return
    for index, issuer in enumerate(issuers):
        yield from _shape_errors(issuer, f"jwt[{index}]")


def _shape_errors(issuer: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _unknown_fields(issuer, "jwt", path)
    mappings = issuer.get("claimMappings")
    objects = {"issuer": (issuer.get("issuer"), "issuer"), "claimMappings": (mappings, "claimMappings")}
    if isinstance(mappings, Mapping):
        for name, shape in (("username", "mapping"), ("groups", "mapping"), ("uid", "uid")):
            objects[f"claimMappings.{name}"] = (mappings.get(name) or {}, shape)
        yield from _list_errors(mappings.get("extra"), "extra", f"{path}.claimMappings.extra")
    for name, (value, shape) in objects.items():
        if not isinstance(value, Mapping):
            yield FieldError(f"{path}.{name}", "Required value: must be an object")
        else:
            yield from _unknown_fields(value, shape, f"{path}.{name}")
            yield from _text_errors(value, f"{path}.{name}")
    yield from _list_errors(issuer.get("claimValidationRules"), "claimRule", f"{path}.claimValidationRules")
    yield from _list_errors(issuer.get("userValidationRules"), "userRule", f"{path}.userValidationRules")


def _list_errors(values: Any, shape: str, path: str) -> Iterator[FieldError]:
    if values is None:
        return
    if not isinstance(values, list) or not all(isinstance(each, Mapping) for each in values):
        yield FieldError(path, "Invalid value: must be a list of objects")
        return
    for index, value in enumerate(values):
        yield from _unknown_fields(value, shape, f"{path}[{index}]")
        yield from _text_errors(value, f"{path}[{index}]")


def _text_errors(value: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for name, each in value.items():
        if name == "audiences":
            if not isinstance(each, list) or not all(isinstance(audience, str) for audience in each):
                yield FieldError(f"{path}.{name}", "Invalid value: must be a list of strings")
        elif not isinstance(each, str | None | Mapping) and name != "extra":
            yield FieldError(f"{path}.{name}", "Invalid value: must be a string")


def _unknown_fields(value: Mapping[str, Any], shape: str, path: str) -> Iterator[FieldError]:
    for name in value:
        if name not in _FIELDS[shape]:
            yield FieldError(f"{path}.{name}".removeprefix("."), "unknown field")


def _issuers_errors(document: Mapping[str, Any], own_issuers: Sequence[str]) -> Iterator[FieldError]:
    issuers, seen_urls, seen_discovery_urls = document["jwt"], set[str](), set[str]()
    if len(issuers) > _ISSUERS_MAX:
        yield rules.too_many_items_error("jwt", len(issuers), _ISSUERS_MAX, "")
        return
    for index, each in enumerate(issuers):
        path, issuer = f"jwt[{index}]", each["issuer"]
        url, discovery_url = issuer.get("url") or "", issuer.get("discoveryURL") or ""
        yield from _issuer_errors(issuer, f"{path}.issuer", own_issuers)
        yield from _claim_rule_errors(each.get("claimValidationRules") or (), f"{path}.claimValidationRules")
        yield from _mapping_errors(each, f"{path}.claimMappings")
        yield from _user_rule_errors(each.get("userValidationRules") or (), f"{path}.userValidationRules")
        if url in seen_urls:
            yield rules.duplicate(f"{path}.issuer.url", url, "")
        if discovery_url and discovery_url in seen_discovery_urls:
            yield rules.duplicate(f"{path}.issuer.discoveryURL", discovery_url, "")
        seen_urls.add(url)
        seen_discovery_urls.add(discovery_url)


def _issuer_errors(issuer: Mapping[str, Any], path: str, own_issuers: Sequence[str]) -> Iterator[FieldError]:
    url, discovery_url = issuer.get("url") or "", issuer.get("discoveryURL") or ""
    if not url:
        yield rules.required(f"{path}.url", "", "")
    else:
        yield from _url_errors(url, f"{path}.url", own_issuers)
    if discovery_url:
        if url.rstrip("/") == discovery_url.rstrip("/"):
            yield rules.invalid(f"{path}.discoveryURL", discovery_url, "discoveryURL must be different from URL", "")
        yield from _url_errors(discovery_url, f"{path}.discoveryURL", ())
    yield from _audience_errors(issuer, path)
    if authority := issuer.get("certificateAuthority"):
        try:
            ssl.create_default_context(cadata=authority)
        except (ssl.SSLError, ValueError):
            message = "data does not contain any valid RSA or ECDSA certificates"
            yield rules.invalid(f"{path}.certificateAuthority", "<omitted>", message, "")
    if issuer.get("egressSelectorType"):
        yield rules.forbidden(f"{path}.egressSelectorType", "batchyard has no egress selectors", "")


def _url_errors(url: str, path: str, own_issuers: Sequence[str]) -> Iterator[FieldError]:
    if url in own_issuers:
        message = f"URL must not overlap with disallowed issuers: [{' '.join(own_issuers)}]"
        yield rules.invalid(path, url, message, "")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        yield rules.invalid(path, url, str(error), "")
        return
    if parts.scheme != "https" or not has_host:
        yield rules.invalid(path, url, "URL scheme must be https", "")
    if "@" in parts.netloc:
        yield rules.invalid(path, url, "URL must not contain a username or password", "")
    if parts.query:
        yield rules.invalid(path, url, "URL must not contain a query", "")
    if parts.fragment:
        yield rules.invalid(path, url, "URL must not contain a fragment", "")


def _audience_errors(issuer: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    audiences, policy = issuer.get("audiences") or (), issuer.get("audienceMatchPolicy") or ""
    if not audiences:
        yield rules.required(f"{path}.audiences", f"at least one {path}.audiences is required", "")
        return
    repeated_indexes = rules.repeated_indexes(audiences)
    for index, audience in enumerate(audiences):
        if not audience:
            yield rules.required(f"{path}.audiences[{index}]", "", "")
        if index in repeated_indexes:
            yield rules.duplicate(f"{path}.audiences[{index}]", audience, "")
    if len(audiences) > 1 and policy != "MatchAny":
        message = "audienceMatchPolicy must be MatchAny for multiple audiences"
        yield rules.invalid(f"{path}.audienceMatchPolicy", policy, message, "")
    elif policy not in ("", "MatchAny"):
        message = "audienceMatchPolicy must be empty or MatchAny for single audience"
        yield rules.invalid(f"{path}.audienceMatchPolicy", policy, message, "")


def _claim_rule_errors(claim_rules: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    seen_claims, seen_expressions = set[str](), set[str]()
    for index, rule in enumerate(claim_rules):
        item_path, claim, expression = f"{path}[{index}]", rule.get("claim") or "", rule.get("expression") or ""
        if claim and expression:
            yield rules.invalid(item_path, claim, "claim and expression can't both be set", "")
        elif claim:
            if rule.get("message"):
                message = "may not be specified when claim is set"
                yield rules.invalid(f"{item_path}.message", rule["message"], message, "")
            if claim in seen_claims:
                yield rules.duplicate(f"{item_path}.claim", claim, "")
            seen_claims.add(claim)
        elif expression:
            if rule.get("requiredValue"):
                message = "may not be specified when expression is set"
                yield rules.invalid(f"{item_path}.requiredValue", rule["requiredValue"], message, "")
            if expression in seen_expressions:
                yield rules.duplicate(f"{item_path}.expression", expression, "")
            seen_expressions.add(expression)
            yield from _expression_errors(expression, "claims", _BOOLEAN, f"{item_path}.expression")
        else:
            yield rules.required(item_path, "claim or expression is required", "")


def _user_rule_errors(user_rules: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    seen_expressions = set[str]()
    for index, rule in enumerate(user_rules):
        expression, item_path = rule.get("expression") or "", f"{path}[{index}].expression"
        if not expression:
            yield rules.required(item_path, "", "")
        elif expression in seen_expressions:
            yield rules.duplicate(item_path, expression, "")
        else:
            yield from _expression_errors(expression, "user", _BOOLEAN, item_path)
        seen_expressions.add(expression)


def _mapping_errors(issuer: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    mappings = issuer["claimMappings"]
    username, groups, uid = (mappings.get(name) or {} for name in ("username", "groups", "uid"))
    if not username.get("claim") and not username.get("expression"):
        yield rules.required(f"{path}.username", "claim or expression is required", "")
    for name, mapping, types in (("username", username, _TEXT), ("groups", groups, _TEXTS), ("uid", uid, _TEXT)):
        expression, claim = mapping.get("expression"), mapping.get("claim")
        if expression and claim:
            yield rules.invalid(f"{path}.{name}", "", "claim and expression can't both be set", "")
        elif expression:
            if mapping.get("prefix") is not None:
                message = "may not be specified when expression is set"
                yield rules.invalid(f"{path}.{name}.prefix", mapping["prefix"], message, "")
            yield from _expression_errors(expression, "claims", types, f"{path}.{name}.expression")
        elif claim and mapping.get("prefix") is None and name != "uid":
            message = "prefix is required when claim is set. It can be set to an empty string to disable prefixing"
            yield rules.required(f"{path}.{name}.prefix", message, "")
    extra_mappings = mappings.get("extra") or ()
    yield from _extra_errors(extra_mappings, f"{path}.extra")
    if _EMAIL_CLAIM.search(username.get("expression") or "") and not _checks_email(issuer, username, extra_mappings):
        message = (
            "claims.email_verified must be used in claimMappings.username.expression or "
            "claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used "
            "in claimMappings.username.expression"
        )
        yield rules.invalid(f"{path}.username.expression", username["expression"], message, "")


def _extra_errors(extra_mappings: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    seen_keys = set[str]()
    for index, mapping in enumerate(extra_mappings):
        key, item_path = mapping.get("key") or "", f"{path}[{index}]"
        domain = key.partition("/")[0]
        if not _EXTRA_KEY.fullmatch(key):
            message = 'must be a domain-prefixed path (such as "acme.io/foo")'
            yield rules.invalid(f"{item_path}.key", key, message, "")
        if key != key.lower():
            yield rules.invalid(f"{item_path}.key", key, "must be lowercase", "")
        if any(domain == each or domain.endswith(f".{each}") for each in _RESERVED_DOMAINS):
            message = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use"
            if domain.endswith("batchyard.dev"):
                message = "batchyard.dev and its subdomains are reserved for batchyard"
            yield rules.invalid(f"{item_path}.key", key, message, "")
        if key in seen_keys:
            yield rules.duplicate(f"{item_path}.key", key, "")
        seen_keys.add(key)
        if not mapping.get("valueExpression"):
            yield rules.required(f"{item_path}.valueExpression", "", "")
        else:
            yield from _expression_errors(mapping["valueExpression"], "claims", _TEXTS, f"{item_path}.valueExpression")


def _checks_email(
    issuer: Mapping[str, Any], username: Mapping[str, Any], extra_mappings: Sequence[Mapping[str, Any]]
) -> bool:
    expressions = [username.get("expression"), *(each.get("valueExpression") for each in extra_mappings)]
    expressions += [rule.get("expression") for rule in issuer.get("claimValidationRules") or ()]
    return any(_EMAIL_VERIFIED_CLAIM.search(each or "") for each in expressions)


def _expression_errors(expression: str, variable: str, types: Sequence[str], path: str) -> Iterator[FieldError]:
    try:
        result_type = compile_expression(variable, expression).return_type().name()
    except ValueError as error:
        yield rules.invalid(path, expression, str(error), "")
        return
    if result_type not in types and not (result_type.startswith("LIST") and "LIST" in types):
        wanted = "bool" if types is _BOOLEAN else "string" if types is _TEXT else "a string or a list of strings"
        yield rules.invalid(path, expression, f"must evaluate to {wanted}", "")


def _issuer_settings(document: Mapping[str, Any]) -> TokenIssuerSettings:
    issuer, mappings = document["issuer"], document["claimMappings"]
    claim_rules = document.get("claimValidationRules") or ()
    return TokenIssuerSettings(
        url=issuer["url"],
        discovery_url=issuer.get("discoveryURL") or f"{issuer['url'].rstrip('/')}/.well-known/openid-configuration",
        certificate_authority=issuer.get("certificateAuthority") or "",
        audiences=tuple(issuer["audiences"]),
        username=_claim_mapping(mappings.get("username")),
        groups=_claim_mapping(mappings.get("groups")),
        uid=_claim_mapping(mappings.get("uid")),
        extra={
            each["key"]: compile_expression("claims", each["valueExpression"]) for each in mappings.get("extra") or ()
        },
        required_claims={each["claim"]: each.get("requiredValue") or "" for each in claim_rules if each.get("claim")},
        claim_rules=tuple(_token_rule("claims", each) for each in claim_rules if each.get("expression")),
        user_rules=tuple(_token_rule("user", each) for each in document.get("userValidationRules") or ()),
    )


def _claim_mapping(mapping: Mapping[str, Any] | None) -> ClaimMapping:
    if not mapping:
        return ClaimMapping()
    if mapping.get("expression"):
        return ClaimMapping(program=compile_expression("claims", mapping["expression"]))
    return ClaimMapping(mapping.get("claim") or "", mapping.get("prefix") or "")


def _token_rule(variable: str, rule: Mapping[str, Any]) -> TokenRule:
    expression = rule["expression"]
    return TokenRule(compile_expression(variable, expression), expression, rule.get("message") or "")
