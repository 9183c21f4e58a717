"""The admission of one write request by webhooks: mutation with reinvocation, then validation in parallel.

Each stage is a generator that yields the webhook calls to make in parallel and receives their replies, so it does not
depend on how the calls are made. Sources: k8s.io/apiserver, pkg/admission/reinvocation.go and
pkg/admission/plugin/webhook/{mutating,validating}/dispatcher.go.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.apiserver.admission.attributes import AdmissionAttributes, PolicyVerdict
from batchyard.apiserver.admission.calls import (
    TimedReply,
    WebhookCallError,
    WebhookCalls,
    WebhookRequest,
    internal_error,
)
from batchyard.apiserver.admission.registrations import Webhook, WebhookMatch, WebhookMatcher
from batchyard.apiserver.admission.reviews import (
    AdmissionVerdict,
    apply_webhook_patch,
    call_failure,
    denial,
    encode_review,
    read_verdict,
)
from batchyard.apiserver.conversions import ConversionScope, converting
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import ResourcePath

_MUTATION_KEY: Final = "mutation.webhook.admission.k8s.io/"
_FAILED_OPEN_PREFIX: Final = "failed-open."
_VALIDATION_KEY: Final = "validating.webhook.admission.k8s.io/"


class AdmissionObserver(Protocol):
    """Counts the webhook calls, rejections and match conditions, for metrics."""

    def count_call(self, webhook: Webhook, operation: str, code: int, seconds: float, *, rejected: bool) -> None:
        """Count a call with its status code and duration, and whether it rejected the request."""

    def count_rejection(self, webhook: Webhook, operation: str, error_type: str, code: int) -> None:
        """Count a rejected request by the type of error: no_error for a denial, else how the call failed."""

    def count_fail_open(self, webhook: Webhook) -> None:
        """Count a failed call that the failure policy Ignore ignores."""

    def count_condition(self, webhook: Webhook, operation: str, is_error: bool) -> None:
        """Count a match condition that failed (`is_error`), or that excluded a request."""


class AdmissionPolicies(Protocol):
    """The admission policies, which run before the webhooks of each stage."""

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        """Return whether the rules of a policy match an operation on a resource, before selectors are considered."""

    @property
    def mutates(self) -> bool:
        """Whether policies may change objects."""

    @property
    def validates(self) -> bool:
        """Whether policies may deny requests, or remark on them."""

    def mutate(self, attributes: AdmissionAttributes) -> Mapping[str, Any] | None:
        """Return the object of a request as the policies change it. Raises StatusError if a policy fails."""

    def validate(self, attributes: AdmissionAttributes) -> PolicyVerdict:
        """Return the warnings and annotations of the policies. Raises StatusError if a policy denies the request."""


class AdmissionNotes:
    """The state of one request: warnings and audit annotations for its response, and its converted objects."""

    def __init__(self, *, is_large: bool = False) -> None:
        self.warnings: list[str] = []
        self.annotations: dict[str, str] = {}
        self.scope = ConversionScope()
        #: Whether expensive steps run outside the API server's thread.
        self.is_large = is_large


class WebhookPorts(NamedTuple):
    """What the stages need: the matching of webhooks, metrics, unique ids, and the conversion between versions."""

    matcher: WebhookMatcher
    observer: AdmissionObserver
    new_uid: Callable[[], str]
    #: Returns an object of the request in another version of its resource.
    convert: Callable[[AdmissionAttributes, Mapping[str, Any], str, str], Mapping[str, Any]]


class _Reinvocation:
    """Which webhooks are called again in the second round of mutation."""

    def __init__(self) -> None:
        self.is_second_round = False
        self.has_changed = False
        self._invoked: set[str] = set()
        self._reinvoked: set[str] = set()

    def skips(self, webhook: Webhook) -> bool:
        """Return whether the second round leaves a webhook out: it is never called for the first time there."""
        return self.is_second_round and webhook.uid not in self._reinvoked

    def record_change(self) -> None:
        """Record a change of the object: webhooks that ran before it and have the policy IfNeeded run again."""
        self.has_changed = True
        self._reinvoked |= self._invoked
        self._invoked.clear()

    def record_call(self, webhook: Webhook) -> None:
        """Record that a webhook was called."""
        if webhook.reinvokes:
            self._invoked.add(webhook.uid)


class WebhookAdmission:
    """The stages of one request that call webhooks; `notes` collects warnings and audit annotations."""

    def __init__(self, ports: WebhookPorts, notes: AdmissionNotes) -> None:
        self._ports = ports
        self._notes = notes

    # --- mutation ---

    def mutate(
        self,
        webhooks: Sequence[Webhook],
        attributes: AdmissionAttributes,
        repeat_built_in: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> WebhookCalls:
        """Call the matching mutating webhooks one after the other; return the attributes with the mutated object.

        `repeat_built_in` repeats the built-in mutation of the object before the second round. Raises StatusError if a
        webhook denies the request, or fails and its failure policy is Fail.
        """
        reinvocation = _Reinvocation()
        attributes = yield from self._mutate_once(webhooks, attributes, reinvocation)
        if reinvocation.has_changed and attributes.obj is not None:
            reinvocation.is_second_round = True
            repeated_object = repeat_built_in(attributes.obj)
            if repeated_object != attributes.obj:
                reinvocation.record_change()
                attributes = attributes._replace(obj=repeated_object)
            attributes = yield from self._mutate_once(webhooks, attributes, reinvocation)
        return attributes

    def _mutate_once(
        self, webhooks: Sequence[Webhook], attributes: AdmissionAttributes, reinvocation: _Reinvocation
    ) -> WebhookCalls:
        for index, webhook in enumerate(webhooks):
            versions = _Versions(self._ports, attributes)
            find_match = partial(self._ports.matcher.find_match, webhook, attributes, versions.attributes)
            match = yield from converting(find_match, self._notes.scope)
            if match is None or reinvocation.skips(webhook):
                continue
            key = f"round_{int(reinvocation.is_second_round)}_index_{index}"
            new_object = yield from self._call_mutating(match, attributes, key)
            if new_object is not None and new_object != attributes.obj:
                attributes = attributes._replace(obj=new_object)
                reinvocation.record_change()
            reinvocation.record_call(webhook)
        return attributes

    def _call_mutating(self, match: WebhookMatch, attributes: AdmissionAttributes, key: str) -> WebhookCalls:
        """Return the object after the patch of a webhook, in the version of the request; None without a patch."""
        webhook, versions, scope = match.webhook, _Versions(self._ports, attributes), self._notes.scope
        sent_attributes = yield from converting(partial(versions.attributes, match.version), scope)
        new_object, seconds = None, 0.0
        try:
            verdict, seconds = yield from self._ask(match, sent_attributes)
            if verdict.allowed and verdict.patch:
                patched_object = apply_webhook_patch(webhook, sent_attributes.obj, verdict.patch)
                convert_back = partial(versions.convert_back, patched_object, match.version)
                new_object = yield from converting(convert_back, scope)
        except (StatusError, WebhookCallError) as error:
            self._annotate_mutation(webhook, key, is_mutated=False)
            self._raise_unless_ignored(webhook, attributes.operation, error, _MUTATION_KEY + key)
            return None
        self._annotate_mutation(webhook, key, is_mutated=new_object is not None and new_object != attributes.obj)
        self._check_allowed(webhook, attributes.operation, verdict, seconds)
        return new_object

    def _annotate_mutation(self, webhook: Webhook, key: str, *, is_mutated: bool) -> None:
        annotation = {"configuration": webhook.configuration, "webhook": webhook.name, "mutated": is_mutated}
        self._notes.annotations[_MUTATION_KEY + key] = msgspec.json.encode(annotation).decode()

    # --- validation ---

    def validate(self, webhooks: Sequence[Webhook], attributes: AdmissionAttributes) -> WebhookCalls:
        """Call all matching validating webhooks in parallel.

        Raises the StatusError of the first webhook, in the order of the configurations, that rejects the request.
        """
        versions, scope = _Versions(self._ports, attributes), self._notes.scope
        matches: list[WebhookMatch] = []
        for webhook in webhooks:
            find_match = partial(self._ports.matcher.find_match, webhook, attributes, versions.attributes)
            if (match := (yield from converting(find_match, scope))) is not None:
                matches.append(match)
        uids = [self._ports.new_uid() for _ in matches]
        requests: list[WebhookRequest | StatusError | WebhookCallError] = []
        for match, uid in zip(matches, uids, strict=True):
            sent_attributes = yield from converting(partial(versions.attributes, match.version), scope)
            requests.append(_encode_or_error(match, sent_attributes, uid))
        sent_requests = [request for request in requests if isinstance(request, WebhookRequest)]
        replies = iter((yield sent_requests) if sent_requests else ())
        errors = []
        for index, (match, uid, request) in enumerate(zip(matches, uids, requests, strict=True)):
            try:
                if not isinstance(request, WebhookRequest):
                    raise request
                reply = next(replies)
                verdict = self._read(match.webhook, reply, uid, attributes.operation)
                self._check_allowed(match.webhook, attributes.operation, verdict, reply.seconds)
            except WebhookCallError as error:
                key = f"{_VALIDATION_KEY}round_0_index_{index}"
                try:
                    self._raise_unless_ignored(match.webhook, attributes.operation, error, key)
                except StatusError as rejection:
                    errors.append(rejection)
            except StatusError as rejection:
                errors.append(rejection)
        if errors:
            raise errors[0]

    # --- calls ---

    def _ask(self, match: WebhookMatch, attributes: AdmissionAttributes) -> WebhookCalls:
        uid = self._ports.new_uid()
        replies = yield [encode_review(match.webhook, attributes, match.version, uid)]
        return self._read(match.webhook, replies[0], uid, attributes.operation), replies[0].seconds

    def _read(self, webhook: Webhook, reply: TimedReply, uid: str, operation: str) -> AdmissionVerdict:
        try:
            verdict = read_verdict(webhook, reply.reply, uid)
        except WebhookCallError as error:
            rejected = not webhook.ignores_failures
            self._ports.observer.count_call(webhook, operation, error.code, reply.seconds, rejected=rejected)
            raise
        for name, value in verdict.audit_annotations.items():
            self._notes.annotations[f"{webhook.name}/{name}"] = value
        self._notes.warnings.extend(warning for warning in verdict.warnings if warning not in self._notes.warnings)
        return verdict

    def _check_allowed(self, webhook: Webhook, operation: str, verdict: AdmissionVerdict, seconds: float) -> None:
        observer = self._ports.observer
        if verdict.allowed:
            observer.count_call(webhook, operation, 200, seconds, rejected=False)
            return
        error = denial(webhook, verdict.result)
        observer.count_rejection(webhook, operation, "no_error", error.code)
        observer.count_call(webhook, operation, error.code, seconds, rejected=True)
        raise error

    def _raise_unless_ignored(
        self, webhook: Webhook, operation: str, error: StatusError | WebhookCallError, key: str
    ) -> None:
        observer = self._ports.observer
        if isinstance(error, StatusError):
            observer.count_rejection(webhook, operation, "apiserver_internal_error", 0)
            raise error
        if webhook.ignores_failures:
            observer.count_fail_open(webhook)
            self._notes.annotations[_FAILED_OPEN_PREFIX + key] = webhook.name
            return
        observer.count_rejection(webhook, operation, "calling_webhook_error", error.code)
        raise call_failure(webhook, error) from error


def _encode_or_error(
    match: WebhookMatch, attributes: AdmissionAttributes, uid: str
) -> WebhookRequest | StatusError | WebhookCallError:
    try:
        return encode_review(match.webhook, attributes, match.version, uid)
    except (StatusError, WebhookCallError) as error:
        return error


class _Versions:
    """The attributes of a request with the objects in the versions that webhooks receive."""

    def __init__(self, ports: WebhookPorts, attributes: AdmissionAttributes) -> None:
        self._ports = ports
        self._attributes_by_version = {attributes.path.version: attributes}
        self._attributes = attributes

    def attributes(self, version: str) -> AdmissionAttributes:
        """Return the attributes with the objects in a version. Raises StatusError (500) if conversion fails."""
        known_attributes = self._attributes_by_version.get(version)
        if known_attributes is None:
            obj, old_object = (
                None if each is None else self._convert(each, self._attributes.path.version, version)
                for each in (self._attributes.obj, self._attributes.old_object)
            )
            known_attributes = self._attributes._replace(obj=obj, old_object=old_object)
            self._attributes_by_version[version] = known_attributes
        return known_attributes

    def convert_back(self, obj: Any, version: str) -> Mapping[str, Any]:
        """Return a patched object in the version of the request."""
        if not isinstance(obj, Mapping):
            raise internal_error("the patch of a webhook replaced the object by another value")
        own_version = self._attributes.path.version
        return obj if version == own_version else self._convert(obj, version, own_version)

    def _convert(self, obj: Mapping[str, Any], version: str, target_version: str) -> Mapping[str, Any]:
        return self._ports.convert(self._attributes, obj, version, target_version)
