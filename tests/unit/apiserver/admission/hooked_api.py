"""An API server whose writes pass webhooks; the webhooks are functions of this process."""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.admission.calls import TimedReply, WebhookCallError, WebhookReply, WebhookRequest
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.registrations import Webhook, WebhookRegistry
from batchyard.apiserver.request import DeferredResponse, FinalResponse, Response
from unit.apiserver.api import Api

Answer: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any] | bytes | WebhookCallError]
"""Returns the response of a webhook to the request of an AdmissionReview, or the whole body, or an error."""
PODS = [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]
ALL = [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]


def allow(_request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Allow any request."""
    return {"allowed": True}


def patching(*operations: Mapping[str, Any]) -> Answer:
    """A webhook that allows any request with this JSON patch."""
    patch = base64.b64encode(msgspec.json.encode(operations)).decode()
    return lambda _request: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


def annotate(name: str, value: str = "yes") -> Answer:
    """A webhook that sets an annotation, and keeps the others."""

    def answer(request: Mapping[str, Any]) -> Mapping[str, Any] | bytes | WebhookCallError:
        annotations = {**(request["object"]["metadata"].get("annotations") or {}), name: value}
        operation = {"op": "add", "path": "/metadata/annotations", "value": annotations}
        return patching(operation)(request)

    return answer


def deny(message: str, code: int = 403, **status: Any) -> Answer:
    """A webhook that denies any request."""
    return lambda _request: {"allowed": False, "status": {"message": message, "code": code, **status}}


def hook(name: str, rules: Sequence[Mapping[str, Any]] = PODS, /, **fields: Any) -> dict[str, Any]:
    """A webhook of a configuration; the path of its URL is its name."""
    return {
        "name": f"{name}.example.com",
        "rules": rules,
        "clientConfig": {"url": f"https://hooks.example.com/{name}"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        **fields,
    }


def configuration(name: str, *hooks: Mapping[str, Any], kind: str = "Mutating") -> dict[str, Any]:
    """A webhook configuration."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": list(hooks),
    }


class Counts:
    """Records what the metrics count."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, bool]] = []
        self.rejections: list[tuple[str, str, int]] = []
        self.fail_opens: list[str] = []
        self.conditions: list[tuple[str, bool]] = []

    def count_call(self, webhook: Webhook, operation: str, code: int, seconds: float, *, rejected: bool) -> None:
        assert seconds >= 0
        self.calls.append((webhook.name, operation, code, rejected))

    def count_rejection(self, webhook: Webhook, operation: str, error_type: str, code: int) -> None:
        assert operation
        self.rejections.append((webhook.name, error_type, code))

    def count_fail_open(self, webhook: Webhook) -> None:
        self.fail_opens.append(webhook.name)

    def count_condition(self, webhook: Webhook, operation: str, is_error: bool) -> None:
        assert operation
        self.conditions.append((webhook.name, is_error))


class HookedApi(Api):
    """An API server whose webhooks are answered by functions, by the path of their URL."""

    def __init__(self, **answers: Answer) -> None:
        super().__init__()
        self.answers = dict(answers)
        #: The requests of the AdmissionReviews, in order, with the name of the webhook.
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.counts = Counts()
        #: Calls that wait for `deliver`, while `holds_replies` is set.
        self.held: list[tuple[WebhookRequest, Callable[[TimedReply], None]]] = []
        self.holds_replies = False
        self.clock = 0.0
        self.timeouts: list[float] = []

    def configure(self, *configurations: Obj) -> None:
        """Store configurations, and admit the later writes."""
        for each in configurations:
            plural = f"{each['kind'].lower()}s"
            self.post(f"/apis/admissionregistration.k8s.io/v1/{plural}", each)
        registry = WebhookRegistry(self.stored)
        parts = GateParts(
            self.stored, self.server.write_handler, registry, self.counts, self, 1, self.server.policy_loader
        )
        self.gate = AdmissionGate(parts)
        self.server.set_admission_gate(self.gate)

    def seconds(self) -> float:
        return self.clock

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        self.timeouts.append(timeout_seconds)
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
        name = request.client_config["url"].rpartition("/")[2]
        self.asked.append((name, review["request"]))
        answer = self.answers[name](review["request"])
        if isinstance(answer, bytes | WebhookCallError):
            return answer
        response = {"uid": review["request"]["uid"], **answer}
        return msgspec.json.encode({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response})

    def later(self, method: str, path: str, body: Any = None) -> list[FinalResponse]:
        """Ask for a response that comes later; it is appended to the returned list."""
        answer = self.answer(method, path, body)
        assert isinstance(answer, DeferredResponse), answer
        responses: list[FinalResponse] = []
        answer.then(responses.append)
        return responses


def message(response: Response) -> str:
    """The message of an error."""
    assert response.code >= 400, response
    text: str = response.body["message"]
    return text
