"""CEL expressions of admission policies: compilation, lazy variables, the authorizer, and Kubernetes' error messages.

The CEL library knows neither lazy map values nor the types `Object` and `JSONPatch`. An expression is therefore checked
with typed variables first, and then compiled in a rewritten form: `variables.x` becomes a function call, and an object
literal becomes a map that records the name of its type. Source: k8s.io/apiserver, pkg/admission/plugin/cel.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
from cel_expr_python import cel
from cel_expr_python.ext.ext_optional import ExtOptional
from cel_expr_python.ext.ext_strings import ExtStrings

from batchyard.apiserver.auth.authorization import Authorizer
from batchyard.apiserver.cel_library import (
    BUDGET_EXCEEDED,
    RuleBudget,
    input_size,
    iteration_depth,
    kubernetes_functions,
)
from batchyard.apiserver.policies.authorizer import AUTHORIZER_TYPES, authorizer_extension

OBJECT_TYPE, PATCH_TYPE = "Object", "JSONPatch"
#: The key under which the map of an object literal records the name of its type.
TYPE_KEY: Final = "@type"
VARIABLE_PREFIX: Final = "variables."
#: The variables that give object literals their type when an expression is checked, by type.
_LITERAL_VARIABLES: Final = {OBJECT_TYPE: "object_literal", PATCH_TYPE: "patch_literal"}
_REQUEST_RESOURCE: Final = "authorizer.requestResource"

# The text of expressions: tokens, and the rewriting of variables and object literals.


#: A string without its end reaches to the end of the line or of the text: each character is read once.
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<string>[bB]?[rR](?:\"\"\".*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|"[^"\n]*"?|'[^'\n]*'?)
      |[bB]?(?:\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\\?\Z)|'''(?:\\.|[^\\])*?(?:'''|\\?\Z)
        |"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))
    |(?P<name>[A-Za-z_]\w*|`[^`\n]*`?)
    |(?P<number>0[xX][0-9a-fA-F]+u?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?u?)
    |(?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)


_HAS_VARIABLE: Final = re.compile(r"\bhas\(\s*variables\.(\w+)\s*\)")


class ExpressionToken(NamedTuple):
    """A token of a CEL expression: its kind (a group of the pattern), its text and its position in characters."""

    kind: str
    text: str
    start: int


def tokens_of(expression: str) -> list[ExpressionToken]:
    """Return the tokens of a CEL expression in order, with white space and comments."""
    return [ExpressionToken(str(match.lastgroup), match[0], match.start()) for match in _TOKEN.finditer(expression)]


class MemberChain(NamedTuple):
    """A chain of field selections in an expression, such as `request.kind.group`."""

    names: tuple[str, ...]
    #: The positions of the dots before each name but the first, in characters.
    dots: tuple[int, ...]


def member_chains(expression: str) -> list[MemberChain]:
    """Return the chains of field selections that begin with a name; the names of called functions are left out."""
    tokens = [token for token in tokens_of(expression) if token.kind != "space"]
    chains, index = [], 0
    while index < len(tokens):
        start = index
        index += 1
        if tokens[start].kind != "name" or (start and tokens[start - 1].text == "."):
            continue
        names, dots = [tokens[start].text], list[int]()
        while index + 1 < len(tokens) and tokens[index].text == "." and tokens[index + 1].kind == "name":
            dots.append(tokens[index].start)
            names.append(tokens[index + 1].text)
            index += 2
        is_call = index < len(tokens) and tokens[index].text == "("
        chains.append(MemberChain(tuple(names[: len(names) - is_call]), tuple(dots[: len(dots) - is_call])))
    return chains


def position_error(expression: str, position: int, message: str) -> str:
    """Return an error at a position of an expression (in characters) as cel-go formats it."""
    line_number = expression.count("\n", 0, position) + 1
    line_start = expression.rfind("\n", 0, position) + 1
    line = expression[line_start:].partition("\n")[0]
    column = position - line_start
    return f"ERROR: <input>:{line_number}:{column + 1}: {message}\n | {line}\n | {'.' * column}^"


#: The fields of the variables `request` and `namespaceObject` that expressions can read. None stands for any value.
#: Source: k8s.io/apiserver, pkg/admission/plugin/cel/compile.go.
_KIND_FIELDS: Final = dict.fromkeys(("group", "version", "kind"))
_RESOURCE_FIELDS: Final = dict.fromkeys(("group", "version", "resource"))
_DECLARED_FIELDS: Final[Mapping[str, Any]] = {
    "request": {
        **dict.fromkeys(("subResource", "requestSubResource", "name", "namespace", "operation", "dryRun", "options")),
        "kind": _KIND_FIELDS,
        "requestKind": _KIND_FIELDS,
        "resource": _RESOURCE_FIELDS,
        "requestResource": _RESOURCE_FIELDS,
        "userInfo": dict.fromkeys(("username", "uid", "groups", "extra")),
    },
    "namespaceObject": {
        "metadata": dict.fromkeys(
            (
                *("name", "generateName", "namespace", "labels", "annotations", "UID", "creationTimestamp"),
                *("deletionGracePeriodSeconds", "deletionTimestamp", "generation", "resourceVersion", "finalizers"),
            )
        ),
        "spec": {"finalizers": None},
        "status": dict.fromkeys(("conditions", "phase")),
    },
}


def _undefined_field_error(expression: str) -> str:
    """Return the error of the first field of `request` or `namespaceObject` that is not declared, or ''."""
    for chain in member_chains(expression) if "request" in expression or "namespaceObject" in expression else ():
        fields = _DECLARED_FIELDS.get(chain.names[0])
        for name, dot in zip(chain.names[1:], chain.dots, strict=True):
            if fields is None:
                break
            if name not in fields:
                return position_error(expression, dot, f"undefined field '{name}'")
            fields = fields[name]
    return ""


def _field_of_non_object(expression: str, values: Mapping[str, Any]) -> str:
    """Return the name of the first field that an expression selects from a value without fields, or ''."""
    for chain in member_chains(expression):
        value = values.get(chain.names[0], values)
        for name in chain.names[1:] if value is not values else ():
            if not isinstance(value, Mapping):
                return name
            if name not in value:
                break
            value = value[name]
    return ""


class RewrittenExpression(NamedTuple):
    """An expression in the form that the library compiles: its original tokens, and the text that replaces each."""

    tokens: Sequence[ExpressionToken]
    texts: Sequence[str]

    @property
    def text(self) -> str:
        """The rewritten expression."""
        return "".join(self.texts)

    def original_position(self, line_number: int, column: int) -> int:
        """Return the position in the original expression of a line and column (from 1) of the rewritten one."""
        lines = self.text.split("\n")
        remaining = sum(len(line) + 1 for line in lines[: line_number - 1]) + column - 1
        for token, text in zip(self.tokens, self.texts, strict=True):
            if remaining < len(text):
                return token.start + min(remaining, len(token.text) - 1)
            remaining -= len(text)
        return sum(len(token.text) for token in self.tokens) + remaining


def rewrite_expression(
    expression: str, variable_names: Sequence[str] = (), *, with_patch_types: bool = False, is_checked: bool = False
) -> RewrittenExpression:
    """Return an expression in which the named variables are function calls: `variables.x` becomes `variables.x()`.

    With `with_patch_types`, literals of Object and JSONPatch become maps: `Object.spec{replicas: 1}` becomes
    `{"@type": "Object.spec", "replicas": 1}`. With `is_checked`, they become expressions of these types.
    """
    tokens = tokens_of(expression)
    if "variables" not in expression and not with_patch_types:
        return RewrittenExpression(tokens, [token.text for token in tokens])
    return _ExpressionRewriter(tokens, variable_names, with_patch_types, is_checked).rewrite()


class _ExpressionRewriter:
    def __init__(
        self, tokens: Sequence[ExpressionToken], variable_names: Sequence[str], with_patch_types: bool, is_checked: bool
    ) -> None:
        self._tokens = tokens
        self._variable_names = variable_names
        self._with_patch_types = with_patch_types
        self._is_checked = is_checked
        self._texts = [token.text for token in tokens]
        self._indices = [index for index, token in enumerate(tokens) if token.kind != "space"]
        self._next_index = dict(pairwise(self._indices))
        #: The text that replaces the closing brace of an object literal, by the index of its opening brace.
        self._literal_ends: dict[int, str] = {}

    def rewrite(self) -> RewrittenExpression:
        """Return the rewritten expression."""
        #: For each open bracket, the text that replaces its closing one; '' outside of object literals.
        open_literals: list[str] = []
        previous_text = ""
        for index in self._indices:
            token = self._tokens[index]
            if token.kind == "name" and previous_text != ".":
                self._rewrite_name(index)
            if open_literals and open_literals[-1] and token.kind == "name" and previous_text in {"{", ",", "?"}:
                self._texts[index] = msgspec.json.encode(token.text.strip("`")).decode()
            if token.text in {"{", "(", "["}:
                open_literals.append(self._literal_ends.get(index, ""))
            elif token.text in {"}", ")", "]"} and open_literals:
                self._texts[index] = open_literals.pop() or token.text
            previous_text = token.text
        return RewrittenExpression(self._tokens, self._texts)

    def _rewrite_name(self, index: int) -> None:
        """Rewrite the qualified name that begins at a token, if it names a variable or the type of a literal."""
        indices, names = [index], [self._tokens[index].text]
        while (dot := self._next_index.get(indices[-1])) is not None and self._tokens[dot].text == ".":
            member = self._next_index.get(dot)
            if member is None or self._tokens[member].kind != "name":
                break
            indices += (dot, member)
            names.append(self._tokens[member].text)
        following = self._next_index.get(indices[-1])
        if names[0] == "variables" and len(names) > 1 and names[1] in self._variable_names:
            self._texts[indices[2]] += "()"
        elif self._with_patch_types and names[0] in _LITERAL_VARIABLES and following is not None:
            self._begin_literal(names, indices, following)

    def _begin_literal(self, names: Sequence[str], indices: Sequence[int], brace: int) -> None:
        if self._tokens[brace].text != "{":
            return
        for each in indices:
            self._texts[each] = ""
        if self._is_checked:
            variable = _LITERAL_VARIABLES[names[0]]
            # The type of the conditional is that of the variable. The types of fields are not checked here.
            has_field_type = len(names) > 1
            self._texts[brace] = "dyn({" if has_field_type else "(dyn({"
            self._literal_ends[brace] = "})" if has_field_type else f"}}) == null ? {variable} : {variable})"
            return
        type_name = msgspec.json.encode(".".join(names)).decode()
        first_field = self._next_index.get(brace)
        is_empty = first_field is None or self._tokens[first_field].text == "}"
        self._texts[brace] = f'{{"{TYPE_KEY}": {type_name}{"" if is_empty else ", "}'
        self._literal_ends[brace] = "}"


_T: Final = cel.Type


def _escape_pointer(text: str) -> str:
    return text.replace("~", "~0").replace("/", "~1")


@cache
def _base_extensions() -> tuple[Any, ...]:
    escape_key = cel.Overload("jsonpatch_escape", _T.STRING, [_T.STRING], False, _escape_pointer)
    patch_extension = cel.CelExtension("jsonpatch", [cel.FunctionDecl("jsonpatch.escapeKey", [escape_key])])
    return (*(ExtOptional(), ExtStrings(), kubernetes_functions(), patch_extension),)


# Messages of the library in the words of cel-go, which Kubernetes uses.


_LIBRARY_PREFIX: Final = re.compile(r"^[A-Z_]+: ")
_LIBRARY_SUFFIX: Final = re.compile(r" \[[A-Z_]+\]$")
_POSITIONED_ERROR: Final = re.compile(r"ERROR: <input>:(\d+):(\d+): ([^\n]*)\n \| [^\n]*\n \| \.*\^")
_SELECTION: Final = re.compile(r"expression of type '([^']*)' cannot be the operand of a select operation")
_UNDECLARED_VARIABLE: Final = re.compile(r"undeclared reference to 'variables\.(\w+)' \(in container ''\)")
_UNDECLARED_MEMBER: Final = re.compile(
    r"ERROR: <input>:(\d+):(\d+): undeclared reference to '(\w+)((?:\.\w+)+)' \(in container ''\)\n"
    r" \| ([^\n]*)\n \| (\.*)\^"
)
#: The message of the library for a field of a value without fields; it does not name the field.
_NO_FIELDS: Final = "Applying SELECT to non-message type"
_NOT_A_QUANTITY: Final = r"quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_EVALUATION_MESSAGES: Final = (
    (re.compile(r'Key not found in map : "(.*)"', re.DOTALL), r"no such key: \1"),
    (re.compile(r"No matching overloads found : .*", re.DOTALL), "no such overload"),
    (re.compile(r"divide by zero"), "division by zero"),
    (re.compile(r"modulus by zero"), "modulus by zero"),
    (re.compile(r"'(.*)' is not a quantity; .*", re.DOTALL), _NOT_A_QUANTITY),
    (
        re.compile(r"'(.*)' does not appear to be an IPv4 or IPv6 address", re.DOTALL),
        r'IP Address "\1" parse error during conversion from string: ParseAddr("\1"): unable to parse IP',
    ),
    (
        re.compile(r"'(.*)' is not a URL: neither absolute nor a path", re.DOTALL),
        r'URL parse error during conversion from string: parse "\1": invalid URI for request',
    ),
    (re.compile(r"Index error: index=(-?\d+) size=\d+"), r"index out of bounds: \1"),
)


def _compilation_message(error: RuntimeError, rewritten: RewrittenExpression) -> str:
    """Return the message of a compilation error as cel-go formats it, with positions in the original expression."""
    text = _LIBRARY_SUFFIX.sub("", _LIBRARY_PREFIX.sub("", str(error)))
    source = "".join(token.text for token in rewritten.tokens)
    if rewritten.text != source:
        text = _POSITIONED_ERROR.sub(
            lambda match: position_error(source, rewritten.original_position(int(match[1]), int(match[2])), match[3]),
            text,
        )
    text = _SELECTION.sub(lambda match: f"type '{go_type_name(match[1])}' does not support field selection", text)
    text = _UNDECLARED_VARIABLE.sub(r"undefined field '\1'", text)
    return _UNDECLARED_MEMBER.sub(_undeclared_root_message, text)


def _undeclared_root_message(match: re.Match[str]) -> str:
    """Report the first name of an undeclared qualified name, as cel-go does."""
    line, column, name, members, source, dots = match.groups()
    shift = len(name) + len(members) - len(members.rpartition(".")[2]) - 1
    start = max(int(column) - shift, 1)
    text = f"undeclared reference to '{name}' (in container '')"
    return f"ERROR: <input>:{line}:{start}: {text}\n | {source}\n | {dots[: len(dots) - shift]}^"


def _evaluation_message(text: str) -> str:
    for pattern, replacement in _EVALUATION_MESSAGES:
        if (match := pattern.fullmatch(text)) is not None:
            return replacement if replacement is _NOT_A_QUANTITY else match.expand(replacement)
    return text


_GO_TYPE_NAMES: Final = {
    "NULL": "null_type",
    "TIMESTAMP": "google.protobuf.Timestamp",
    "DURATION": "google.protobuf.Duration",
}


def go_type_name(library_name: str) -> str:
    """Return the name of a CEL type in messages of cel-go: `list(int)` for `LIST<INT>`."""
    name, _, parameters = library_name.partition("<")
    go_name = _GO_TYPE_NAMES.get(name, name.lower() if name.isupper() else name)
    if not parameters:
        return go_name
    parts = ", ".join(go_type_name(each) for each in _split_parameters(parameters[:-1]))
    return f"{go_name}({parts})"


def _split_parameters(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, character in enumerate(text):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


class CompiledPolicyExpression(NamedTuple):
    """A compiled CEL expression of a policy; `error` is the reason if it does not compile, else ''."""

    text: str
    program: Any
    error: str
    #: The maximum nesting of iterations.
    depth: int


class PolicyEvaluationError(ValueError):
    """A CEL expression cannot be evaluated; `is_over_budget` is true if the cost budget is exhausted."""

    def __init__(self, message: str, *, is_over_budget: bool = False) -> None:
        super().__init__(message)
        self.is_over_budget = is_over_budget


class PolicyInput(NamedTuple):
    """The values that the expressions of a policy read for one request, and the budget that they share."""

    #: The variables by name: object, oldObject, request, params, namespaceObject, authorizer.
    variables: Mapping[str, Any]
    budget: RuleBudget
    #: The results of the policy's own variables that were evaluated already.
    results: dict[str, Any]

    def with_budget(self) -> "PolicyInput":
        """Return the input with a new budget, and without results of variables."""
        return PolicyInput(self.variables, RuleBudget(), {})


class ExpressionScope:
    """Compiles and evaluates the expressions of one policy over its variables, which are evaluated when first read."""

    def __init__(self, authorizer: Authorizer | None, *, has_params: bool) -> None:
        self._authorizer = authorizer
        self._has_params = has_params
        self._variables: dict[str, CompiledPolicyExpression] = {}
        self._variable_types: dict[str, Any] = {}
        self._checking_environments: dict[bool, Any] = {}
        self._running_environment: Any = None
        self._input: PolicyInput | None = None

    def add_variable(self, name: str, text: str) -> str:
        """Compile a variable, which may read the variables before it; return the error, or ''."""
        compiled = self.compile(text, ())
        self._variables[name] = compiled
        self._variable_types[name] = _T.DYN if compiled.error else self._result_type(text)
        self._checking_environments.clear()
        self._running_environment = None
        return compiled.error

    def compile(
        self, text: str, result_types: Sequence[str], *, with_authorizer: bool = True, with_patch_types: bool = False
    ) -> CompiledPolicyExpression:
        """Compile an expression whose result must have one of these types; no types allow any.

        The types are named as in cel-go (`bool`, `string`, `null_type`), or `Object` and `list(JSONPatch)`. With
        `with_patch_types`, the expression can construct values of these two types.
        """
        # All declared variables are present. The replacement keeps the positions of the other tokens.
        source = _HAS_VARIABLE.sub(
            lambda match: "true".ljust(len(match[0])) if match[1] in self._variables else match[0], text
        )
        checked = rewrite_expression(source, with_patch_types=with_patch_types, is_checked=True)
        rewritten = rewrite_expression(source, tuple(self._variables), with_patch_types=with_patch_types)
        try:
            checked_program = self._checking_environment(with_authorizer=with_authorizer).compile(checked.text)
        except RuntimeError as error:
            message = _compilation_message(error, checked)
            return CompiledPolicyExpression(text, None, f"compilation failed: {message}", 0)
        if undefined_field_error := _undefined_field_error(text):
            return CompiledPolicyExpression(text, None, f"compilation failed: {undefined_field_error}", 0)
        type_name = go_type_name(checked_program.return_type().name())
        if result_types and type_name not in result_types:
            expected_types = result_types[0] if len(result_types) == 1 else f"one of [{' '.join(result_types)}]"
            return CompiledPolicyExpression(text, None, f"must evaluate to {expected_types} but got {type_name}", 0)
        if self._running_environment is None:
            self._running_environment = self._create_running_environment()
        try:
            program = self._running_environment.compile(rewritten.text)
        except RuntimeError as error:
            message = _compilation_message(error, rewritten)
            return CompiledPolicyExpression(text, None, f"compilation failed: {message}", 0)
        return CompiledPolicyExpression(text, program, "", iteration_depth(text))

    def evaluate(self, expression: CompiledPolicyExpression, policy_input: PolicyInput) -> Any:
        """Return the value of an expression. Raises PolicyEvaluationError if it fails or exceeds the cost budget."""
        if expression.error:
            raise PolicyEvaluationError(f"compilation error: {expression.error}")
        outer_input, self._input = self._input, policy_input
        try:
            return self._run(expression, policy_input)
        except ValueError as error:
            if isinstance(error, PolicyEvaluationError) and error.is_over_budget:
                raise
            raise PolicyEvaluationError(f"expression '{expression.text}' resulted in error: {error}") from error
        finally:
            self._input = outer_input

    def _run(self, expression: CompiledPolicyExpression, policy_input: PolicyInput) -> Any:
        size = input_size(policy_input.variables if expression.depth else None)
        if not policy_input.budget.spend(expression.depth, size):
            raise PolicyEvaluationError(BUDGET_EXCEEDED, is_over_budget=True)
        try:
            result = expression.program.eval(data=policy_input.variables)
        except RuntimeError as error:  # the iteration limit of the library, which stands for the cost limit of a call
            if "teration budget" in str(error) or "teration limit" in str(error):
                raise ValueError("operation cancelled: actual cost limit exceeded") from error
            raise ValueError(str(error)) from error
        if result.type() == _T.ERROR:
            message = str(result.plain_value()).partition(": ")[2]
            if message == _NO_FIELDS:
                values = {**policy_input.variables, "variables": policy_input.results}
                field = _field_of_non_object(expression.text, values)
                raise ValueError(f"no such key: {field}" if field else "no such overload")
            raise ValueError(_evaluation_message(message))
        try:
            return result.plain_value()
        except TypeError as error:
            raise ValueError("the value of an optional or of a type cannot be the result of an expression") from error

    def _evaluate_variable(self, name: str) -> Any:
        assert self._input is not None, "variables are evaluated only within an expression"
        results = self._input.results
        if name not in results:
            variable = self._variables[name]
            if variable.error:
                raise ValueError(f'composited variable "{name}" fails to compile: {variable.error}')
            try:
                results[name] = self._run(variable, self._input)
            except ValueError as error:
                raise ValueError(f'composited variable "{name}" fails to evaluate: {error}') from error
        return results[name]

    def _result_type(self, text: str) -> Any:
        return self._checking_environment(with_authorizer=True).compile(text).return_type()

    def _checking_environment(self, *, with_authorizer: bool) -> Any:
        environment = self._checking_environments.get(with_authorizer)
        if environment is None:
            variables = {**self._input_types(), **self._variable_declarations()}
            variables |= {name: _T.AbstractType(each) for each, name in _LITERAL_VARIABLES.items()}
            if with_authorizer:
                variables["authorizer"] = AUTHORIZER_TYPES["Authorizer"]
                variables[_REQUEST_RESOURCE] = AUTHORIZER_TYPES["ResourceCheck"]
            extensions = [*_base_extensions(), authorizer_extension(self._authorizer, is_typed=True)]
            environment = cel.NewEnv(variables=variables, extensions=extensions)
            self._checking_environments[with_authorizer] = environment
        return environment

    def _create_running_environment(self) -> Any:
        variables = {**self._input_types(), "authorizer": _T.STRING, _REQUEST_RESOURCE: _T.STRING}
        functions = [
            cel.FunctionDecl(VARIABLE_PREFIX + name, [self._variable_overload(name)]) for name in self._variables
        ]
        extensions = [
            *_base_extensions(),
            authorizer_extension(self._authorizer, is_typed=False),
            cel.CelExtension("variables", functions),
        ]
        return cel.NewEnv(variables=variables, extensions=extensions)

    def _variable_overload(self, name: str) -> Any:
        return cel.Overload(f"variable_{name}", _T.DYN, [], False, lambda: self._evaluate_variable(name))

    def _variable_declarations(self) -> Mapping[str, Any]:
        return {VARIABLE_PREFIX + name: each for name, each in self._variable_types.items()}

    def _input_types(self) -> dict[str, Any]:
        names = ("object", "oldObject", "request", "namespaceObject", *(("params",) if self._has_params else ()))
        return dict.fromkeys(names, _T.DYN)
