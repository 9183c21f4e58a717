"""Conversions of custom objects by webhooks: code that needs one is interrupted, and repeated after the call.

Handlers convert objects in many places, and do not wait for other servers. If a webhook has to convert an object first,
`convert` raises ConversionNeeded. `converting` then makes the calls, and runs the interrupted step again. The step
finds the converted objects in its ConversionScope. A step that stores an object is not repeated: `resume` of the
exception is the part that follows the change.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, NoReturn, Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.request import StatusError

#: The maximum number of times that a step is repeated.
REPETITIONS_MAX: Final = 256
#: The maximum number of objects that `convert_all` requests at once.
OBJECTS_MAX: Final = 2_000
#: The maximum size of all cached objects in bytes, and of one of them.
_CACHE_BYTES_MAX: Final = 32 * 1024 * 1024
_CACHED_OBJECT_BYTES_MAX: Final = 256 * 1024
#: Metadata that the server sets after the conversion of a new object.
_VOLATILE_METADATA: Final = frozenset({"managedFields", "uid", "creationTimestamp", "generation", "selfLink"})
_CONVERTED_METADATA: Final = ("labels", "annotations")
_TIMEOUT_ERROR: Final = StatusError(504, "Timeout", "Timeout: request did not complete within requested timeout")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode
_T = TypeVar("_T")


class ObjectConverter(Protocol):
    """The conversion webhook of a CustomResourceDefinition."""

    @property
    def key(self) -> str:
        """The identity of the webhook; it changes with the definition."""

    def calls(self, objects: Sequence[Obj], api_version: str, scope: "ConversionScope") -> Generator[Any, Any, None]:
        """Yield the calls that convert objects to a version, receive the replies, and add the results to a scope.

        Raises StatusError if a conversion fails.
        """


class ConversionNeeded(Exception):  # noqa: N818 - no error: the step continues after the conversion
    """A step needs objects in another version, which their webhook must convert first."""

    def __init__(self, converter: ObjectConverter, api_version: str, objects: Sequence[Obj]) -> None:
        super().__init__(f"{len(objects)} objects must be converted to {api_version}")
        self.converter = converter
        self.api_version = api_version
        self.objects = objects
        #: What to run after the conversion; None to run the interrupted step again.
        self.resume: Callable[[], Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields from which `raise_conversion` creates the exception again, in the parent process too."""
        return {"converter": self.converter.key, "api_version": self.api_version, "objects": self.objects}


#: The converters of all definitions, by key: a forked process names one of them.
_known_converters: Final[WeakValueDictionary[str, ObjectConverter]] = WeakValueDictionary()


def register_converter(converter: ObjectConverter) -> None:
    """Make a converter known to `raise_conversion` while it exists."""
    _known_converters[converter.key] = converter


def raise_conversion(fields: Mapping[str, Any]) -> NoReturn:
    """Raise the ConversionNeeded that `to_json` described. Raises StatusError if its definition has changed."""
    converter = _known_converters.get(fields["converter"])
    if converter is None:
        raise StatusError(503, "ServiceUnavailable", "the definition of the resource has changed; try again")
    raise ConversionNeeded(converter, fields["api_version"], fields["objects"])


class ConversionCache:
    """Converted objects of stored revisions, as JSON; the least recently used ones are removed first."""

    def __init__(self) -> None:
        self._texts: OrderedDict[tuple[str, str, bytes], bytes] = OrderedDict()
        self._size = 0

    def get(self, key: tuple[str, str, bytes]) -> Obj | None:
        """Return a converted object; None if it is not cached."""
        text = self._texts.get(key)
        if text is None:
            return None
        self._texts.move_to_end(key)
        obj: Obj = _decode(text)
        return obj

    def put(self, key: tuple[str, str, bytes], obj: Obj) -> None:
        """Store a converted object, unless it is too large."""
        text = _encode(obj)
        if len(text) > _CACHED_OBJECT_BYTES_MAX:
            return
        self._size += len(text) - len(self._texts.pop(key, b""))
        self._texts[key] = text
        while self._size > _CACHE_BYTES_MAX:
            self._size -= len(self._texts.popitem(last=False)[1])


class ConversionScope:
    """The converted objects of one request, and optionally a cache of those of other requests."""

    def __init__(self, cache: ConversionCache | None = None) -> None:
        self._cache = cache
        self._results: dict[tuple[str, str, bytes], Obj] = {}
        #: The digests of objects by id, with the objects, which keep the ids from being reused.
        self._digests: dict[int, tuple[Obj, bytes]] = {}

    def run(self, step: Callable[[], _T]) -> _T:
        """Run a step that finds the converted objects of this scope."""
        token = _CURRENT.set(self)
        try:
            return step()
        finally:
            _CURRENT.reset(token)

    def find(self, converter: ObjectConverter, obj: Obj, api_version: str) -> Obj | None:
        """Return an object in another version; None if it is not converted yet."""
        key = converter.key, api_version, self._digest_of(obj)
        converted_object = self._results.get(key)
        if converted_object is None and self._cache is not None:
            converted_object = self._cache.get(key)
            if converted_object is not None:
                self._results[key] = converted_object
        return None if converted_object is None else _with_metadata_of(converted_object, obj)

    def add(self, converter: ObjectConverter, obj: Obj, converted_object: Obj) -> None:
        """Add the result of a conversion, and the opposite conversion of the result."""
        key = converter.key, converted_object["apiVersion"], self._digest_of(obj)
        self._results[key] = converted_object
        if self._cache is not None:
            self._cache.put(key, converted_object)
            return
        self._results.setdefault((converter.key, obj["apiVersion"], _digest(converted_object)), obj)

    def _digest_of(self, obj: Obj) -> bytes:
        known_digest = self._digests.get(id(obj))
        if known_digest is not None:
            return known_digest[1]
        digest = _digest(obj)
        self._digests[id(obj)] = obj, digest
        return digest


_CURRENT: Final[ContextVar[ConversionScope | None]] = ContextVar("conversion_scope", default=None)


def find_converted(converter: ObjectConverter, obj: Obj, api_version: str) -> Obj | None:
    """Return an object in a version if it is converted already; else None."""
    scope = _CURRENT.get()
    return None if scope is None else scope.find(converter, obj, api_version)


def convert(converter: ObjectConverter, obj: Obj, api_version: str) -> Obj:
    """Return an object in a version. Raises ConversionNeeded if the webhook has not converted it yet."""
    if obj["apiVersion"] == api_version:
        return obj
    converted_object = find_converted(converter, obj, api_version)
    if converted_object is None:
        raise ConversionNeeded(converter, api_version, [obj])
    return converted_object


def convert_all(in_version: Callable[[Obj, str], Obj], objects: Sequence[Obj], api_version: str) -> list[Obj]:
    """Return objects in a version. Raises ConversionNeeded with all that are missing, but at most OBJECTS_MAX."""
    converted_objects: list[Obj] = []
    needs: list[ConversionNeeded] = []
    for obj in objects:
        try:
            converted_objects.append(in_version(obj, api_version))
        except ConversionNeeded as need:
            needs.append(need)
            if len(needs) >= OBJECTS_MAX:
                break
    if needs:
        raise ConversionNeeded(needs[0].converter, api_version, [obj for need in needs for obj in need.objects])
    return converted_objects


def converting(
    step: Callable[[], Any], scope: ConversionScope, need: ConversionNeeded | None = None
) -> Generator[Any, Any, Any]:
    """Run a step until all objects that it needs are converted; yield the calls, and return its result.

    `need` is how a first run of the step was interrupted. Raises StatusError if a conversion fails.
    """
    for _ in range(REPETITIONS_MAX):
        if need is not None:
            step = need.resume or step
            yield from need.converter.calls(need.objects, need.api_version, scope)
        try:
            return scope.run(step)
        except ConversionNeeded as next_need:
            need = next_need
    raise _TIMEOUT_ERROR


def _with_metadata_of(converted_object: Obj, obj: Obj) -> Obj:
    metadata, converted_metadata = dict(obj["metadata"]), converted_object["metadata"]
    for field in _CONVERTED_METADATA:
        if field in converted_metadata:
            metadata[field] = converted_metadata[field]
        else:
            metadata.pop(field, None)
    return {**converted_object, "metadata": metadata}


def _digest(obj: Obj) -> bytes:
    metadata = {field: value for field, value in obj["metadata"].items() if field not in _VOLATILE_METADATA}
    return hashlib.blake2b(_encode({**obj, "metadata": metadata}), digest_size=16).digest()
