"""Generates src/batchyard/apiserver/protobuf_messages.json, the protobuf messages of Kubernetes, from its Go types.

    python tools/proto_tables.py API APIMACHINERY

API and APIMACHINERY are checkouts of k8s.io/api and k8s.io/apimachinery. The script reads the tags of struct fields:
the protobuf number, the JSON name, whether the field is inlined, whether it is a pointer, and omitempty. The table has
a message for each type that is reachable from ROOTS:

    {"batch.v1.Job": {"1": "metadata meta.v1.ObjectMeta", "2": "spec batch.v1.JobSpec", ...}, ...}

A field consists of its name and its type: string, int, bool, double, bytes, a message, [T], or {T} for a map with
string keys. If `*` follows the type, a zero value is significant; otherwise a zero value is the same as an absent one.
A field without a name is inlined.
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
    *("autoscaling.v2.HorizontalPodAutoscaler", "storage.v1.StorageClass"),
    *("flowcontrol.v1.FlowSchema", "flowcontrol.v1.PriorityLevelConfiguration"),
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
    "certificates.v1.CertificateSigningRequest",
    "admissionregistration.v1.MutatingAdmissionPolicy",
    "admissionregistration.v1.MutatingAdmissionPolicyBinding",
    "admissionregistration.v1.ValidatingAdmissionPolicy",
    "admissionregistration.v1.ValidatingAdmissionPolicyBinding",
)
#: Types whose encoding differs from their Go declaration; the decoder implements them.
WIRE_TYPES: Final = {
    "meta.v1.Time": "time",
    "meta.v1.MicroTime": "micro-time",
    "resource.Quantity": "quantity",
    "intstr.IntOrString": "int-or-string",
    "runtime.RawExtension": "raw",
    "meta.v1.FieldsV1": "raw",
    "meta.v1.Verbs": "items",
    "authentication.v1.ExtraValue": "items",
    "authorization.v1.ExtraValue": "items",
    "certificates.v1.ExtraValue": "items",
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


class GoStruct(NamedTuple):
    """A Go struct: the text of its fields, its package, and the imports of its file."""

    text: str
    package: str
    imports: dict[str, str]


class GoTypes:
    """The type declarations of the two checkouts, by `group.version.Type`."""

    def __init__(self, api: Path, machinery: Path) -> None:
        self.structs: dict[str, GoStruct] = {}
        self.aliases: dict[str, tuple[str, GoStruct]] = {}
        for file in sorted(api.glob("*/*/*.go")):
            self._read(file, ".".join(file.parts[-3:-1]))
        for file in sorted((machinery / "pkg/apis/meta/v1").glob("*.go")):
            self._read(file, "meta.v1")

    def message(self, name: str) -> dict[str, str]:
        """Return the fields of the struct `name` (`group.version.Type`), in the format of the table."""
        struct = self.structs[name]
        return dict(self._fields(struct))

    def _read(self, file: Path, package: str) -> None:
        if file.name.startswith(("generated", "zz_", "register")) or file.name.endswith("_test.go"):
            return
        text = file.read_text("utf-8")
        imports = {short or path.rpartition("/")[2]: _package(path) for short, path in _IMPORT.findall(text)}
        for name, fields in _STRUCT.findall(text):
            self.structs[f"{package}.{name}"] = GoStruct(fields, package, imports)
        for name, target, _, _ in _ALIAS.findall(text):
            if name and target != "struct":
                self.aliases[f"{package}.{name}"] = (target, GoStruct("", package, imports))

    def _fields(self, struct: GoStruct) -> Iterator[tuple[str, str]]:
        for _, pointer, go_type, tags in _FIELD.findall(struct.text):
            tag = re.search(r'protobuf:"(?:\w+,)?(\d+),', tags)
            json_tag = re.search(r'json:"([^,"]*)(,[^"]*)?"', tags)
            if tag is None or json_tag is None:
                continue
            suffix = "*" if pointer or "omitempty" not in (json_tag[2] or "") else ""
            yield tag[1], f"{json_tag[1]} {self._type(go_type, struct)}{suffix}"

    def _type(self, go_type: str, struct: GoStruct) -> str:
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
        if qualified in WIRE_TYPES:
            return WIRE_TYPES[qualified]
        if qualified in self.aliases:
            target, scope = self.aliases[qualified]
            return self._type(target, scope)
        return qualified


def _package(path: str) -> str:
    """Return the package of an import path as used in message names: `core.v1`, `meta.v1`, `resource`."""
    parts = path.split("/")
    return ".".join(parts[-2:]) if re.fullmatch(r"v\d\w*", parts[-1]) else parts[-1]


def reachable_messages(types: GoTypes) -> dict[str, dict[str, str]]:
    """Return the messages that are reachable from ROOTS, sorted by name."""
    messages: dict[str, dict[str, str]] = {}
    queue = list(ROOTS)
    while queue:
        name = queue.pop()
        if name in messages:
            continue
        messages[name] = types.message(name)
        for field in messages[name].values():
            inner = field.partition(" ")[2].strip("*[]{}")
            if "." in inner:
                queue.append(inner)
    return dict(sorted(messages.items()))


def main() -> None:
    """Write the table to src/batchyard/apiserver/protobuf_messages.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("api", type=Path)
    parser.add_argument("machinery", type=Path)
    arguments = parser.parse_args()
    table = reachable_messages(GoTypes(arguments.api, arguments.machinery))
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()
