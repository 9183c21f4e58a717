"""A thousand malformed manifests: each is read, or its faults are reported.

Each malformed manifest is derived from its number, so the number suffices to reproduce a failure.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pytest
import yaml

from batchyard.api.manifests import Manifests, decode, read_manifests
from batchyard.base.primitives import fnv1a_64

T = TypeVar("T")
Place: TypeAlias = tuple[Any, Any]

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = (
    ROOT / "examples",
    *(ROOT.parent / "shared" / name for name in ("refarch", "multislice", "dws", "hotswap")),
)
EDITS: Final = 1000
BATCHES: Final = 10
FAULT_LINE: Final = re.compile(r"\S+\.yaml:\d+( \S+)?: .+; .+")
GOOD: Final = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a, labels: {team: a}}
spec:
  namespaceSelector: {matchLabels: {team: a}}
  cohortName: all
  queueingStrategy: StrictFIFO
  preemption: {withinClusterQueue: LowerPriority, reclaimWithinCohort: Any}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: spot
      resources:
      - {name: cpu, nominalQuota: 8, borrowingLimit: 4}
      - {name: memory, nominalQuota: 36Gi}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: team-b}
spec:
  namespaceSelector: {}
  cohort: all
  admissionChecks: [capacity]
  flavorFungibility: {whenCanBorrow: Borrow, whenCanPreempt: Preempt}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: spot, resources: [{name: nvidia.com/gpu, nominalQuota: "16"}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: Workload
metadata: {name: old, namespace: a}
spec:
  queueName: main
  priority: 10
  priorityClassName: high
  priorityClassSource: scheduling.k8s.io/priorityclass
  podSets:
  - {name: main, count: 2, template: {spec: {containers: [{name: c, resources: {requests: {cpu: 500m}}}]}}}
status:
  admission:
    clusterQueue: team-b
    podSetAssignments:
    - name: main
      flavors: {cpu: spot}
      resourceUsage: {cpu: "1"}
      count: 2
      topologyAssignment: {levels: [rack], domains: [{values: [r1], count: 2}]}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: train
  labels: {kueue.x-k8s.io/queue-name: main}
  annotations: {batchyard.dev/runtime: 10m}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  suspend: true
  podFailurePolicy:
    rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: "True"}]}]
  template:
    metadata: {labels: {app: train}}
    spec:
      restartPolicy: Never
      nodeSelector: {disk: ssd}
      tolerations: [{key: spot, operator: Exists, effect: NoSchedule}]
      containers:
      - name: c
        image: busybox
        command: [sleep, "10"]
        env: [{name: A, value: b}]
        ports: [{containerPort: 80}]
        resources: {requests: {cpu: 100m, memory: 1Gi}, limits: {cpu: 1}}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: set, labels: {kueue.x-k8s.io/queue-name: main}}
spec:
  failurePolicy: {maxRestarts: 3}
  replicatedJobs:
  - name: slice
    replicas: 2
    template:
      spec:
        parallelism: 4
        completions: 4
        template: {spec: {containers: [{name: c, image: busybox, resources: {limits: {google.com/tpu: 4}}}]}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ProvisioningRequestConfig
metadata: {name: config}
spec:
  provisioningClassName: queued-provisioning.gke.io
  managedResources: [nvidia.com/gpu]
  retryStrategy: {backoffLimitCount: 2}
---
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {clusterIP: None, selector: {app: train}, ports: [{port: 80, targetPort: http}]}
---
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: batch}
spec:
  zones: [us-central1-a, us-central1-b]
  nodePools:
  - {name: fixed, machineType: g2-standard-24, nodeCount: 2, reservation: ours}
  - {name: spot, machineType: g2-standard-24, provisioning: spot, autoscaling: {totalMax: 8}, labels: {a: b}}
  - {name: slice, machineType: ct5lp-hightpu-4t, zones: [us-central1-a], tpuTopology: 2x4, autoscaling: {max: 2}}
  reservations: [{name: ours, machineType: g2-standard-24, zone: us-central1-a, count: 4, end: 24h}]
  capacity: [{machineType: g2-standard-24, zone: us-central1-a, provisioning: spot, count: 8}]
  quotas: [{name: nvidia-l4, limit: 300}]
  autoscaling:
    expander: priority
    priorities: [spot.*]
    autoProvisioning: {limits: [{resource: cpu, max: 9}, {resource: memory, min: 1, max: 9}]}
  times: {boot: {min: 30s, typical: 1m, max: 3m}, repair: 10m, byMachine: {g2: {repair: 5m}}}
  prices: {g2-standard-24: {onDemand: 2.11, spot: "0.63"}}
  catalog: {x1: {cpu: 2, memory: 8Gi, accelerator: {type: nvidia-l4, count: 1}}}
---
apiVersion: cloud.batchyard.dev/v1alpha1
kind: NodePool
metadata: {name: close}
spec: {machineType: a2-highgpu-1g, zones: [a], placementGroup: g, maxRunDuration: 24h, autoscaling: {min: 1, max: 2}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {kubernetes.io/hostname: n1}}
spec: {taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]}
status: {capacity: {cpu: 4, memory: 16Gi}, conditions: [{type: Ready, status: "True"}]}
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: ProvisioningRequest
metadata: {name: req}
spec:
  provisioningClassName: queued-provisioning.gke.io
  parameters: {maxRunDurationSeconds: "3600"}
  podSets: [{count: 2, podTemplateRef: {name: ppt}}]
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
  containers: [{name: c, image: busybox, resources: {limits: {nvidia.com/gpu: 1, memory: 1Gi}}}]
---
apiVersion: sim.batchyard.dev/v1alpha1
kind: Scenario
metadata: {name: run}
spec: {fairSharing: true, horizon: 1h}
"""
MALFORMED: Final[Sequence[Any]] = (
    *(None, True, 0, -1, 3.5, 2**31, 2**63, 10**30, "", " ", "x", "1O", "10GB", "0x", "-5", "1e400", "9" * 400),
    *(
        [],
        {},
        [None],
        {"a": None},
        [[]],
        {"": ""},
        "a\\nb",
        "é" * 300,
        "日本",
        "\\u202e",
        "\\ud800",
        "\\0",
        "{}",
        "*",
        "&a",
    ),
)
#: More digits than Python reads, and deeper nesting than msgspec reads.
LONG: Final = "9" * 5000
DEEP: Final = "[" * 100_000
LAYERS: Final = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
NAMES: Final = (
    "",
    "x",
    "Name",
    "spec",
    "metadata",
    "items",
    "kind",
    "reclaimOutOfCohort",
    "日本",
    "a b",
    "<<",
    "1",
    "-",
)
LINES: Final = (
    "---",
    "- - -",
    "\tx: y",
    "x: y: z",
    "? [a]",
    "<<: *a",
    "&a [*a]",
    "!!int x",
    "'",
    "}",
    "\0",
    "#",
    "a: &b",
    "%x",
)


class SeededChoices:
    """Random draws that are derived from a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.draws = 0

    def below(self, bound: int) -> int:
        self.draws += 1
        return fnv1a_64(f"{self.number}/{self.draws}") % bound

    def of(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


@cache
def good_manifests() -> tuple[str, ...]:
    """Return all documents to edit: those above, and those of the existing folders."""
    files = [path.read_text("utf-8") for folder in FOLDERS for path in sorted(folder.rglob("*.yaml"))]
    documents = [part.strip() for text in (GOOD, *files) for part in re.split(r"^---\s*$", text, flags=re.MULTILINE)]
    read = {text: read_manifests([("good.yaml", text)]) for text in documents if len(text) < 3000}
    return tuple(text for text, manifests in read.items() if manifests.objects)


def places(value: Any) -> Iterator[Place]:
    """Yield each container and key in a document."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def edit_field(text: str, chance: SeededChoices) -> str:
    """Delete, rename, retype or duplicate one field or item."""
    value = yaml.load(text, yaml.CSafeLoader)
    holder, key = chance.of(list(places(value)))
    act = chance.below(5)
    if act == 0:
        del holder[key]
    elif act == 1 and isinstance(holder, dict):
        name = chance.of((*NAMES, f"{key}s", str(key)[:-1], str(key).lower(), f"{key}\u00e9"))
        holder[name] = holder.pop(key)
    elif act == 2 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = copy.deepcopy(chance.of(MALFORMED))
    return document_text(value, chance)


def document_text(value: Any, chance: SeededChoices) -> str:
    """Return a document as JSON, as YAML in blocks, or as YAML in braces."""
    how = chance.below(3)
    if how == 0:
        return json.dumps(value)
    return yaml.dump(value, Dumper=yaml.CSafeDumper, default_flow_style=how == 1, allow_unicode=True)


def edit_line(text: str, chance: SeededChoices) -> str:
    """Indent, delete, duplicate, replace or damage one line, or insert another line before it."""
    lines = text.split("\n")
    number = chance.below(len(lines))
    line = lines[number]
    lines[number : number + 1] = chance.of(
        (
            [f" {line}"],
            [line.removeprefix("  ")],
            [f"\t{line}"],
            [],
            [line, line],
            [chance.of(LINES)],
            [chance.of(LINES), line],
            [line.replace(":", "", 1)],
            [line.replace(" ", "", 1)],
        )
    )
    return "\n".join(lines)


def edit_character(text: str, chance: SeededChoices) -> str:
    """Replace or insert one character, cut the text there, or reverse the rest of the text."""
    at = chance.below(len(text))
    new = chance.of("\0\t\x85\ufeff\ud800{}[]\"'&*!%@`:-,#\\é日x0 \n")
    return chance.of(
        (text[:at], text[:at] + new + text[at + 1 :], text[:at] + new + text[at:], text[:at] + text[at:][::-1])
    )


EDITORS: Final[Sequence[Callable[[str, SeededChoices], str]]] = (edit_field, edit_field, edit_line, edit_character)


def malformed_manifest(number: int) -> str:
    """Return the malformed manifest of a number."""
    chance = SeededChoices(number)
    return chance.of(EDITORS)(chance.of(good_manifests()), chance)


def check(manifests: Manifests, number: int) -> None:
    """Check that each fault is one line with a remedy, and that accepted objects are accepted again unchanged."""
    for fault in manifests.faults:
        assert FAULT_LINE.fullmatch(str(fault)), (number, str(fault))
        assert str(fault).isprintable(), (number, str(fault))
        assert fault.error.problem, number
        assert fault.error.remedy, (number, str(fault))
    for manifest in manifests.objects:
        if manifest.obj.get("spec") == {}:
            continue  # The CRD accepts a missing spec, and rejects an empty one without its required fields.
        again = decode(manifest.obj)
        assert again.faults == [], number
        assert again.obj == manifest.obj, number


def test_original_manifests_are_valid() -> None:
    manifests = read_manifests([("good.yaml", GOOD)])
    assert [str(fault) for fault in manifests.faults] == []
    assert len(manifests.objects) == len(re.findall("^kind:", GOOD, re.MULTILINE))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_malformed_manifests_are_read_or_reported(batch: int) -> None:
    for number in range(batch, EDITS, BATCHES):
        check(read_manifests([("malformed.yaml", malformed_manifest(number))]), number)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("batchyard.dev/runtime: 10m", f'kueue.x-k8s.io/job-min-parallelism: "{LONG}"'),
        ("labels: {app: train}", f'annotations: {{kueue.x-k8s.io/podset-slice-size: "{LONG}"}}'),
        ("labels: {app: train}", f"annotations: {{{LAYERS}: '{DEEP}'}}"),
        ("podFailurePolicy:", f'successPolicy: {{rules: [{{succeededIndexes: "{LONG}"}}]}}\n  podFailurePolicy:'),
        ("podFailurePolicy:", f'successPolicy: {{rules: [{{succeededIndexes: "0-{LONG}"}}]}}\n  podFailurePolicy:'),
    ],
    ids=["parallelism", "slice size", "layers", "indexes", "end of indexes"],
)
def test_overlong_numbers_and_deep_json_are_reported(old: str, new: str) -> None:
    manifests = read_manifests([("long.yaml", GOOD.replace(old, new, 1))])
    assert [fault.name for fault in manifests.faults if "Invalid value" in fault.error.problem] == ["train"]
    check(manifests, 0)


def test_deeply_nested_original_annotation_is_ignored() -> None:
    text = GOOD.replace("name: old,", f"name: old, annotations: {{batchyard.dev/v1beta2-only: '{DEEP}'}},", 1)
    manifests = read_manifests([("deep.yaml", text)])
    assert manifests.faults == []


def test_most_edits_cause_faults_and_some_do_not() -> None:
    outcomes = [bool(read_manifests([("malformed.yaml", malformed_manifest(number))]).faults) for number in range(100)]
    assert 50 <= sum(outcomes) <= 95


def test_malformed_document_does_not_hide_valid_documents() -> None:
    for number in range(0, EDITS, 20):
        text = f"{GOOD}\n---\n{malformed_manifest(number)}"
        manifests = read_manifests([("both.yaml", text)])
        assert len(manifests.objects) >= 8, number
        assert all(fault.document > 8 for fault in manifests.faults), number
