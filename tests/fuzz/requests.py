"""Requests made from a seed: valid requests with faults in path, query, headers or body."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml

from fuzz.seeded_random import SeededRandom
from fuzz.values import NASTY, deep, mutate

_ROOT = Path(__file__).parents[2]
_SEEDS = Path(__file__).with_name("seeds.yaml")
_MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_APPLY = "application/apply-patch+yaml"
_JSON_PATCH = "application/json-patch+json"
_JSON = "application/json"
_YAML = "application/yaml"
_TYPES = (
    *(_JSON, _YAML, _APPLY, _JSON_PATCH, *_MERGES, "application/vnd.kubernetes.protobuf", "text/plain", "", "a/b;c=d"),
    *("application/json; charset=utf-16", "APPLICATION/JSON", "application/json-patch+json;;;", "*/*", ";", "\u00ff"),
)
_ACCEPTS = (
    *("*/*", _JSON, _YAML, "", "text/html", "application/vnd.kubernetes.protobuf", "application/json;q=0", ";;,,;=,"),
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    *("application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=;v=v1;g=meta.k8s.io", "a," * 2000),
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
)
_SELECTORS = (
    *(
        "a=b",
        "a",
        "!a",
        "a in (b,c)",
        "a notin ()",
        "a in (",
        "=",
        ",",
        ",,",
        "a=b,",
        "a>1",
        "(" * 500,
        "a in (" + "b," * 5000 + "c)",
    ),
    *("é=é", "a=b=c", "a==b", "a!=b", "a/b/c=d", "-=-", "a" * 300 + "=b", " a = b ", "\0", "a=\n"),
)
_FIELDS = (
    *("metadata.name=a", "metadata.name!=a", "metadata.namespace=default", "status.phase=Running", "spec.nodeName=n"),
    *(
        "metadata.name",
        "metadata.name=a,metadata.name=b",
        "a.b.c=d",
        ",",
        "=",
        "spec.orbit=low",
        "type=Opaque",
        "." * 500,
    ),
    *("metadata.labels.a=b", "involvedObject.name=a", "spec.unschedulable=true", "status.successful=1"),
)
_PARAMETERS: Mapping[str, Sequence[str]] = {
    "labelSelector": _SELECTORS,
    "fieldSelector": _FIELDS,
    "limit": ("1", "0", "-1", "2", "a", "9" * 30, "1.5", "²", ""),
    "continue": (
        "a",
        "e30",
        "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiJhL2IifQ",
        "=",
        "é",
        "a" * 5000,
        "bnVsbA",
    ),
    "resourceVersion": ("0", "1", "-1", "a", "9" * 30, "99999", "²", "", "1.0"),
    "resourceVersionMatch": ("Exact", "NotOlderThan", "a", ""),
    "sendInitialEvents": ("true", "false", "a"),
    "allowWatchBookmarks": ("true", "1", "a"),
    "timeoutSeconds": ("1", "0", "-1", "a", "9" * 30, "9" * 400, "1e9", "²"),
    "timeout": ("1s", "a"),
    "dryRun": ("All", "", "None", "All,All"),
    "fieldManager": ("a", "", "a" * 200, "\0", "é", "a\nb"),
    "fieldValidation": ("Strict", "Warn", "Ignore", "", "a"),
    "force": ("true", "false", "a"),
    "propagationPolicy": ("Foreground", "Background", "Orphan", "a", ""),
    "orphanDependents": ("true", "a", ""),
    "gracePeriodSeconds": ("0", "-1", "1", "a", "9" * 30, "²", "1.5"),
    "includeObject": ("None", "Metadata", "Object", "a"),
    "pretty": ("true", "a"),
    "watch": ("0", "false", "a"),
    "a": ("b", ""),
}
_HEADERS: Mapping[str, Sequence[str]] = {
    "accept": _ACCEPTS,
    "accept-encoding": ("gzip", "*", "a" * 1000),
    "content-encoding": ("gzip", "deflate", "a"),
    "x-http-method-override": ("DELETE", "GET"),
    "impersonate-user": ("a", "", "system:serviceaccount:a:b", "system:serviceaccount::", "\u00e9", "a b"),
    "impersonate-group": ("a", "", "a\nb", "system:masters"),
    "impersonate-uid": ("a",),
    "impersonate-extra-a%2fb": ("a", "%", "%zz"),
    "user-agent": ("", "a/b", "\u00ff", "a" * 5000, "/"),
    "authorization": ("Bearer a.b.c", "Bearer", "Basic a", "Bearer " + "a" * 20_000, "Bearer \u00e9", "bearer ..", ""),
    "if-match": ("*",),
    "host": ("", "a b", "[::1"),
    "range": ("bytes=0-1",),
    "expect": ("100-continue",),
}


class FuzzRequest(NamedTuple):
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """Path and query as sent."""
        text = "&".join(f"{quote(name)}={quote(value)}" for name, value in self.query.items())
        return quote(self.path, safe="/%") + (f"?{text}" if text else "")

    @property
    def reported(self) -> str:
        """The request as text, to reproduce it."""
        return f"{self.method} {self.target[:300]} {dict(self.headers)!s:.300} {self.body[:2000]!r}"


class FuzzedResource(NamedTuple):
    """A resource in one of its versions."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    parts: tuple[str, ...]

    def path(self, namespace: str, name: str = "", part: str = "") -> str:
        """Return the path of its objects."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join((root + within, self.plural, *filter(None, (name, part))))


class RequestGenerator:
    """Requests for some places, from valid objects."""

    def __init__(self, places: Sequence[FuzzedResource], *seed: object) -> None:
        self._dice = SeededRandom(*seed)
        self._places = {(place.api_version, place.kind): place for place in places}
        self._all = list(places)
        self._good = [obj for obj in good_objects() if (obj["apiVersion"], obj["kind"]) in self._places]
        self._of = {
            kind: [obj for obj in self._good if (obj["apiVersion"], obj["kind"]) == kind] for kind in self._places
        }

    def next(self) -> FuzzRequest:
        """Return another request."""
        dice = self._dice
        place = dice.one_of(self._all)
        good = self._of[place.api_version, place.kind] or [
            {"apiVersion": place.api_version, "kind": place.kind, "metadata": {"name": "a"}}
        ]
        obj = dice.one_of(good)
        make = dice.one_of(
            (
                *(self._created, self._created, self._created, self._changed, self._changed, self._patched),
                *(self._patched, self._applied, self._read, self._read, self._deleted, self._raw, self._anything),
            )
        )
        request = make(place, obj)
        return request._replace(
            query={**request.query, **self._query()}, headers={**request.headers, **self._headers()}
        )

    def good(self) -> list[FuzzRequest]:
        """Return requests that create the valid objects."""
        return [
            FuzzRequest("POST", self._places[o["apiVersion"], o["kind"]].path(_namespace_of(o)), {}, {}, _json(o))
            for o in self._good
        ]

    # --- kinds of requests ---

    def _created(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        sent = obj if self._dice.happens(10) else mutate(obj, self._dice)
        return FuzzRequest("POST", place.path(_namespace_of(obj)), {}, {}, _json(sent))

    def _changed(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        part = self._dice.one_of(("", "", "status", *place.parts))
        sent = self._with_status(obj) if part == "status" else obj
        return FuzzRequest("PUT", self._path(place, obj, part), {}, {}, _json(mutate(sent, self._dice)))

    def _patched(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        dice = self._dice
        path = self._path(place, obj, dice.one_of(("", "", "", "status", *place.parts)))
        if dice.happens(40):
            sent: Any = [self._operation(obj) for _ in range(1 + dice.below(4))]
            return FuzzRequest(
                "PATCH", path, {}, {"content-type": _JSON_PATCH}, _json(mutate(sent, dice, dice.below(2)))
            )
        return FuzzRequest(
            "PATCH", path, {}, {"content-type": dice.one_of(_MERGES)}, _json(mutate(self._with_status(obj), dice))
        )

    def _applied(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        path = self._path(place, obj, self._dice.one_of(("", "", "status")))
        query = {"fieldManager": self._dice.one_of(("a", "b", "kubectl")), "force": "true"}
        return FuzzRequest("PATCH", path, query, {"content-type": _APPLY}, _json(mutate(obj, self._dice)))

    def _read(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        name = self._dice.one_of(("", "", obj["metadata"].get("name") or "a"))
        namespace = self._dice.one_of(("", _namespace_of(obj)))
        return FuzzRequest("GET", place.path(namespace, name), {}, {}, b"")

    def _deleted(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        options = {
            "gracePeriodSeconds": 0,
            "propagationPolicy": "Orphan",
            "preconditions": {"uid": "a"},
            "dryRun": ["All"],
        }
        body = _json(mutate(options, self._dice)) if self._dice.happens(50) else b""
        whole = self._dice.happens(2) and place.kind != "Namespace"
        path = place.path(_namespace_of(obj)) if whole else self._path(place, obj, "")
        return FuzzRequest("DELETE", path, {}, {}, body)

    def _raw(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        """Return a request whose body is no object."""
        dice = self._dice
        good = _json(obj)
        cut = dice.below(len(good))
        body = dice.one_of(
            (
                good[:cut],
                good[:cut] + dice.content(1 + dice.below(8)) + good[cut:],
                dice.content(dice.below(200)),
                deep(dice.one_of((50, 150, 5_000, 100_000)), dice.one_of(("list", "object", "mixed"))),
                b"k8s\0" + dice.content(dice.below(100)),
                good.decode().encode("utf-16"),
                yaml.safe_dump(obj).encode()[:cut],
                b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]",
                b"&a [" * 50 + b"*a" + b"]" * 50,
                b"!!python/object/apply:os.system ['true']",
                b"\xef\xbb\xbf" + good,
                b'{"metadata":{"name":"a","name":"b"},"metadata":{}}',
                b'{"a":NaN}',
                b'{"a":1e999}',
                b'{"a":' + b"9" * 5000 + b"}",
                b'{"a":"\\ud800"}',
                b'{"' + b"a" * 100_000 + b'":1}',
                _json({f"f{n}": n for n in range(3000)}),
                b"- " * 150 + b"a",
                b"? " * 120,
                b"1:60: 1:60",
                *(_json(value) for value in (None, 1, "a", [], [obj])),
            )
        )
        method, path = dice.one_of(
            (
                ("POST", place.path(_namespace_of(obj))),
                ("PUT", self._path(place, obj, "")),
                ("PATCH", self._path(place, obj, "")),
                ("DELETE", self._path(place, obj, "")),
            )
        )
        return FuzzRequest(method, path, {}, {"content-type": dice.one_of(_TYPES)}, body)

    def _anything(self, place: FuzzedResource, obj: dict[str, Any]) -> FuzzRequest:
        dice = self._dice
        method = dice.one_of(
            ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "A")
        )
        parts = self._path(place, obj, dice.one_of(("", "status", "scale", "log", "exec", "eviction", "token"))).split(
            "/"
        )
        for _ in range(dice.below(3)):
            parts[dice.below(len(parts))] = str(dice.one_of([each for each in NASTY if isinstance(each, str)]))
        other = (
            "/openapi/v2",
            "/openapi/v3",
            "/openapi/v3/api/v1",
            "/version",
            "/livez/a",
            "/metrics",
            "/apis",
            "/api",
            "/",
        )
        path = "/".join(parts) if dice.happens(80) else dice.one_of(other)
        return FuzzRequest(method, path, {}, {}, b"" if dice.happens(50) else _json(obj))

    # --- their parts ---

    def _path(self, place: FuzzedResource, obj: Mapping[str, Any], part: str) -> str:
        name = obj["metadata"].get("name") or "a"
        return place.path(_namespace_of(obj), str(name), part)

    def _with_status(self, obj: dict[str, Any]) -> dict[str, Any]:
        now = "2026-01-01T00:00:00Z"
        condition = {"type": "Admitted", "status": "True", "reason": "A", "message": "", "lastTransitionTime": now}
        status = {"conditions": [condition], "phase": "Running", "active": 1, "succeeded": 1, "replicas": 1}
        return {**obj, "status": status} if "status" not in obj else obj

    def _operation(self, obj: Any) -> dict[str, Any]:
        dice, steps, value = self._dice, "", obj
        while isinstance(value, dict | list) and value and dice.happens(80):
            step = dice.below(len(value)) if isinstance(value, list) else dice.one_of(list(value))
            value = value[step]
            steps += "/" + str(step).replace("~", "~0").replace("/", "~1")
        steps += dice.one_of(("", "", "", "/-", "/a", "/0", "/-1", "/99999999999", "/²", "a", "/~2"))
        operation = dice.one_of(("add", "replace", "remove", "copy", "move", "test", "a"))
        return {"op": operation, "path": steps, "value": dice.one_of(NASTY), "from": dice.one_of(("", "/spec", steps))}

    def _query(self) -> dict[str, str]:
        dice = self._dice
        names = [dice.one_of(list(_PARAMETERS)) for _ in range(max(0, dice.below(6) - 3))]
        return {name: dice.one_of(_PARAMETERS[name]) for name in names}

    def _headers(self) -> dict[str, str]:
        dice = self._dice
        names = [dice.one_of(list(_HEADERS)) for _ in range(max(0, dice.below(8) - 5))]
        return {name: dice.one_of(_HEADERS[name]) for name in names}


def good_objects() -> list[dict[str, Any]]:
    """Return objects of each kind."""
    files = [path for path in sorted(_ROOT.glob("examples/**/*.yaml")) if path.name != "scenario.yaml"]
    texts = [path.read_text("utf-8") for path in (_SEEDS, _ROOT / "tests/e2e_platform/rockets.yaml", *files)]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    result = [each for text in texts for each in yaml.load_all(text, loader)]
    return [_plain(each) for each in result if isinstance(each, dict) and "metadata" in each]


def _plain(obj: Any) -> Any:
    """Return an object without YAML's dates."""
    return json.loads(json.dumps(obj, default=str))


def _namespace_of(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("namespace") or "default")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
