"""Generates the field tables of src/batchyard/api/schema/fields from CRD files and from lightkube-models.

    python tools/field_tables.py --crds PATH...  all tables; PATH is a CRD file or a folder of CRD files
    python tools/field_tables.py                 only native.json, from lightkube-models and the existing tables

`--merging FILE` updates the merge strategies of lists and maps in native.json; without it they are unchanged. FILE is
the JSON schema of Kubernetes with x-kubernetes-* keywords: `_definitions.json` of a version in the Python package
kubernetes-validate.

Tables contain only facts: names, types, required fields, bounds, defaults, and merge strategies. The module
batchyard.api.scheme defines their format. Facts that neither source has are in the manual tables below.
x-kubernetes-validations are rules, not fields; batchyard.api.validation implements them.

core.json                pod templates and their types, exactly as embedded in the CRDs, with the names of Kubernetes
native.json              the kinds of Kubernetes, and the differences between its types and those embedded in CRDs
kueue.v1beta1.json ...   one file per group and version of the CRDs: those of Kueue and JobSet, and ProvisioningRequests
                         of the cluster autoscaler (cluster-autoscaler/apis/config/crd)

batchyard's own kinds (sim.v1alpha1.json, cloud.v1alpha1.json) have no CRD; their tables are written by hand.
native-GROUP.VERSION.json has the types of another version of a Kubernetes kind, and is written by hand too.
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

#: The locations of the types of core.json in the CRDs: CRD file, path to the schema, Kubernetes type.
CORE_ROOTS: Final = (
    ("jobset.x-k8s.io_jobsets", "spec.replicatedJobs[].template", "batch_v1.JobTemplateSpec"),
    ("jobset.x-k8s.io_jobsets", "status.conditions[]", "meta_v1.Condition"),
)
#: The types that CRDs embed completely; other types that equal a core type do so by chance.
EMBEDDED: Final = ("Condition", "JobTemplateSpec", "LabelSelector", "PodTemplateSpec", "Toleration")

POLICIES: Final = ("Mutating", "Validating")
NATIVE_ROOTS: Final = (
    *("core_v1.ConfigMap", "core_v1.Namespace", "core_v1.Node", "core_v1.Pod", "core_v1.PodTemplate"),
    *("core_v1.Secret", "core_v1.Service", "core_v1.ServiceAccount", "batch_v1.Job", "coordination_v1.Lease"),
    *("scheduling_v1.PriorityClass", "meta_v1.ObjectMeta", "core_v1.Event", "core_v1.ResourceQuota"),
    *("core_v1.LimitRange", "policy_v1.PodDisruptionBudget", "batch_v1.CronJob", "apps_v1.Deployment"),
    *("apps_v1.ReplicaSet", "apps_v1.StatefulSet", "apps_v1.DaemonSet", "networking_v1.NetworkPolicy"),
    "apps_v1.ControllerRevision",
    *("core_v1.Endpoints", "discovery_v1.EndpointSlice", "node_v1.RuntimeClass"),
    *("rbac_v1.Role", "rbac_v1.RoleBinding", "rbac_v1.ClusterRole", "rbac_v1.ClusterRoleBinding"),
    *("core_v1.PersistentVolume", "core_v1.PersistentVolumeClaim", "networking_v1.Ingress"),
    *("core_v1.ReplicationController", "autoscaling_v2.HorizontalPodAutoscaler", "storage_v1.StorageClass"),
    *("flowcontrol_v1.FlowSchema", "flowcontrol_v1.PriorityLevelConfiguration"),
    "admissionregistration_v1.MutatingWebhookConfiguration",
    "admissionregistration_v1.ValidatingWebhookConfiguration",
    *(f"admissionregistration_v1.{kind}AdmissionPolicy{role}" for kind in POLICIES for role in ("", "Binding")),
)
#: Maps whose values are not strings, by `Type.field`, or by field name for all types.
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
#: Fields that the API server requires although their type makes them optional.
REQUIRED: Final = (
    *("Job.spec", "Pod.spec", "PodTemplate.template", "PodTemplateSpec.spec", "Service.spec", "PriorityClass.value"),
)
_METRIC_SOURCE_FIELDS: Final = (
    *(("ContainerResource", "container"), ("ContainerResource", "name"), ("ContainerResource", "target")),
    *(("External", "metric"), ("External", "target"), ("Object", "describedObject"), ("Object", "metric")),
    *(("Object", "target"), ("Pods", "metric"), ("Pods", "target"), ("Resource", "name"), ("Resource", "target")),
)
#: Fields that clients mark as required; the API server checks them in code, with its own messages.
CHECKED_IN_CODE: Final = (
    *("CrossVersionObjectReference.kind", "CrossVersionObjectReference.name", "HPAScalingPolicy.periodSeconds"),
    *("HPAScalingPolicy.type", "HPAScalingPolicy.value", "HorizontalPodAutoscaler.spec", "StorageClass.provisioner"),
    *("HorizontalPodAutoscalerSpec.maxReplicas", "HorizontalPodAutoscalerSpec.scaleTargetRef"),
    *("HorizontalPodAutoscalerStatus.desiredReplicas", "MetricIdentifier.name", "MetricSpec.type"),
    *("MetricTarget.type", *(f"{source}MetricSource.{field}" for source, field in _METRIC_SOURCE_FIELDS)),
    *("AuditAnnotation.key", "AuditAnnotation.valueExpression", "Mutation.patchType", "Validation.expression"),
    *("ValidatingAdmissionPolicyBinding.spec", "ValidatingAdmissionPolicyBindingSpec.policyName"),
    *("ValidatingAdmissionPolicyBindingSpec.validationActions", "Variable.expression", "Variable.name"),
    *("FlowDistinguisherMethod.type", "FlowSchema.spec", "FlowSchemaCondition.type", "FlowSubject.kind"),
    *("FlowSchemaSpec.priorityLevelConfiguration", "GroupSubject.name", "LimitResponse.type", "UserSubject.name"),
    *("LimitedPriorityLevelConfiguration.limitResponse", "NonResourcePolicyRule.nonResourceURLs"),
    *("NonResourcePolicyRule.verbs", "PolicyRulesWithSubjects.subjects", "PriorityLevelConfiguration.spec"),
    *("PriorityLevelConfigurationCondition.type", "PriorityLevelConfigurationReference.name"),
    *("PriorityLevelConfigurationSpec.type", "ResourcePolicyRule.apiGroups", "ResourcePolicyRule.resources"),
    *("ResourcePolicyRule.verbs", "ServiceAccountSubject.name", "ServiceAccountSubject.namespace"),
)
#: The names of types in the tables, if another type has their own name.
RENAMED: Final = {"flowcontrol_v1.Subject": "FlowSubject"}
#: Fields that CRDs require, but their webhooks set before the validation.
FILLED_IN: Final = ("JobSet.spec.failurePolicy.rules.name",)
#: Bounds of CRDs that a later version of Kueue changed (0.20: a podSet may have the minCount 0).
LATER: Final[Mapping[str, Mapping[str, Any]]] = {"Workload.spec.podSets.minCount": {"min": 0}}
WEBHOOKS: Final = ("MutatingWebhook", "ValidatingWebhook")
WEBHOOK: Final[Mapping[str, Mapping[str, Any]]] = {
    "failurePolicy": {"enum": ["Ignore", "Fail"], "default": "Fail"},
    "matchPolicy": {"enum": ["Exact", "Equivalent"], "default": "Equivalent"},
    "namespaceSelector": {"default": {}},
    "objectSelector": {"default": {}},
    "sideEffects": {"enum": ["None", "NoneOnDryRun"]},
    "timeoutSeconds": {"min": 1, "max": 30, "default": 10},
}
#: Values and bounds that Kubernetes checks in code; only those whose early rejection helps most.
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
    **{f"MatchResources.{field}": WEBHOOK[field] for field in ("matchPolicy", "namespaceSelector", "objectSelector")},
    **{f"{kind}AdmissionPolicySpec.failurePolicy": WEBHOOK["failurePolicy"] for kind in POLICIES},
    "NamedRuleWithOperations.scope": {"enum": ["Cluster", "Namespaced", "*"], "default": "*"},
    "RoleRef.apiGroup": {"default": "rbac.authorization.k8s.io"},
    "Secret.type": {"default": "Opaque"},
    "ServicePort.port": {"min": 1, "max": 65535},
    "ServicePort.protocol": {"enum": ["TCP", "UDP", "SCTP"], "default": "TCP"},
    "ServiceSpec.sessionAffinity": {"enum": ["ClientIP", "None"], "default": "None"},
    "ServiceSpec.type": {"enum": ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"], "default": "ClusterIP"},
    "Taint.effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    "Toleration.effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    # Gt and Lt require a feature gate of Kubernetes that is off by default.
    "Toleration.operator": {"enum": ["Equal", "Exists"]},
}
#: Further defaults that do not depend on other fields. Source: the defaults.go files of Kubernetes.
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
    "ValidatingAdmissionPolicy.status": {},
    **{f"{kind}AdmissionPolicy{role}.spec": {} for kind in POLICIES for role in ("", "Binding")},
}
#: Lists that are maps in CRDs, but for which Kubernetes accepts duplicate keys.
DUPLICATE_KEYS_ALLOWED: Final = (
    *("Container.env", "Container.ports", "EphemeralContainer.env", "EphemeralContainer.ports"),
    *("PodSpec.hostAliases", "PodSpec.imagePullSecrets", "PodFailurePolicyOnExitCodesRequirement.values"),
)

#: The facts about the merge strategy of a field.
MERGE_FACTS: Final = ("items", "merge", "owned", "retain")

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
#: Keywords that do not affect the fields: descriptions, rules, and merge strategies of server-side apply.
_IGNORED: Final = ("description", "x-kubernetes-validations", "x-kubernetes-map-type", "x-kubernetes-list-type")
_STRUCTURE: Final = (
    *("additionalProperties", "anyOf", "format", "items", "properties", "required", "type"),
    *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"),
)


class UnknownSchemaError(ValueError):
    """A CRD has a keyword or shape that the tables cannot express."""


class CrdTable:
    """The types of one CRD version, named by their path; types of core.json are referred to by their name."""

    def __init__(self, core_names: Mapping[str, str]) -> None:
        #: The names of the types of core.json, by the fingerprint of their schema.
        self.core_names = core_names
        self.types: Table = {}

    def add(self, schema: Schema, name: str) -> str:
        """Add an object type and its fields; return its name."""
        required = schema.get("required", ())
        fields = self.types.setdefault(name, {})
        for field, child in schema["properties"].items():
            path = f"{name}.{field}"
            fields[field] = make_spec(*self._parse(child, path), field in required and path not in FILLED_IN)
        return name

    def _parse(self, schema: Schema, path: str) -> tuple[str, dict[str, Any]]:
        """Return the type and the facts of a schema."""
        unknown = [key for key in schema if key not in {*_FACTS, *_IGNORED, *_STRUCTURE}]
        if unknown:
            raise UnknownSchemaError(f"{path}: {', '.join(unknown)}")
        facts = {**{word: schema[key] for key, word in _FACTS.items() if key in schema}, **LATER.get(path, {})}
        if schema.get("x-kubernetes-list-type") == "set":
            facts["set"] = True
        if schema.get("x-kubernetes-map-type") == "atomic":
            facts["owned"] = "atomic"
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return "any", facts
        if schema.get("x-kubernetes-int-or-string"):
            is_quantity = facts.get("pattern", "").startswith(_QUANTITY_PATTERN_START)
            return ("quantity", _without(facts, "pattern")) if is_quantity else ("int-or-string", facts)
        return self._parse_compound(schema, path, facts)

    def _parse_compound(self, schema: Schema, path: str, facts: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the type and the facts of a list, map, object or scalar."""
        if schema["type"] == "array":
            element, inner = self._parse(schema["items"], path)
            return f"[{element}]", facts | ({"items": inner} if inner else {})
        if "additionalProperties" in schema:
            element, inner = self._parse(schema["additionalProperties"], path)
            return f"{{{element}}}", facts | ({"values": inner} if inner else {})
        if schema["type"] == "object":
            if "properties" not in schema:
                is_metadata = path.count(".") == 1 and path.endswith(".metadata")
                return ("native.ObjectMeta" if is_metadata else "any"), facts
            return self.core_names.get(fingerprint(schema)) or self.add(schema, path), facts
        if schema.get("format") == "date-time":
            return "time", facts
        return schema.get("format", _SCALARS[schema["type"]]), facts


class CoreTable(CrdTable):
    """The types of core.json: their fields are those of the CRDs, their names those of the Kubernetes classes."""

    def __init__(self, classes: "LightkubeClasses") -> None:
        super().__init__({})
        self.classes = classes
        self.class_of: dict[str, str] = {}
        self.embedded_names: dict[str, str] = {}

    def add_class(self, schema: Schema, qualified: str) -> str:
        """Add a type under the name of its Kubernetes class; return the name. All uses must have the same shape."""
        name = qualified.partition(".")[2]
        self.class_of[name] = qualified
        before = self.types.pop(name, None)
        super().add(schema, name)
        if before not in (None, self.types[name]):
            raise UnknownSchemaError(f"{name} is embedded in different shapes")
        if name in EMBEDDED:
            self.embedded_names[fingerprint(schema)] = name
        return name

    def add(self, schema: Schema, name: str) -> str:
        """Add the type of a field; the class that has the field determines its name."""
        owner, _, field = name.rpartition(".")
        return self.add_class(schema, self.classes.field(self.class_of[owner], field).class_name)


class MergeStrategies:
    """The merge strategies of Kubernetes kinds for patches and server-side apply, from a JSON schema."""

    #: The modules of lightkube-models whose definitions do not have the prefix `io.k8s.api.<group>.<version>`.
    _PREFIXES: Final = {"meta_v1": "io.k8s.apimachinery.pkg.apis.meta.v1"}

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self.definitions = definitions

    def facts(self, qualified: str, field: str) -> dict[str, Any]:
        """Return the merge facts of a field of a class such as `core_v1.PodSpec`; empty if the schema lacks it."""
        module, _, name = qualified.partition(".")
        prefix = self._PREFIXES.get(module) or f"io.k8s.api.{module.replace('_', '.')}"
        schema = self.definitions.get(f"{prefix}.{name}", {}).get("properties", {}).get(field, {})
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
        """Return whether a map, or the type that it refers to, has one field owner as a whole."""
        target = self.definitions.get(schema.get("$ref", "").removeprefix("#/$defs/"), {})
        return "atomic" in (schema.get("x-kubernetes-map-type"), target.get("x-kubernetes-map-type"))


class StoredMergeStrategies(MergeStrategies):
    """The merge strategies in the existing tables."""

    def __init__(self) -> None:
        super().__init__({})
        self.tables = (read_table("native"), read_table("core"))

    def facts(self, qualified: str, field: str) -> dict[str, Any]:
        """Return the merge facts of a field of a class; empty if the tables lack the field."""
        name = qualified.partition(".")[2]
        spec = next((table[name][field] for table in self.tables if field in table.get(name, {})), "")
        return {word: fact for word, fact in split_spec(spec)[1].items() if word in MERGE_FACTS}


class ClassField(NamedTuple):
    """A field of a Kubernetes class: its type expression, and the qualified name of its class; '' without a class."""

    type: str
    required: bool
    class_name: str


class LightkubeClasses:
    """The dataclasses of lightkube-models, parsed from their source: field names, type hints, required fields."""

    _TYPES: Final = {
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
            raise SystemExit("lightkube-models is not installed; run `make develop`")
        self.folder = Path(found.origin).parent
        self.modules: dict[str, dict[str, ast.ClassDef]] = {}

    def fields(self, qualified: str) -> dict[str, ClassField]:
        """Return all fields of a class, such as `core_v1.PodSpec`."""
        module, _, name = qualified.partition(".")
        return dict(self._fields(module, self._classes(module)[name]))

    def field(self, qualified: str, field: str) -> ClassField:
        """Return one field of a class."""
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
                name = json_name[1] if json_name else member.target.id
                yield name, self._parse_hint(module, hint, member.value is None)

    def _parse_hint(self, module: str, hint: str, required: bool) -> ClassField:
        inner = re.sub(r"Optional\[(.*)\]", r"\1", hint)
        element = re.sub(r"List\[(.*)\]", r"\1", inner)
        qualified = element if "." in element else f"{module}.{element}"
        home, _, name = qualified.partition(".")
        builtin = self._TYPES.get(element) or self._TYPES.get(qualified)
        if builtin is None and name not in self._classes(home):
            builtin = "any"  # an alias of Dict: an object without fixed fields
        type_name = builtin or name
        return ClassField(f"[{type_name}]" if element != inner else type_name, required, "" if builtin else qualified)


def make_spec(type_name: str, facts: Mapping[str, Any], required: bool) -> Spec:
    """Return a field in the format of the tables."""
    expression = type_name + "!" * required
    return [expression, dict(sorted(facts.items()))] if facts else expression


def fingerprint(schema: Any) -> str:
    """Return a text that is equal for equal schemas, without descriptions, rules and merge strategies."""
    return json.dumps(_normalize(schema), sort_keys=True)


def _normalize(schema: Any, is_fields: bool = False) -> Any:
    if isinstance(schema, dict):
        kept = {key: value for key, value in schema.items() if is_fields or key not in _IGNORED}
        is_set = not is_fields and schema.get("x-kubernetes-list-type") == "set"
        return {key: _normalize(value, key == "properties" and not is_fields) for key, value in kept.items()} | (
            {"set": True} if is_set else {}
        )
    return [_normalize(value) for value in schema] if isinstance(schema, list) else schema


def _without(facts: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key != word}


def schema_at(schema: Schema, path: str) -> Schema:
    """Return the schema at a path such as `spec.replicatedJobs[].template`."""
    for part in path.split("."):
        schema = schema["properties"][part.removesuffix("[]")]
        schema = schema["items"] if part.endswith("[]") else schema
    return schema


def read_crds(*paths: Path) -> dict[str, Schema]:
    """Return the spec of each CRD in files and folders, by file name."""
    files = [file for path in paths for file in (sorted(path.glob("*.yaml")) if path.is_dir() else [path])]
    return {file.stem: yaml.load(file.read_text("utf-8"), yaml.CSafeLoader)["spec"] for file in files}


def crd_tables(crds: Mapping[str, Schema]) -> dict[str, Table]:
    """Return core.json and the tables of the CRDs, by file name."""
    core = CoreTable(LightkubeClasses())
    for stem, path, qualified in CORE_ROOTS:
        core.add_class(schema_at(crds[stem]["versions"][0]["schema"]["openAPIV3Schema"], path), qualified)
    tables = {"core": core.types}
    for crd in crds.values():
        for version in crd["versions"]:
            table = CrdTable(core.embedded_names)
            table.add(version["schema"]["openAPIV3Schema"], crd["names"]["kind"])
            group = crd["group"].partition(".")[0]
            tables.setdefault(f"{group}.{version['name']}", {}).update(table.types)
    return tables


def native_table(core: Table, merging: MergeStrategies) -> Table:
    """Return native.json: the fields of Kubernetes kinds that differ from those in core.json."""
    classes, table, queue = LightkubeClasses(), {}, list(NATIVE_ROOTS)
    seen = dict.fromkeys(queue)
    while queue:
        qualified = queue.pop()
        name, fields = RENAMED.get(qualified, qualified.partition(".")[2]), classes.fields(qualified)
        embedded = core.get(name, {})
        specs = {
            field: native_spec(f"{name}.{field}", each, embedded.get(field), merging.facts(qualified, field))
            for field, each in fields.items()
        }
        changed = {field: spec for field, spec in specs.items() if spec != embedded.get(field)}
        if changed:
            table[name] = changed
        added = [each.class_name for each in fields.values() if each.class_name and each.class_name not in seen]
        seen.update(dict.fromkeys(added))
        queue += dict.fromkeys(added)
    return table


def native_spec(path: str, field: ClassField, embedded: Spec | None, merging: Mapping[str, Any]) -> Spec:
    """Return a field of a Kubernetes kind: as embedded in CRDs, or as in its class if no CRD embeds it."""
    expression, facts = split_spec(embedded) if embedded else (field.type, {})
    if field.class_name in RENAMED:
        expression = expression.replace(field.class_name.partition(".")[2], RENAMED[field.class_name])
    if embedded is None and field.type == "{string}":
        expression = MAPS.get(path) or MAPS.get(path.partition(".")[2]) or expression
    type_name = "ObjectMeta" if field.class_name == "meta_v1.ObjectMeta" else expression.removesuffix("!")
    if path in DUPLICATE_KEYS_ALLOWED:
        facts = _without(_without(facts, "keys"), "set")
    inner = {**facts.get("items", {}), **merging.get("items", {})}
    default = {"default": DEFAULTS[path]} if path in DEFAULTS else {}
    checked = {**CHECKED.get(path, {}), **default}
    facts = {**_without(facts, "owned"), **checked, **merging, **({"items": inner} if inner else {})}
    is_required = path in REQUIRED or (field.required and path not in CHECKED_IN_CODE)
    return make_spec(type_name, facts, is_required)


def split_spec(spec: Spec) -> tuple[str, Mapping[str, Any]]:
    """Return the type expression and the facts of a field in the format of the tables."""
    return (spec, {}) if isinstance(spec, str) else (spec[0], spec[1])


def read_table(name: str) -> Table:
    """Read an existing table."""
    table: Table = json.loads((FIELDS / f"{name}.json").read_text("utf-8"))
    return table


def format_table(table: Table) -> str:
    """Return a table as JSON with one line per field, sorted by name, for readable diffs."""
    types = []
    for name, fields in sorted(table.items()):
        lines = [f"  {json.dumps(field)}: {json.dumps(spec)}" for field, spec in sorted(fields.items())]
        types.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}" if lines else f"{json.dumps(name)}: {{}}")
    return "{\n" + ",\n".join(types) + "\n}\n"


def main() -> None:
    """Write the tables, and print the number of their types."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crds", type=Path, nargs="+", metavar="PATH", help="a CRD file, or a folder of CRD files")
    parser.add_argument("--merging", type=Path, metavar="FILE", help="the JSON schema of Kubernetes")
    arguments = parser.parse_args()
    definitions = json.loads(arguments.merging.read_text("utf-8"))["$defs"] if arguments.merging else None
    merging = StoredMergeStrategies() if definitions is None else MergeStrategies(definitions)
    tables = crd_tables(read_crds(*arguments.crds)) if arguments.crds else {}
    tables["native"] = native_table(tables.get("core") or read_table("core"), merging)
    for name, table in tables.items():
        (FIELDS / f"{name}.json").write_text(format_table(table), "utf-8")
        print(f"{name}.json: {len(table)} types")


if __name__ == "__main__":
    main()
