"""Manifest files: locations of faults, lists, and the manifests in the shared folders."""

import json
from pathlib import Path

import pytest

import make
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifests, read_manifests
from batchyard.api.validation import validate_update

SHARED = Path(__file__).parents[4] / "shared"
FOLDERS = ("refarch", "multislice", "hotswap", "dws", "oracle")
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n"
PRINTED = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata:
  name: tpu
spec:
  resourceGroups:
  - flavors:
    - name: v6e
      resources: [{name: google.com/tpu, nominalQuota: 32}]
  preemption:
    reclaimWithinCohort: Never
    reclaimOutOfCohort: {enable: true}
"""
AS_PRINTED_LINES = [11, 16]
AS_PRINTED = [
    "spec.resourceGroups[0].coveredResources: Required value; set the field to a list of strings",
    "spec.preemption.reclaimOutOfCohort: unknown field; did you mean reclaimWithinCohort?",
]


def read(*texts: str) -> Manifests:
    """Read texts as the files a.yaml, b.yaml and so on."""
    return read_manifests((f"{chr(ord('a') + i)}.yaml", text) for i, text in enumerate(texts))


def reported(*texts: str) -> list[str]:
    """The faults of texts, as lines."""
    return [str(fault) for fault in read(*texts).faults]


def names(manifests: Manifests) -> list[str]:
    """Return the names of all valid objects, in order."""
    return [manifest.obj["metadata"]["name"] for manifest in manifests.objects]


def test_objects_are_returned_in_order_with_source_and_document() -> None:
    manifests = read(NAMESPACE % "x" + "---\n---\n" + NAMESPACE % "y", NAMESPACE % "z")
    assert names(manifests) == ["x", "y", "z"]
    assert [(m.source, m.document) for m in manifests.objects] == [("a.yaml", 1), ("a.yaml", 2), ("b.yaml", 1)]


def test_fault_contains_file_line_object_field_and_remedy() -> None:
    assert reported(NAMESPACE % "x" + "---" + PRINTED) == [
        f"a.yaml:{line} ClusterQueue/tpu: {fault}" for line, fault in zip(AS_PRINTED_LINES, AS_PRINTED, strict=True)
    ]


def test_fault_of_decoded_object_contains_its_source() -> None:
    fault = read(NAMESPACE % "x").objects[0].fault(FieldError("metadata.name", "is taken", "choose another"))
    assert str(fault) == "a.yaml:3 Namespace/x: metadata.name: is taken; choose another"


def test_faults_of_all_files_are_reported_and_valid_objects_returned() -> None:
    manifests = read("kind: [", NAMESPACE % "x" + "---\n" + "kind: Namespace\n", NAMESPACE % "Y")
    assert names(manifests) == ["x"]
    assert [(fault.source, fault.document) for fault in manifests.faults] == [
        ("a.yaml", 1),
        ("b.yaml", 2),
        ("c.yaml", 1),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "kind: Job\nmetadata:\n  labels: {a: b}\n  name: x\n  spec: a: b",
            "a.yaml:5 Job/x: mapping values are not allowed in this context; check the indentation",
        ),
        ("- a", "a.yaml:1: a list is not an object; write apiVersion, kind, metadata and spec"),
        ("hello", 'a.yaml:1: "hello" is not an object; write apiVersion, kind, metadata and spec'),
        (
            "apiVersion: v1\nmetadata: {name: x}",
            "a.yaml:1 x: kind: Required value; set the field to the kind of the object, such as Job",
        ),
        (
            "apiVersion: v1\nkind: Namespace",
            "a.yaml:1 Namespace: metadata: Required value; add metadata with a name to the object",
        ),
        (
            "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\nwaitForPodsReady: {x: 1}",
            "a.yaml:3 Configuration: waitForPodsReady.x: unknown field",
        ),
        (NAMESPACE % '"a\\nb"', "a.yaml:3 Namespace: metadata.name: Invalid value"),
        (
            "apiVersion: v1\nkind: Namespace\nmetadata: {generateName: a-, x: 1}",
            "a.yaml:3 Namespace/a-*: metadata.x: unknown field",
        ),
        (
            "apiVersion: apps/v1\nkind: Gadget\nmetadata: {name: web}\nspec: {replicas: 3}",
            'a.yaml:2 Gadget/web: kind: the kind "Gadget" of "apps/v1" is not known; check kind and apiVersion',
        ),
    ],
    ids=[
        "syntax",
        "list",
        "text",
        "no kind",
        "no metadata",
        "Configuration",
        "line break in the name",
        "generateName",
        "unknown kind",
    ],
)
def test_fault_is_single_line_with_object_name(text: str, line: str) -> None:
    (fault,) = reported(text)
    assert fault.startswith(line)
    assert fault.isprintable()


def test_name_search_in_invalid_yaml_takes_linear_time() -> None:
    lines = "\n".join(f"{' ' * 10}label-{number}: x" for number in range(5000))
    (fault,) = reported(f"kind: Namespace\nmetadata:\n{lines}\nspec: }}\n")
    assert fault.startswith("a.yaml:5003 Namespace: ")
    assert reported("kind: Namespace\nmetadata:\n\n  \n  labels:\n    a: b\n  name: x\nspec: }")[0].startswith(
        "a.yaml:8 Namespace/x: "
    )


def test_object_with_duplicate_field_is_rejected_with_all_faults() -> None:
    manifests = read("apiVersion: v1\nkind: Namespace\nmetadata: {name: x, name: Y}\n")
    assert manifests.objects == []
    assert [fault.error.path for fault in manifests.faults] == ["metadata", "metadata.name"]


def test_list_is_read_as_its_items() -> None:
    items = "\n".join(f"- {{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}" for name in "xyz")
    manifests = read(f"apiVersion: v1\nkind: List\nitems:\n{items}\n")
    assert names(manifests) == ["x", "y", "z"]
    assert [manifest.document for manifest in manifests.objects] == [1, 1, 1]


def test_typed_list_sets_kind_of_its_items() -> None:
    manifests = read("apiVersion: v1\nkind: NamespaceList\nitems: [{metadata: {name: x}}, {metadata: {name: y}}]")
    assert [manifest.obj["kind"] for manifest in manifests.objects] == ["Namespace", "Namespace"]


def test_fault_in_list_contains_path_of_item() -> None:
    (fault,) = reported(
        "apiVersion: v1\nkind: NamespaceList\nitems: [{metadata: {name: x}}, {metadata: {name: y}, zzz: 1}]"
    )
    assert fault.startswith("a.yaml:3 Namespace/y: items[1].zzz: unknown field; use one of the fields apiVersion")
    assert reported("apiVersion: v1\nkind: List\nitems: [3]") == [
        "a.yaml:3: items[0]: 3 is not an object; write apiVersion, kind, metadata and spec"
    ]


def test_json_file_is_read() -> None:
    assert names(read('{"apiVersion": "v1",\n "kind": "Namespace",\n "metadata": {"name": "x"}}\n')) == ["x"]


def test_warnings_contain_file_and_line() -> None:
    manifests = read("apiVersion: kueue.x-k8s.io/v1beta1\nkind: ResourceFlavor\nmetadata: {name: spot}")
    assert names(manifests) == ["spot"]
    assert manifests.warnings == ["a.yaml:1 ResourceFlavor/spot: This version is deprecated. Use v1beta2 instead."]


def shared_folder(name: str) -> Manifests:
    """All YAML of a folder beside the repository."""
    paths = sorted((SHARED / name).rglob("*.yaml"))
    if not paths:
        pytest.skip(f"../shared/{name} is not there")
    return read_manifests((str(path.relative_to(SHARED)), path.read_text("utf-8")) for path in paths)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_shared_manifests_are_read_without_faults(folder: str) -> None:
    manifests = shared_folder(folder)
    assert manifests.objects
    known = (
        # the first file is invalid by intent, the second is not a manifest
        *("hotswap/kueue-as-printed.yaml", "refarch/guide.yaml"),
        "oracle/afs/",  # admission fair sharing is not implemented
        "oracle/tas/",  # topology-aware scheduling is not implemented
    )
    assert [str(fault) for fault in manifests.faults if not fault.source.startswith(known)] == []
    assert [fault for manifest in manifests.objects for fault in validate_update(manifest.obj, manifest.obj)] == []


def test_printed_cluster_queue_has_two_known_faults() -> None:
    faults = [fault for fault in shared_folder("hotswap").faults if fault.source.endswith("as-printed.yaml")]
    assert [str(fault.error) for fault in faults] == AS_PRINTED


def test_unprintable_characters_in_fault_are_escaped() -> None:
    (fault,) = reported('apiVersion: v1\nkind: Namespace\nmetadata: {name: x, "a\\nb": 1}')
    assert fault.startswith("a.yaml:3 Namespace/x: metadata.a\\nb: unknown field")


def test_object_with_items_and_invalid_kind_is_no_list() -> None:
    assert reported("apiVersion: v1\nkind: 3\nitems: []") == [
        "a.yaml:2: kind: Invalid value: 3: must be a string; set the field to the kind of the object, such as Job"
    ]


LOCATED = [
    ("# a comment\n\n---\n# another\napiVersion: v1\nkind: Namespace\nmetadata:\n  nam: x\n", 8),
    ("---\n---\n" + NAMESPACE % "x" + "---\n\n# b\nkind: Namespace\nmetadata: {name: y}\napiVersion: v1\nzzz: 1", 12),
    ("%YAML 1.1\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: x}\nzzz: 1\n", 6),
    ("apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata: {name: x}\n  zzz: 1\n", 7),
    ('{"apiVersion": "v1",\n "kind": "Namespace",\n "metadata": {"name": "x"},\n "zzz": 1}\n', 4),
    ('{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}}\n{"kind": "A", "apiVersion": "v1"}\n', 2),
    ("apiVersion: v1\r\nkind: Namespace\r\nmetadata: {name: x}\r\nzzz: 1\r\n", 4),
    ("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\nkind: Namespace\n", 4),
    (NAMESPACE % "x" + "---\na: b: c\n", 5),
]


@pytest.mark.parametrize(
    ("text", "line"),
    LOCATED,
    ids=["comments", "documents", "directive", "list", "JSON", "JSON lines", "CRLF", "duplicate", "syntax"],
)
def test_line_of_fault_is_that_of_the_file(text: str, line: int) -> None:
    faults = reported(text)
    assert faults
    assert faults[-1].startswith(f"a.yaml:{line}")
    assert not faults[-1].removeprefix(f"a.yaml:{line}")[0].isdigit()


def test_line_of_fault_found_later_is_that_of_the_item() -> None:
    manifests = read("apiVersion: v1\nkind: NamespaceList\nitems:\n- metadata: {name: x}\n- metadata:\n    name: y\n")
    fault = manifests.objects[1].fault(FieldError("metadata.name", "is taken"))
    assert str(fault) == "a.yaml:6 Namespace/y: metadata.name: is taken"


def test_objects_of_equal_spec_share_it() -> None:
    manifests = [make.workload(name, priority=priority) for name, priority in (("a", 1), ("b", 1), ("c", 2))]
    text = "\n".join(map(json.dumps, manifests))
    a, b, c = (manifest.obj for manifest in read_manifests([("w.json", text)]).objects)
    assert a["spec"] is b["spec"] is not c["spec"]
    assert a["metadata"]["namespace"] is c["metadata"]["namespace"]
    assert [obj["metadata"]["name"] for obj in (a, b, c)] == ["a", "b", "c"]


def test_objects_of_equal_annotations_share_them() -> None:
    text = "---\n".join(
        f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, annotations: {{example.com/a: {value}}}}}\n"
        for name, value in (("a", "x"), ("b", "x"), ("c", "y"))
    )
    a, b, c = (manifest.obj["metadata"]["annotations"] for manifest in read(text).objects)
    assert a is b is not c
