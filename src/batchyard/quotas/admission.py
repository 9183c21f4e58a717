"""ResourceQuota admission plugin.

Usage is that of the store at the moment of the check, so concurrent requests can never exceed the quota together. A
quota applies as soon as it exists, with its spec; its usage is never unknown.
Source: k8s.io/apiserver, pkg/admission/plugin/resourcequota.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from batchyard.admission_plugins.pods import forbidden
from batchyard.api import scheme
from batchyard.api.errors import RefusedForNow
from batchyard.api.meta import Obj, group_kind
from batchyard.api.quantity import canonical, formatted, parse
from batchyard.api.times import parse_time
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.quotas.ledger import QuotaLedger, QuotaTally
from batchyard.quotas.usage import Usage, family_in, is_ending, unspecified_resources


class _QuotaCharge(NamedTuple):
    """The additional usage of an object in one quota."""

    quota: Obj
    tally: QuotaTally
    more: Usage


class QuotaAdmission:
    """Checks new and changed objects against quotas. It must observe every change as it happens."""

    def __init__(self) -> None:
        self._ledger = QuotaLedger()

    def observe(self, event: WatchEvent) -> None:
        """Process a change."""
        self._ledger.observe(event)

    def check_new(self, obj: Obj, reader: Reader) -> None:
        """Check a new object. Raise RefusedForNow if it exceeds a quota."""
        quotas = reader.list(scheme.RESOURCE_QUOTA, obj["metadata"].get("namespace", ""))
        if quotas:
            self._check(obj, None, quotas, reader)

    def check_changed(self, new: Obj, old: Obj, reader: Reader) -> None:
        """Check the additional usage of a changed object in the same way."""
        quotas = reader.list(scheme.RESOURCE_QUOTA, new["metadata"].get("namespace", ""))
        if quotas and (group_kind(new) != scheme.POD or is_ending(new) != is_ending(old)):
            self._check(new, old, quotas, reader)

    def _check(self, obj: Obj, old: Obj | None, quotas: Sequence[Obj], reader: Reader) -> None:
        kind = group_kind(obj)
        bills: list[_QuotaCharge] = []
        for quota in quotas:
            tally = self._ledger.tally(quota, reader)
            tally.release_late(parse_time(obj["metadata"]["creationTimestamp"]))
            if not tally.is_about(obj, kind):
                continue
            if kind == scheme.POD and (words := unspecified_resources(obj, tally.used)):
                raise _refused(obj, f"failed quota: {_name(quota)}: must specify {words}")
            charge = tally.charge(obj, kind)
            before = {} if old is None else tally.charge(old, kind)
            more = {name: amount - before.get(name, 0) for name, amount in charge.items()}
            bills.append(_QuotaCharge(quota, tally, {name: amount for name, amount in more.items() if amount > 0}))
        for bill in bills:
            _check_bill(obj, bill)


def _check_bill(obj: Obj, bill: _QuotaCharge) -> None:
    hard, tally = bill.quota["spec"].get("hard") or {}, bill.tally
    over = sorted(name for name, amount in bill.more.items() if tally.used[name] + amount > parse(hard[name]))
    if over:
        requested = _listed(over, {name: formatted(bill.more[name], family_in(obj, name)) for name in over})
        used = _listed(over, {name: tally.shown(name) for name in over})
        limited = _listed(over, {name: canonical(hard[name]) for name in over})
        amounts = f"requested: {requested}, used: {used}, limited: {limited}"
        raise _refused(obj, f"exceeded quota: {_name(bill.quota)}, {amounts}")


def _name(quota: Obj) -> str:
    name: str = quota["metadata"]["name"]
    return name


def _refused(obj: Obj, why: str) -> RefusedForNow:
    return RefusedForNow(f"{forbidden(obj)}: {why}")


def _listed(names: Iterable[str], amounts: Mapping[str, str]) -> str:
    return ",".join(f"{name}={amounts[name]}" for name in names)
