"""An API that serves screens in two versions, which a webhook converts; the webhook is a function of this process."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from batchyard.apiserver.admission.calls import CallPorts, TimedReply, WebhookCallError, WebhookReply, WebhookRequest
from batchyard.apiserver.crd.converted_requests import WebhookConversions
from batchyard.apiserver.request import DeferredResponse, FinalResponse, Response
from unit.apiserver.api import OWNER
from unit.apiserver.crd.rockets import DEFINITIONS, DefinitionApi

GROUP = "show.example.com"
NAME = f"screens.{GROUP}"
V1, V2 = (f"/apis/{GROUP}/{version}/namespaces/default/screens" for version in ("v1", "v2"))
TEXT, INTEGER = {"type": "string"}, {"type": "integer"}


def screen_version(name: str, *, storage: bool = False, **fields: Any) -> dict[str, Any]:
    """A version of screens, with these fields in the spec."""
    spec = {"type": "object", "properties": fields}
    status = {"type": "object", "properties": {"lit": {"type": "boolean"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    subresources: dict[str, Any] = {"status": {}}
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
    }


def screens(**conversion: Any) -> dict[str, Any]:
    """The definition of screens: `size` in v1, which is stored, and `rows` and `columns` in v2."""
    webhook = {"clientConfig": {"url": "https://hooks.example.com/convert"}, "conversionReviewVersions": ["v1"]}
    versions = [
        screen_version("v1", storage=True, size=TEXT, mood={**TEXT, "default": "calm"}),
        screen_version("v2", rows=INTEGER, columns=INTEGER, mood=TEXT, tone={**TEXT, "default": "low"}),
    ]
    versions[1]["selectableFields"] = [{"jsonPath": ".spec.rows"}]
    versions[1]["additionalPrinterColumns"] = [{"name": "Rows", "type": "integer", "jsonPath": ".spec.rows"}]
    versions[1]["subresources"]["scale"] = {"specReplicasPath": ".spec.rows", "statusReplicasPath": ".status.rows"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": "screens", "kind": "Screen"},
            "versions": versions,
            "conversion": {"strategy": "Webhook", "webhook": {**webhook, **conversion}},
        },
    }


def screen(version: str = "v1", name: str = "a", **spec: Any) -> dict[str, Any]:
    """A screen."""
    spec = spec or ({"size": "3x4"} if version == "v1" else {"rows": 3, "columns": 4})
    return {"apiVersion": f"{GROUP}/{version}", "kind": "Screen", "metadata": {"name": name}, "spec": spec}


def convert_screen(obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
    """Convert a screen to a version."""
    spec = dict(obj["spec"])
    if api_version.endswith("/v2"):
        rows, _, columns = spec.pop("size", "1x1").partition("x")
        spec |= {"rows": int(rows), "columns": int(columns)}
    else:
        spec["size"] = f"{spec.pop('rows', 1)}x{spec.pop('columns', 1)}"
    return {**obj, "apiVersion": api_version, "spec": spec}


def convert_review(review: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a ConversionReview."""
    request = review["request"]
    converted = [convert_screen(obj, request["desiredAPIVersion"]) for obj in request["objects"]]
    response = {"uid": request["uid"], "convertedObjects": converted, "result": {"status": "Success"}}
    return {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}


class ConvertingApi(DefinitionApi):
    """An API that serves screens. `answer_review` answers the calls of their webhook."""

    def __init__(self, **conversion: Any) -> None:
        super().__init__()
        self.answer_review: Callable[[Mapping[str, Any]], Any] = convert_review
        #: The requests of the ConversionReviews.
        self.asked: list[Mapping[str, Any]] = []
        self.held: list[tuple[WebhookRequest, Callable[[TimedReply], None]]] = []
        self.holds_replies = False
        self.server.set_conversions(lambda: self.conversions)
        self.conversions = WebhookConversions(CallPorts(self))
        self.define(screens(**conversion))
        self.asked.clear()

    def seconds(self) -> float:
        return 0.0

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        assert timeout_seconds == 30
        if self.holds_replies:
            self.held.append((request, on_reply))
        else:
            on_reply(TimedReply(self.reply_to(request), 0.25))

    def deliver(self) -> None:
        """Answer the calls that wait."""
        held, self.held = self.held, []
        for request, on_reply in held:
            on_reply(TimedReply(self.reply_to(request), 0.25))

    def reply_to(self, request: WebhookRequest) -> WebhookReply:
        review = msgspec.json.decode(request.body)
        self.asked.append(review["request"])
        answer = self.answer_review(review)
        return answer if isinstance(answer, bytes | WebhookCallError) else msgspec.json.encode(answer)

    def later(self, method: str, path: str, body: Any = None) -> list[FinalResponse]:
        """Ask for a response that comes later; it is appended to the returned list."""
        answer = self.answer(method, path, body, "application/merge-patch+json")
        assert isinstance(answer, DeferredResponse), answer
        responses: list[FinalResponse] = []
        answer.then(responses.append)
        return responses

    def change_definition(self, **spec: Any) -> None:
        """Change fields of the definition of screens."""
        path = f"{DEFINITIONS}/{NAME}"
        stored = self.get(path)
        response = self.ask("PUT", path, {**stored, "spec": {**stored["spec"], **spec}}, user=OWNER)
        assert response.code == 200, response
        self.reconcile_definition(NAME)


def failure(response: Response) -> str:
    """The message of a failed conversion, which has no reason."""
    assert (response.code, "reason" in response.body) == (500, False), response
    text: str = response.body["message"]
    return text
