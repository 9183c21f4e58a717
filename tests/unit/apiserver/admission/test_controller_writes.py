"""Writes of controllers that pass webhooks."""

from typing import Any

from batchyard.api.errors import ApiError, TemporarilyForbidden
from batchyard.api.meta import Key
from batchyard.apiserver.admission.controller_writes import ControllerWrites
from batchyard.interfaces.client import Create, Delete, Update, Write, WriteResult
from unit.apiserver.admission.hooked_api import HookedApi, allow, annotate, configuration, deny, hook
from unit.apiserver.admission.test_gate import pod, rules
from unit.apiserver.admission.test_pipeline import FAILED

KEY = Key("Pod", "team", "p")


def connected(api: HookedApi, *hooks: Any, kind: str = "Mutating") -> HookedApi:
    """The server, with the writes of its client admitted."""
    api.configure(configuration("a", *hooks, kind=kind))
    api.stored.client.set_write_interceptor(ControllerWrites(api.gate, api.stored.client, api.resources).submit)
    return api


def submit(api: HookedApi, *writes: Write) -> list[WriteResult]:
    """The results of writes that a controller submits together."""
    results: list[WriteResult] = []
    api.stored.client.submit(writes, results.append)
    api.pass_time(1)
    return results


def new_pod() -> dict[str, Any]:
    """A pod as a controller creates it."""
    return {**pod(), "metadata": {"name": "p", "namespace": "team"}}


def test_created_pod_is_mutated() -> None:
    api = connected(HookedApi(note=annotate("seen")), hook("note"))
    [result] = submit(api, Create(new_pod()))
    assert result.error is None
    stored = api.stored.get(KEY)
    assert stored is not None
    assert stored["metadata"]["annotations"] == {"seen": "yes"}
    [(_, request)] = api.asked
    assert request["userInfo"]["username"] == "system:serviceaccount:kube-system:batchyard"


def test_denied_write_is_retried_later_and_ends_the_sequence() -> None:
    api = connected(HookedApi(no=deny("no pods")), hook("no"), kind="Validating")
    second = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "team"}}
    [result] = submit(api, Create(new_pod()), Create(second))
    assert api.stored.get(Key("ConfigMap", "team", "c")) is None
    assert isinstance(result.error, TemporarilyForbidden)
    assert str(result.error) == 'admission webhook "no.example.com" denied the request: no pods'
    assert api.stored.get(KEY) is None


def test_failed_webhook_is_an_error() -> None:
    api = connected(HookedApi(a=lambda _request: FAILED), hook("a"))
    [result] = submit(api, Create(new_pod()))
    assert isinstance(result.error, ApiError)
    assert "failed calling webhook" in str(result.error)


def test_unmatched_writes_are_executed_at_once_while_matched_ones_wait() -> None:
    api = connected(HookedApi(ok=allow), hook("ok", rules("DELETE", "pods")))
    api.holds_replies = True
    assert submit(api, Create(new_pod()))
    stored = api.stored.get(KEY)
    assert stored is not None
    assert submit(api, Delete(KEY)) == []
    assert api.stored.client.is_settled()
    assert submit(api, Update({**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}))
    api.deliver()
    api.pass_time(1)
    assert api.stored.get(KEY) is None
