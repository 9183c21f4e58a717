"""What is served: each resource with what makes its kind another than the rest.

The kinds that batchyard has are served from the start. Those of CustomResourceDefinitions come and go while it runs;
whoever keeps something that follows from what is served asks `edition` whether it has changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.decode import Decoded
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.auth.authentication import User
from batchyard.apiserver.merge_schema import FREE, Shape
from batchyard.apiserver.request import Request
from batchyard.apiserver.responses import Reply
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Propagation

_VERBS: Final = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Strategy(Protocol):
    """What is true of one kind alone."""

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> Decoded:
        """An object as it was sent, complete and in its storage version; or what is wrong with it.

        `sound` is one in the storage version that was decoded before: the very same parts of it still are.
        """

    def prepared(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """An object that is to take the place of a stored one, with what clients cannot change as it was."""

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """A stored object in a version that is served, as clients see it: its times in whole seconds."""

    def in_version(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """The same with its times as they are stored, where it is compared and not shown."""

    def check_create(self, new: Obj) -> list[FieldError]:
        """What may not come to be, beyond what decoding says; Refused where nothing of this kind may."""

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """What may not become of a stored object."""

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """What may not become of the status of a stored object."""

    def columns(self, api_version: str) -> Sequence[Column]:
        """The columns of its table in a version, those of `-o wide` too."""

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """The cells of a stored object, one for each column."""

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Its schema in a version, as OpenAPI has it, and all schemas that it refers to, by name."""


Guard: TypeAlias = Callable[[User, Obj, Obj | None], None]
"""Asked before an object is written for a user, in the place of an old one if there is one, beyond whether he may write
such objects; Refused where he may not."""


class Answer(NamedTuple):
    """Who answers, where what is sent and answered is no stored object: a review, a token, an eviction."""

    group: str
    version: str
    kind: str
    #: What each HTTP method calls: with the request, and the namespace and name in its path.
    methods: Mapping[str, Callable[[Request, str, str], Reply]]
    #: Whether more of a path may follow.
    takes_path: bool = False
    #: A verb that is needed besides that of the method.
    needs: str = ""

    @property
    def verbs(self) -> list[str]:
        """The verbs of its methods."""
        return [_VERBS[method] for method in self.methods]


def _free(_version: str) -> Shape:
    return FREE


def no_misfit(_sent: Mapping[str, Any]) -> str | None:
    """Nothing is said."""
    return None


class Resource(NamedTuple):
    """A resource that is served."""

    info: ServedKind
    strategy: Strategy
    #: Parts of its objects that have paths of their own, `status` among them.
    subresources: tuple[str, ...] = ()
    #: Parts of its objects that are answered by a function; at '' the resource itself, where it has no objects.
    answers: Mapping[str, Answer] = {}
    guard: Guard | None = None
    #: The shape of its objects in a version: what is merged how, and which fields there are.
    shape: Callable[[str], Shape] = _free
    #: Whether it is of Kubernetes itself: it takes strategic patches, and updates that name no resourceVersion.
    is_native: bool = False
    #: What is said of an object with a value of a wrong type before anything else is looked at; None if nothing is.
    misfit: Callable[[Mapping[str, Any]], str | None] = no_misfit
    #: Whether its strategy drops unknown fields without a word, so that they are looked for before.
    drops_unknown: bool = False
    #: Whether a new object keeps the status that it is sent with.
    is_born_with_status: bool = False
    #: Whether a delete returns the object; else it returns a Status.
    returns_deleted: bool = False
    #: Whether the platform provides objects of it that a client takes over by creating or applying one of that name.
    is_adoptable: bool = False
    #: Whether many of its objects can be deleted at once.
    deletes_together: bool = True
    #: What becomes of dependents where a delete does not say, and what whoever deletes is then told.
    propagation: Propagation = Propagation.BACKGROUND
    propagation_warning: str = ""

    @property
    def has_typed_items(self) -> bool:
        """Whether the items of its lists carry `apiVersion` and `kind`: those of custom resources do."""
        return not self.is_native and "" not in self.answers

    @property
    def title(self) -> str:
        """The resource as messages name it: `jobs.batch`, or `pods` in the core group."""
        return f"{self.info.plural}.{self.info.group}" if self.info.group else self.info.plural

    @property
    def group_kind(self) -> str:
        """The kind as messages name it: `Job.batch`, or `Pod` in the core group."""
        return f"{self.info.kind}.{self.info.group}" if self.info.group else self.info.kind


class Resources:
    """All that is served, by group, version and plural."""

    def __init__(self, built_in: Iterable[Resource]) -> None:
        self._built_in = list(built_in)
        self._all = list(self._built_in)
        self._by_path = _by_path(self._all)
        self._scopes = _scopes(self._all)
        #: Counts how often what is served has changed.
        self.edition = 0

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """The resource at a path; None if there is none."""
        return self._by_path.get((group, version, plural))

    def is_namespaced(self, api_version: str, kind: str) -> bool | None:
        """Whether objects of a kind have namespaces; None if it is not served."""
        return self._scopes.get((api_version, kind))

    def all(self) -> Sequence[Resource]:
        """All resources, the built-in ones first."""
        return self._all

    def serve_always(self, resource: Resource) -> None:
        """Serve one more built-in resource."""
        self._built_in.append(resource)
        self.serve_also(())

    def serve_also(self, further: Iterable[Resource]) -> None:
        """Serve these besides the built-in ones, instead of those that were served besides them before."""
        self._all = [*self._built_in, *further]
        self._by_path = _by_path(self._all)
        self._scopes = _scopes(self._all)
        self.edition += 1


def _by_path(resources: Iterable[Resource]) -> Mapping[tuple[str, str, str], Resource]:
    """Resources by path; of two at the same the first counts."""
    found: dict[tuple[str, str, str], Resource] = {}
    for resource in resources:
        info = resource.info
        for version in info.versions:
            found.setdefault((info.group, version, info.plural), resource)
    return found


def _scopes(resources: Iterable[Resource]) -> Mapping[tuple[str, str], bool]:
    """Whether kinds have namespaces, by `apiVersion` and `kind`."""
    infos = [resource.info for resource in resources]
    return {(info.api_version_for(version), info.kind): info.namespaced for info in infos for version in info.versions}


def with_answers(resources: Iterable[Resource], kind: str, answers: Mapping[str, Answer]) -> list[Resource]:
    """The resources, of which one kind's objects have parts that are answered so."""
    return [
        resource._replace(answers={**resource.answers, **answers}) if resource.info.constant == kind else resource
        for resource in resources
    ]


# --- paths ---
#
# What a path of the API means: a group's version, a resource, a namespace, a name, a subresource.
#
# Source: k8s.io/apiserver, pkg/endpoints/request/requestinfo.go.


class ResourcePath(NamedTuple):
    """The path of a resource, or of one object of it, or of a part of that."""

    resource: Resource
    version: str
    namespace: str
    name: str
    subresource: str
    #: The version asked for, as objects say it.
    api_version: str

    @property
    def info(self) -> ServedKind:
        """The kind of the objects there."""
        return self.resource.info

    @property
    def answer(self) -> Answer | None:
        """Who answers here, where that is not the registry."""
        return self.resource.answers.get(self.subresource)


def resource_at(resources: Resources, path: str) -> ResourcePath | None:
    """What resource a path names; None if it names none."""
    parts = path.strip("/").split("/")
    if not all(parts):
        return None
    if parts[0] == "api" and len(parts) > 2:
        return _within(resources, ("", parts[1]), parts[2:])
    if parts[0] == "apis" and len(parts) > 3:
        return _within(resources, (parts[1], parts[2]), parts[3:])
    return None


def part_at(path: str) -> str:
    """The part of an object that a path names by where it stands, whether there is one or not; '' if it names none."""
    parts = path.strip("/").split("/")
    begin = {"api": 2, "apis": 3}.get(parts[0])
    if begin is None or len(parts) <= begin:
        return ""
    _, within = _namespace_in(parts[begin:], is_core=begin == 2)
    return within[2] if len(within) == 3 else ""


def _namespace_in(parts: Sequence[str], *, is_core: bool) -> tuple[str, Sequence[str]]:
    """The namespace that the rest of a path begins with, '' if there is none, and what follows."""
    if parts[0] == "namespaces" and len(parts) > 2 and not (is_core and parts[2] in {"status", "finalize"}):
        return parts[1], parts[2:]
    return "", parts


def _within(resources: Resources, of: tuple[str, str], parts: Sequence[str]) -> ResourcePath | None:
    """What the rest of a path names in a group's version."""
    group, version = of
    namespace, parts = _namespace_in(parts, is_core=not group)
    found = resources.find(group, version, parts[0])
    if found is None or (namespace and not found.info.namespaced):
        return None
    name, subresource = [*parts[1:], "", ""][:2]
    answer = found.answers.get(subresource)
    if len(parts) > 3 and (answer is None or not answer.takes_path):
        return None
    api_version = f"{group}/{version}" if group else version
    return ResourcePath(found, version, namespace, name, subresource, api_version)
