"""A report is a single HTML file that escapes all text of objects."""

import json
import re
from collections import Counter

from batchyard.dashboard.static_report import SCRIPTS, bundled_script, read_asset
from batchyard.sim.result import Reporter
from batchyard.sim.simulate import Simulation, read_scenario

QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: plain}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: queue}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: plain, resources: [{name: cpu, nominalQuota: 1}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: team}
spec: {clusterQueue: queue}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: one, namespace: team, annotations: {batchyard.dev/runtime: 1m}}
spec:
  queueName: jobs
  podSets:
  - {name: main, count: 1, template: {spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata:
  name: two
  namespace: team
  annotations: {batchyard.dev/submit-at: 10s, batchyard.dev/runtime: 1m}
  ownerReferences: [{apiVersion: v1, kind: "</script><img src=x>", name: "</script><b>", uid: u}]
spec:
  queueName: jobs
  podSets:
  - {name: main, count: 1, template: {spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}}}
"""


def report_html() -> str:
    simulation = Simulation(read_scenario([QUEUES])[0])
    reporter = Reporter(simulation.world)
    simulation.advance()
    result = simulation.result()
    return reporter.html(result.now, result.costs)


def test_report_contains_models_of_whole_run() -> None:
    html = report_html()
    found = re.search(r'<script type="application/json" id="report">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    models = json.loads(found[1])["models"]
    assert [row["state"] for row in models["workloads"]["rows"]] == ["Finished", "Finished"]
    (lane,) = models["timeline"]["flavor"]["lanes"]
    assert [(bar[0], bar[1]) for bar in lane["bars"]] == [(0, 60), (60, 120)]
    assert models["queue"]["queue"]["series"]["pending"][-1] == 0
    assert max(models["queue"]["queue"]["series"]["pending"]) == 1
    marks = [mark["what"] for mark in models["workload"]["team/two"]["life"]]
    assert marks == ["created", "quotaReserved", "admitted", "finished"]


def test_report_escapes_object_text_and_has_no_external_resources() -> None:
    html = report_html()
    assert html.count("</script>") == html.count("<script") == 2
    assert "<img" not in html
    assert not re.findall(r'(?:src|href)="(?!#)[^"]', html)
    assert "import " not in html.replace("importance", "")


def test_top_level_names_are_unique_across_scripts() -> None:
    names = re.findall(r"^(?:async )?(?:function|class|const|let) (\w+)", bundled_script(), re.MULTILINE)
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_scripts_are_ordered_after_their_imports() -> None:
    for place, name in enumerate(SCRIPTS):
        found = read_asset(f"js/{name}")
        assert found is not None
        imported = re.findall(r'^import .* from "\./(.+)";$', found.content.decode(), re.MULTILINE)
        assert set(imported) <= set(SCRIPTS[:place]), name


def test_index_page_references_all_scripts() -> None:
    page = read_asset("")
    assert page is not None
    assert set(re.findall(r'(?:src|href)="js/(.+?)"', page.content.decode())) == set(SCRIPTS)
