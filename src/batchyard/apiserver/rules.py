"""Rules of roles: what one allows, and whether some of them cover others.

Sources: Kubernetes's pkg/apis/rbac/v1/evaluation_helpers.go, k8s.io/component-helpers, auth/rbac/validation.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.apiserver.authorization import Attributes

ALL: Final = "*"


class Rule(NamedTuple):
    """A rule of a role: verbs on resources, or on paths that are none."""

    verbs: tuple[str, ...]
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    def allows(self, attributes: Attributes) -> bool:
        """Whether the rule allows it."""
        if not _holds(self.verbs, attributes.verb):
            return False
        if not attributes.resource:
            return any(_url_covers(url, attributes.path) for url in self.urls)
        part = attributes.subresource
        whole = f"{attributes.resource}/{part}" if part else attributes.resource
        return (
            _holds(self.groups, attributes.group)
            and (_holds(self.resources, whole) or (bool(part) and f"*/{part}" in self.resources))
            and (not self.names or attributes.name in self.names)
        )

    def told(self) -> Mapping[str, Any]:
        """The rule as the API tells of rules."""
        told = {"verbs": self.verbs, "apiGroups": self.groups, "resources": self.resources}
        told |= {"resourceNames": self.names, "nonResourceURLs": self.urls}
        return {field: list(values) for field, values in told.items() if values}

    def __str__(self) -> str:
        """The rule in the words of refusals."""
        told = {"APIGroups": self.groups, "Resources": self.resources, "NonResourceURLs": self.urls}
        told |= {"ResourceNames": self.names, "Verbs": self.verbs}
        parts = (f"{name}:[{' '.join(map(json.dumps, values))}]" for name, values in told.items() if values)
        return f"{{{', '.join(parts)}}}"


def rules_of(role: Obj) -> tuple[Rule, ...]:
    """The rules of a Role or a ClusterRole."""
    fields = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
    return tuple(Rule(*(tuple(rule.get(field) or ()) for field in fields)) for rule in role.get("rules") or ())


def uncovered(wanted: Iterable[Rule], held: Sequence[Rule]) -> list[Rule]:
    """What rules allow that those held do not: as few rules as say it."""
    missing = [part for rule in wanted for part in _parts(rule) if not any(_covers(each, part) for each in held)]
    merged: dict[tuple[tuple[str, ...], ...], Rule] = {}
    for rule in missing:
        found = merged.get(rule[1:])
        merged[rule[1:]] = rule if found is None else rule._replace(verbs=(*found.verbs, *rule.verbs))
    return list(merged.values())


def _parts(rule: Rule) -> Iterator[Rule]:
    """A rule as rules of one verb and one thing each, which another rule covers or does not."""
    for verb in rule.verbs:
        for group in rule.groups:
            for resource in rule.resources:
                for name in rule.names or (None,):
                    yield Rule((verb,), (group,), (resource,), () if name is None else (name,))
        for url in rule.urls:
            yield Rule((verb,), urls=(url,))


def _covers(rule: Rule, part: Rule) -> bool:
    """Whether a rule covers one of one verb and one thing."""
    if not _holds(rule.verbs, part.verbs[0]):
        return False
    if part.urls:
        return any(_url_covers(url, part.urls[0]) for url in rule.urls)
    resource = part.resources[0]
    _, is_part, subresource = resource.partition("/")
    return (
        _holds(rule.groups, part.groups[0])
        and (_holds(rule.resources, resource) or (bool(is_part) and f"*/{subresource}" in rule.resources))
        and (not rule.names or (bool(part.names) and part.names[0] in rule.names))
    )


def _holds(values: Sequence[str], value: str) -> bool:
    return ALL in values or value in values


def _url_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith(ALL) and path.startswith(url.rstrip(ALL)))
