"""Operators that are killed and an API server that goes away: who is there then goes on."""

from cluster.installed import Installed
from cluster.objects import job, queue, template


def test_another_takes_over_from_one_that_is_killed(cluster: Installed) -> None:
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


def test_an_api_server_that_comes_back_is_gone_on_with(cluster: Installed) -> None:
    cluster.create(*queue("gone"), job("before", "gone", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "before")
    cluster.kubernetes.stop_serving()
    cluster.kubernetes.serve()
    cluster.leader()  # who could not renew the Lease has ended
    cluster.revive()
    cluster.create(job("after", "gone", template("1")))
    cluster.until("{.spec.suspend}=false", "job", "after")
