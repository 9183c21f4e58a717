"""A client sees the same pods, whether they are simulated or processes of this machine.

All scenes start at once, on one platform of each kind; each test waits for its scene.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

import pytest

from batchyard.api.scheme import kind_info
from batchyard.client.transport import kind_path
from contract.environments import place_of
from contract.final_state import differences
from contract.pod_views import visible_objects
from contract.runtime_scenes import NAMESPACE, SCENES, Obj, RuntimeStep
from e2e_local_pods.node import local_platform
from e2e_platform.kill_rounds import ask
from e2e_platform.platform_process import UpProcess
from integration_shim.engine_image import busybox_image

_LOOKS_EVERY: Final = 0.1  # seconds
_LOOKS_MAX: Final = 600
_OPTION: Final = "--insecure-loopback"


class PlatformView(NamedTuple):
    """A platform as seen by a client."""

    url: str

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        info = kind_info(kind)
        code, listed = ask(self.url, "GET", kind_path(info, info.storage_version))
        assert code == 200, listed
        return [{"apiVersion": info.api_version, "kind": info.kind, **item} for item in listed["items"]]

    def begin(self, step: RuntimeStep) -> None:
        """Perform a step."""
        for obj in step.creates:
            code, answer = ask(self.url, "POST", place_of(obj), obj)
            assert code == 201, answer
        for name in step.deletes:
            code, answer = ask(self.url, "DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
            assert code == 200, answer


@pytest.fixture(scope="module", params=["machine", "podman"])
def places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sequence[PlatformView]]:
    """A platform with simulated pods, and one whose pods run on this machine, without an image or in a podman image."""
    folder = tmp_path_factory.mktemp
    with ExitStack() as stack:
        if request.param == "podman":
            image = ("--image", f"machine=podman:{stack.enter_context(busybox_image())}")
            real = stack.enter_context(local_platform(folder("real"), _OPTION, image=image, without="docker"))
        else:
            real = stack.enter_context(local_platform(folder("real"), _OPTION))
        simulated = stack.enter_context(UpProcess(folder("simulated"), _OPTION))
        both = [PlatformView(simulated.url), PlatformView(real.url)]
        for place in both:
            for steps in SCENES.values():
                place.begin(steps[0])
        yield both


@pytest.mark.parametrize("scene", list(SCENES))
def test_scene_looks_equal_on_simulated_and_real_runtime(places: Sequence[PlatformView], scene: str) -> None:
    for number, step in enumerate(SCENES[scene]):
        for place in places:
            if number:
                place.begin(step)
            _wait(partial(_unmet, step, place))
    simulated, real = places
    _wait(lambda: differences(visible_objects(simulated.objects, scene), visible_objects(real.objects, scene)))


def _unmet(step: RuntimeStep, place: PlatformView) -> Sequence[str]:
    return [] if step.until(place.objects) else [f"not done in {place}: {step}"]


def _wait(faults: Callable[[], Iterable[str]]) -> None:
    """Wait until there are no faults."""
    result: list[str] = []
    for _ in range(_LOOKS_MAX):
        result = list(faults())
        if not result:
            return
        threading.Event().wait(_LOOKS_EVERY)
    raise AssertionError("\n".join(result))
