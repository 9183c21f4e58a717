"""Operators recover from kills, API server restarts and missing permissions."""

import json

from e2e_kubernetes.installed_operators import SETTINGS, InstalledOperators
from e2e_kubernetes.kubernetes import wait_for
from e2e_kubernetes.objects import job, queue, template


def test_standby_takes_over_from_killed_leader(cluster: InstalledOperators) -> None:
    cluster.create(*queue("killed"))
    killed = cluster.leader()
    (heir,) = {cluster.asked, cluster.other} - {killed}
    cluster.operators[killed].kill()
    if killed == cluster.asked:
        cluster.operate(killed, "waiting to lead")
    cluster.create(job("killed", "killed", template("1")))
    cluster.operators[heir].wait_until("runs admission")
    cluster.revive()
    cluster.until("{.spec.suspend}=false", "job", "killed")


def test_operators_recover_after_api_server_restart(cluster: InstalledOperators) -> None:
    cluster.create(*queue("gone"), job("before", "gone", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "before")
    cluster.kubernetes.stop_serving()
    cluster.kubernetes.serve()
    cluster.leader()  # an operator that could not renew the Lease has ended
    cluster.revive()
    cluster.create(job("after", "gone", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "after")


def test_operator_retries_after_missing_permission_is_granted(cluster: InstalledOperators) -> None:
    role = cluster.get("clusterrole", SETTINGS.name)
    allowed = [rule for rule in role["rules"] if "jobs/finalizers" not in rule["resources"]]
    cluster.kubectl("replace", "-f", "-", sent=json.dumps({**role, "rules": allowed}))
    cluster.create(*queue("rights"), job("rights", "rights", template("1")))
    wait_for(lambda: "cannot set blockOwnerDeletion" in cluster.log(), cluster.log)
    del role["metadata"]["resourceVersion"]
    cluster.kubectl("replace", "-f", "-", sent=json.dumps(role))
    cluster.until("{.spec.suspend}=false", "job", "rights")
