"""Conversion is lossless: a round trip returns the same object."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.conversion import OLD_API_VERSION, STORAGE_API_VERSION, from_storage, to_storage
from batchyard.api.kueue_conversion import compress_domains, expand_slices
from batchyard.api.well_known import HOSTNAME

Obj = dict[str, Any]

TEXT = st.text("ab-", max_size=4)
NAME = st.text("abc", min_size=1, max_size=3)
COUNT = st.integers(1, 5)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT, lambda of: st.lists(of, max_size=2), max_leaves=4
)


def fields(**choices: st.SearchStrategy[Any]) -> st.SearchStrategy[Obj]:
    """Return mappings with any of the fields."""
    return st.fixed_dictionaries({}, optional=choices)


def objects(kind: str, version: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Obj]:
    """Return objects of a kind with any of the parts."""
    metadata = st.fixed_dictionaries(
        {"name": NAME},
        optional={"annotations": st.dictionaries(NAME, TEXT, min_size=1, max_size=2), "labels": st.just({"a": "b"})},
    )
    whole = {"apiVersion": st.just(version), "kind": st.just(kind), "metadata": metadata}
    return st.fixed_dictionaries(whole, optional=parts)


def named_items(items: st.SearchStrategy[Obj]) -> st.SearchStrategy[list[Obj]]:
    """Return lists of items with unique names."""
    numbered = st.lists(items, max_size=3)
    return numbered.map(lambda found: [{"name": f"n{i}", **item} for i, item in enumerate(found)])


CHECKS = st.lists(NAME, max_size=3)
STRATEGY = fields(admissionChecks=named_items(fields(onFlavors=CHECKS)))
SHARE = fields(weightedShare=COUNT, admissionFairSharingStatus=ANYTHING)
WORDS = ["MayStopSearch", "TryNextFlavor"]
SOURCES = ["kueue.x-k8s.io/workloadpriorityclass", "scheduling.k8s.io/priorityclass"]
KUBE_CONFIG = st.fixed_dictionaries({"location": TEXT, "locationType": st.sampled_from(["Secret", "Path"])})
PROFILE = st.fixed_dictionaries({"name": NAME})


@st.composite
def places(draw: st.DrawFn) -> tuple[list[str], list[Obj]]:
    """Draw levels, and domains with a value for each level."""
    levels = draw(st.sampled_from([["rack"], ["rack", HOSTNAME], [HOSTNAME], ["a", "b", "c"]]))
    values = st.lists(TEXT, min_size=len(levels), max_size=len(levels))
    return levels, draw(st.lists(st.fixed_dictionaries({"values": values, "count": COUNT}), max_size=6))


DOMAINS = places().map(lambda found: {"levels": found[0], "domains": found[1]})


@st.composite
def slices(draw: st.DrawFn) -> Obj:
    """Draw an assignment in slices, divided in any allowed way."""
    levels = draw(st.sampled_from([["rack"], ["rack", HOSTNAME]]))
    return {"levels": levels, "slices": [draw(one_slice(len(levels))) for _ in range(draw(st.integers(0, 3)))]}


@st.composite
def one_slice(draw: st.DrawFn, levels: int) -> Obj:
    """Draw a slice with values for this number of levels."""
    count = draw(COUNT)
    roots = st.lists(TEXT, min_size=count, max_size=count)
    own = st.fixed_dictionaries({"roots": roots}, optional={"prefix": TEXT, "suffix": TEXT})
    values = st.fixed_dictionaries({"universal": TEXT}) | st.fixed_dictionaries({"individual": own})
    each = st.fixed_dictionaries({"individual": st.lists(COUNT, min_size=count, max_size=count)})
    return {
        "domainCount": count,
        "podCounts": draw(each | st.fixed_dictionaries({"universal": COUNT})),
        "valuesPerLevel": [draw(values) for _ in range(levels)],
    }


def admission(topology: st.SearchStrategy[Obj]) -> st.SearchStrategy[Obj]:
    """Return admissions with topology assignments."""
    return fields(clusterQueue=NAME, podSetAssignments=named_items(fields(count=COUNT, topologyAssignment=topology)))


REQUEST: dict[str, st.SearchStrategy[Any]] = {"required": NAME, "podSetSliceSize": COUNT}
LAYERS = st.lists(st.fixed_dictionaries({"topology": NAME, "size": COUNT}), min_size=1, max_size=2)

OLD_OBJECTS = st.one_of(
    objects(
        "ClusterQueue",
        OLD_API_VERSION,
        spec=fields(
            cohort=TEXT,
            admissionChecks=CHECKS,
            admissionChecksStrategy=STRATEGY,
            flavorFungibility=fields(
                whenCanBorrow=st.sampled_from([*WORDS, "Borrow"]), whenCanPreempt=st.sampled_from([*WORDS, "Preempt"])
            ),
        ),
        status=fields(pendingWorkloads=COUNT, pendingWorkloadsStatus=ANYTHING, fairSharing=SHARE),
    ),
    objects("Cohort", OLD_API_VERSION, spec=fields(parentName=NAME), status=fields(fairSharing=SHARE)),
    objects(
        "LocalQueue",
        OLD_API_VERSION,
        spec=fields(clusterQueue=NAME),
        status=fields(flavorUsage=ANYTHING, flavors=ANYTHING),
    ),
    objects("AdmissionCheck", OLD_API_VERSION, spec=fields(controllerName=NAME, retryDelayMinutes=st.integers(0, 14))),
    objects("MultiKueueCluster", OLD_API_VERSION, spec=fields(kubeConfig=KUBE_CONFIG, clusterProfileRef=PROFILE)),
    objects("MultiKueueConfig", OLD_API_VERSION, spec=fields(clusters=CHECKS)),
    objects("Topology", OLD_API_VERSION, spec=ANYTHING),
    objects(
        "Workload",
        OLD_API_VERSION,
        spec=fields(
            priorityClassName=TEXT,
            priorityClassSource=st.sampled_from(SOURCES),
            podSets=named_items(fields(topologyRequest=fields(**REQUEST))),
        ),
        status=fields(accumulatedPastExexcutionTimeSeconds=COUNT, admission=admission(DOMAINS)),
    ),
)

GROUP = st.sampled_from(["kueue.x-k8s.io", "scheduling.k8s.io"])
CLASS_KIND = st.sampled_from(["WorkloadPriorityClass", "PriorityClass"])
CLASS = st.fixed_dictionaries({"group": GROUP, "kind": CLASS_KIND, "name": NAME})
NEW_OBJECTS = st.one_of(
    objects(
        "ClusterQueue",
        STORAGE_API_VERSION,
        spec=fields(
            cohortName=TEXT,
            admissionChecksStrategy=STRATEGY,
            flavorFungibility=fields(whenCanBorrow=st.sampled_from(WORDS), whenCanPreempt=st.sampled_from(WORDS)),
            concurrentAdmissionPolicy=ANYTHING,
        ),
        status=fields(pendingWorkloads=COUNT, fairSharing=fields(weightedShare=COUNT)),
    ),
    objects("LocalQueue", STORAGE_API_VERSION, status=fields(flavorsUsage=ANYTHING)),
    objects(
        "MultiKueueCluster",
        STORAGE_API_VERSION,
        spec=fields(clusterSource=fields(kubeConfig=KUBE_CONFIG, clusterProfileRef=PROFILE)),
    ),
    objects(
        "MultiKueueConfig",
        STORAGE_API_VERSION,
        spec=fields(clusters=CHECKS, quotaManagement=st.sampled_from(["Manual", "Automated"])),
    ),
    objects(
        "Workload",
        STORAGE_API_VERSION,
        spec=fields(
            priorityClassRef=CLASS,
            preemptionGates=ANYTHING,
            podSets=named_items(
                fields(topologyRequest=fields(podsetSliceRequiredTopologyConstraints=LAYERS, **REQUEST))
            ),
        ),
        status=fields(
            accumulatedPastExecutionTimeSeconds=COUNT, preemptionGates=ANYTHING, admission=admission(slices())
        ),
    ),
)


@given(OLD_OBJECTS)
def test_conversion_from_old_version_round_trips(obj: Obj) -> None:
    assert from_storage(to_storage(obj), OLD_API_VERSION) == obj


@given(NEW_OBJECTS)
def test_conversion_from_storage_version_round_trips(obj: Obj) -> None:
    assert to_storage(from_storage(obj, OLD_API_VERSION)) == obj


@given(OLD_OBJECTS)
def test_repeated_conversion_keeps_stored_object(obj: Obj) -> None:
    stored = to_storage(obj)
    assert to_storage(from_storage(stored, OLD_API_VERSION)) == stored


@given(OLD_OBJECTS)
def test_stored_object_contains_no_fields_of_old_version(obj: Obj) -> None:
    spec, status = (to_storage(obj).get(part) or {} for part in ("spec", "status"))
    gone = {"cohort", "admissionChecks", "priorityClassName", "priorityClassSource", "retryDelayMinutes", "kubeConfig"}
    assert not gone & set(spec if isinstance(spec, dict) else ())
    assert not {"flavorUsage", "flavors", "pendingWorkloadsStatus", "accumulatedPastExexcutionTimeSeconds"} & set(
        status
    )


@given(places())
def test_compressed_slices_keep_order_of_domains(found: tuple[list[str], list[Obj]]) -> None:
    levels, domains = found
    assert expand_slices(compress_domains(levels, domains)) == domains
