"""Loads the evaluation of admission policies, with the CEL library, when the first policy is stored."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchyard.apiserver.admission.attributes import POLICY_KINDS, AdmissionAttributes, PolicyVerdict
from batchyard.apiserver.auth.authorization import Authorizer
from batchyard.apiserver.resources import ResourcePath, Resources
from batchyard.interfaces.client import ObjectReader, WatchEvent

if TYPE_CHECKING:
    from batchyard.apiserver.policies.admission import PolicyAdmission


class PolicyLoader:
    """Loads the evaluation of admission policies when the first policy or binding is stored, and gives access to it."""

    def __init__(self, objects: ObjectReader, resources: Resources, authorizer: Authorizer) -> None:
        self._arguments = objects, resources, authorizer
        #: The admission policies; None until the first policy or binding is stored.
        self.policies: PolicyAdmission | None = None
        if any(objects.list(kind) for kind in POLICY_KINDS):
            self._load()

    def observe(self, event: WatchEvent) -> None:
        """Note the change of a policy or a binding."""
        if event.key.kind in POLICY_KINDS:
            (self.policies or self._load()).observe(event)

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        """Return whether the rules of a policy match an operation on a resource, before selectors are considered."""
        return self.policies is not None and self.policies.may_match(operation, path)

    @property
    def mutates(self) -> bool:
        """Whether a MutatingAdmissionPolicy with a binding is stored."""
        return self.policies is not None and self.policies.mutates

    @property
    def validates(self) -> bool:
        """Whether a ValidatingAdmissionPolicy with a binding is stored."""
        return self.policies is not None and self.policies.validates

    def mutate(self, attributes: AdmissionAttributes) -> Mapping[str, Any] | None:
        """Return the object of a request as the policies change it. Raises StatusError if a policy fails."""
        return attributes.obj if self.policies is None else self.policies.mutate(attributes)

    def validate(self, attributes: AdmissionAttributes) -> PolicyVerdict:
        """Return the verdict of the policies about a request. Raises StatusError if a policy denies it."""
        verdict = PolicyVerdict(None) if self.policies is None else self.policies.validate(attributes)
        if verdict.error is not None:
            verdict.error.annotations = verdict.annotations
            raise verdict.error
        return verdict

    def _load(self) -> "PolicyAdmission":
        from batchyard.apiserver.policies.admission import PolicyAdmission  # noqa: PLC0415 - loads the CEL library

        self.policies = PolicyAdmission(*self._arguments)
        return self.policies
