"""Tokens of other issuers, with a real issuer and webhook: fetched keys, new keys, caches and bounds."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from batchyard.apiserver.request import PENDING_USER, StatusError, UserInfo
from batchyard.base.instant import SECOND
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform import authentication
from batchyard.server.platform.authentication import (
    AuthenticationFileError,
    ExternalTokenAuthenticator,
    open_external_tokens,
)
from batchyard.server.platform.data_dir import PlatformOptions
from unit.apiserver.external_tokens.tokens import token
from unit.server.platform.issuer_server import IssuerServer

ADA = UserInfo("x:ada", ("g:a", "g:b", "system:authenticated"))


def signed(server: IssuerServer, key: str = "a", **claims: Any) -> str:
    """A token of the server, valid for a minute."""
    return token(key=key, **{"iss": server.url, "exp": wall_clock() // SECOND + 60, **claims})


async def user_of(tokens: ExternalTokenAuthenticator, text: str) -> UserInfo | None:
    """The user of a token, after waiting if that is necessary."""
    user = tokens.find_user(text)
    if user is not PENDING_USER:
        return user
    outcome: asyncio.Future[UserInfo | None] = asyncio.get_running_loop().create_future()
    tokens.finish(text, "127.0.0.1", outcome.set_result)
    return await outcome


@asynccontextmanager
async def opened(
    folder: Path, *, with_issuer: bool = True, with_webhook: bool = False
) -> AsyncIterator[tuple[IssuerServer, ExternalTokenAuthenticator]]:
    """A server, and an authenticator that trusts it."""
    async with IssuerServer(folder).serve() as server:
        configuration = server.write_configuration() if with_issuer else None
        webhook = server.write_webhook() if with_webhook else None
        options = PlatformOptions(folder, authentication_config=configuration, token_webhook_config=webhook)
        tokens = await open_external_tokens(options)
        try:
            yield server, tokens
        finally:
            await tokens.close()


def run(test: Callable[[Path], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
    """Run a test in an event loop."""

    def in_loop(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return in_loop


async def _known_key(folder: Path) -> None:
    async with opened(folder) as (server, tokens):
        assert await user_of(tokens, signed(server)) == ADA
        assert tokens.find_user(signed(server, jti="other")) == ADA._replace(
            extra=(("authentication.kubernetes.io/credential-id", ("JTI=other",)),)
        )
        assert tokens.find_user(signed(server, exp=1)) is None
        assert tokens.find_user("opaque") is None
        assert server.fetches == 1


async def _new_key(folder: Path) -> None:
    async with opened(folder) as (server, tokens):
        assert await user_of(tokens, signed(server)) == ADA
        server.key_names = ["b"]
        users = await asyncio.gather(*(user_of(tokens, signed(server, "b", n=number)) for number in range(20)))
        assert users == [ADA] * 20
        assert await user_of(tokens, signed(server, "evil")) is None
        assert server.fetches <= 3


async def _wrong_issuer(folder: Path) -> None:
    async with IssuerServer(folder).serve() as server:
        server.named_issuer = "https://other.example"
        options = PlatformOptions(folder, authentication_config=server.write_configuration())
        tokens = await open_external_tokens(options)
        assert await user_of(tokens, signed(server)) is None
        await tokens.close()


async def _webhook(folder: Path) -> None:
    async with opened(folder, with_issuer=False, with_webhook=True) as (server, tokens):
        server.reviews["good"] = {"authenticated": True, "user": {"username": "ada", "groups": ["a"], "uid": "u"}}
        server.reviews["other"] = {**server.reviews["good"], "audiences": ["elsewhere"]}
        server.reviews["nameless"] = {"authenticated": True, "user": {"groups": ["a"]}}
        server.reviews["odd"] = {"authenticated": True, "user": {"username": ["a"]}}
        users = await asyncio.gather(*(user_of(tokens, "good") for _ in range(5)))
        assert users == [UserInfo("ada", ("a", "system:authenticated"), "u")] * 5
        assert [await user_of(tokens, text) for text in ("other", "nameless", "odd", "unknown")] == [None] * 4
        assert tokens.find_user("unknown") is None
        assert [review["spec"]["token"] for review in server.reviewed][:2] == ["good", "other"]
        assert server.reviewed[0]["spec"]["audiences"] == ["https://kubernetes.default.svc"]


async def _failing_webhook(folder: Path) -> None:
    async with opened(folder, with_issuer=False, with_webhook=True) as (server, tokens):
        server.review_code = 500
        assert await user_of(tokens, "good") is None
        server.review_code = 200
        server.reviews["good"] = {"authenticated": True, "user": {"username": "ada"}}
        assert await user_of(tokens, "good") == UserInfo("ada", ("system:authenticated",))


async def _too_many(folder: Path) -> None:
    async with opened(folder, with_issuer=False, with_webhook=True) as (_, tokens):
        for address in ("192.0.2.1", "192.0.2.2"):
            for number in range(authentication.ADDRESS_WAITING_MAX):
                tokens.finish(f"token {address} {number}", address, lambda _: None)
            with pytest.raises(StatusError) as caught:
                tokens.finish("one more", address, lambda _: None)
            assert caught.value.code == 429
        with pytest.raises(StatusError):
            tokens.finish("one more", "192.0.2.3", lambda _: None)


async def _flood(folder: Path) -> None:
    async with opened(folder, with_issuer=False, with_webhook=True) as (server, tokens):
        server.reviews["good"] = {"authenticated": True, "user": {"username": "ada"}}
        assert await user_of(tokens, "good") is not None
        tokens.find_user("good")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(authentication, "wall_clock", lambda: wall_clock() + 2 * authentication.REVIEW_CACHED)
            for number in range(authentication.ADDRESS_WAITING_MAX):
                tokens.finish(f"token {number}", "192.0.2.1", lambda _: None)
            assert tokens.find_user("good") is PENDING_USER
            assert await user_of(tokens, "good") is not None, "the token was valid before, so it has its own slots"


async def _invalid_files(folder: Path) -> None:
    path = folder / "a.yaml"
    for text in ("{", "kind: Other", "[]"):
        path.write_text(text)
        with pytest.raises(AuthenticationFileError, match=r"a\.yaml: "):
            await open_external_tokens(PlatformOptions(folder, authentication_config=path))
    missing = folder / "no"
    for options in (
        PlatformOptions(folder, authentication_config=missing),
        PlatformOptions(folder, token_webhook_config=missing),
    ):
        with pytest.raises(AuthenticationFileError, match="no"):
            await open_external_tokens(options)


test_token_of_a_known_key_is_verified_at_once = run(_known_key)
test_token_of_a_new_key_waits_for_the_next_fetch_of_the_keys = run(_new_key)
test_keys_of_a_server_that_names_another_issuer_are_not_used = run(_wrong_issuer)
test_webhook_reviews_each_token_once = run(_webhook)
test_failure_of_the_webhook_is_not_cached = run(_failing_webhook)
test_number_of_waiting_requests_is_bounded = run(_too_many)
test_flood_of_invalid_tokens_does_not_lock_out_users = run(_flood)
test_invalid_files_are_reported = run(_invalid_files)
