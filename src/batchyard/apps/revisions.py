"""ControllerRevisions: the stored pod templates of StatefulSets and DaemonSets, for updates and rollbacks.

Sources: pkg/controller/history of Kubernetes (controller_history.go), pkg/controller/statefulset
(stateful_set_control.go), pkg/controller/daemon (update.go).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta, scheme, well_known
from batchyard.apps import children
from batchyard.interfaces.client import Create, Delete, Reader, Update, Write

REVISION_HASH: Final = well_known.REVISION_HASH
_NAME_PREFIX_LENGTH_MAX: Final = 223


class RevisionHistory:
    """The ControllerRevisions of a StatefulSet or DaemonSet, the one of its current template, and the writes for it."""

    def __init__(self, owner: meta.Obj, reader: Reader) -> None:
        """Read the history, and find or create the revision of the current template."""
        self._owner = owner
        namespace, uid = owner["metadata"].get("namespace", ""), owner["metadata"]["uid"]
        self.collision_count: int = (owner.get("status") or {}).get("collisionCount") or 0
        self.writes: list[Write] = []
        owned = [obj for obj in reader.owned_by(uid, namespace) if meta.group_kind(obj) == scheme.CONTROLLER_REVISION]
        self.revisions: Sequence[meta.Obj] = sorted(
            owned, key=lambda each: (each["revision"], children.oldest_first(each))
        )
        self.update: meta.Obj = self._current_revision(reader)

    def find(self, name: str) -> meta.Obj | None:
        """Return the revision with a name; None if it does not exist."""
        return next((each for each in (*self.revisions, self.update) if each["metadata"]["name"] == name), None)

    def delete_old(
        self, live: Collection[str], identify: Callable[[meta.Obj], str], *, counts_live: bool = False
    ) -> None:
        """Delete the oldest revisions beyond the history limit, except those that `identify` finds in `live`.

        `counts_live`: whether live old revisions count for the limit.
        """
        limit = children.limit_of(self._owner, "revisionHistoryLimit")
        old = [each for each in self.revisions if each["metadata"]["name"] != self.update["metadata"]["name"]]
        dead = [each for each in old if identify(each) not in live]
        if limit is not None:
            for each in dead[: max(0, len(old if counts_live else dead) - limit)]:
                self.writes.append(Delete(meta.key_of(each), uid=each["metadata"]["uid"]))

    def _current_revision(self, reader: Reader) -> meta.Obj:
        data = template_data(self._owner)
        next_number = self.revisions[-1]["revision"] + 1 if self.revisions else 1
        equal_revisions = [each for each in self.revisions if each.get("data") == data]
        if equal_revisions and equal_revisions[-1] is self.revisions[-1]:
            return equal_revisions[-1]
        if equal_revisions:  # a rollback
            restored = {**equal_revisions[-1], "revision": next_number}
            self.writes.append(Update(restored))
            return restored
        while True:
            created = self._new_revision(data, next_number)
            existing = reader.get(meta.key_of(created))
            if existing is None:
                self.writes.append(Create(created))
                return created
            if existing.get("data") == data and existing in self.revisions:
                return existing
            self.collision_count += 1

    def _new_revision(self, data: Mapping[str, Any], number: int) -> meta.Obj:
        metadata = self._owner["metadata"]
        hash_text = children.template_hash(data, self.collision_count)
        labels = (self._owner["spec"]["template"].get("metadata") or {}).get("labels") or {}
        annotations = metadata.get("annotations")
        revision_metadata = {
            "name": f"{metadata['name'][:_NAME_PREFIX_LENGTH_MAX]}-{hash_text}",
            "namespace": metadata.get("namespace", ""),
            "labels": {**labels, REVISION_HASH: hash_text},
            **({"annotations": annotations} if annotations else {}),
            "ownerReferences": [meta.controller_reference(self._owner)],
        }
        type_meta = {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
        return {**type_meta, "metadata": revision_metadata, "data": data, "revision": number}


def template_data(owner: meta.Obj) -> Mapping[str, Any]:
    """Return the data of the revision of an object: a strategic merge patch that restores its pod template."""
    return {"spec": {"template": {**owner["spec"]["template"], "$patch": "replace"}}}


def template_of(revision: meta.Obj) -> Mapping[str, Any]:
    """Return the pod template that a revision stores."""
    template = ((revision.get("data") or {}).get("spec") or {}).get("template") or {}
    return {field: value for field, value in template.items() if field != "$patch"}


def revision_hash_of(obj: meta.Obj) -> str:
    """Return the label of a pod or revision that identifies the revision; '' if it has none."""
    return meta.label(obj, REVISION_HASH) or ""


def hashes_of(pods: Iterable[meta.Obj]) -> set[str]:
    """Return the revision labels of pods."""
    return set(map(revision_hash_of, pods))
