"""Validation of Clusters, NodePools, Instances and ResizeRequests."""

from typing import Any

import pytest

import make
from batchyard.api.defaults import with_defaults
from batchyard.api.manifests import decode
from batchyard.api.validation import validate, validate_update
from object_edits import GONE, begins, with_edits

Obj = dict[str, Any]
A, B = "us-central1-a", "us-central1-b"


def cloud(kind: str, name: str = "it", **spec: Any) -> Obj:
    """An object of the cloud."""
    api_version = "cloud.batchyard.dev/v1alpha1"
    return {"apiVersion": api_version, "kind": kind, "metadata": make.metadata(name, None), "spec": spec}


def pool(name: str = "np", machine: str = "g2-standard-24", **fields: Any) -> Obj:
    """A pool within a Cluster."""
    return {"name": name, "machineType": machine, **fields}


FIXED = pool("default", "e2-medium", nodeCount=2)
RESERVED = pool("reserved", nodeCount=4, reservation="ours", taints=[{"key": "reserved", "effect": "NoSchedule"}])
SPOT = pool("spot", provisioning="spot", autoscaling={"totalMax": 36})
COMPACT = pool("compact", "a2-highgpu-1g", provisioning="spot", zones=[A], placementGroup="g1", autoscaling={"max": 2})
SLICE = pool("slice", "ct5lp-hightpu-4t", zones=[A], tpuTopology="2x4", autoscaling={"max": 2})
QUEUED = pool("queued", "a2-highgpu-1g", provisioning="queued", maxRunDuration="24h", autoscaling={"totalMax": 1})
ATTACHED = pool("t4", "n1-standard-2", nodeCount=1, accelerator={"type": "nvidia-tesla-t4", "count": 1})
RESERVATION = {"name": "ours", "machineType": "g2-standard-24", "zone": A, "count": 4}
CHIPS = {"cpu": 8, "memory": "64Gi", "accelerator": {"type": "tpu-v6e-slice", "count": 4}}
LIMITS = [{"resource": "cpu", "min": 4, "max": 1000}, {"resource": "memory", "max": 4000}]
CLUSTER = cloud(
    "Cluster",
    "batch-dev",
    zones=[A, B],
    nodePools=[FIXED, RESERVED, SPOT, COMPACT, SLICE, QUEUED, ATTACHED],
    reservations=[RESERVATION],
    capacity=[{"machineType": "a2-highgpu-1g", "zone": A, "provisioning": "spot", "count": 8}],
    quotas=[{"name": "nvidia-l4", "limit": 300}],
    autoscaling={"profile": "optimize-utilization", "autoProvisioning": {"limits": LIMITS}},
    times={"boot": {"min": "30s", "typical": "60s", "max": "3m"}, "repair": "10m", "byMachine": {"a2": {}}},
    prices={"g2-standard-24": {"onDemand": 2.11, "spot": "0.63"}},
    catalog={"x1-huge": {"cpu": 500, "memory": "8Ti", "onDemand": 7.5}},
)
NODE_POOL = cloud("NodePool", machineType="e2-small", nodeCount=1)
INSTANCE = cloud("Instance", pool="np", zone=A, machineType="e2-small")
RESIZE = cloud("ResizeRequest", pool="np", zone=A, count=2, provisioningRequest="team/req")


def with_pool(**fields: Any) -> Obj:
    """Return the Cluster with a single pool."""
    return with_edits(CLUSTER, {"spec.nodePools": [pool(**fields)]})


@pytest.mark.parametrize("obj", [CLUSTER, NODE_POOL, INSTANCE, RESIZE], ids=lambda obj: str(obj["kind"]))
def test_valid_cloud_objects_are_accepted(obj: Obj) -> None:
    decoded = decode(obj)
    assert decoded.faults == []
    assert decoded.obj is not None
    assert validate_update(decoded.obj, decoded.obj) == []


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        pytest.param({}, "nodeCount: Required value: a pool without autoscaling has a fixed size", id="no size"),
        pytest.param({"nodeCount": 1, "name": "Np"}, 'name: Invalid value: "Np": a DNS-1035 label', id="no name"),
        pytest.param(
            {"nodeCount": 1, "name": "n" * 41},
            f'name: Invalid value: "{"n" * 41}": must be no more than 40 characters',
            id="a long name",
        ),
        pytest.param({"nodeCount": 1, "labels": {"a b": ""}}, 'labels: Invalid value: "a b"', id="no label"),
        pytest.param(
            {"nodeCount": 1, "taints": [{"key": "a", "effect": "NoSchedule"}] * 2},
            "taints[1]: Duplicate value:",
            id="a taint twice",
        ),
        pytest.param(
            {"autoscaling": {"min": 3, "max": 2}},
            "autoscaling.min: Invalid value: 3: must be at most max, which is 2",
            id="bounds out of order",
        ),
        pytest.param(
            {"autoscaling": {"totalMin": 3, "totalMax": 2}},
            "autoscaling.totalMin: Invalid value: 3: must be at most totalMax, which is 2",
            id="bounds of all zones out of order",
        ),
        pytest.param({"autoscaling": {}}, "autoscaling.max: Required value", id="no upper bound"),
        pytest.param({"autoscaling": {"totalMin": 1}}, "autoscaling.totalMax: Required value", id="no bound of all"),
        pytest.param(
            {"autoscaling": {"max": 2, "totalMax": 4}},
            "autoscaling: Forbidden: min and max are mutually exclusive with totalMin and totalMax",
            id="bounds of both kinds",
        ),
        pytest.param(
            {"nodeCount": 3, "autoscaling": {"max": 2}},
            "nodeCount: Invalid value: 3: must be between autoscaling.min and autoscaling.max, 0 and 2",
            id="too large an initial size",
        ),
        pytest.param(
            {"nodeCount": 2, "autoscaling": {"totalMax": 3}},
            "nodeCount: Invalid value: 2: must be at most autoscaling.totalMax, 3, in all zones together: it is 4",
            id="too large an initial size over all zones",
        ),
        pytest.param(
            {"nodeCount": 1, "zones": ["us-central1-f"]},
            'zones[0]: Unsupported value: "us-central1-f": supported values: "us-central1-a", "us-central1-b"',
            id="an unknown zone",
        ),
    ],
)
def test_invalid_node_pool_is_rejected(fields: Obj, start: str) -> None:
    assert begins(validate(with_defaults(with_pool(**fields))), f"spec.nodePools[0].{start}")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        pytest.param(
            {"nodeCount": 1, "reservation": "theirs"}, 'reservation: Not found: "theirs"', id="an unknown reservation"
        ),
        pytest.param(
            {"nodeCount": 1, "reservation": "ours", "machine": "e2-small"},
            'machineType: Invalid value: "e2-small": must be the machine type of reservation ours, g2-standard-24',
            id="other machines than reserved",
        ),
        pytest.param(
            {"nodeCount": 1, "reservation": "ours", "zones": [A, B]},
            'zones: Invalid value: ["us-central1-a","us-central1-b"]: must be the zone of reservation ours,',
            id="other zones than reserved",
        ),
        pytest.param(
            {"nodeCount": 5, "reservation": "ours"},
            "nodeCount: Invalid value: 5: reservation ours has 4 machines, not 5",
            id="more than is reserved",
        ),
        pytest.param(
            {"nodeCount": 1, "reservation": "ours", "provisioning": "spot"},
            "reservation: Forbidden: spot machines do not use reservations",
            id="reserved Spot",
        ),
        pytest.param(
            {"provisioning": "queued"},
            "autoscaling: Required value: a pool with queued provisioning must be autoscaled",
            id="queued of a fixed size",
        ),
        pytest.param(
            {"provisioning": "queued", "nodeCount": 1, "autoscaling": {"max": 2}},
            "nodeCount: Invalid value: 1: must be 0 with queued provisioning",
            id="queued nodes from the start",
        ),
        pytest.param(
            {"provisioning": "queued", "zones": [A], "placementGroup": "g", "autoscaling": {"max": 2}},
            "placementGroup: Forbidden: compact placement is not available with queued provisioning",
            id="queued compact placement",
        ),
        pytest.param(
            {"nodeCount": 1, "placementGroup": "g"},
            'zones: Invalid value: ["us-central1-a","us-central1-b"]: must have at most 1 item: a placement group',
            id="compact placement in two zones",
        ),
        pytest.param(
            {"nodeCount": 1, "zones": [A], "placementGroup": "g" * 41},
            f'placementGroup: Invalid value: "{"g" * 41}": must be a label value of 1 to 40 characters',
            id="a long group",
        ),
        pytest.param(
            {"nodeCount": 1, "maxRunDuration": "10s"},
            'maxRunDuration: Invalid value: "10s": must be between 30s and 2880h (120 days)',
            id="a short run",
        ),
        pytest.param(
            {"provisioning": "flex-start", "maxRunDuration": "200h", "autoscaling": {"max": 1}},
            'maxRunDuration: Invalid value: "200h": must be between 10m and 168h (7 days)',
            id="a long run of flex-start",
        ),
        pytest.param(
            {"nodeCount": 1, "accelerator": {"type": "nvidia-tesla-t4", "count": 3}},
            "accelerator.count: Invalid value: 3: must be one of 1, 2, 4, 8, 16",
            id="three accelerators",
        ),
    ],
)
def test_node_pool_with_unavailable_resources_is_rejected(fields: Obj, start: str) -> None:
    assert begins(validate(with_defaults(with_pool(**fields))), f"spec.nodePools[0].{start}")


@pytest.mark.parametrize(
    ("fields", "start"),
    [
        pytest.param(
            {"tpuTopology": "2x"},
            'tpuTopology: Invalid value: "2x": must be the number of chips in each of two or three dimensions',
            id="no topology",
        ),
        pytest.param({"tpuTopology": "0x4"}, 'tpuTopology: Invalid value: "0x4"', id="no chips"),
        pytest.param(
            {"tpuTopology": "2x3"},
            'tpuTopology: Invalid value: "2x3": must have a multiple of 4 chips, as a ct5lp-hightpu-4t has, not 6',
            id="half a node",
        ),
        pytest.param(
            {"nodeCount": 3, "autoscaling": GONE},
            "nodeCount: Invalid value: 3: must be 0 or 2: a TPU slice 2x4 has all of its nodes or none",
            id="a node too many",
        ),
        pytest.param(
            {"autoscaling": {"max": 8}}, "autoscaling.max: Invalid value: 8: must be 0 or 2", id="four slices"
        ),
        pytest.param({"nodeCount": 1}, "nodeCount: Invalid value: 1: must be 0 or 2", id="half a slice"),
        pytest.param(
            {"zones": [A, B]},
            'zones: Invalid value: ["us-central1-a","us-central1-b"]: must have at most 1 item: a TPU slice of several',
            id="two zones",
        ),
        pytest.param(
            {"accelerator": {"type": "tpu-v5-lite-podslice", "count": 4}},
            "accelerator: Forbidden: must not be set with tpuTopology",
            id="attached chips",
        ),
        pytest.param(
            {"machineType": "mine", "nodeCount": 3, "autoscaling": GONE},
            "nodeCount: Invalid value: 3: must be a divisor of 8, the chips of topology 2x4",
            id="nodes of unknown size with unlike chips",
        ),
        pytest.param(
            {"machineType": "mine", "nodeCount": 1, "autoscaling": {"max": 4}},
            "nodeCount: Invalid value: 1: must be 0 or 4: a TPU slice 2x4 has all of its nodes or none",
            id="a quarter of a slice",
        ),
    ],
)
def test_invalid_tpu_slice_pool_is_rejected(fields: Obj, start: str) -> None:
    edits = {f"spec.nodePools[0].{field}": value for field, value in fields.items()}
    wrong = with_edits(with_edits(CLUSTER, {"spec.nodePools": [SLICE]}), edits)
    assert begins(validate(with_defaults(wrong)), f"spec.nodePools[0].{start}")


def test_single_node_tpu_slice_pool_is_accepted() -> None:
    single = pool("v5", "ct5lp-hightpu-4t", tpuTopology="2x2", zones=[A, B], nodeCount=3)
    assert validate(with_defaults(with_edits(CLUSTER, {"spec.nodePools": [single]}))) == []


def test_remedy_lists_node_counts_that_divide_tpu_slice() -> None:
    wrong = {**SLICE, "machineType": "mine", "autoscaling": {"max": 3}}
    (fault,) = validate(with_defaults(with_edits(CLUSTER, {"spec.nodePools": [wrong]})))
    assert fault.remedy == "use one of 1, 2, 4, 8"
    (fault,) = validate(with_defaults(with_edits(CLUSTER, {"spec.nodePools": [{**wrong, "tpuTopology": "8192x8192"}]})))
    assert fault.remedy == "use one of 1, 2, 4, 8, 16, 32, 64, 128, 256"


@pytest.mark.parametrize(
    ("edits", "start"),
    [
        pytest.param(
            {"spec.region": "us-east1"}, 'spec.zones[0]: Invalid value: "us-central1-a": must be a zone of', id="r"
        ),
        pytest.param(
            {"spec.reservations[0].zone": "x"}, 'spec.reservations[0].zone: Unsupported value: "x"', id="zone"
        ),
        pytest.param(
            {"spec.reservations[0].start": "2h", "spec.reservations[0].end": "1h"},
            'spec.reservations[0].end: Invalid value: "1h": must be after start, which is 2h',
            id="an end before the start",
        ),
        pytest.param({"spec.capacity[0].zone": "x"}, 'spec.capacity[0].zone: Unsupported value: "x"', id="capacity"),
        pytest.param(
            {"spec.nodePools": [COMPACT, {**COMPACT, "name": "other"}]},
            'spec.nodePools[1].placementGroup: Duplicate value: "g1"',
            id="a group of two pools",
        ),
        pytest.param(
            {"spec.nodePools": [{**RESERVED, "nodeCount": 3}, {**RESERVED, "name": "other", "nodeCount": 2}]},
            "spec.nodePools[1].nodeCount: Invalid value: 2: reservation ours has 4 machines, not 5",
            id="a reservation of two pools",
        ),
        pytest.param(
            {"spec.prices.g2-standard-24.spot": -1},
            'spec.prices[g2-standard-24].spot: Invalid value: "-1": must be greater than or equal to 0',
            id="a negative price",
        ),
        pytest.param(
            {"spec.catalog.x1-huge.cpu": -1}, 'spec.catalog[x1-huge].cpu: Invalid value: "-1"', id="a negative machine"
        ),
        pytest.param(
            {"spec.catalog.x1-huge.sustainedCpu": 501},
            "spec.catalog[x1-huge].sustainedCpu: Invalid value: 501: must be at most the machine's cpu, which is 500",
            id="a machine that sustains more than it has",
        ),
        pytest.param(
            {"spec.catalog.x1-huge": {**CHIPS, "topology": "wide"}},
            'spec.catalog[x1-huge].topology: Invalid value: "wide": must be the number of chips',
            id="a machine with invalid chip topology",
        ),
        pytest.param(
            {"spec.catalog.x1-huge.memory": "0"},
            'spec.catalog[x1-huge].memory: Invalid value: "0": must be',
            id="empty",
        ),
        pytest.param(
            {"spec.catalog.x1-huge.topology": "2x2"}, "spec.catalog[x1-huge].topology: Forbidden", id="no chips at all"
        ),
        pytest.param(
            {"spec.catalog.x1-huge": {**CHIPS, "topology": "2x4"}},
            'spec.catalog[x1-huge].topology: Invalid value: "2x4": must have 4 chips, as the machine has, not 8',
            id="a machine with fewer chips than its topology",
        ),
        pytest.param(
            {"spec.catalog.x1-huge": {**CHIPS, "accelerator": {"type": "t", "count": 4, "resource": "cpu"}}},
            'spec.catalog[x1-huge].accelerator.resource: Invalid value: "cpu"',
            id="devices that are no devices",
        ),
        pytest.param(
            {"spec.catalog": {"Big Box!": CHIPS}}, 'spec.catalog: Invalid value: "Big Box!"', id="no name for a machine"
        ),
        pytest.param(
            {"spec.times.shutdown": {"min": "2s", "typical": "1s", "max": "3s"}},
            "spec.times.shutdown: Invalid value:",
            id="a shutdown out of order",
        ),
        pytest.param(
            {"spec.times.boot.typical": "10m"},
            'spec.times.boot: Invalid value: {"min":"30s","typical":"10m","max":"3m"}: must be in order',
            id="times out of order",
        ),
        pytest.param(
            {"spec.times.byMachine.a2.drivers": {"min": "2s", "typical": "1s", "max": "3s"}},
            "spec.times.byMachine[a2].drivers: Invalid value:",
            id="times of a machine out of order",
        ),
    ],
)
def test_invalid_cluster_is_rejected(edits: Obj, start: str) -> None:
    faults = validate(with_defaults(with_edits(CLUSTER, edits)))
    assert begins(faults[:1], start)


@pytest.mark.parametrize(
    ("settings", "start"),
    [
        pytest.param(
            {"utilizationThreshold": 1.5}, "utilizationThreshold: Invalid value: 1.5: must be between", id="1"
        ),
        pytest.param({"utilizationThreshold": "-1m"}, 'utilizationThreshold: Invalid value: "-1m"', id="below zero"),
        pytest.param(
            {"scanInterval": "0s"}, 'scanInterval: Invalid value: "0s": must be greater than 0', id="no pause"
        ),
        pytest.param(
            {"maxNodeProvisionTime": "0s"}, 'maxNodeProvisionTime: Invalid value: "0s": must be greater', id="no time"
        ),
        pytest.param(
            {"expander": "priority"}, "priorities: Required value: the expander priority needs this list", id="no order"
        ),
        pytest.param(
            {"priorities": ["spot"]},
            "priorities: Forbidden: the expander least-waste does not use priorities",
            id="an order for another expander",
        ),
        pytest.param(
            {"expander": "priority", "priorities": ["("]},
            'priorities[0]: Invalid value: "(": must be a regular expression',
            id="no pattern",
        ),
        pytest.param(
            {"autoProvisioning": {"limits": [LIMITS[0]]}},
            "autoProvisioning.limits: Required value: autoProvisioning needs a limit for memory",
            id="no limit of memory",
        ),
        pytest.param(
            {"autoProvisioning": {"limits": [{"resource": "cpu", "min": 2, "max": 1}, LIMITS[1]]}},
            "autoProvisioning.limits[0].min: Invalid value: 2: must be at most max, which is 1",
            id="limits out of order",
        ),
    ],
)
def test_invalid_autoscaler_settings_are_rejected(settings: Obj, start: str) -> None:
    wrong = with_defaults(with_edits(CLUSTER, {"spec.autoscaling": settings}))
    assert begins(validate(wrong), f"spec.autoscaling.{start}")


@pytest.mark.parametrize(
    ("obj", "start"),
    [
        pytest.param(
            with_edits(INSTANCE, {"spec.resizeRequest": "r"}),
            "spec.resizeRequest: Forbidden: only instances with queued provisioning can belong to a ResizeRequest",
            id="an instance that is not queued",
        ),
        pytest.param(
            with_edits(INSTANCE, {"spec.maxRunDuration": "1s"}),
            'spec.maxRunDuration: Invalid value: "1s"',
            id="too short",
        ),
        pytest.param(
            with_edits(RESIZE, {"spec.provisioningRequest": "req"}),
            'spec.provisioningRequest: Invalid value: "req": must be the namespace and name',
            id="a request without namespace",
        ),
        pytest.param(
            with_edits(RESIZE, {"spec.maxRunDuration": "300h"}),
            'spec.maxRunDuration: Invalid value: "300h"',
            id="too long",
        ),
        pytest.param(
            with_edits(NODE_POOL, {"metadata.name": "1st"}),
            'metadata.name: Invalid value: "1st": a DNS-1035',
            id="no name",
        ),
    ],
)
def test_invalid_instance_request_or_pool_object_is_rejected(obj: Obj, start: str) -> None:
    assert begins(validate(obj), start)


@pytest.mark.parametrize(
    ("old", "edits", "start"),
    [
        pytest.param(
            NODE_POOL,
            {"spec.machineType": "e2-big"},
            'spec.machineType: Invalid value: "e2-big": field is',
            id="machine",
        ),
        pytest.param(INSTANCE, {"spec.zone": B}, 'spec: Invalid value: "object": field is immutable', id="Instance"),
        pytest.param(
            RESIZE, {"spec.count": 3}, 'spec: Invalid value: "object": field is immutable', id="ResizeRequest"
        ),
        pytest.param(
            with_defaults(cloud("Cluster", zones=["here"])),
            {"spec.zones": ["there"], "spec.region": "there"},
            'spec.region: Invalid value: "there": field is immutable',
            id="the region of a Cluster",
        ),
        pytest.param(
            with_defaults(with_pool(nodeCount=1)),
            {"spec.nodePools[0].machineType": "e2-small"},
            'spec.nodePools[0].machineType: Invalid value: "e2-small": field is immutable',
            id="the machine type of a node pool of a Cluster",
        ),
    ],
)
def test_immutable_fields_are_rejected_in_update(old: Obj, edits: Obj, start: str) -> None:
    new = with_edits(old, edits)
    assert validate(new) == []
    assert begins(validate_update(new, old), start)


def test_node_pool_size_is_mutable() -> None:
    assert validate_update(with_edits(NODE_POOL, {"spec.nodeCount": 5}), NODE_POOL) == []


@pytest.mark.parametrize(
    ("row", "start"),
    [
        ({"match": "a"}, "spec.local.images[0]: Invalid value"),
        ({"match": "a", "root": "/r", "machine": True}, "spec.local.images[0]: Invalid value"),
        ({"match": "a", "environment": ".venv"}, "spec.local.images[0].environment: Invalid value"),
        ({"match": "a", "machine": True, "workingDir": "here"}, "spec.local.images[0].workingDir: Invalid value"),
    ],
)
def test_image_row_with_invalid_source_is_rejected(row: Obj, start: str) -> None:
    cluster = with_defaults(cloud("Cluster", zones=["here"], local={"images": [row]}))
    assert begins(validate(cluster), start)


@pytest.mark.parametrize(
    ("row", "reported"),
    [
        ({"engine": "podman"}, ""),
        ({"engine": "podman", "image": "other:1"}, ""),
        ({}, "must set exactly one of environment, root, machine and engine"),
        ({"engine": "podman", "machine": True}, "must set exactly one of environment, root, machine and engine"),
        ({"machine": True, "image": "other:1"}, "spec.local.images[0].image: Invalid value"),
        ({"engine": "podman", "workingDir": "/x"}, "spec.local.images[0].workingDir: Invalid value"),
    ],
)
def test_image_row_requires_exactly_one_source(row: Obj, reported: str) -> None:
    wrong = with_edits(CLUSTER, {"spec.local": {"images": [{"match": "a", **row}]}})
    result = [str(fault) for fault in validate(with_defaults(wrong))]
    assert (reported in " ".join(result)) if reported else not result


def reservation_faults(*rows: dict[str, Any], **spec: Any) -> list[str]:
    """Return the faults of a Cluster with these reservations of a single machine type and zone."""
    common = {"machineType": "g2-standard-24", "zone": A, "count": 4}
    result = [{"name": f"r{i}", **common, **row} for i, row in enumerate(rows)]
    decoded = decode(cloud("Cluster", zones=[A], reservations=result, **spec))
    return [str(fault) for fault in decoded.faults]


@pytest.mark.parametrize(
    "row",
    [
        {"start": "2026-12-01T20:00:00Z", "duration": "168h"},
        {"start": "2026-12-01T20:00:00Z", "end": "2026-12-08T21:00:00+01:00"},
        {"start": "90m", "end": "2h"},
        {"start": "2026-12-01T20:00:00Z"},
        {"duration": "1h"},
    ],
)
def test_reservation_window_accepts_times_and_durations(row: dict[str, str]) -> None:
    assert reservation_faults(row) == []


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"start": "tomorrow"}, 'reservations[0].start: Invalid value: "tomorrow": must be a time or a duration'),
        ({"end": "2026-13-01T00:00:00Z"}, "reservations[0].end: Invalid value"),
        ({"start": "2026-12-01T20:00:00Z", "end": "2h"}, "must be a time or a duration like start"),
        ({"start": "2026-12-01T20:00:00Z", "end": "2026-12-01T20:00:00Z"}, "must be after start"),
        ({"end": "2h", "duration": "2h"}, "must not be set together with end"),
        ({"duration": "0s"}, "must be greater than 0"),
    ],
)
def test_invalid_reservation_window_is_rejected(row: dict[str, str], part: str) -> None:
    (fault,) = reservation_faults(row)
    assert part in fault


def test_overlapping_reservations_over_bookable_count_are_rejected() -> None:
    bookable = [{"machineType": "g2-standard-24", "zone": A, "count": 6}]
    first = {"start": "2026-12-01T20:00:00Z", "duration": "2h"}
    after = {"start": "2026-12-01T22:00:00Z", "duration": "2h"}
    within = {"start": "2026-12-01T21:00:00Z", "duration": "10m"}
    assert reservation_faults(first, after, bookable=bookable) == []
    assert reservation_faults(first, within) == []
    (fault,) = reservation_faults(first, within, bookable=bookable)
    assert "reservations[1].count" in fault
    assert "6 machines of g2-standard-24 can be booked in us-central1-a, not 8" in fault
