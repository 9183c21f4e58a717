"""Python functions as Jobs: the decorator `job` of `from batchyard import job`.

The source file of the function and its arguments travel in a ConfigMap. Arguments and results are JSON, so that neither
side unpickles data of the other. The pod prints the result at the end of its log. Imports are lazy, because the pods
import this module too.
"""

import builtins
import functools
import inspect
import itertools
import json
import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:
    from batchyard.cli.submit.cluster import Cluster
    from batchyard.cli.submit.manifests import JobRequest

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: The most bytes of the source file and the arguments, which are in one ConfigMap.
CALL_BYTES_MAX: Final = 900 * 1024
#: The most levels of lists and dicts in an argument.
_DEPTH_MAX: Final = 200
#: The most calls of one `map`.
CALLS_MAX: Final = 10_000
#: How long a finished Job and its log are kept, in seconds.
_KEPT_SECONDS: Final = 24 * 3600
_CALL_FOLDER: Final = "/batchyard/call"
#: Runs Python under the name that it has in the image.
_FIND_PYTHON: Final = 'exec "$(command -v python3 || command -v python || echo python)" "$@"'
_POLL_SECONDS: Final = (0.2, 5.0)
_LOGS_AT_ONCE: Final = 8
_TAIL_LINES: Final = 400
_NOT_FOUND_CODE: Final = 404
_numbers = itertools.count()


class RemoteJobError(Exception):
    """The Job of a function failed without an exception of the function, was deleted, or cannot be created."""


class RemoteTraceback(Exception):  # noqa: N818 - the cause of an exception, as in concurrent.futures
    """The traceback of an exception in the pod, as the cause of the exception that `result()` raises."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True)
class FunctionJobOptions:
    """The options of the decorator `job`."""

    queue: str = ""
    namespace: str = ""
    cpus: float | str = 1
    memory: str = ""
    gpus: int = 0
    image: str = "python:3.12-slim"
    retries: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    after: str = ""
    kubeconfig: str = ""
    context: str = ""
    data_dir: str = ""


def job(  # noqa: PLR0913 - the options of a job
    *,
    queue: str = "",
    namespace: str = "",
    cpus: float | str = 1,
    memory: str = "",
    gpus: int = 0,
    image: str = "python:3.12-slim",
    retries: int = 0,
    env: Mapping[str, str] | None = None,
    folder: str = "",
    after: str = "",
    kubeconfig: str = "",
    context: str = "",
    data_dir: str = "",
) -> Callable[[Callable[P, R]], "JobFunction[P, R]"]:
    """Make a function that also runs as a Job in a queue: `f(3)` runs here, `f.submit(3).result()` in the cluster.

    The pod imports the source file of the function, so the function must be at the top level of a file. Arguments and
    results must be JSON values: None, booleans, numbers, strings, lists, and dicts with strings as keys. The pod may
    import what its image contains, and the modules in `folder`, which is shipped with the Job.

    `queue` is a LocalQueue (default: the only one of the namespace), `memory` a quantity such as `4Gi`, `retries` the
    number of retries of a failed pod. `after` has the form of the annotation `batchyard.dev/after`. The cluster is that
    of `kubeconfig` or `context` (default: the variable KUBECONFIG), or else the platform of `data_dir` (default:
    `.batchyard`).
    """
    options = FunctionJobOptions(
        *(queue, namespace, cpus, memory, gpus, image, retries, dict(env or {}), folder, after),
        *(kubeconfig, context, data_dir),
    )
    return functools.partial(JobFunction, options=options)


class JobFunction(Generic[P, R]):
    """A function that runs here when it is called, and as a Job with `submit` and `map`."""

    def __init__(self, function: Callable[P, R], options: FunctionJobOptions) -> None:
        """Wrap a function; the source file is read when the function is submitted."""
        if not callable(function):
            raise TypeError("@job needs parentheses: write @job() or @job(queue=...)")
        functools.update_wrapper(self, function)
        #: The function itself.
        self.function = function
        self.options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here."""
        return self.function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> "FunctionJob[R]":
        """Create a Job that calls the function once; `result()` of the returned job waits for the value."""
        return FunctionJob(*self._create([(args, kwargs)], 1), self.function, None)

    def map(self, inputs: Iterable[Any], *, parallelism: int | None = None) -> "FunctionJob[list[R]]":
        """Create an Indexed Job with a pod for each input; `result()` returns the values in the order of the inputs.

        At most `parallelism` pods run at once (default: all). A failed pod does not stop the others.
        """
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            ((each,), {}) for each in itertools.islice(inputs, CALLS_MAX + 1)
        ]
        if not 1 <= len(calls) <= CALLS_MAX:
            raise ValueError(f"map needs 1 to {CALLS_MAX} inputs")
        if parallelism is not None and parallelism < 1:
            raise ValueError("parallelism must be at least 1")
        count = len(calls)
        return FunctionJob(*self._create(calls, min(count, parallelism or count), is_array=True), self.function, count)

    def _create(
        self, calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]], parallelism: int, *, is_array: bool = False
    ) -> tuple[FunctionJobOptions, Mapping[str, Any]]:
        data = call_files(self.function, calls)
        request = _job_request(self.function.__name__, self.options, len(calls), parallelism, is_array=is_array)
        folder = self.options.folder

        def create(cluster: "Cluster", namespace: str) -> Awaitable[Mapping[str, Any]]:
            return _create(cluster, namespace, request, data, folder)

        created = _in_cluster(self.options, create)
        return self.options, created


class FunctionJob(Generic[R]):
    """A submitted function: the name and Namespace of its Job, and its result."""

    def __init__(
        self, options: FunctionJobOptions, created: Mapping[str, Any], function: Callable[..., Any], count: int | None
    ) -> None:
        """Refer to a created Job; `count` is the number of calls of a `map`, None for `submit`."""
        metadata = created["metadata"]
        self.name: str = metadata["name"]
        self.namespace: str = metadata["namespace"]
        self._uid: str = metadata["uid"]
        self._options = options
        self._function = function
        self._count = count

    def done(self) -> bool:
        """Return whether the Job has ended."""
        return _in_cluster(self._options, lambda cluster, _: self._end(cluster)) is not None

    def cancel(self) -> None:
        """Delete the Job and its pods."""
        _in_cluster(self._options, lambda cluster, _: cluster.client.delete(self._path, self._uid))

    def result(self, timeout: float | None = None, *, return_exceptions: bool = False) -> R:
        """Wait for the Job and return the value of the function; raise its exception if it failed.

        The cause of the exception is the traceback in the pod. Raises TimeoutError after `timeout` seconds, and
        RemoteJobError if a pod failed without an exception. After `map`, the exception is that of the first failed
        input; with `return_exceptions`, exceptions are in the list instead.
        """
        if timeout is not None and timeout < 0:
            raise ValueError("timeout must not be negative")
        outcomes = _in_cluster(self._options, lambda cluster, _: self._outcomes(cluster, timeout))
        values = [value_of(each, self._function) for each in outcomes]
        if not return_exceptions:
            error = next((each for each in values if isinstance(each, BaseException)), None)
            if error is not None:
                raise error
        result: Any = values[0] if self._count is None else values
        return result  # type: ignore[no-any-return]

    @property
    def _path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{self.name}"

    async def _end(self, cluster: "Cluster") -> Mapping[str, Any] | None:
        """Return the condition with which the Job ended; None while it runs."""
        response = await cluster.client.get(self._path)
        found = json.loads(response.body) if response.code == 200 else {}
        if response.code == _NOT_FOUND_CODE or (found and found["metadata"]["uid"] != self._uid):
            raise RemoteJobError(f"job {self.namespace}/{self.name} was deleted")
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next((c for c in conditions if c["type"] in {"Complete", "Failed"} and c["status"] == "True"), None)

    async def _outcomes(self, cluster: "Cluster", timeout: float | None) -> list[Mapping[str, Any]]:
        import asyncio  # noqa: PLC0415 - slow to load

        from batchyard.base.instant import SECOND  # noqa: PLC0415 - as above
        from batchyard.server.clocks.wall import monotonic_seconds, sleep_for  # noqa: PLC0415

        deadline = None if timeout is None else monotonic_seconds() + timeout
        pause, pause_max = _POLL_SECONDS
        while (end := await self._end(cluster)) is None:
            if deadline is not None and monotonic_seconds() >= deadline:
                raise TimeoutError(f"job {self.namespace}/{self.name} has not ended within {timeout:g} s")
            await sleep_for(round(pause * SECOND))
            pause = min(pause_max, pause * 1.5)
        selector = f"labelSelector=batch.kubernetes.io/controller-uid%3D{self._uid}"
        last_pods = last_pods_by_index(await cluster.list_pods(self.namespace, selector))
        gate = asyncio.Semaphore(_LOGS_AT_ONCE)

        async def read(index: int) -> Mapping[str, Any]:
            async with gate:
                return await self._read_outcome(cluster, last_pods.get(index), end)

        return await asyncio.gather(*map(read, range(self._count or 1)))

    async def _read_outcome(
        self, cluster: "Cluster", pod: Mapping[str, Any] | None, end: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        problem = f"job {self.namespace}/{self.name}: {end['type']}: {end.get('message') or end.get('reason') or ''}"
        if pod is None:
            return {"problem": f"{problem}; its pod does not exist"}
        name = pod["metadata"]["name"]
        query = f"container=main&tailLines={_TAIL_LINES}"
        response = await cluster.client.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?{query}")
        text = response.body.decode("utf-8", "replace") if response.code == 200 else ""
        outcome = outcome_in_log(text, mark_of(self.name))
        if outcome is None:
            from batchyard.cli.submit.progress import terminated_state_of  # noqa: PLC0415 - as above

            state = terminated_state_of(pod) or {}
            ending = (
                f"exit code {state.get('exitCode', '?')}, {state.get('reason', 'no reason')} {state.get('message', '')}"
            )
            return {"problem": f"{problem}; pod {name}: {ending}; the end of its log:\n{text[-2000:]}"}
        return outcome


# The call: its files, and the program of the pod.


def run_call(folder: str, mark: str) -> int:
    """Call the function in `folder` and print the outcome; return the exit code. This function runs in the pod alone.

    Its source is shipped, so it uses only the standard library and its own names. The pod may have no batchyard.
    """
    import base64  # noqa: PLC0415 - the source of this function is a program
    import importlib.util  # noqa: PLC0415
    import json  # noqa: PLC0415
    import os  # noqa: PLC0415
    import sys  # noqa: PLC0415
    import traceback  # noqa: PLC0415
    import types  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    def describe(error: BaseException) -> str:
        shown = {"error": type(error).__name__, "message": str(error)[:50_000]}
        return json.dumps({**shown, "traceback": traceback.format_exc()[-50_000:]})

    try:
        call = json.loads(Path(folder, "call.json").read_text("utf-8"))
        if importlib.util.find_spec("batchyard") is None:
            stand_in = types.ModuleType("batchyard")
            names = {"job": lambda **_: lambda function: function, "RemoteJobError": type("E", (Exception,), {})}
            vars(stand_in).update(names)
            sys.modules["batchyard"] = stand_in
        sys.path.insert(0, str(Path.cwd()))
        spec = importlib.util.spec_from_file_location(call["module"], f"{folder}/source.py")
        module = sys.modules[call["module"]] = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        function = getattr(module, call["function"])
        args, kwargs = call["calls"][int(os.environ.get("JOB_COMPLETION_INDEX", "0"))]
        text, code = json.dumps({"value": getattr(function, "function", function)(*args, **kwargs)}), 0
    except BaseException as error:  # noqa: BLE001 - the exception is the outcome
        text, code = describe(error), 1
    if len(text) > 1_000_000:
        text, code = describe(ValueError(f"the result has {len(text)} bytes, and may have 1000000: use a volume")), 1
    encoded = base64.b64encode(text.encode()).decode()
    chunks = [encoded[start : start + 8000] for start in range(0, len(encoded), 8000)]
    sys.stderr.flush()
    sys.stdout.write("\n" + "".join(f"{mark} {len(chunks)} {chunk}\n" for chunk in chunks))
    sys.stdout.flush()
    return code


def call_files(
    function: Callable[..., Any], calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> Mapping[str, str]:
    """Return the files of the call; raise ValueError or TypeError if the function or an argument cannot be shipped."""
    name = getattr(function, "__qualname__", "")
    source_file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if source_file is None or not Path(source_file).is_file() or not name.isidentifier():
        raise ValueError(f"{name or function!r} cannot be submitted: define it with def at the top level of a file")
    signature = inspect.signature(function)
    for args, kwargs in calls:
        signature.bind(*args, **kwargs)  # raises the TypeError that the call would raise in the pod
        check_json([*args, kwargs], f"an argument of {name}")
    module = sys.modules[function.__module__].__name__
    shown_module = "batchyard_submitted" if module == "__main__" else module.replace(".", "_")
    files = {
        "source.py": Path(source_file).read_text("utf-8"),
        "call.json": json.dumps({"module": shown_module, "function": name, "calls": calls}),
        "run.py": f"{inspect.getsource(run_call)}\n\nimport sys\n\nsys.exit(run_call(*sys.argv[1:]))\n",
    }
    size = sum(len(text.encode()) for text in files.values())
    if size > CALL_BYTES_MAX:
        message = f"the source file and the arguments of {name} have {size} bytes, and may have {CALL_BYTES_MAX}"
        raise ValueError(f"{message}: store large data on a volume or in the image")
    return files


def check_json(value: object, subject: str, depth: int = 0) -> None:
    """Raise TypeError if a value is not a JSON value, ValueError for NaN and deep nesting; tuples count as lists."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"{subject} is nested deeper than {_DEPTH_MAX} levels")
    if isinstance(value, list | tuple):
        for each in value:
            check_json(each, subject, depth + 1)
    elif isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"{subject} has a dict with a key that is not a string, which JSON cannot express")
        check_json(list(value.values()), subject, depth)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{subject} is {value}, which JSON cannot express")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"{subject} has the type {type(value).__name__}, which JSON cannot express")


# The outcome: what the pod printed.


def mark_of(name: str) -> str:
    """Return the first word of the lines that hold the outcome in the log of a Job's pod."""
    return f"batchyard-outcome-{name}"


def outcome_in_log(text: str, mark: str) -> Mapping[str, Any] | None:
    """Return the outcome that a pod printed at the end of its log; None if it is missing or incomplete."""
    import base64  # noqa: PLC0415 - used in the client only

    lines = [line.split(" ") for line in text.splitlines() if line.startswith(f"{mark} ")]
    if not lines or len(lines[-1]) != 3 or str(len(lines)) != lines[-1][1]:
        return None
    try:
        outcome = json.loads(base64.b64decode("".join(chunk for _, _, chunk in lines), validate=True))
    except ValueError:
        return None
    return outcome if isinstance(outcome, dict) else None


def value_of(outcome: Mapping[str, Any], function: Callable[..., Any]) -> Any:
    """Return the value of an outcome, or the exception that it describes.

    The type of the exception is looked up among the built-in ones and in the module of the function.
    """
    if "value" in outcome:
        return outcome["value"]
    if "problem" in outcome:
        return RemoteJobError(outcome["problem"])
    name, message = str(outcome.get("error")), str(outcome.get("message"))
    found = getattr(builtins, name, None) or getattr(sys.modules.get(function.__module__), name, None)
    try:
        is_exception = isinstance(found, type) and issubclass(found, Exception)
        error = found(message) if is_exception else RemoteJobError(f"{name}: {message}")  # type: ignore[misc]
    except Exception:  # noqa: BLE001 - a constructor with other arguments
        error = RemoteJobError(f"{name}: {message}")
    error.__cause__ = RemoteTraceback(str(outcome.get("traceback")))
    return error


def last_pods_by_index(pods: Iterable[Mapping[str, Any]]) -> Mapping[int, Mapping[str, Any]]:
    """Return the pod that decided each index of a Job: a succeeded one, or else the latest."""

    def rank(pod: Mapping[str, Any]) -> tuple[bool, str]:
        succeeded = (pod.get("status") or {}).get("phase") == "Succeeded"
        return succeeded, pod["metadata"].get("creationTimestamp") or ""

    found: dict[int, Mapping[str, Any]] = {}
    for pod in sorted(pods, key=rank):
        annotations = pod["metadata"].get("annotations") or {}
        found[int(annotations.get("batch.kubernetes.io/job-completion-index", "0"))] = pod
    return found


# The Job.


def _job_request(
    name: str, options: FunctionJobOptions, count: int, parallelism: int, *, is_array: bool
) -> "JobRequest":
    from batchyard.api import job_dependencies, well_known  # noqa: PLC0415 - as above
    from batchyard.base.primitives import uid_for  # noqa: PLC0415
    from batchyard.cli.submit.manifests import JobRequest, job_name_prefix  # noqa: PLC0415
    from batchyard.server.clocks.wall import wall_clock  # noqa: PLC0415

    job_dependencies.parse_dependencies(options.after)
    suffix = uid_for(wall_clock(), str(os.getpid()), str(next(_numbers)))[:8]
    job_name = f"{job_name_prefix([name.lower()])}-{suffix}"
    return JobRequest(
        ["sh", "-c", _FIND_PYTHON, "python", f"{_CALL_FOLDER}/run.py", _CALL_FOLDER, mark_of(job_name)],
        *(job_name, options.queue, options.image, options.namespace),
        cpu=str(options.cpus or ""),
        memory=options.memory,
        devices={"nvidia.com/gpu": options.gpus} if options.gpus else {},
        environment=options.env,
        annotations={well_known.AFTER: options.after} if options.after else {},
        completions=count,
        parallelism=parallelism,
        backoff_limit=options.retries,
        is_array=is_array,
    )


async def _create(
    cluster: "Cluster", namespace: str, job_request: "JobRequest", data: Mapping[str, str], folder: str
) -> Mapping[str, Any]:
    from dataclasses import replace  # noqa: PLC0415 - as above

    from batchyard.api.scheme import JOB, kind_info  # noqa: PLC0415
    from batchyard.cli.submit.manifests import archive_config_maps, job_manifest, pack  # noqa: PLC0415

    archive = pack(Path(folder)).content if folder else None
    job_request, _ = await cluster.prepare(replace(job_request, namespace=job_request.namespace or namespace))
    manifest = job_manifest(job_request, archive)
    name = f"{job_request.name}-call"
    metadata = {"name": name, "namespace": job_request.namespace, "labels": dict(manifest["metadata"]["labels"])}
    call = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": dict(data)}
    spec = manifest["spec"]
    spec["ttlSecondsAfterFinished"] = _KEPT_SECONDS
    pod = spec["template"]["spec"]
    pod.setdefault("volumes", []).append({"name": "call", "configMap": {"name": name}})
    mounts = pod["containers"][0].setdefault("volumeMounts", [])
    mounts.append({"name": "call", "mountPath": _CALL_FOLDER, "readOnly": True})
    archives = [] if archive is None else archive_config_maps(job_request, archive)
    return await cluster.create(kind_info(JOB), manifest, [call, *archives])


def _in_cluster(options: FunctionJobOptions, work: "Callable[[Cluster, str], Awaitable[T]]") -> T:
    """Run requests to the cluster of the options; raise RemoteJobError with the reason if one fails."""
    import asyncio  # noqa: PLC0415 - slow to load
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    from batchyard.cli.cluster_access import REQUEST_ERRORS, ClusterTarget, access_reader_of_target  # noqa: PLC0415
    from batchyard.cli.daily.cluster import ClusterClient, ClusterRequestError  # noqa: PLC0415
    from batchyard.cli.submit.cluster import Cluster, SubmitError  # noqa: PLC0415
    from batchyard.cli.submit.manifests import PackingError  # noqa: PLC0415
    from batchyard.server.operator.aiohttp_transport import HttpTransport  # noqa: PLC0415

    kubeconfig = options.kubeconfig or ("" if options.data_dir else os.environ.get("KUBECONFIG", ""))
    target = ClusterTarget(kubeconfig, options.context, Path(options.data_dir or ".batchyard"))

    async def run() -> T:
        read_access = access_reader_of_target(target)
        access = await read_access()
        transport = HttpTransport(access, read_access)
        try:
            return await work(Cluster(ClusterClient(transport, access)), access.namespace)
        finally:
            await transport.close()

    try:
        with ThreadPoolExecutor(1) as executor:  # the caller's thread may run an event loop, as in a notebook
            return executor.submit(lambda: asyncio.run(run())).result()
    except (SubmitError, PackingError, ClusterRequestError, *REQUEST_ERRORS) as error:
        if isinstance(error, TimeoutError):
            raise
        raise RemoteJobError(str(error)) from error
