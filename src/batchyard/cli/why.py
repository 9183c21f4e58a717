"""`batchyard why`: asks a cluster or a simulation for the reason of an object's state, and prints it."""

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
from batchyard.cli.reaching import REFUSALS, ClusterTarget, UnreachableError, answered
from batchyard.cli.tables import render_json, render_yaml
from batchyard.cli.told_why import lines_of
from batchyard.client.resource_paths import path_of, path_of_kind

if TYPE_CHECKING:
    from batchyard.sim.state import State
    from batchyard.sim.world import World

FORMS: Final = "workload/NAME, job/NAME, jobset/NAME, pod/NAME or clusterqueue/NAME"
_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE)
_SHORT: Final = {"wl": scheme.WORKLOAD, "po": scheme.POD, "cq": scheme.CLUSTER_QUEUE}
#: Answers of a server without the `why` subresource; 403 without rights for it.
_NO_SUCH_PART: Final = (404, 403)
_NEAR_MAX: Final = 5


class Subject(NamedTuple):
    """The object to explain; without a namespace in that of the kubeconfig."""

    kind: str
    namespace: str
    name: str

    @staticmethod
    def read(text: str, namespace: str) -> "Subject | None":
        """Parse `kind/name` in kubectl's notation; None if malformed or of another kind."""
        word, _, name = text.partition("/")
        kind = _by_word().get(word.lower().partition(".")[0])
        if kind is None or not name or "/" in name:
            return None
        return Subject(kind, namespace if kind_info(kind).namespaced else "", name)

    @property
    def info(self) -> ServedKind:
        """The kind's registration."""
        return kind_info(self.kind)


class Simulated(NamedTuple):
    """The simulation to ask."""

    paths: Sequence[str]
    at: Duration | None
    seed: int


def of_cluster(subject: Subject, target: ClusterTarget, form: Output) -> None:
    """Ask a cluster and print the answer; ends the command with 1 on failure."""
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
    """Run manifests up to an instant and explain the object; ends the command with 1 if it does not exist.

    A state file is explained as is, unless a later instant is given.
    """
    from batchyard.cli.simulate import SimulateRequest, begun  # noqa: PLC0415 - loads the simulator
    from batchyard.cli.state_files import state_from  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.simulate import Simulation, SimulationOptions  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.state_document import is_state  # noqa: PLC0415 - loads the simulator

    if simulated.at is None and len(simulated.paths) == 1 and is_state(simulated.paths[0]):
        of_state(subject, state_from(simulated.paths[0]), form)
        return
    scenario, state = begun(SimulateRequest(simulated.paths, None, simulated.at, simulated.seed))
    simulation = Simulation(scenario, SimulationOptions(simulated.at, simulated.seed, state=state))
    simulation.advance()
    simulation.result()
    ask(simulation.world, subject, form)


def of_state(subject: Subject, state: "State", form: Output) -> None:
    """Explain an object of a state as is, without running the controllers."""
    from batchyard.sim.whatif import start_of  # noqa: PLC0415 - loads the simulator
    from batchyard.sim.world import World  # noqa: PLC0415 - loads the simulator

    ask(World(start_of(state).scenario, state=state), subject, form)


def ask(world: "World", subject: Subject, form: Output) -> None:
    """Explain an object of a world; ends the command with 1 if it does not exist."""
    key = _found_in(world, subject)
    found = world.platform.explainer.why(key, world.kernel.now())
    assert found is not None, "the object exists"
    output.write(_written(found, form))


def _found_in(world: "World", subject: Subject) -> Key:
    """The key of the subject; without a namespace its name must be unique."""
    every = [obj["metadata"] for obj in world.objects(subject.kind)]
    found = [each for each in every if each["name"] == subject.name]
    if subject.namespace:
        found = [each for each in found if each.get("namespace", "") == subject.namespace]
    if len(found) == 1:
        return Key(subject.kind, found[0].get("namespace", ""), subject.name)
    if found:
        homes = sorted(each.get("namespace", "") for each in found)
        output.fail(
            f"batchyard: {subject.info.singular} {subject.name} is in {', '.join(homes)}: use --namespace {homes[0]}"
        )
    names = [_full_name(each) for each in every]
    where = f" in namespace {subject.namespace}" if subject.namespace else ""
    near = _near(subject.name, names)
    return output.fail(f"batchyard: not found: {subject.info.singular} {subject.name}{where}{near}")


def _worked_out_here(subject: Subject, target: ClusterTarget, form: Output) -> None:
    """Explain locally for a server that does not serve `why`, from its current objects."""
    from batchyard.cli.states import ClusterSource, state_from  # noqa: PLC0415 - loads the simulator

    of_state(subject, state_from(None, ClusterSource(*target)), form)


def _names_in_cluster(subject: Subject, target: ClusterTarget) -> list[str]:
    """The names of the kind's objects, as far as the user may list them."""
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
    """The existing names most similar to a missing one."""
    parts = [each for each in names if name in each]
    near = list(dict.fromkeys([*parts, *get_close_matches(name, names, _NEAR_MAX, 0.5)]))[:_NEAR_MAX]
    return f"; similar names: {', '.join(near)}" if near else ""


def _full_name(metadata: Mapping[str, Any]) -> str:
    namespace = metadata.get("namespace", "")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _by_word() -> dict[str, str]:
    """The kinds by their singular, plural and short names."""
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
