"""Table rows of kinds without a controller, as kubectl prints them."""

from batchyard.api import scheme
from unit.api.printing.test_tables_cluster import obj


def test_volume_and_claim_rows_match_kubectl() -> None:
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadOnlyMany", "ReadWriteOnce"],
        "storageClassName": "slow",
    }
    claimed = {**spec, "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "team", "name": "held"}}
    volume = obj(scheme.PERSISTENT_VOLUME, spec=claimed, status={"phase": "Bound"})
    assert list(volume.values())[1:8] == ["1Gi", "RWO,ROX", "Retain", "Bound", "team/held", "slow", "<unset>"]
    claim = obj(scheme.PERSISTENT_VOLUME_CLAIM, spec={"storageClassName": "slow"}, status={"phase": "Pending"})
    assert list(claim.values())[1:7] == ["Pending", "", "", "", "slow", "<unset>"]


def test_volume_in_deletion_has_status_terminating() -> None:
    assert obj(scheme.PERSISTENT_VOLUME, metadata={"deletionTimestamp": "now"}, spec={})["Status"] == "Terminating"


def test_endpoints_and_ingress_rows_match_kubectl() -> None:
    addresses = [{"ip": f"10.0.0.{number}"} for number in range(5)]
    endpoints = obj(scheme.ENDPOINTS, subsets=[{"addresses": addresses, "ports": [{"port": 80}]}])
    assert endpoints["Endpoints"] == "10.0.0.0:80,10.0.0.1:80,10.0.0.2:80 + 2 more..."
    assert obj(scheme.ENDPOINTS)["Endpoints"] == "<none>"
    ingress = obj(scheme.INGRESS, spec={"rules": [{"host": "a"}, {"host": "b"}], "tls": [{}]})
    assert list(ingress.values())[1:5] == ["<none>", "a,b", "", "80, 443"]
