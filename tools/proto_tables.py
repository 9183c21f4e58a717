"""Make the table of protobuf messages, src/batchyard/apiserver/protobuf_messages.json, from the Go types of Kubernetes.

    python tools/proto_tables.py API APIMACHINERY

The two are checkouts of k8s.io/api and k8s.io/apimachinery. What is read are the tags of struct fields: the number and
the name in JSON, whether a field is part of the object around it, whether it can be absent (a pointer) or is left out
of JSON when it is empty. The table has a message for each type that the roots below reach:

    {"batch.v1.Job": {"1": "metadata meta.v1.ObjectMeta", "2": "spec batch.v1.JobSpec", ...}, ...}

A field is its name and its type: string, int, bool, double, bytes, a message, [T], or {T} for a mapping of names. `*`
after the type says that a zero is meant; without it a zero is the same as nothing. No name: its fields are those of the
object.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TABLE: Final = Path(__file__).parent.parent / "src/batchyard/apiserver/protobuf_messages.json"
ROOTS: Final = (
    *("core.v1.Namespace", "core.v1.ConfigMap", "core.v1.Secret", "core.v1.ServiceAccount", "core.v1.Service"),
    *("core.v1.Pod", "core.v1.PodTemplate", "core.v1.Node", "core.v1.Event", "core.v1.Binding", "core.v1.LimitRange"),
    *("core.v1.ResourceQuota", "core.v1.ReplicationController", "core.v1.PersistentVolumeClaim"),
    *("core.v1.PersistentVolume", "core.v1.Endpoints", "batch.v1.Job", "batch.v1.CronJob", "apps.v1.Deployment"),
    *("apps.v1.ReplicaSet", "apps.v1.StatefulSet", "apps.v1.DaemonSet", "apps.v1.ControllerRevision"),
    *("autoscaling.v1.Scale", "autoscaling.v1.HorizontalPodAutoscaler", "coordination.v1.Lease", "events.v1.Event"),
    *("policy.v1.PodDisruptionBudget", "policy.v1.Eviction", "rbac.v1.Role", "rbac.v1.ClusterRole"),
    *(
        "rbac.v1.RoleBinding",
        "rbac.v1.ClusterRoleBinding",
        "scheduling.v1.PriorityClass",
        "networking.v1.NetworkPolicy",
    ),
    *("networking.v1.Ingress", "authorization.v1.SelfSubjectAccessReview", "authorization.v1.SubjectAccessReview"),
    *("authorization.v1.LocalSubjectAccessReview", "authorization.v1.SelfSubjectRulesReview"),
    *("authentication.v1.TokenReview", "authentication.v1.TokenRequest", "authentication.v1.SelfSubjectReview"),
    *("discovery.v1.EndpointSlice", "node.v1.RuntimeClass", "meta.v1.DeleteOptions", "meta.v1.Status"),
    "admissionregistration.v1.MutatingWebhookConfiguration",
    "admissionregistration.v1.ValidatingWebhookConfiguration",
)
#: Types that are not what their Go declaration says: what they are on the wire is known to the decoder.
WIRED: Final = {
    "meta.v1.Time": "time",
    "meta.v1.MicroTime": "micro-time",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "int-or-string",
    "runtime.RawExtension": "raw",
    "meta.v1.FieldsV1": "raw",
    "meta.v1.Verbs": "items",
    "authentication.v1.ExtraValue": "items",
    "authorization.v1.ExtraValue": "items",
    "types.UID": "string",
    "types.NodeName": "string",
}
_BASIC: Final = {
    "string": "string",
    "bool": "bool",
    "byte": "byte",
    "float64": "double",
    **dict.fromkeys(("int", "int32", "int64", "uint8", "uint32", "uint64"), "int"),
}
_STRUCT: Final = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_ALIAS: Final = re.compile(r"^type (\w+) ([\w.\[\]*]+)$|^\t(\w+) (string)$", re.MULTILINE)
_FIELD: Final = re.compile(r"^\t(?:(\w+) +)?(\*?)([\w.\[\]*]+) +`(.*protobuf:.*)`", re.MULTILINE)
_IMPORT: Final = re.compile(r'^\t(?:(\w+) )?"k8s\.io/(?:api|apimachinery/pkg)/([\w/]+)"$', re.MULTILINE)


class Struct(NamedTuple):
    """A Go struct: the text of its fields, and what the packages that it names are."""

    text: str
    package: str
    imports: dict[str, str]


class GoTypes:
    """The declarations of some packages, by `group.version.Type`."""

    def __init__(self, api: Path, machinery: Path) -> None:
        self.structs: dict[str, Struct] = {}
        self.aliases: dict[str, tuple[str, Struct]] = {}
        for file in sorted(api.glob("*/*/*.go")):
            self._read(file, ".".join(file.parts[-3:-1]))
        for file in sorted((machinery / "pkg/apis/meta/v1").glob("*.go")):
            self._read(file, "meta.v1")

    def message(self, name: str) -> dict[str, str]:
        """The fields of a struct, as the table has them."""
        struct = self.structs[name]
        return dict(self._fields(struct))

    def _read(self, file: Path, package: str) -> None:
        if file.name.startswith(("generated", "zz_", "register")) or file.name.endswith("_test.go"):
            return
        text = file.read_text("utf-8")
        imports = {short or path.rpartition("/")[2]: _package(path) for short, path in _IMPORT.findall(text)}
        for name, fields in _STRUCT.findall(text):
            self.structs[f"{package}.{name}"] = Struct(fields, package, imports)
        for name, of, _, _ in _ALIAS.findall(text):
            if name and of != "struct":
                self.aliases[f"{package}.{name}"] = (of, Struct("", package, imports))

    def _fields(self, struct: Struct) -> Iterator[tuple[str, str]]:
        for _, pointer, go_type, tags in _FIELD.findall(struct.text):
            tag = re.search(r'protobuf:"(?:\w+,)?(\d+),', tags)
            named = re.search(r'json:"([^,"]*)(,[^"]*)?"', tags)
            if tag is None or named is None:
                continue
            kept = "*" if pointer or "omitempty" not in (named[2] or "") else ""
            yield tag[1], f"{named[1]} {self._type(go_type, struct)}{kept}"

    def _type(self, go_type: str, struct: Struct) -> str:
        go_type = go_type.lstrip("*")
        if go_type == "[]byte":
            return "bytes"
        if go_type.startswith("[]"):
            return f"[{self._type(go_type[2:], struct)}]"
        if go_type.startswith("map["):
            return f"{{{self._type(go_type.partition(']')[2], struct)}}}"
        if go_type in _BASIC:
            return _BASIC[go_type]
        package, _, name = go_type.rpartition(".")
        qualified = f"{struct.imports.get(package, package) if package else struct.package}.{name}"
        if qualified in WIRED:
            return WIRED[qualified]
        if qualified in self.aliases:
            of, where = self.aliases[qualified]
            return self._type(of, where)
        return qualified


def _package(path: str) -> str:
    """The package of an import path, as messages are named: `core.v1`, `meta.v1`, `resource`."""
    parts = path.split("/")
    return ".".join(parts[-2:]) if re.fullmatch(r"v\d\w*", parts[-1]) else parts[-1]


def reached(types: GoTypes) -> dict[str, dict[str, str]]:
    """The messages that the roots reach."""
    found: dict[str, dict[str, str]] = {}
    waiting = list(ROOTS)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found[name] = types.message(name)
        for field in found[name].values():
            inner = field.partition(" ")[2].strip("*[]{}")
            if "." in inner:
                waiting.append(inner)
    return dict(sorted(found.items()))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("api", type=Path)
    parser.add_argument("machinery", type=Path)
    asked = parser.parse_args()
    table = reached(GoTypes(asked.api, asked.machinery))
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
