"""Schema validation and defaults of kinds, and the messages of faults."""

import copy
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.errors import InvalidObject
from batchyard.api.schema import (
    CACHED_VALUES_MAX,
    SchemaCompiler,
    fill_defaults,
    validate,
    validate_and_default,
    with_defaults,
)
from batchyard.api.schema.violations import format_path
from batchyard.api.scheme import NATIVE, Field, TypeScope, load_scope
from object_edits import GONE, with_edits

CLUSTER_QUEUE = scheme.kind_info(scheme.CLUSTER_QUEUE)
RESOURCE_FLAVOR = scheme.kind_info(scheme.RESOURCE_FLAVOR)
WORKLOAD = scheme.kind_info(scheme.WORKLOAD)
JOB = scheme.kind_info(scheme.JOB)
QUEUE: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "team"},
    "spec": {
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO",
        "stopPolicy": "None",
        "preemption": {
            "withinClusterQueue": "Never",
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "Never"},
        },
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        "resourceGroups": [
            {
                "coveredResources": ["cpu"],
                "flavors": [{"name": "spot", "resources": [{"name": "cpu", "nominalQuota": "9"}]}],
            }
        ],
    },
}
POD: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
TASK: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train", "namespace": "a"},
    "spec": {"parallelism": 2, "template": {"spec": {**POD, "restartPolicy": "Never"}}},
}
WAITING: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "Workload",
    "metadata": {"name": "w", "namespace": "a"},
    "spec": {"active": True, "podSets": [{"name": "main", "count": 1, "template": {"spec": POD}}]},
}
SPEC_FIELDS = (
    *("admissionChecksStrategy", "admissionScope", "cohortName", "concurrentAdmissionPolicy", "fairSharing"),
    *("flavorFungibility", "namespaceSelector", "preemption", "queueingStrategy", "resourceGroups", "stopPolicy"),
)
GROUP = "spec.resourceGroups[0]"
FLAVORS = f"{GROUP}.flavors"
UNLISTED = "write its fields below the name, without '- '"
OF_FLAVOR = "fields: name, resources"
STRATEGY = 'spec.queueingStrategy: Unsupported value: "{}": supported values: "StrictFIFO", "BestEffortFIFO"'
CPU = f"{GROUP}.flavors[0].resources[0]"


def with_template_defaults(job: dict[str, Any]) -> dict[str, Any]:
    """The Job with the defaults of its pod template."""
    return {**job, "spec": {**job["spec"], "template": fill_defaults("PodTemplateSpec", job["spec"]["template"])}}


def fault_texts(info: scheme.ServedKind, obj: dict[str, Any]) -> list[str]:
    """Return all faults as strings."""
    return [str(fault) for fault in validate(info, obj)]


@pytest.mark.parametrize(
    ("info", "obj"), [(CLUSTER_QUEUE, QUEUE), (JOB, TASK), (WORKLOAD, WAITING)], ids=["ClusterQueue", "Job", "Workload"]
)
def test_valid_complete_object_is_returned_unchanged(info: scheme.ServedKind, obj: dict[str, Any]) -> None:
    assert validate(info, obj) == []
    complete = with_defaults(info, obj)
    assert with_defaults(info, complete) is complete
    assert complete == (with_template_defaults(obj) if info is JOB else obj)


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        ({"spec.preemtion": {}}, "spec.preemtion: unknown field; did you mean preemption?"),
        ({"spec.queueing_strategy": "x"}, "spec.queueing_strategy: unknown field; did you mean queueingStrategy?"),
        ({"preemption": {}}, "preemption: unknown field; move the field to spec.preemption"),
        (
            {"spec.nominalQuota": 1},
            "spec.nominalQuota: unknown field; move the field to " + CPU.replace("[0]", "[]") + ".nominalQuota",
        ),
        ({"metadata.resourceVersoin": "1"}, "metadata.resourceVersoin: unknown field; did you mean resourceVersion?"),
        ({"spec.cohort": "a"}, "spec.cohort: unknown field; did you mean cohortName?"),
        ({f"{GROUP}.stopPolicy": "None"}, f"{GROUP}.stopPolicy: unknown field; move the field to spec.stopPolicy"),
        (
            {"preemption": True},
            "preemption: unknown field; use one of the fields apiVersion, kind, metadata, spec, status",
        ),
        (
            {f"{GROUP}.LowerPriority": True},
            f"{GROUP}.LowerPriority: unknown field; use one of the fields coveredResources, flavors",
        ),
        ({"spec.preemption.Any": True}, "spec.preemption.Any: unknown field; did you mean reclaimWithinCohort: Any?"),
        ({f"{GROUP}.zzz": 1}, f"{GROUP}.zzz: unknown field; use one of the fields coveredResources, flavors"),
        ({"spec.zzz": None}, f"spec.zzz: unknown field; use one of the fields {', '.join(SPEC_FIELDS)}"),
    ],
)
def test_unknown_field_is_reported_with_suggestion(edits: dict[str, Any], fault: str) -> None:
    assert fault_texts(CLUSTER_QUEUE, with_edits(QUEUE, edits)) == [fault]


@pytest.mark.parametrize(
    ("edits", "fault"),
    [
        (
            {f"{GROUP}.flavors": GONE},
            f"{FLAVORS}: Required value; set the field to a list of objects with name, resources",
        ),
        (
            {f"{GROUP}.flavors": None},
            f"{FLAVORS}: Required value; set the field to a list of objects with name, resources",
        ),
        ({f"{GROUP}.flavors": []}, f"{FLAVORS}: Required value; the list must have at least 1 item"),
        (
            {f"{GROUP}.flavors": "spot"},
            f"{FLAVORS}: Invalid value: \"spot\": must be a list; write one item on each line, starting with '- '",
        ),
        (
            {f"{GROUP}.flavors": ["spot"]},
            f'{FLAVORS}[0]: Invalid value: "spot": must be an object ({OF_FLAVOR}); write its fields below the name',
        ),
        (
            {f"{GROUP}.flavors": [[]]},
            f"{FLAVORS}[0]: Invalid value: a list: must be an object ({OF_FLAVOR}); {UNLISTED}",
        ),
        ({"spec.queueingStrategy": "FIFO"}, f"{STRATEGY.format('FIFO')}; use StrictFIFO or BestEffortFIFO"),
        ({"spec.queueingStrategy": "strictFifo"}, f"{STRATEGY.format('strictFifo')}; did you mean StrictFIFO?"),
        ({"spec.cohortName": 5}, 'spec.cohortName: Invalid value: 5: must be a string; put the value in quotes: "5"'),
        (
            {"spec.cohortName": "a" * 254},
            "spec.cohortName: Too long: may not be more than 253 characters; shorten the value by 1 character",
        ),
        (
            {"metadata.labels": {"a": True}},
            'metadata.labels[a]: Invalid value: true: must be a string; put the value in quotes: "true"',
        ),
        (
            {f"{CPU}.nominalQuota": "9GB"},
            (
                f"{CPU}.nominalQuota: Invalid value: '9GB' is not a quantity; "
                "write it as 9G (powers of 1000) or 9Gi (powers of 1024)"
            ),
        ),
        (
            {"metadata.creationTimestamp": "yesterday"},
            (
                "metadata.creationTimestamp: Invalid value: 'yesterday' is not an RFC 3339 time; "
                "write it as 2026-01-01T00:00:00Z"
            ),
        ),
        ({"metadata": GONE}, "metadata: Required value; add metadata with a name to the object"),
    ],
)
def test_invalid_value_is_reported_with_remedy(edits: dict[str, Any], fault: str) -> None:
    assert fault_texts(CLUSTER_QUEUE, with_edits(QUEUE, edits)) == [fault]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("2", 'Invalid value: "2": must be an integer; write 2 without quotes'),
        (2.0, "Invalid value: 2.0: must be an integer; write 2"),
        (2.5, "Invalid value: 2.5: must be an integer; write an integer"),
        (True, "Invalid value: true: must be an integer; write an integer"),
        (-1, "Invalid value: -1: must be at least 0; use 0 or more"),
        (2**31, "Invalid value: 2147483648: must be at most 2147483647; use 2147483647 or less"),
        (10**90, "Invalid value: a huge number: must be at most 2147483647; use 2147483647 or less"),
        ([1], "Invalid value: a list: must be an integer; write an integer"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_invalid_integer_is_reported_with_remedy(value: object, fault: str) -> None:
    assert fault_texts(JOB, with_edits(TASK, {"spec.parallelism": value})) == [f"spec.parallelism: {fault}"]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("yes", 'Invalid value: "yes": must be true or false; write true without quotes'),
        (0, "Invalid value: 0: must be true or false; write true or false"),
    ],
)
def test_boolean_field_rejects_string_and_integer(value: object, fault: str) -> None:
    assert fault_texts(JOB, with_edits(TASK, {"spec.suspend": value})) == [f"spec.suspend: {fault}"]


def test_all_faults_are_reported_in_field_order() -> None:
    wrong = with_edits(
        QUEUE, {"spec.stopPolicy": "Halt", f"{CPU}.nominalQuota": GONE, f"{CPU}.name": 3, "metadata.nam": "x"}
    )
    assert [fault.path for fault in validate(CLUSTER_QUEUE, wrong)] == [
        "metadata.nam",
        "spec.stopPolicy",
        f"{CPU}.name",
        f"{CPU}.nominalQuota",
    ]


def test_list_items_with_equal_key_are_reported_as_duplicates() -> None:
    flavor = QUEUE["spec"]["resourceGroups"][0]["flavors"][0]
    twice = with_edits(QUEUE, {f"{GROUP}.flavors": [flavor, flavor]})
    fault = f'{GROUP}.flavors[1]: Duplicate value: name "spot"; remove or rename one of them'
    assert fault_texts(CLUSTER_QUEUE, twice) == [fault]


def test_set_rejects_duplicate_items() -> None:
    checks = {"admissionChecks": [{"name": "a", "onFlavors": ["x", "x"]}]}
    place = "spec.admissionChecksStrategy.admissionChecks[0].onFlavors[1]"
    fault = f'{place}: Duplicate value: "x"; remove or rename one of them'
    assert fault_texts(CLUSTER_QUEUE, with_edits(QUEUE, {"spec.admissionChecksStrategy": checks})) == [fault]


def test_list_with_too_many_items_is_reported_with_count() -> None:
    wrong = with_edits(QUEUE, {f"{GROUP}.coveredResources": [f"r{i}" for i in range(66)]})
    assert fault_texts(CLUSTER_QUEUE, wrong) == [
        f"{GROUP}.coveredResources: Too many: 66: must have at most 64 items; remove 2 items"
    ]


def test_mapping_with_too_many_entries_is_reported_with_count() -> None:
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "f"}}
    wrong = {**flavor, "spec": {"nodeLabels": {f"l{i}": "" for i in range(9)}}}
    fault = "spec.nodeLabels: Too many: 9: must have at most 8 items; remove 1 item"
    assert fault_texts(scheme.kind_info(scheme.RESOURCE_FLAVOR), wrong) == [fault]


def test_pattern_violation_is_reported_with_remedy_in_words() -> None:
    (fault,) = validate(CLUSTER_QUEUE, with_edits(QUEUE, {"spec.cohortName": "Team A"}))
    assert fault.problem.startswith('Invalid value: "Team A": must match ^[a-z0-9]')
    assert fault.remedy == "use lowercase letters, digits, '-' and '.', and start and end with a letter or digit"


def test_pattern_rejects_trailing_newline() -> None:
    assert validate(CLUSTER_QUEUE, with_edits(QUEUE, {"spec.cohortName": "team\n"})) != []


def test_case_insensitive_pattern_accepts_mixed_case() -> None:
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "c"}}
    parameters = {"apiGroup": "a.io", "kind": "SomeKind", "name": "p"}
    spec = {"controllerName": "x", "parameters": parameters}
    assert validate(scheme.kind_info(scheme.ADMISSION_CHECK), {**check, "spec": spec}) == []


def test_with_defaults_fills_missing_fields_and_copies_only_changed_parts() -> None:
    bare = with_edits(QUEUE, {"spec.queueingStrategy": GONE, "spec.preemption": {"reclaimWithinCohort": "Any"}})
    done = with_defaults(CLUSTER_QUEUE, bare)
    assert done["spec"]["queueingStrategy"] == "BestEffortFIFO"
    assert done["spec"]["preemption"] == {
        "reclaimWithinCohort": "Any",
        "borrowWithinCohort": {"policy": "Never"},
        "withinClusterQueue": "Never",
    }
    assert done["spec"]["resourceGroups"] is bare["spec"]["resourceGroups"]
    assert "queueingStrategy" not in bare["spec"]


def test_default_object_has_defaults_of_its_fields() -> None:
    done = with_defaults(CLUSTER_QUEUE, with_edits(QUEUE, {"spec.preemption": GONE, "spec.flavorFungibility": GONE}))
    assert done["spec"]["preemption"]["borrowWithinCohort"] == {"policy": "Never"}
    assert done["spec"]["flavorFungibility"] == {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"}


def test_each_api_version_has_its_own_fields() -> None:
    old = {**QUEUE, "apiVersion": "kueue.x-k8s.io/v1beta1", "spec": {"cohort": "all"}}
    assert with_defaults(CLUSTER_QUEUE, old)["spec"]["cohort"] == "all"
    assert fault_texts(CLUSTER_QUEUE, {**old, "spec": {"cohortName": "all"}}) == [
        "spec.cohortName: unknown field; did you mean cohort?"
    ]


def test_each_api_version_has_its_own_enum_values() -> None:
    old = with_edits(QUEUE, {"apiVersion": "kueue.x-k8s.io/v1beta1", "spec.flavorFungibility.whenCanBorrow": "Borrow"})
    assert validate(CLUSTER_QUEUE, old) == []
    new = with_edits(old, {"apiVersion": "kueue.x-k8s.io/v1beta2"})
    assert [fault.path for fault in validate(CLUSTER_QUEUE, new)] == ["spec.flavorFungibility.whenCanBorrow"]


def test_null_field_is_treated_as_absent() -> None:
    done = with_defaults(
        CLUSTER_QUEUE, with_edits(QUEUE, {"spec.cohortName": None, "spec.stopPolicy": None, "status": None})
    )
    assert done == QUEUE


def test_null_label_value_becomes_empty_string() -> None:
    done = with_defaults(CLUSTER_QUEUE, with_edits(QUEUE, {"metadata.labels": {"a": None}}))
    assert done["metadata"]["labels"] == {"a": ""}


def test_null_string_map_value_of_custom_resource_is_rejected() -> None:
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "f"}}
    (fault,) = validate(RESOURCE_FLAVOR, {**flavor, "spec": {"nodeLabels": {"a": None}}})
    assert str(fault) == "spec.nodeLabels[a]: Invalid value: null: must be a string; write a string"


def test_null_creation_timestamp_in_pod_template_is_dropped() -> None:
    template = {"metadata": {"creationTimestamp": None, "labels": {"a": "b"}}, "spec": POD}
    done = with_defaults(WORKLOAD, with_edits(WAITING, {"spec.podSets[0].template": template}))
    assert done["spec"]["podSets"][0]["template"]["metadata"] == {"labels": {"a": "b"}}


def test_with_defaults_rejects_invalid_object() -> None:
    with pytest.raises(InvalidObject, match=r"spec\.zzz: unknown field"):
        with_defaults(CLUSTER_QUEUE, with_edits(QUEUE, {"spec.zzz": 1}))


def test_equal_pod_templates_share_one_instance() -> None:
    one = with_defaults(WORKLOAD, with_edits(WAITING, {"spec.podSets[0].template": {"spec": {**POD}}}))
    other = with_defaults(
        WORKLOAD, with_edits(WAITING, {"metadata.name": "v", "spec.podSets[0].template": {"spec": {**POD}}})
    )
    assert one["spec"]["podSets"][0]["template"] is other["spec"]["podSets"][0]["template"]


@pytest.mark.parametrize("value", [1, 1.0, True])
def test_template_cache_distinguishes_integer_float_and_boolean(value: object) -> None:
    templates = [{"spec": {**POD, "priority": each}} for each in (1, value)]
    faults = [validate(WORKLOAD, with_edits(WAITING, {"spec.podSets[0].template": template})) for template in templates]
    assert faults[0] == []
    assert (faults[1] == []) is (type(value) is int)


def test_template_that_cannot_be_encoded_is_validated() -> None:
    (fault,) = validate("PodTemplateSpec", {"spec": {**POD, "hostname": object()}})
    assert fault.path == "spec.hostname"


def test_job_checks_restart_policy_and_workload_does_not() -> None:
    restart = {"spec.template.spec.restartPolicy": "Maybe"}
    assert [fault.path for fault in validate(JOB, with_edits(TASK, restart))] == ["spec.template.spec.restartPolicy"]
    pod = {**POD, "restartPolicy": "Maybe"}
    assert validate(WORKLOAD, with_edits(WAITING, {"spec.podSets[0].template.spec": pod})) == []


def test_duplicate_env_variable_is_rejected_in_workload_and_accepted_in_job() -> None:
    container = {"name": "c", "env": [{"name": "A"}, {"name": "A"}]}
    assert validate(JOB, with_edits(TASK, {"spec.template.spec.containers": [container]})) == []
    wrong = with_edits(WAITING, {"spec.podSets[0].template.spec.containers": [container]})
    assert [fault.path for fault in validate(WORKLOAD, wrong)] == ["spec.podSets[0].template.spec.containers[0].env[1]"]


def test_duplicate_port_check_uses_default_protocol() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}]
    wrong = with_edits(WAITING, {"spec.podSets[0].template.spec.containers[0].ports": ports})
    (fault,) = validate(WORKLOAD, wrong)
    assert fault.problem == 'Duplicate value: containerPort 80, protocol "TCP"'


def test_misplaced_pod_field_in_job_is_reported_with_correct_path() -> None:
    wrong = with_edits(TASK, {"spec.restartPolicy": "Never", "spec.template.containers": []})
    assert fault_texts(JOB, wrong) == [
        "spec.template.containers: unknown field; move the field to spec.template.spec.containers",
        "spec.restartPolicy: unknown field; move the field to spec.template.spec.restartPolicy",
    ]


def test_boolean_with_name_of_value_is_reported_with_field_of_that_value() -> None:
    pool = {"name": "p", "machineType": "e2-standard-4", "nodeCount": 1, "spot": True}
    cluster = {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "c"},
        "spec": {"region": "us-central1", "zones": ["us-central1-a"], "nodePools": [pool]},
    }
    (fault,) = fault_texts(scheme.kind_info(scheme.CLUSTER), cluster)
    assert fault == "spec.nodePools[0].spot: unknown field; did you mean provisioning: spot?"
    pool["spot"] = False
    (fault,) = fault_texts(scheme.kind_info(scheme.CLUSTER), cluster)
    assert fault == "spec.nodePools[0].spot: unknown field; check the spelling, or remove the field"


@pytest.mark.parametrize(
    ("data", "is_sound"), [("aGk=", True), ("aG\nk=", True), ("hi there", False), (5, False)], ids=str
)
def test_secret_data_must_be_base64(data: object, is_sound: bool) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"key": data}}
    faults = validate(scheme.kind_info(scheme.SECRET), secret)
    assert [fault.path for fault in faults] == ([] if is_sound else ["data[key]"])


def test_scenario_horizon_must_be_duration() -> None:
    scenario = {"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "s"}}
    info = scheme.kind_info(scheme.SCENARIO)
    assert with_defaults(info, {**scenario, "spec": {"horizon": "1h30m"}})["spec"] == {
        "horizon": "1h30m",
        "fairSharing": False,
        "hotswap": True,
    }
    (fault,) = validate(info, {**scenario, "spec": {"horizon": "soon"}})
    assert str(fault) == "spec.horizon: Invalid value: 'soon' is not a duration; write it as 90s, 1h30m or 0.5s"


def test_validate_accepts_type_name() -> None:
    (fault,) = validate("PodSpec", {})
    assert str(fault) == "containers: Required value; set the field to a list of objects with name"


#: Fields that some kinds require even in a minimal object.
REQUIRED = ("addressType", "data", "handler", "involvedObject", "roleRef", "spec", "template", "value")


def test_every_version_of_every_kind_accepts_minimal_object() -> None:
    for info in scheme.KINDS:
        for version in info.versions:
            obj = {"apiVersion": info.api_version_for(version), "kind": info.kind, "metadata": {"name": "a"}}
            paths = [fault.path for fault in validate_and_default(info, version, obj).faults]
            assert paths in ([], *([field] for field in REQUIRED)), info


def test_empty_string_with_minimum_length_is_rejected() -> None:
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "c"}}
    fault = 'spec.controllerName: Invalid value: "": must not be empty; write a longer value'
    assert fault_texts(scheme.kind_info(scheme.ADMISSION_CHECK), {**check, "spec": {"controllerName": ""}}) == [fault]


def test_missing_required_field_is_reported_with_expected_type() -> None:
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "q", "namespace": "a"}}
    status = {"fairSharing": {"weightedShare": 1, "admissionFairSharingStatus": {}}}
    assert [fault.remedy for fault in validate(scheme.kind_info(scheme.LOCAL_QUEUE), {**queue, "status": status})] == [
        "set the field to a mapping from names to quantities such as 500m, 2 or 10Gi",
        "set the field to a time such as 2026-01-01T00:00:00Z",
    ]


@pytest.mark.parametrize("operator", ["In", "Gt"])
def test_invalid_toleration_operator_is_rejected(operator: str) -> None:
    (fault,) = validate("PodSpec", {**POD, "tolerations": [{"key": "a", "operator": operator}]})
    assert (fault.path, fault.remedy) == ("tolerations[0].operator", "use Equal or Exists")


def test_validate_raises_key_error_for_unknown_type() -> None:
    with pytest.raises(KeyError, match="the schema native has no type Pods"):
        validate("Pods", {})


def test_template_cache_size_is_bounded() -> None:
    visit = SchemaCompiler(load_scope(NATIVE), lambda _: pytest.fail("other scope")).object_visitor("PodTemplateSpec")
    templates = [{"spec": {**POD, "hostname": str(number)}} for number in range(CACHED_VALUES_MAX + 1)]
    first, *_ = map(visit, templates[:-1])
    assert visit(copy.deepcopy(templates[0])) is first
    assert visit(templates[-1])["spec"]["hostname"] == templates[-1]["spec"]["hostname"]
    again = visit(copy.deepcopy(templates[0]))
    assert again == first
    assert again is not first


class TreeScope(TypeScope):
    """A scope with a single type: a node with children by name."""

    def fields(self, type_name: str) -> dict[str, Field]:
        return {
            "children": Field("{Node}", False, {"maxProperties": 2}),
            "extra": Field("any", False, {}),
            "note": Field("string", False, {"nullable": True}),
            "size": Field("int", False, {"default": 1}),
        }


def tree(value: dict[str, Any]) -> Any:
    """Return the tree with defaults, or its flaws."""
    return SchemaCompiler(
        TreeScope("tree"), lambda scope: SchemaCompiler(scope, lambda _: pytest.fail("no other scope"))
    ).object_visitor("Node")(value)


def test_objects_in_mapping_get_defaults() -> None:
    assert tree({"children": {"a": {}, "b": {"size": 2}}}) == {
        "children": {"a": {"size": 1}, "b": {"size": 2}},
        "size": 1,
    }


def test_fault_path_in_mapping_contains_key() -> None:
    flaws = tree({"children": {"a": {}, "b": {"size": "x"}, 3: {}}})
    assert [format_path(flaw.path) for flaw in flaws] == ["children[b].size", "children[3]", "children"]


def test_null_is_kept_in_nullable_and_untyped_fields() -> None:
    whole = {"note": None, "extra": {"any": [None]}, "size": 3}
    assert tree(whole) == whole
