"""Feature gates depend on other gates, as in Kueue."""

from collections.abc import Mapping

import pytest

from batchyard.api.validation.feature_gates import GATE_DEPENDENCIES, dependency_errors, feature_gate_errors
from batchyard.api.well_known import ELASTIC_JOBS_GATE, ELASTIC_TOPOLOGY_GATE, GATES, TOPOLOGY_AWARE_SCHEDULING
from batchyard.scheduling.kueue_configuration import feature_gate_errors as scenario_gate_errors

DISABLED: Mapping[str, bool] = {
    name: False for name, required in GATE_DEPENDENCIES.items() if TOPOLOGY_AWARE_SCHEDULING in required
}


def problems(gates: Mapping[str, bool]) -> list[str]:
    return [str(error.problem) for error in feature_gate_errors(gates)]


def test_defaults_have_no_unmet_dependency() -> None:
    assert problems({}) == []
    assert all(each in GATES for name, required in GATE_DEPENDENCIES.items() for each in (name, *required))


def test_enabled_gate_that_depends_on_a_disabled_one_is_refused_with_the_message_of_kueue() -> None:
    gates = {ELASTIC_TOPOLOGY_GATE: True, ELASTIC_JOBS_GATE: False}
    (problem,) = problems(gates)
    assert problem.startswith("Invalid value: ")
    assert problem.endswith(
        "ElasticJobsViaWorkloadSlicesWithTAS is enabled, but depends on features that are disabled:"
        " [ElasticJobsViaWorkloadSlices]"
    )


def test_gates_that_are_enabled_by_default_count() -> None:
    (problem,) = problems({TOPOLOGY_AWARE_SCHEDULING: False})
    assert "TASProfileMixed is enabled, but depends on features that are disabled: [TopologyAwareScheduling]" in problem
    assert problem.count("is enabled, but depends on") == sum(GATES[name] for name in DISABLED)


def test_gate_is_disabled_together_with_those_that_depend_on_it() -> None:
    assert problems({TOPOLOGY_AWARE_SCHEDULING: False, **DISABLED}) == []


def test_all_disabled_dependencies_are_named() -> None:
    gates = {TOPOLOGY_AWARE_SCHEDULING: False, **DISABLED, "TASFailedNodeReplacementFailFast": True}
    (problem,) = problems(gates)
    assert problem.endswith("[TopologyAwareScheduling TASFailedNodeReplacement]")


@pytest.mark.parametrize("gates", [{"Nonsense": True, TOPOLOGY_AWARE_SCHEDULING: False}])
def test_unknown_gates_prevent_the_check(gates: Mapping[str, bool]) -> None:
    (problem,) = problems(gates)
    assert problem.endswith("unrecognized feature gate: Nonsense")
    assert list(dependency_errors(gates, "featureGates")) == []


def test_dependencies_hold_in_scenarios() -> None:
    errors = list(scenario_gate_errors({"PartialPreemption": True, ELASTIC_JOBS_GATE: False}, "spec.featureGates"))
    assert [each.path for each in errors] == ["spec.featureGates"]
