"""What bindings of roles leave unsaid. Source: Kubernetes's pkg/apis/rbac/v1/defaults.go."""

from typing import Final

from batchyard.api.meta import Obj

_GROUP: Final = "rbac.authorization.k8s.io"


def binding_defaults(binding: Obj) -> Obj:
    """Users and groups say of which API group they are."""
    subjects = binding.get("subjects") or ()
    completed = [_completed(subject) for subject in subjects]
    return {**binding, "subjects": completed} if completed != list(subjects) else binding


def _completed(subject: Obj) -> Obj:
    if subject["kind"] not in {"User", "Group"} or subject.get("apiGroup"):
        return subject
    return {**subject, "apiGroup": _GROUP}
