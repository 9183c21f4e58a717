"""Garbage collector: deletes the dependents of deleted objects, after or before their owner.

Background: when an object is deleted, each dependent without another existing owner is deleted, recursively. If
`scopes` is set, the collector also deletes objects whose owner does not exist although the server serves its kind. An
API server sets `scopes`; a simulation does not, because its input may omit the owners.
Foreground: a deleted object is only marked, with a finalizer. Its dependents are deleted first. The finalizer is
removed when no dependent with `blockOwnerDeletion` is left.
Orphan: if an object is deleted with the finalizer `orphan`, its dependents stay and lose the owner reference.
If an update or deletion is rejected, the object stays as it is. A cluster-scoped object that names a namespaced owner
also stays, because such an owner is invalid.
Source: Kubernetes's pkg/controller/garbagecollector.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, finalizers_of, group_kind, with_metadata, without_finalizer
from batchyard.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from batchyard.client.informer import OwnerIndex
from batchyard.interfaces import client

NamespacedLookup: TypeAlias = Callable[[str, str], bool | None]
"""Returns, by `apiVersion` and `kind`, whether a kind is namespaced; None if the kind is not served."""

_DELETED: Final = client.EventType.DELETED  # a member is slow to look up by name


class GarbageCollector:
    """The garbage collector: `observe` records changes, and `collect` deletes the dependents of deleted owners."""

    __slots__ = (
        "_deleted_owner_uids",
        "_foreground_deleted",
        "_get",
        "_orphan_deleted",
        "_owners",
        "_uids_to_recheck",
        "_with_new_owners",
        "_write",
        "scopes",
    )

    def __init__(self, get: Callable[[Key], Obj | None], apply_write: Callable[[client.Write], object]) -> None:
        self._get = get
        self._write = apply_write
        #: Returns the scope of a kind. If it is set, an owner that does not exist counts as deleted.
        self.scopes: NamespacedLookup | None = None
        self._owners = OwnerIndex()
        self._with_new_owners: list[Key] = []  # objects with new owner references, whose owners may not exist
        self._deleted_owner_uids: list[str] = []  # uids of deleted owners
        self._orphan_deleted: dict[str, Key] = {}  # by uid, objects that are to orphan their dependents
        self._foreground_deleted: dict[str, Key] = {}  # by uid, objects that wait for their dependents
        self._uids_to_recheck: dict[str, None] = {}  # uids in `_foreground_deleted` to check again

    def owned_by(self, uid: str, namespace: str) -> Sequence[Key]:
        """Return the sorted keys of the dependents of the owner with this uid and namespace ('' if cluster-scoped)."""
        return self._owners.dependents(uid, namespace)

    def observe_existing(self, events: Sequence[client.WatchEvent]) -> None:
        """Record all objects that exist at the start, passed as ADDED events.

        If the attribute `scopes` is None, owners that are not among these objects count as deleted.
        """
        for event in events:
            self.observe(event)
        if self.scopes is not None:
            return  # all owners are checked anyway
        existing_uids = {event.obj["metadata"].get("uid") for event in events}
        self._deleted_owner_uids += [uid for uid in self._owners.owner_uids() if uid not in existing_uids]

    def observe(self, event: client.WatchEvent) -> None:
        """Record a change of an object; `collect` later deletes the dependents of deleted objects."""
        self._owners.observe(event)
        metadata = event.obj["metadata"]
        uid = metadata.get("uid")
        if event.type is not _DELETED:
            if uid in self._foreground_deleted and not _is_deleted_with(FOREGROUND_FINALIZER, metadata):
                del self._foreground_deleted[uid]
            if self.scopes is not None and _has_new_owners(event):
                self._with_new_owners.append(event.key)
            if _is_deleted_with(ORPHAN_FINALIZER, metadata):
                self._orphan_deleted[uid] = event.key
            if uid not in self._foreground_deleted and _is_deleted_with(FOREGROUND_FINALIZER, metadata):
                self._foreground_deleted[uid] = event.key
                self._uids_to_recheck[uid] = None
            if self._foreground_deleted and event.old is not None:
                self._recheck_unblocked_owners(event.old, event.obj)
            return
        if uid in self._owners:
            self._deleted_owner_uids.append(uid)
        if self._foreground_deleted:
            self._foreground_deleted.pop(uid, None)
            self._recheck_owners(metadata)

    def orphan(self, uid: str, namespace: str) -> None:
        """Remove the owner references to the object with this uid, so that the dependents of a deleted owner stay.

        `namespace` is that of the owner, '' if cluster-scoped.
        """
        for key, dependent in self._dependents(uid, namespace):
            owners = [owner for owner in dependent["metadata"]["ownerReferences"] if owner["uid"] != uid]
            self._apply(client.Update(with_metadata(self._get(key) or dependent, ownerReferences=owners or None)))

    def collect(self) -> None:
        """Orphan dependents, delete objects whose owners do not exist, and continue foreground deletions."""
        if self._orphan_deleted:
            self._orphan_dependents()
        if self._deleted_owner_uids:
            self._collect_dependents_of_deleted()
        if self._with_new_owners:
            self._collect_with_missing_owners()
        if self._uids_to_recheck:
            self._continue_foreground_deletions()

    def _recheck_owners(self, metadata: Obj) -> None:
        for owner in metadata.get("ownerReferences") or ():
            if owner["uid"] in self._foreground_deleted:
                self._uids_to_recheck[owner["uid"]] = None

    def _recheck_unblocked_owners(self, old: Obj, new: Obj) -> None:
        references = old["metadata"].get("ownerReferences") or ()
        if references is new["metadata"].get("ownerReferences"):
            return
        for uid in (owner["uid"] for owner in references if owner["uid"] in self._foreground_deleted):
            if _blocks(old, uid) and not _blocks(new, uid):
                self._uids_to_recheck[uid] = None

    def _orphan_dependents(self) -> None:
        orphan_deleted, self._orphan_deleted = self._orphan_deleted, {}
        for uid, key in orphan_deleted.items():
            owner = self._get(key)
            if owner is None or not _is_deleted_with(ORPHAN_FINALIZER, owner["metadata"]):
                continue
            for _, obj in self._dependents(uid, key.namespace):
                remaining_owners = [each for each in obj["metadata"]["ownerReferences"] if each["uid"] != uid]
                self._apply(client.Update(with_metadata(obj, ownerReferences=remaining_owners or None)))
            self._apply(client.Update(without_finalizer(owner, ORPHAN_FINALIZER)))

    def _apply(self, write: client.Write) -> None:
        with suppress(ApiError):  # for example a namespace that cannot be deleted
            self._write(write)

    def _collect_dependents_of_deleted(self) -> None:
        """Delete the dependents of owners that were deleted since the last call (background deletion).

        A dependent with another existing owner is kept, without the references to missing owners. If `scopes` is set,
        `_collect_with_missing_owners` processes the cluster-scoped dependents.
        """
        deleted_uids, self._deleted_owner_uids = self._deleted_owner_uids, []
        for uid in deleted_uids:
            for key in tuple(self._owners.dependents(uid)):
                obj = self._get(key)
                assert obj is not None, "the owner index lists a key that the store does not have"
                if key.namespace or self.scopes is None:
                    self._release_dependent(key, obj)
                else:
                    self._with_new_owners.append(key)

    def _collect_with_missing_owners(self) -> None:
        """Delete each object with new owner references if none of its owners exists.

        An object with another existing owner only loses its references to missing owners. An object is unchanged if
        one of its missing owners does not count as deleted, for example because the server does not serve its kind.
        """
        keys, self._with_new_owners = self._with_new_owners, []
        for key in keys:
            obj = self._get(key)
            owners = () if obj is None else obj["metadata"].get("ownerReferences") or ()
            missing_owners = [owner for owner in owners if not self._owner_exists(owner, key.namespace)]
            if (
                obj is not None
                and missing_owners
                and all(self._counts_as_deleted(owner, key.namespace) for owner in missing_owners)
            ):
                self._release_dependent(key, obj)

    def _release_dependent(self, key: Key, obj: Obj) -> None:
        owners = obj["metadata"]["ownerReferences"]
        references = [owner for owner in owners if self._owner_exists(owner, key.namespace)]
        self._apply(client.Update(with_metadata(obj, ownerReferences=references)) if references else client.Delete(key))

    def _continue_foreground_deletions(self) -> None:
        owner_uids, self._uids_to_recheck = self._uids_to_recheck, {}
        for uid in owner_uids:
            key = self._foreground_deleted.get(uid)
            obj = None if key is None else self._get(key)
            if obj is None:
                continue
            dependents = self._dependents(uid, "" if key is None else key.namespace)
            blocking_dependents = [(blocker, dependent) for blocker, dependent in dependents if _blocks(dependent, uid)]
            for blocker, dependent in blocking_dependents:
                if "deletionTimestamp" not in dependent["metadata"]:
                    self._delete_blocking_dependent(blocker, dependent)
            blockers = (self._get(blocker) for blocker, _ in blocking_dependents)
            if not any(blocking_object is not None and _blocks(blocking_object, uid) for blocking_object in blockers):
                self._apply(client.Update(without_finalizer(obj, FOREGROUND_FINALIZER)))

    def _delete_blocking_dependent(self, key: Key, dependent: Obj) -> None:
        """Delete a blocking dependent, unless another of its owners exists and is not in foreground deletion.

        In this case, it only loses its references to missing owners and to owners in foreground deletion.
        """
        metadata = dependent["metadata"]
        staying_owners = [owner for owner in metadata["ownerReferences"] if self._owner_stays(owner, key.namespace)]
        if staying_owners:
            self._apply(client.Update(with_metadata(dependent, ownerReferences=staying_owners)))
            return
        has_dependents = metadata["uid"] in self._owners
        propagation_policy = client.Propagation.FOREGROUND if has_dependents else None
        self._apply(client.Delete(key, propagation=propagation_policy))

    def _dependents(self, uid: str, namespace: str) -> list[tuple[Key, Obj]]:
        keys = self._owners.dependents(uid, namespace)
        return [(key, obj) for key in keys if (obj := self._get(key)) is not None]

    def _owner_exists(self, owner: Obj, namespace: str) -> bool:
        return self._find_owner(owner, namespace) is not None

    def _counts_as_deleted(self, owner: Obj, namespace: str) -> bool:
        """Return whether an owner that does not exist counts as deleted, so that its dependent is deleted too.

        `owner` is an ownerReference of a dependent in `namespace` ('' if cluster-scoped). The kind of the owner must be
        served, and the owner of a cluster-scoped dependent must be cluster-scoped.
        """
        assert self.scopes is not None
        is_namespaced = self.scopes(owner["apiVersion"], owner["kind"])
        return is_namespaced is not None and (bool(namespace) or not is_namespaced)

    def _owner_stays(self, owner: Obj, namespace: str) -> bool:
        owner_object = self._find_owner(owner, namespace)
        return owner_object is not None and not _is_deleted_with(FOREGROUND_FINALIZER, owner_object["metadata"])

    def _find_owner(self, owner: Obj, namespace: str) -> Obj | None:
        kind, name = group_kind(owner), owner["name"]
        candidates = (self._get(key) for key in (Key(kind, namespace, name), Key(kind, "", name)))
        return next((obj for obj in candidates if obj is not None and obj["metadata"].get("uid") == owner["uid"]), None)


def finalizers_after_deletion(
    obj: Obj, propagation: client.Propagation | None, *, in_foreground: bool
) -> Sequence[str]:
    """Return the finalizers that delay the removal of an object after a deletion with this propagation policy.

    A policy replaces the one of an earlier deletion. Without a policy, the finalizers stay.
    Source: k8s.io/apiserver, pkg/registry/generic/registry/store.go (deletionFinalizersForGarbageCollection).
    """
    finalizers = finalizers_of(obj)
    if propagation is None:
        return finalizers
    other_finalizers = [name for name in finalizers if name not in (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)]
    new_finalizers = [*other_finalizers, FOREGROUND_FINALIZER] if in_foreground else other_finalizers
    return finalizers if {*new_finalizers} == {*finalizers} else new_finalizers


def _has_new_owners(event: client.WatchEvent) -> bool:
    _, _, obj, old, _ = event
    owners = obj["metadata"].get("ownerReferences")
    return owners is not None and (old is None or old["metadata"].get("ownerReferences") is not owners)


def _is_deleted_with(finalizer: str, metadata: Obj) -> bool:
    return "deletionTimestamp" in metadata and finalizer in metadata.get("finalizers", ())


def _blocks(dependent: Obj, uid: str) -> bool:
    owners = dependent["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)
