"""At the door: who asks, as whom, and whether he may. Source of the order: k8s.io/apiserver, pkg/server/config.go."""

from typing import Final

from batchyard.apiserver.authentication import ANONYMOUS
from batchyard.apiserver.authorization import Authorizer, attributes_of, forbidden
from batchyard.apiserver.impersonation import impersonated, rights_needed
from batchyard.apiserver.page import MODELS
from batchyard.apiserver.paths import ResourcePath, part_at
from batchyard.apiserver.request import Refused, Request
from batchyard.apiserver.tokens import Tokens

HEALTH: Final = ("healthz", "livez", "readyz")
#: What whoever comes by may ask.
_OPEN: Final = (*HEALTH, "version", "ui")
_SCHEME: Final = "bearer"
#: Parts of objects that the page shows beside its models.
_LOOKED_AT: Final = ("why", "eta")


class Access:
    """See the module."""

    def __init__(self, authorizer: Authorizer, tokens: Tokens) -> None:
        self._authorizer = authorizer
        self._tokens = tokens

    def authenticated(self, request: Request) -> Request:
        """The request with the user that its certificate or its token names; Refused where they are not good."""
        if request.user != ANONYMOUS:
            return request
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == _SCHEME and token.strip():
            user = self._tokens.user_of(token.strip())
            if user is None and is_for_looking(request):
                user = self._tokens.looker_of(token.strip())
            if user is None:
                raise unauthorized()
            return request.made_by(user)
        if not _is_open(request):
            raise unauthorized()
        return request

    def acting(self, request: Request) -> Request:
        """The request with the user it is made as, if it says so and its own user may do that."""
        user = impersonated(request)
        if user is None:
            return request
        for attributes in rights_needed(request.user, request):
            decision = self._authorizer.decide(attributes)
            if not decision.allowed:
                raise forbidden(attributes, decision.reason)
        return request.made_by(user)

    def check(self, request: Request, path: ResourcePath | None, verb: str = "") -> None:
        """Refused unless its user may do what the request is about to do, or what the verb says."""
        if path is None and _is_open(request):
            return
        attributes = attributes_of(request, path)
        if verb:
            attributes = attributes._replace(verb=verb)
        decision = self._authorizer.decide(attributes)
        if not decision.allowed:
            raise forbidden(attributes, decision.reason)


def unauthorized() -> Refused:
    """The refusal of those who do not show who they are."""
    return Refused(401, "Unauthorized", "Unauthorized")


def is_for_looking(request: Request) -> bool:
    """Whether a token that was made for the page is good for a request: it reads models, and answers about objects."""
    if request.method != "GET" or "upgrade" in request.headers:
        return False
    return request.path.startswith(MODELS) or part_at(request.path) in _LOOKED_AT


def _is_open(request: Request) -> bool:
    return request.path.strip("/").split("/")[0] in _OPEN
