"""Who may come in: every request is checked before any page sees it."""

import logging
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST: Final = "127.0.0.1"
NAMES: Final = (HOST, "localhost")  # by which a browser may call us
MOST_BYTES: Final = 64 * 1024  # of a request's body, which is a few boxes
FORBIDDEN, REFUSED = 403, 422
# Requests that a browser makes for our own page, or because the user asked for it.
OWN_SITES: Final = ("same-origin", "none")
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

log = logging.getLogger("kneematch.web")


@dataclass(frozen=True, slots=True)
class Door:
    """The port that pages are served on, and the secret that opens them."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @property
    def address(self) -> str:
        """What the user opens; the page then forgets the token, and the cookie keeps it."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> str:
        """Its name; cookies of all ports of a machine lie in one jar."""
        return f"kneematch-{self.port}"


class Guard:
    """Around an app: lets in what carries the token and comes from the app's own pages."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with a line in the log."""
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                if _in_address(scope, self.door):
                    headers.append("Set-Cookie", _cookie(self.door))
            await send(message)

        refusal = _refusal(scope, self.door)
        if refusal is None:
            await self.app(scope, receive, send_safely)
            return
        status, reason = refusal
        log.warning("%s %r refused with %d: %s", scope["method"], scope["path"], status, reason)
        await PlainTextResponse(reason, status, HEADERS)(scope, receive, send)


def _refusal(scope: Scope, door: Door) -> tuple[int, str] | None:
    """The status and the reason why a request is not answered."""
    headers = Headers(scope=scope)
    ours = [f"{name}:{door.port}" for name in NAMES]
    host, origin = headers.get("host", ""), headers.get("origin")
    changes = scope["method"] not in ("GET", "HEAD")
    if host not in ours:
        return FORBIDDEN, "another host was asked for; expected this machine's own address"
    if (origin is None and changes) or origin not in (None, f"http://{host}"):
        return FORBIDDEN, "asked for by another page; expected kneematch's own"
    if ".." in scope["path"] or "\\" in scope["path"] or "\0" in scope["path"]:
        return FORBIDDEN, "a path that leaves its folder; expected one of the page's own"
    if _in_address(scope, door):
        return None
    if not _same(_from_cookie(headers, door), door.token):
        return FORBIDDEN, "no token; open the address that kneematch has printed"
    if headers.get("sec-fetch-site", "none") not in OWN_SITES:
        return FORBIDDEN, "asked for by another site; expected kneematch's own page"
    length = headers.get("content-length", "")
    if changes and not (length.isdecimal() and int(length) <= MOST_BYTES):
        return REFUSED, f"a body of {length or 'unknown'} bytes; expected at most {MOST_BYTES}"
    return None


def _in_address(scope: Scope, door: Door) -> bool:
    """Whether this is the page itself, asked for with the token."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return False
    query = parse_qs(scope["query_string"].decode("latin-1"))
    return _same(query.get("token", [""])[0], door.token)


def _from_cookie(headers: Headers, door: Door) -> str:
    try:
        jar = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return jar[door.cookie].value if door.cookie in jar else ""


def _same(given: str, token: str) -> bool:
    """Compared in a time that tells nothing."""
    return secrets.compare_digest(given.encode(), token.encode())


def _cookie(door: Door) -> str:
    return f"{door.cookie}={door.token}; Path=/; HttpOnly; SameSite=Strict"
