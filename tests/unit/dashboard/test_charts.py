"""The charts of the overview end with the current totals, and show only what the viewer may list."""

import make
from batchyard.accounting.accounts import DONE, IDLE, AccountKey
from batchyard.accounting.records import RecordedAmount, cost_record_specs, hour_record_name, make_cost_record
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import HOUR
from batchyard.dashboard.models.charts import cost_trend
from unit.dashboard.simulated_dashboard import Model, Team, dashboard


def lines_of(model: Model, name: str) -> dict[str, list[float]]:
    chart = next(chart for chart in model["charts"]["charts"] if chart["name"] == name)
    return {line["name"]: line["values"] for line in chart["lines"]}


def test_chart_ends_with_current_quota_usage_and_node_totals() -> None:
    model = dashboard().model("overview")
    gpus = lines_of(model, "nvidia.com/gpu")
    snapshot = dashboard().index.snapshot
    ids = [fr for fr, (_, resource) in enumerate(snapshot.flavor_resource_names) if resource == "nvidia.com/gpu"]
    queues = snapshot.queues.values()
    assert gpus["quota used"][-1] == sum(queue.node.usage[fr] for queue in queues for fr in ids) > 0
    assert gpus["nominal quota now"][-1] > 0
    nodes = next(line for line in model["cluster"]["resources"] if line["resource"] == "nvidia.com/gpu")
    assert (gpus["requested on nodes"][-1], gpus["capacity of nodes"][-1]) == (
        int(nodes["used"]),
        int(nodes["capacity"]),
    )
    counts = lines_of(model, "Workloads")
    assert (counts["pending"][-1], counts["hold quota"][-1]) == (model["waitingCount"], model["runningCount"])
    assert len(model["charts"]["times"]) == len(counts["pending"])


def test_charts_show_only_what_the_viewer_may_list() -> None:
    assert "charts" not in dashboard().model("overview", access=Team("team-a"))
    model = dashboard().model("overview", access=Team(also=(scheme.NODE,)))
    assert set(lines_of(model, "nvidia.com/gpu")) == {"requested on nodes", "capacity of nodes"}
    assert "Workloads" not in [chart["name"] for chart in model["charts"]["charts"]]


def cost_records(at: int, dollars: int) -> list[Obj]:
    """The records of one hour: idle machines, and a team's share of the same cost."""
    idle, used = RecordedAmount(1, 1, 1_000_000), RecordedAmount(1, 1, (dollars - 1) * 1_000_000)
    lines = {AccountKey("p", "standard", "", IDLE): idle, AccountKey("p", "standard", "red", DONE): used}
    begin = make.NOW // HOUR * HOUR + at * HOUR
    spans = (begin, begin + HOUR), begin + HOUR
    return [
        make_cost_record(name, hour_record_name(begin), *spans, spec)
        for name, spec in cost_record_specs(lines, {}, []).items()
    ]


def test_cost_trend_has_the_cost_of_all_machines_by_hour() -> None:
    records = [*cost_records(0, 5), *cost_records(1, 9)]
    trend = cost_trend(records)
    assert trend is not None
    assert trend["charts"][0]["lines"][0]["values"] == [5.0, 9.0]
    assert trend["times"][1] - trend["times"][0] == 3600
    own = [each for each in records if each["metadata"]["namespace"] == "red"]
    trend = cost_trend(own)
    assert trend is not None
    assert trend["charts"][0]["lines"][0]["values"] == [4.0, 8.0]
    assert cost_trend(records[:2]) is None
