"""Make the field tables of src/batchyard/api/schema/fields from CRD files and from lightkube-models.

    python tools/field_tables.py --crds PATH...  all tables; a PATH is a CRD file or a folder of them
    python tools/field_tables.py                 native.json alone, from lightkube-models and the tables there

With `--merging FILE` native.json also learns anew how lists and mappings are merged; otherwise it keeps what it says of
that. FILE is Kubernetes' own JSON schema with its x-kubernetes-* words: `_definitions.json` of a version in the Python
package kubernetes-validate.

Tables hold facts only: names, types, what is required, bounds, defaults, how lists are merged. Their format is in
src/batchyard/api/scheme.py. What neither source states is in the tables by hand below; x-kubernetes-validations
are rules, not fields, and are written in batchyard.api.validation.

core.json                pod templates and what is in them, exactly as the CRDs embed them, named as by Kubernetes
native.json              the kinds of Kubernetes itself, and where its own types are other than those embedded in CRDs
kueue.v1beta1.json ...   one file for each group and version of the CRDs: those of Kueue and JobSet, and the cluster
                         autoscaler's of ProvisioningRequests (cluster-autoscaler/apis/config/crd)

Tables of our own kinds (sim.v1alpha1.json, cloud.v1alpha1.json) have no CRD and are written by hand.
"""

import argparse
import ast
import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import yaml

Schema: TypeAlias = Mapping[str, Any]
Spec: TypeAlias = str | list[Any]
Table: TypeAlias = dict[str, dict[str, Spec]]

FIELDS: Final = Path(__file__).parent.parent / "src/batchyard/api/schema/fields"

#: Where in the CRDs the types of core.json are: CRD file, path to the schema, the Kubernetes type it is.
CORE_ROOTS: Final = (
    ("jobset.x-k8s.io_jobsets", "spec.replicatedJobs[].template", "batch_v1.JobTemplateSpec"),
    ("jobset.x-k8s.io_jobsets", "status.conditions[]", "meta_v1.Condition"),
)
#: Other types that CRDs embed whole; the rest of what looks like a core type looks so by chance.
EMBEDDED: Final = ("Condition", "JobTemplateSpec", "LabelSelector", "PodTemplateSpec", "Toleration")

NATIVE_ROOTS: Final = (
    *("core_v1.ConfigMap", "core_v1.Namespace", "core_v1.Node", "core_v1.Pod", "core_v1.PodTemplate"),
    *("core_v1.Secret", "core_v1.Service", "core_v1.ServiceAccount", "batch_v1.Job", "coordination_v1.Lease"),
    *("scheduling_v1.PriorityClass", "meta_v1.ObjectMeta", "core_v1.Event", "core_v1.ResourceQuota"),
    *("core_v1.LimitRange", "policy_v1.PodDisruptionBudget", "batch_v1.CronJob", "apps_v1.Deployment"),
    *("apps_v1.ReplicaSet", "apps_v1.StatefulSet", "apps_v1.DaemonSet", "networking_v1.NetworkPolicy"),
    *("core_v1.Endpoints", "discovery_v1.EndpointSlice", "node_v1.RuntimeClass"),
    *("rbac_v1.Role", "rbac_v1.RoleBinding", "rbac_v1.ClusterRole", "rbac_v1.ClusterRoleBinding"),
    *("core_v1.PersistentVolume", "core_v1.PersistentVolumeClaim", "networking_v1.Ingress"),
    "core_v1.ReplicationController",
    "admissionregistration_v1.MutatingWebhookConfiguration",
    "admissionregistration_v1.ValidatingWebhookConfiguration",
)
#: Mappings of other things than texts, by `DnsType.field` or by the name of the field wherever it is.
MAPS: Final = {
    "ConfigMap.binaryData": "{bytes}",
    "Secret.data": "{bytes}",
    "allocatable": "{quantity}",
    "allocatedResources": "{quantity}",
    "capacity": "{quantity}",
    "default": "{quantity}",
    "defaultRequest": "{quantity}",
    "hard": "{quantity}",
    "limits": "{quantity}",
    "max": "{quantity}",
    "maxLimitRequestRatio": "{quantity}",
    "min": "{quantity}",
    "overhead": "{quantity}",
    "podFixed": "{quantity}",
    "requests": "{quantity}",
    "used": "{quantity}",
}
#: What the API server requires though the type leaves it optional.
REQUIRED: Final = (
    *("Job.spec", "Pod.spec", "PodTemplate.template", "PodTemplateSpec.spec", "Service.spec", "PriorityClass.value"),
)
#: What CRDs require, but their webhooks fill in before that is checked.
FILLED_IN: Final = ("JobSet.spec.failurePolicy.rules.name",)
WEBHOOKS: Final = ("MutatingWebhook", "ValidatingWebhook")
WEBHOOK: Final[Mapping[str, Mapping[str, Any]]] = {
    "failurePolicy": {"enum": ["Ignore", "Fail"], "default": "Fail"},
    "matchPolicy": {"enum": ["Exact", "Equivalent"], "default": "Equivalent"},
    "namespaceSelector": {"default": {}},
    "objectSelector": {"default": {}},
    "sideEffects": {"enum": ["None", "NoneOnDryRun"]},
    "timeoutSeconds": {"min": 1, "max": 30, "default": 10},
}
#: Values and bounds that Kubernetes checks in code, where being told early is worth most.
CHECKED: Final[Mapping[str, Mapping[str, Any]]] = {
    "Container.imagePullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "ContainerPort.protocol": {"enum": ["TCP", "UDP", "SCTP"]},
    "ContainerPort.containerPort": {"min": 1, "max": 65535},
    "JobSpec.activeDeadlineSeconds": {"min": 0},
    "JobSpec.backoffLimit": {"min": 0},
    "JobSpec.backoffLimitPerIndex": {"min": 0},
    "JobSpec.completionMode": {"enum": ["NonIndexed", "Indexed"]},
    "JobSpec.completions": {"min": 0},
    "JobSpec.maxFailedIndexes": {"min": 0},
    "JobSpec.parallelism": {"min": 0},
    "JobSpec.podReplacementPolicy": {"enum": ["TerminatingOrFailed", "Failed"]},
    "JobSpec.ttlSecondsAfterFinished": {"min": 0},
    "LabelSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
    "LeaseSpec.leaseDurationSeconds": {"min": 1},
    "LeaseSpec.leaseTransitions": {"min": 0},
    "NodeSelectorRequirement.operator": {"enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]},
    "PodFailurePolicy.rules": {"maxItems": 20},
    "PodFailurePolicyOnExitCodesRequirement.operator": {"enum": ["In", "NotIn"]},
    "PodFailurePolicyRule.action": {"enum": ["Ignore", "FailIndex", "FailJob", "Count"]},
    "PodSpec.activeDeadlineSeconds": {"min": 1, "max": 2147483647},
    "PodSpec.containers": {"minItems": 1},
    "PodSpec.dnsPolicy": {
        "enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
        "default": "ClusterFirst",
    },
    "PodSpec.preemptionPolicy": {"enum": ["PreemptLowerPriority", "Never"]},
    "PodSpec.restartPolicy": {"enum": ["Always", "OnFailure", "Never"], "default": "Always"},
    "PodSpec.schedulerName": {"default": "default-scheduler"},
    "PodSpec.securityContext": {"default": {}},
    "PodSpec.terminationGracePeriodSeconds": {"min": 0, "default": 30},
    "PodTemplateSpec.metadata": {"default": {}},
    "PriorityClass.preemptionPolicy": {"enum": ["PreemptLowerPriority", "Never"], "default": "PreemptLowerPriority"},
    "RuleWithOperations.scope": {"enum": ["Cluster", "Namespaced", "*"], "default": "*"},
    "ServiceReference.port": {"min": 1, "max": 65535, "default": 443},
    **{f"{name}.{field}": facts for name in WEBHOOKS for field, facts in WEBHOOK.items()},
    "MutatingWebhook.reinvocationPolicy": {"enum": ["Never", "IfNeeded"], "default": "Never"},
    "RoleRef.apiGroup": {"default": "rbac.authorization.k8s.io"},
    "Secret.type": {"default": "Opaque"},
    "ServicePort.port": {"min": 1, "max": 65535},
    "ServicePort.protocol": {"enum": ["TCP", "UDP", "SCTP"], "default": "TCP"},
    "ServiceSpec.sessionAffinity": {"enum": ["ClientIP", "None"], "default": "None"},
    "ServiceSpec.type": {"enum": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], "default": "ClusterIP"},
    "Taint.effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    "Toleration.effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    # Gt and Lt are behind a gate of Kubernetes that is off.
    "Toleration.operator": {"enum": ["Equal", "Exists"]},
}
#: Further defaults that do not depend on other fields, as Kubernetes' defaults.go sets them by type.
DEFAULTS: Final[Mapping[str, Any]] = {
    **{
        f"{name}.{field}": value
        for name in ("Container", "EphemeralContainer")
        for field, value in (
            ("resources", {}),
            ("terminationMessagePath", "/dev/termination-log"),
            ("terminationMessagePolicy", "File"),
        )
    },
    **{f"{name}VolumeSource.defaultMode": 0o644 for name in ("ConfigMap", "DownwardAPI", "Projected", "Secret")},
    "AzureDiskVolumeSource.cachingMode": "ReadWrite",
    "AzureDiskVolumeSource.kind": "Shared",
    "EndpointPort.protocol": "TCP",
    "HTTPGetAction.path": "/",
    "HTTPGetAction.scheme": "HTTP",
    "HostPathVolumeSource.type": "",
    "ISCSIPersistentVolumeSource.iscsiInterface": "default",
    "JobTemplateSpec.metadata": {},
    "NetworkPolicyPort.protocol": "TCP",
    "ObjectFieldSelector.apiVersion": "v1",
    "PersistentVolumeClaimSpec.resources": {},
    "PersistentVolumeClaimSpec.volumeMode": "Filesystem",
    "PersistentVolumeClaimTemplate.metadata": {},
    "Probe.failureThreshold": 3,
    "Probe.periodSeconds": 10,
    "Probe.successThreshold": 1,
    "Probe.timeoutSeconds": 1,
    "RBDPersistentVolumeSource.keyring": "/etc/ceph/keyring",
    "RBDPersistentVolumeSource.pool": "rbd",
    "RBDPersistentVolumeSource.user": "admin",
    "ScaleIOPersistentVolumeSource.fsType": "xfs",
    "ScaleIOPersistentVolumeSource.storageMode": "ThinProvisioned",
    "ServiceAccountTokenProjection.expirationSeconds": 3600,
    "StatefulSetSpec.serviceName": "",
}
#: Lists that CRDs hold to be maps, but in which Kubernetes itself lets keys come twice.
MAY_REPEAT: Final = (
    *("Container.env", "Container.ports", "EphemeralContainer.env", "EphemeralContainer.ports"),
    *("PodSpec.hostAliases", "PodSpec.imagePullSecrets", "PodFailurePolicyOnExitCodesRequirement.values"),
)

#: The facts of how a field is merged.
MERGING: Final = ("items", "merge", "owned", "retain")

_QUANTITY_PATTERN_START: Final = r"^(\+|-)?(([0-9]+"
_SCALARS: Final = {"string": "string", "boolean": "bool", "integer": "int", "number": "number"}
_FACTS: Final = {
    "default": "default",
    "enum": "enum",
    "maxItems": "maxItems",
    "maxLength": "maxLength",
    "maxProperties": "maxProperties",
    "maximum": "max",
    "minItems": "minItems",
    "minLength": "minLength",
    "minimum": "min",
    "nullable": "nullable",
    "pattern": "pattern",
    "x-kubernetes-list-map-keys": "keys",
}
#: Known, and of no weight for what is a field: texts, rules, and how server-side apply merges.
_LEFT_OUT: Final = ("description", "x-kubernetes-validations", "x-kubernetes-map-type", "x-kubernetes-list-type")
_STRUCTURE: Final = (
    *("additionalProperties", "anyOf", "format", "items", "properties", "required", "type"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
)


class UnknownSchemaError(ValueError):
    """A CRD says something that the tables have no words for."""


class CrdTable:
    """The types of one CRD version, named by their path; what core.json has already is referred to by its name."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = named
        self.types: Table = {}

    def add(self, schema: Schema, name: str) -> str:
        """Add an object type and all it holds."""
        required = schema.get("required", ())
        fields = self.types.setdefault(name, {})
        for field, child in schema["properties"].items():
            place = f"{name}.{field}"
            fields[field] = spec_of(*self._typed(child, place), field in required and place not in FILLED_IN)
        return name

    def _typed(self, schema: Schema, place: str) -> tuple[str, dict[str, Any]]:
        """The type and the facts of a place."""
        unknown = [key for key in schema if key not in {*_FACTS, *_LEFT_OUT, *_STRUCTURE}]
        if unknown:
            raise UnknownSchemaError(f"{place}: {', '.join(unknown)}")
        facts = {word: schema[key] for key, word in _FACTS.items() if key in schema}
        if schema.get("x-kubernetes-list-type") == "set":
            facts["set"] = True
        if schema.get("x-kubernetes-map-type") == "atomic":
            facts["owned"] = "atomic"
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "any", facts
        if schema.get("x-kubernetes-int-or-string"):
            is_quantity = facts.get("pattern", "").startswith(_QUANTITY_PATTERN_START)
            return ("quantity", _without(facts, "pattern")) if is_quantity else ("int-or-string", facts)
        return self._compound(schema, place, facts)

    def _compound(self, schema: Schema, place: str, facts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Lists, maps and objects by what they hold; all else by its scalar type."""
        if schema["type"] == "array":
            of, inner = self._typed(schema["items"], place)
            return f"[{of}]", facts | ({"items": inner} if inner else {})
        if "additionalProperties" in schema:
            of, inner = self._typed(schema["additionalProperties"], place)
            return f"{{{of}}}", facts | ({"values": inner} if inner else {})
        if schema["type"] == "object":
            if "properties" not in schema:
                is_metadata = place.count(".") == 1 and place.endswith(".metadata")
                return ("native.ObjectMeta" if is_metadata else "any"), facts
            return self.named.get(shape(schema)) or self.add(schema, place), facts
        if schema.get("format") == "date-time":
            return "time", facts
        return schema.get("format", _SCALARS[schema["type"]]), facts


class CoreTable(CrdTable):
    """The types of core.json: walks a CRD and the Kubernetes classes beside it, and takes the names from these."""

    def __init__(self, classes: "Classes") -> None:
        super().__init__({})
        self.classes = classes
        self.class_of: dict[str, str] = {}
        self.shapes: dict[str, str] = {}

    def add_class(self, schema: Schema, qualified: str) -> str:
        """Add a type under the name of its Kubernetes class; wherever that comes again, it must look the same."""
        name = qualified.partition(".")[2]
        self.class_of[name] = qualified
        before = self.types.pop(name, None)
        super().add(schema, name)
        if before not in (None, self.types[name]):
            raise UnknownSchemaError(f"{name} is embedded in different shapes")
        if name in EMBEDDED:
            self.shapes[shape(schema)] = name
        return name

    def add(self, schema: Schema, name: str) -> str:
        """Add the type of a field, found in the class that has the field."""
        owner, _, field = name.rpartition(".")
        return self.add_class(schema, self.classes.of_field(self.class_of[owner], field).named)


class Merging:
    """How patches and server-side apply take the fields of Kubernetes' own kinds."""

    #: The modules of lightkube-models whose definitions are not called `io.k8s.api.<group>.<version>`.
    _PLACES: Final = {"meta_v1": "io.k8s.apimachinery.pkg.apis.meta.v1"}

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self.definitions = definitions

    def facts(self, qualified: str, field: str) -> dict[str, Any]:
        """The facts of a field of a class, such as `core_v1.PodSpec`; none where the schema does not know it."""
        module, _, name = qualified.partition(".")
        place = self._PLACES.get(module) or f"io.k8s.api.{module.replace('_', '.')}"
        schema = self.definitions.get(f"{place}.{name}", {}).get("properties", {}).get(field, {})
        facts: dict[str, Any] = {"owned": "atomic"} if self._is_atomic(schema) else {}
        if self._is_atomic(schema.get("items", {})):
            facts["items"] = {"owned": "atomic"}
        if schema.get("x-kubernetes-list-type") in {"map", "set"}:
            facts["owned"] = schema.get("x-kubernetes-list-map-keys", "set")
        strategies = schema.get("x-kubernetes-patch-strategy", "").split(",")
        if "merge" in strategies:
            facts["merge"] = schema.get("x-kubernetes-patch-merge-key", "")
        return facts | ({"retain": True} if "retainKeys" in strategies else {})

    def _is_atomic(self, schema: Schema) -> bool:
        """Whether a mapping, or the type it refers to, is owned as a whole."""
        referred = self.definitions.get(schema.get("$ref", "").removeprefix("#/$defs/"), {})
        return "atomic" in (schema.get("x-kubernetes-map-type"), referred.get("x-kubernetes-map-type"))


class MergingAsBefore(Merging):
    """The same, as the tables in the tree have it."""

    def __init__(self) -> None:
        super().__init__({})
        self.tables = (read_table("native"), read_table("core"))

    def facts(self, qualified: str, field: str) -> dict[str, Any]:
        """The facts of a field of a class; none where the tables do not know it."""
        name = qualified.partition(".")[2]
        spec = next((table[name][field] for table in self.tables if field in table.get(name, {})), "")
        return {word: fact for word, fact in parts_of(spec)[1].items() if word in MERGING}


class ClassField(NamedTuple):
    """A field of a Kubernetes class: its type in the words of the tables, and the qualified class in it, if any."""

    type: str
    required: bool
    named: str


class Classes:
    """The dataclasses of lightkube-models, read from their source: field names, type hints, what has no default."""

    _WORDS: Final = {
        "str": "string",
        "int": "int",
        "bool": "bool",
        "float": "number",
        "dict": "{string}",
        "meta_v1.Time": "time",
        "meta_v1.MicroTime": "micro-time",
        "resource.Quantity": "quantity",
        "util_intstr.IntOrString": "int-or-string",
    }

    def __init__(self) -> None:
        found = importlib.util.find_spec("lightkube.models")
        if found is None or found.origin is None:
            raise SystemExit("lightkube-models is not installed; run `make setup`")
        self.folder = Path(found.origin).parent
        self.modules: dict[str, dict[str, ast.ClassDef]] = {}

    def fields(self, qualified: str) -> dict[str, ClassField]:
        """All fields of a class, such as `core_v1.PodSpec`."""
        module, _, name = qualified.partition(".")
        return dict(self._fields(module, self._classes(module)[name]))

    def of_field(self, qualified: str, field: str) -> ClassField:
        """One field of a class."""
        return self.fields(qualified)[field]

    def _classes(self, module: str) -> dict[str, ast.ClassDef]:
        if module not in self.modules:
            tree = ast.parse((self.folder / f"{module}.py").read_text("utf-8"))
            self.modules[module] = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        return self.modules[module]

    def _fields(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ClassField]]:
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                hint = ast.literal_eval(member.annotation)
                json_name = re.search(r"'json': '(\w+)'", ast.unparse(member.value)) if member.value else None
                yield json_name[1] if json_name else member.target.id, self._field(module, hint, member.value is None)

    def _field(self, module: str, hint: str, required: bool) -> ClassField:
        inner = re.sub(r"Optional\[(.*)\]", r"\1", hint)
        element = re.sub(r"List\[(.*)\]", r"\1", inner)
        qualified = element if "." in element else f"{module}.{element}"
        home, _, name = qualified.partition(".")
        word = self._WORDS.get(element) or self._WORDS.get(qualified)
        if word is None and name not in self._classes(home):
            word = "any"  # an alias of Dict: an object without fields of its own
        of = word or name
        return ClassField(f"[{of}]" if element != inner else of, required, "" if word else qualified)


def spec_of(type_name: str, facts: Mapping[str, Any], required: bool) -> Spec:
    """A field as the tables write it."""
    expression = type_name + "!" * required
    return [expression, dict(sorted(facts.items()))] if facts else expression


def shape(schema: Any) -> str:
    """What makes two schemas the same: all but texts, rules and ways to merge."""
    return json.dumps(_shape(schema), sort_keys=True)


def _shape(schema: Any, is_fields: bool = False) -> Any:
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if is_fields or key not in _LEFT_OUT}
        is_set = not is_fields and schema.get("x-kubernetes-list-type") == "set"
        return {key: _shape(value, key == "properties" and not is_fields) for key, value in kept.items()} | (
            {"set": True} if is_set else {}
        )
    return [_shape(value) for value in schema] if isinstance(schema, list) else schema


def _without(facts: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != word}


def at(schema: Schema, path: str) -> Schema:
    """The schema at a path such as `spec.replicatedJobs[].template`."""
    for part in path.split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema
    return schema


def read_crds(*paths: Path) -> dict[str, Schema]:
    """The spec of every CRD of some files and folders, by file name."""
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    return {file.stem: yaml.load(file.read_text("utf-8"), yaml.CSafeLoader)["spec"] for file in files}


def crd_tables(crds: Mapping[str, Schema]) -> dict[str, Table]:
    """core.json and the tables of the CRDs, by file name."""
    core = CoreTable(Classes())
    for stem, path, qualified in CORE_ROOTS:
        core.add_class(at(crds[stem]["versions"][0]["schema"]["openAPIV3Schema"], path), qualified)
    tables = {"core": core.types}
    for crd in crds.values():
        for version in crd["versions"]:
            table = CrdTable(core.shapes)
            table.add(version["schema"]["openAPIV3Schema"], crd["names"]["kind"])
            group = crd["group"].partition(".")[0]
            tables.setdefault(f"{group}.{version['name']}", {}).update(table.types)
    return tables


def native_table(core: Table, merging: Merging) -> Table:
    """native.json: the classes of Kubernetes's own kinds, less what core.json says of them already."""
    classes, table, waiting = Classes(), {}, list(NATIVE_ROOTS)
    seen = dict.fromkeys(waiting)
    while waiting:
        qualified = waiting.pop()
        name, fields = qualified.partition(".")[2], classes.fields(qualified)
        own = {
            field: native_spec(f"{name}.{field}", found, core.get(name, {}).get(field), merging.facts(qualified, field))
            for field, found in fields.items()
        }
        changed = {field: spec for field, spec in own.items() if spec != core.get(name, {}).get(field)}
        if changed:
            table[name] = changed
        named = [found.named for found in fields.values() if found.named and found.named not in seen]
        seen.update(dict.fromkeys(named))
        waiting += dict.fromkeys(named)
    return table


def native_spec(place: str, found: ClassField, embedded: Spec | None, merging: Mapping[str, Any]) -> Spec:
    """A field as Kubernetes itself has it: as the CRDs embed it where they do, else as its class says."""
    expression, facts = parts_of(embedded) if embedded else (found.type, {})
    if embedded is None and found.type == "{string}":
        expression = MAPS.get(place) or MAPS.get(place.partition(".")[2]) or expression
    type_name = "ObjectMeta" if found.named == "meta_v1.ObjectMeta" else expression.removesuffix("!")
    if place in MAY_REPEAT:
        facts = _without(_without(facts, "keys"), "set")
    inner = {**facts.get("items", {}), **merging.get("items", {})}
    default = {"default": DEFAULTS[place]} if place in DEFAULTS else {}
    checked = {**CHECKED.get(place, {}), **default}
    facts = {**_without(facts, "owned"), **checked, **merging, **({"items": inner} if inner else {})}
    return spec_of(type_name, facts, found.required or place in REQUIRED)


def parts_of(spec: Spec) -> tuple[str, Mapping[str, Any]]:
    """The type expression and the facts of a field as the tables write it."""
    return (spec, {}) if isinstance(spec, str) else (spec[0], spec[1])


def read_table(name: str) -> Table:
    """A table as it is in the tree."""
    table: Table = json.loads((FIELDS / f"{name}.json").read_text("utf-8"))
    return table


def text_of(table: Table) -> str:
    """A table as a file: one line a field, types and fields by name, so that changes read well."""
    types = []
    for name, fields in sorted(table.items()):
        lines = [f"  {json.dumps(field)}: {json.dumps(spec)}" for field, spec in sorted(fields.items())]
        types.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}" if lines else f"{json.dumps(name)}: {{}}")
    return "{\n" + ",\n".join(types) + "\n}\n"


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crds", type=Path, nargs="+", metavar="PATH", help="CRD files, or folders of them")
    parser.add_argument("--merging", type=Path, metavar="FILE", help="Kubernetes' own JSON schema")
    arguments = parser.parse_args()
    definitions = json.loads(arguments.merging.read_text("utf-8"))["$defs"] if arguments.merging else None
    merging = MergingAsBefore() if definitions is None else Merging(definitions)
    tables = crd_tables(read_crds(*arguments.crds)) if arguments.crds else {}
    tables["native"] = native_table(tables.get("core") or read_table("core"), merging)
    for name, table in tables.items():
        (FIELDS / f"{name}.json").write_text(text_of(table), "utf-8")
        print(f"{name}.json: {len(table)} types")


if __name__ == "__main__":
    main()
