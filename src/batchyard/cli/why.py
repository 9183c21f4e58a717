"""`batchyard why`: asks a cluster, or a simulation, why something is as it is, and prints the answer."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.options import Output
from batchyard.cli.reaching import REFUSALS, Target, UnreachableError, answered
from batchyard.cli.tables import render_json, render_yaml
from batchyard.cli.told_why import lines_of
from batchyard.client.resource_paths import path_of, path_of_kind

if TYPE_CHECKING:
    from batchyard.sim.state import State
    from batchyard.sim.world import World

FORMS: Final = "workload/NAME, job/NAME, jobset/NAME, pod/NAME or clusterqueue/NAME"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_SHORT: Final = {"wl": scheme.WORKLOAD, "po": scheme.POD, "cq": scheme.CLUSTER_QUEUE}
#: What is answered where there is no such part, to whoever has no right to it either.
_NO_SUCH_PART: Final = (404, 403)
_NEAR_MAX: Final = 5


class Subject(NamedTuple):
    """What is asked about; without a namespace, in that which the kubeconfig says."""

    kind: str
    namespace: str
    name: str

    @staticmethod
    def read(text: str, namespace: str) -> "Subject | None":
        """`kind/name` as kubectl takes it; None if it is none of ours."""
        word, _, name = text.partition("/")
        kind = _by_word().get(word.lower().partition(".")[0])
        if kind is None or not name or "/" in name:
            return None
        return Subject(kind, namespace if kind_info(kind).namespaced else "", name)

    @property
    def info(self) -> ServedKind:
        """Its kind."""
        return kind_info(self.kind)


class Simulated(NamedTuple):
    """A simulation to ask."""

    paths: Sequence[str]
    at: Duration | None
    seed: int


def of_cluster(subject: Subject, target: Target, form: Output) -> None:
    """Ask a cluster; exits with 1 where there is no answer."""
    info = subject.info
    part = info.versions[-1] if info.group == "kueue.x-k8s.io" else info.storage_version

    def path_in(namespace: str) -> str:
        return path_of(info, part, subject.namespace or namespace, quote(subject.name), "why")

    try:
        found = answered(target, path_in)
    except UnreachableError as error:
        names = _names_in_cluster(subject, target) if error.code in _NO_SUCH_PART else []
        if subject.name in names:
            _worked_out_here(subject, target, form)
            return
        output.fail(f"batchyard: {error}{_near(subject.name, names)}")
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")
    output.write(_written(found, form))


def of_simulation(subject: Subject, simulated: Simulated, form: Output) -> None:
    """Run manifests up to a moment, and ask then; exits with 1 where there is no such object.

    A state that was taken is asked as it is, unless a later moment is named.
    """
    from batchyard.cli.simulate import Request, begun  # noqa: PLC0415 - only here
    from batchyard.cli.state_files import state_from  # noqa: PLC0415 - only here
    from batchyard.sim.simulate import Options, Simulation  # noqa: PLC0415 - only here
    from batchyard.sim.state_document import is_state  # noqa: PLC0415 - only here

    if simulated.at is None and len(simulated.paths) == 1 and is_state(simulated.paths[0]):
        of_state(subject, state_from(simulated.paths[0]), form)
        return
    scenario, state = begun(Request(simulated.paths, None, simulated.at, simulated.seed))
    simulation = Simulation(scenario, Options(simulated.at, simulated.seed, state=state))
    simulation.advance()
    simulation.result()
    ask(simulation.world, subject, form)


def of_state(subject: Subject, state: "State", form: Output) -> None:
    """Ask a state as it is: nobody has decided anything since."""
    from batchyard.sim.whatif import start_of  # noqa: PLC0415 - only here
    from batchyard.sim.world import World  # noqa: PLC0415 - only here

    ask(World(start_of(state).scenario, state=state), subject, form)


def ask(world: "World", subject: Subject, form: Output) -> None:
    """Ask a world as it stands; exits with 1 where there is no such object."""
    key = _found_in(world, subject)
    found = world.platform.explainer.why(key, world.kernel.now())
    assert found is not None, "it was found just now"
    output.write(_written(found, form))


def _found_in(world: "World", subject: Subject) -> Key:
    """The object that is meant: without a namespace the only one of that name."""
    every = [obj["metadata"] for obj in world.objects(subject.kind)]
    found = [each for each in every if each["name"] == subject.name]
    if subject.namespace:
        found = [each for each in found if each.get("namespace", "") == subject.namespace]
    if len(found) == 1:
        return Key(subject.kind, found[0].get("namespace", ""), subject.name)
    if found:
        homes = sorted(each.get("namespace", "") for each in found)
        output.fail(
            f"batchyard: {subject.info.singular} {subject.name} is in {', '.join(homes)}: say --namespace {homes[0]}"
        )
    names = [_full_name(each) for each in every]
    where = f" in namespace {subject.namespace}" if subject.namespace else ""
    near = _near(subject.name, names)
    return output.fail(f"batchyard: there is no {subject.info.singular} {subject.name}{where}{near}")


def _worked_out_here(subject: Subject, target: Target, form: Output) -> None:
    """Answer for a server that has no such part, as any but a platform of ours: from its objects as they are now."""
    from batchyard.cli.states import Where, state_from  # noqa: PLC0415 - only here

    of_state(subject, state_from(None, Where(*target)), form)


def _names_in_cluster(subject: Subject, target: Target) -> list[str]:
    """What there is of its kind, as far as we may look."""
    info = subject.info
    for version in reversed(info.versions):

        def path_in(namespace: str, version: str = version) -> str:
            within = subject.namespace or namespace
            return path_of(info, version, within) if info.namespaced else path_of_kind(info, version)

        try:
            return [each["metadata"]["name"] for each in answered(target, path_in).get("items") or ()]
        except REFUSALS:
            continue
    return []


def _near(name: str, names: Sequence[str]) -> str:
    """The names most like one that is not there."""
    parts = [each for each in names if name in each]
    near = list(dict.fromkeys([*parts, *get_close_matches(name, names, _NEAR_MAX, 0.5)]))[:_NEAR_MAX]
    return f"; there is {', '.join(near)}" if near else ""


def _full_name(metadata: Mapping[str, Any]) -> str:
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _by_word() -> dict[str, str]:
    """The kinds by the words for them."""
    words = dict(_SHORT)
    for kind in _KINDS:
        info = kind_info(kind)
        words |= {info.singular: kind, info.plural: kind}
    return words


def _written(found: Mapping[str, Any], form: Output) -> str:
    if form is Output.JSON:
        return render_json(found)
    if form is Output.YAML:
        return render_yaml(found)
    return "\n".join(lines_of(found, is_wide=form is Output.WIDE)) + "\n"
