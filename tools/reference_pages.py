"""Generates pages of docs/reference from the code; a test fails if a page is out of date.

    python tools/reference_pages.py [FOLDER]

With FOLDER, the script writes the pages to that folder instead. The pages are: the command line, the Python API, kinds
and annotations, Kueue's Configuration, Events and their reasons.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import typer

import batchyard
from batchyard.api import scheme, well_known
from batchyard.api.validation import feature_gates
from batchyard.cli.app import COMMANDS, app
from batchyard.scheduling import kueue_gates

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "reference"
SRC: Final = ROOT / "src" / "batchyard"
_FIELDS: Final = SRC / "api" / "schema" / "fields"
_NOTICE: Final = "<!-- Made by tools/reference_pages.py (make reference). Change the code, not this page. -->\n"
_OWN_GROUP: Final = "batchyard.dev"

#: What each label, annotation and finalizer of batchyard is for, by the constant that names it.
_NAMES: Final[Mapping[str, tuple[str, str]]] = {
    "AFTER": ("jobs in queues", "the jobs that must finish before: `ok:a,any:jobset/b,notok:c`"),
    "AFTER_STATUS": ("jobs in queues", "the state of each of these dependencies; written by batchyard"),
    "SUBMIT_AT": ("any object of a simulation", "when the object is created, counted from the start: `5m`"),
    "DELETE_AT": ("any object of a simulation", "when the object is deleted"),
    "RUNTIME": ("Jobs, JobSets, pods", "how long a simulated pod runs: `30m`"),
    "EXIT_CODE": ("pods", "the exit code of a simulated container; 0 by default"),
    "CHECKPOINT_EVERY": ("Jobs, JobSets, pods", "the interval at which simulated pods save their work"),
    "RESTART_TIME": ("Jobs, JobSets", "how long a restarted job takes until it continues its work; counts as lost"),
    "PREEMPT_MIN_RUNTIME": (
        "ClusterQueues, Cohorts",
        "how long Workloads run before Workloads of the same ClusterQueue may preempt them",
    ),
    "PARTIAL_START": (
        "elastic Jobs",
        "`true`: the Job starts with the pods that have quota; requires the scale-up strategy `partial`",
    ),
    "FULL_PARALLELISM": (
        "Jobs",
        "after a partial preemption, the parallelism that the Job requests again; set by batchyard",
    ),
    "PARTIALLY_PREEMPTED_AT": ("Jobs", "when the last partial preemption began; set by batchyard"),
    "PARTIAL_PREEMPTIONS": (
        "Jobs",
        "the number of partial preemptions, which determines the backoff; set by batchyard",
    ),
    "RECLAIM_MIN_RUNTIME": ("ClusterQueues, Cohorts", "the same for Workloads of other ClusterQueues"),
    "VICTIMS": ("ClusterQueues", "`cheapest`: the Workloads with the cheapest restart are preempted first"),
    "CHECKS": ("Workloads without a Job", "the states that admission checks get in a simulation, as JSON"),
    "PODS_READY": ("Workloads without a Job", "when the pods are ready in a simulation, as JSON"),
    "WORK_DONE": ("Jobs, JobSets", "the saved work of simulated pods; written by the simulator"),
    "WORK_FINALIZER": ("pods", "a finalizer that keeps a simulated pod until its work is saved"),
    "GPU_MILLI": ("resource name", "thousandths of a GPU, for pods that share a GPU"),
    "GPU_INDEX": ("pods", "the indices of the GPUs that a pod with `gpu-milli` shares"),
    "PROVIDED": (
        "objects that the platform creates",
        "marks the object; if a client creates an object of the same name, it replaces this one",
    ),
    "INSTANCE_FINALIZER": (
        "Instances",
        "a finalizer that keeps the Instance until the machine is off and its node is deleted",
    ),
    "INITIAL_INSTANCE": ("Instances", "marks the machines that exist from the start"),
    "RESIZE_REQUEST_UID": ("Instances", "the uid of the ResizeRequest that created the machine"),
    "NODE_POOL_FINALIZER": ("NodePools", "a finalizer that keeps the pool until it has no machines"),
    "APPLIED_NODE_POOLS": ("Clusters", "a hash of each row of `spec.nodePools` that the platform has applied, as JSON"),
    "PRICE": (
        "nodes, ResourceFlavors",
        "the price of the node in dollars an hour; the relative price of quota in the flavor",
    ),
    "HELD_BY": ("LocalQueues", "the Budget that holds the queue"),
    "STOP_POLICY_BEFORE": ("LocalQueues", "the `stopPolicy` that the queue had before a Budget held it"),
    "PRIORITY_BOOST": ("Workloads", "the priority that a Budget adds; negative for demoted Workloads"),
}
#: The environment variables that commands read beside those of their options.
_ENVIRONMENT: Final = (
    (
        "BATCHYARD_NODE_WITHOUT",
        "up --cluster local",
        "names of capabilities that the node does not use, separated by commas, such as `userns,podman`",
    ),
)


def pages() -> Mapping[str, str]:
    """Return the generated pages by file name."""
    made = {
        "cli.md": _command_line(),
        "python.md": _python_api(),
        "kinds.md": _kinds(),
        "configuration.md": _configuration(),
        "events.md": _events(),
    }
    return {name: _NOTICE + "\n" + "\n".join(lines).rstrip() + "\n" for name, lines in made.items()}


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *([_cell(cell) for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;") or " "


# The command line.


def _command_line() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    context = group.context_class(group, info_name="batchyard")
    yield from (
        "# Command line",
        "",
        "This page lists every command of `batchyard`, with its arguments and options.",
        "",
    )
    yield from _table(("group", "command", "what it does"), _command_rows())
    yield from (
        "## Exit codes",
        "",
        "All commands have these exit codes. `submit` has [more exit codes](../how-to/submit.md#exit-codes).",
        "",
    )
    yield from _table(
        ("code", "meaning"),
        ((0, "success"), (1, "invalid input, or a failed run"), (2, "wrong usage"), (130, "Ctrl-C")),
    )
    yield from ("## Environment variables", "")
    rows = [
        *_option_variables(group, context),
        *((f"`{name}`", f"`{where}`", text) for name, where, text in _ENVIRONMENT),
    ]
    yield from _table(("variable", "read by", "meaning"), rows)
    for name in COMMANDS:
        yield from _command(group.get_command(context, name), context, f"batchyard {name}")


def _command_rows() -> Iterator[tuple[str, str, str]]:
    for name, entry in COMMANDS.items():
        yield entry.group, f"[`{name}`](#batchyard-{name})", entry.summary


def _option_variables(group: Any, context: Any) -> Iterator[tuple[str, str, str]]:
    found: dict[str, list[tuple[str, Any]]] = {}
    for name in COMMANDS:
        for path, command in _commands(group.get_command(context, name), context, name):
            for parameter in command.params:
                for variable in [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ():
                    found.setdefault(variable, []).append((path, parameter))
    for variable, uses in sorted(found.items()):
        where = ", ".join(f"`{path}`" for path, _ in uses)
        yield f"`{variable}`", where, f"the default of `{uses[0][1].opts[0]}`"


def _commands(command: Any, parent: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and its subcommands with their names."""
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield path, command
    context = command.context_class(command, info_name=command.name, parent=parent)
    for name in subcommands:
        yield from _commands(command.get_command(context, name), context, f"{path} {name}")


def _command(command: Any, parent: Any, title: str) -> Iterator[str]:
    yield from (f"## {title}" if title.count(" ") == 1 else f"### {title}", "")
    yield from (_paragraphs(command.help), "")
    if subcommands := getattr(command, "commands", {}):
        context = command.context_class(command, info_name=command.name, parent=parent)
        for name in subcommands:
            yield from _command(command.get_command(context, name), context, f"{title} {name}")
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    usage = " ".join([title, "[OPTION]...", *(_argument(argument) for argument in arguments)])
    yield from ("```text", usage, "```", "")
    if arguments:
        yield from _table(("argument", "meaning"), ((f"`{_argument(one)}`", one.help or "") for one in arguments))
    rows = (
        (_names(option), _default(option), f"{option.help or ''}{_choices(option)}")
        for option in options
        if not option.hidden
    )
    yield from _table(("option", "default", "meaning"), rows)


def _paragraphs(text: str | None) -> str:
    return inspect.cleandoc((text or "").replace("\b", "").replace("\f", "").strip())


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _names(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else f" {option.metavar or ('CHOICE' if _choices(option) else 'VALUE')}"
    return f"`{names}{value}`"


def _choices(option: Any) -> str:
    """Return the values that an option accepts, as a sentence; empty if they are not listed."""
    choices = option.type_descriptor.choices or ()
    return (
        "".join([" One of ", ", ".join(f"`{getattr(one, 'value', one)}`" for one in choices), "."]) if choices else ""
    )


def _default(option: Any) -> str:
    value = option.default
    shown = option.show_default
    if isinstance(shown, str):
        return f"({shown.strip('()')})"
    if value in (None, "", False, (), []) or callable(value) or value is Ellipsis:
        return ""
    return f"`{getattr(value, 'value', value)}`"


# The Python API.


def _python_api() -> Iterator[str]:
    intro = "`from batchyard import simulate` runs manifests in virtual time."
    intro += " `from batchyard import job` runs functions as Jobs."
    yield from ("# Python API", "", intro, "")
    for name in batchyard.__all__:
        value: Any = getattr(batchyard, name)
        yield from (f"## {name}", "", *_signature(name, value), _docstring(value), "")
        if rows := list(_attributes(value)) if inspect.isclass(value) else []:
            yield from _table(("attribute", "type or meaning"), rows)


def _signature(name: str, value: Any) -> Iterator[str]:
    """Yield the signature of a function with one parameter per line."""
    if inspect.isfunction(value):
        parameters = [str(one) for one in inspect.signature(value).parameters.values()]
        first = next(iter(inspect.signature(value).parameters.values()))
        is_variadic = first.kind is inspect.Parameter.VAR_POSITIONAL
        options = parameters[1:] if is_variadic else parameters
        lines = [_plain(one) for one in (parameters[:1] if is_variadic else []) + options]
        yield from ("```python", f"{name}(", *(f"    {line}," for line in lines), ")", "```", "")


def _plain(parameter: str) -> str:
    """Return a parameter without the modules of its type; an enum default is written as the member's value."""
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", parameter)
    return re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", text)


def _docstring(value: Any) -> str:
    """Return the docstring of a value, with its example as a code block."""
    text, prompt, example = (inspect.getdoc(value) or "").partition(">>> ")
    return f"{text.rstrip()}\n\n```pycon\n{prompt}{example.rstrip()}\n```" if prompt else text.rstrip()


def _attributes(value: type) -> Iterator[tuple[str, str]]:
    annotations = inspect.get_annotations(value)
    for name in annotations:
        if not name.startswith("_"):
            kind = getattr(annotations[name], "__name__", annotations[name])
            yield f"`{name}`", f"`{kind}`"
    for name, member in vars(value).items():
        text = inspect.getdoc(member) if not isinstance(member, str | int) else None
        if not name.startswith("_") and name not in annotations and text:
            call = "()" if inspect.isfunction(member) else ""
            yield f"`{name}{call}`", text.partition("\n\n")[0]


# Kinds and annotations.


def _kinds() -> Iterator[str]:
    yield from ("# Kinds, labels and annotations", "")
    yield from ("`batchyard up` serves these kinds. No controller acts on kinds that are marked *stored only*.", "")
    served = [kind for kind in scheme.KINDS if kind.constant not in scheme.FILE_KINDS]
    yield from _table(("kind", "versions", "scope", "names for kubectl"), map(_kind_row, served))
    yield from ("## Labels, annotations and finalizers of batchyard", "")
    yield from _table(("name", "on", "meaning"), _name_rows())
    for kind in scheme.KINDS:
        if kind.group.endswith(_OWN_GROUP):
            yield from _fields_of(kind)


def _kind_row(kind: scheme.ServedKind) -> tuple[str, ...]:
    versions = ", ".join(kind.api_version_for(version) for version in kind.versions)
    note = " (*stored only*)" if kind.is_idle else ""
    scope = "namespace" if kind.namespaced else "cluster"
    return f"{kind.kind}{note}", versions, scope, ", ".join([kind.plural, *kind.short_names])


def _name_rows() -> Iterator[tuple[str, str, str]]:
    named = {name: value for name, value in vars(well_known).items() if name.isupper() and _is_ours(value)}
    if unknown := named.keys() ^ _NAMES.keys():
        raise LookupError(f"tools/reference_pages.py: describe or remove {', '.join(sorted(unknown))} in _NAMES")
    for name, value in sorted(named.items(), key=lambda item: item[1]):
        yield f"`{value}`", *_NAMES[name]


def _is_ours(value: object) -> bool:
    return isinstance(value, str) and re.match(r"(?:\w+\.)?batchyard\.dev/", value) is not None


@cache
def _descriptions() -> Mapping[str, str]:
    loaded: Mapping[str, str] = json.loads((SRC / "api" / "schema" / "descriptions.json").read_text("utf-8"))
    return loaded


def _fields_of(kind: scheme.ServedKind) -> Iterator[str]:
    """Yield the section of a kind with all its fields."""
    table = json.loads((_FIELDS / f"{kind.group.partition('.')[0]}.{kind.storage_version}.json").read_text("utf-8"))
    yield from (
        f"## {kind.kind}",
        "",
        f"`apiVersion: {kind.api_version}`. {_descriptions().get(kind.kind, '')}".strip(),
        "",
    )
    yield from _table(("field", "type", "meaning"), _field_rows(table, kind.kind, ""))


def _field_rows(table: Mapping[str, Any], type_name: str, path: str) -> Iterator[tuple[str, str, str]]:
    for name, definition in table[type_name].items():
        if not path and name in ("apiVersion", "kind", "metadata"):
            continue
        text, options = definition if isinstance(definition, list) else (definition, {})
        inner = text.rstrip("!").strip("[]{}").rstrip("!")
        place = f"{path}{name}{'[]' if '[' in text else '.*' if '{' in text else ''}"
        is_nested = inner in table and inner != type_name
        shown = "object" if is_nested else inner.rpartition("/")[2]
        notes = [shown, *(["required"] if text.endswith("!") else []), *_constraints(options)]
        described = _descriptions().get(f"{type_name}.{name}", "")
        yield f"`{place}`", ", ".join(notes), described
        if is_nested:
            yield from _field_rows(table, inner, f"{place}.")


def _constraints(options: Mapping[str, Any]) -> Iterator[str]:
    if "enum" in options:
        yield "one of " + ", ".join(f"`{value}`" for value in options["enum"])
    if options.get("default") not in (None, {}, []):
        yield f"default `{options['default']}`"


# Kueue's Configuration.


def _configuration() -> Iterator[str]:
    yield from ("# Configuration", "")
    yield from (
        "These are the fields of Kueue's `Configuration`, the file that `up` and `operator` read with `--config FILE`.",
        "[Some fields have no effect, and some are rejected](../how-to/operator.md#kueues-configuration).",
        "",
    )
    kind = next(kind for kind in scheme.KINDS if kind.constant == scheme.CONFIGURATION)
    yield from _fields_of(kind)
    yield from (
        "## Feature gates",
        "",
        "The defaults are those of Kueue at ff69552e, between 0.19 and 0.20. A gate that is newer has the value that",
        "batchyard follows by default; [Kueue 0.20](kueue-versions.md) enables some of them. The third column states",
        "what batchyard does if the Configuration sets the other value:",
        "",
        "- obeyed: batchyard decides or serves as Kueue does with this value.",
        "- refused: the command fails, because decisions would differ from those of Kueue with this value.",
        "- without effect: batchyard lacks the feature, or the gate decides nothing. `up` and `operator` report",
        "  the gate.",
        "",
    )
    gates = (
        (f"`{name}`", str(well_known.GATES[name]).lower(), rule.effect.value, rule.reason)
        for name, rule in sorted(kueue_gates.GATE_RULES.items())
    )
    yield from _table(("gate", "default", "the other value", "reason"), gates)
    yield from (
        "### Dependencies",
        "",
        "If a gate is enabled and a gate that it depends on is disabled, batchyard refuses the Configuration, with the",
        "message of Kueue. A gate that is not set has its default. To disable a gate on which others depend, disable",
        "these too.",
        "",
    )
    dependencies = (
        (f"`{name}`", str(well_known.GATES[name]).lower(), ", ".join(f"`{each}`" for each in required))
        for name, required in sorted(feature_gates.GATE_DEPENDENCIES.items())
    )
    yield from _table(("gate", "default", "depends on"), dependencies)


# Events and reasons.


def _events() -> Iterator[str]:
    yield from ("# Events and reasons", "", "## Events of Kubernetes objects", "")
    yield from ("Controllers record these Events. In messages, `{}` stands for a value.", "")
    yield from _table(("reason", "type", "message"), sorted(set(_event_records())))
    yield from ("## The event log of a simulation", "")
    yield from (
        "`batchyard simulate --events FILE` writes one JSON object per line, with `time` in seconds.",
        "The field `event` has one of these values:",
        "",
    )
    names = sorted(set(_log_names()))
    yield from (", ".join(f"`{name}`" for name in names) + ".", "")


@cache
def _string_constants() -> Mapping[str, str]:
    """Return the string constants of all modules by name; a name with several values is left out."""
    found: dict[str, set[str]] = {}
    for tree in _trees():
        for node in tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                    found.setdefault(name, set()).add(text)
    return {name: next(iter(values)) for name, values in found.items() if len(values) == 1}


@cache
def _trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py")))


def _event_records() -> Iterator[tuple[str, str, str]]:
    calls = (node for tree in _trees() for node in ast.walk(tree) if isinstance(node, ast.Call))
    for call in calls:
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if name == "EventRecord" and len(call.args) >= 4:
            kind, reason, message = call.args[1:4]
        elif name == "event" and len(call.args) == 2:
            kind, reason, message = ast.Constant("Normal"), *call.args
        else:
            continue
        if (text := _text(reason)) is not None and re.fullmatch(r"[A-Z]\w+", text):
            yield f"`{text}`", _text(kind) or "Normal or Warning", _text(message) or "{}"


def _text(node: ast.expr) -> str | None:
    """Return the text of an expression, with `{}` for values; None if it is not known."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _string_constants().get(name)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part) or "{}" for part in parts)
    return None


def _log_names() -> Iterator[str]:
    """Yield the names of the records in the event log, with `{}` for a value."""
    tree = ast.parse((SRC / "sim" / "event_log.py").read_text("utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.Yield(value=ast.Tuple(elts=[name, *_])) | ast.Return(value=ast.Tuple(elts=[name, *_])):
                pass
            case ast.Call(func=ast.Attribute(attr="_emit_record"), args=[name, *_]):
                pass
            case _:
                continue
        for option in (name.body, name.orelse) if isinstance(name, ast.IfExp) else (name,):
            if (text := _text(option)) is not None and re.fullmatch(r"[A-Z]\w+({})?", text):
                yield text


def main() -> None:
    """Write the pages."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
