"""ServeConfig: the settings of `kneematch serve`."""

import re
import ssl
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from kneematch import options
from kneematch.errors import SettingsError
from kneematch.films.files import read_text
from kneematch.options import INPUT, OUTPUT, check_options, option
from kneematch.run.config import DICOM_OBJECTS, USUAL_OBJECTS

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
AE_TITLE: Final = r"[!-\[\]-~]{1,16}"  # printable ASCII without spaces and backslashes
DICOM_ADDRESS: Final = re.compile(rf"(tls:)?({AE_TITLE})@([^@]+):(\d{{1,5}})")
SHORTEST_TOKEN: Final = 16  # characters
LAST_PORT: Final = 65_535

_input: Any = partial(option, group=INPUT)
_output: Any = partial(option, group=OUTPUT)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Who may send films, what is made of them, and where that is sent."""

    ae_title: str = _input("KNEEMATCH", help="AE title of this node.", metavar="AET")
    host: str = _input(LOCAL[0], help="Address to listen on.", metavar="ADDRESS")
    port: int = _input(11112, help="DICOM port; 0 chooses one.", metavar="PORT", minimum=0)
    http_port: int = _input(8080, help="HTTP port; 0 chooses one.", metavar="PORT", minimum=0)
    accept: tuple[str, ...] = _input(
        (), help="AE title that may send films; may be repeated.", metavar="AET", default_text="any"
    )
    token_file: Path | None = _input(
        None, help="File with a token for HTTP; needed unless --host is local.", metavar="FILE"
    )
    tls_cert: Path | None = _input(
        None, help="Certificate (PEM) with which to listen by TLS.", metavar="FILE"
    )
    tls_key: Path | None = _input(None, help="Private key of --tls-cert.", metavar="FILE")
    tls_ca: Path | None = _input(
        None,
        help="CA certificates (PEM) to check DICOM senders and receivers against; with --tls-cert, "
        "senders must then present a certificate.",
        metavar="FILE",
    )
    most_waiting: int = _input(
        1000,
        help="Most films in the queue; senders of more are told to try again later.",
        metavar="N",
        minimum=1,
    )
    send_to: tuple[str, ...] = _output(
        (),
        help="Receiver of results: AET@HOST:PORT, tls:AET@HOST:PORT, or the URL of a DICOMweb "
        "server; may be repeated.",
        metavar="RECEIVER",
    )
    objects: tuple[str, ...] = _output(
        USUAL_OBJECTS,
        help="Objects to send, separated by commas: sr, sr3d, gsps, sc or, with --measure, seg.",
        metavar="NAMES",
        parser=options.parse_names,
    )
    measure: bool = _output(False, help="Measure every knee.")
    workers: int | None = options.workers_option(
        help="Number of worker processes.", default_text="one per core", minimum=1
    )

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_options(self)
        if unknown := set(self.objects) - set(DICOM_OBJECTS):
            raise SettingsError(f"--objects are {', '.join(DICOM_OBJECTS)}, not {min(unknown)}.")
        if "seg" in self.objects and not self.measure:
            raise SettingsError("--objects seg needs --measure, which finds the outlines.")
        for address in self.send_to:
            is_url = re.match(r"https?://[^/?#]", address)
            if not is_url and not parse_address(address):
                raise SettingsError(f"{address} is neither AET@HOST:PORT nor a URL.")
        for title in (self.ae_title, *self.accept):
            if not re.fullmatch(AE_TITLE, title):
                raise SettingsError(
                    "An AE title has 1 to 16 printable ASCII characters, without spaces and "
                    f"backslashes, not {title!r}."
                )
        if max(self.port, self.http_port) > LAST_PORT:
            raise SettingsError(f"--port and --http-port are at most {LAST_PORT}.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key belong together.")
        if self.host not in LOCAL and self.token_file is None:
            raise SettingsError("A --host that others can reach needs a --token-file.")

    def token(self) -> str:
        """Return the token that HTTP requests must have; empty without one."""
        if self.token_file is None:
            return ""
        try:
            text = read_text(self.token_file).strip()
        except (OSError, ValueError) as error:
            raise SettingsError("The file of --token-file cannot be read as text.") from error
        if len(text) < SHORTEST_TOKEN:
            raise SettingsError(
                f"{self.token_file}: A token has {SHORTEST_TOKEN} characters or more."
            )
        return text

    def tls(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        """Return how to accept connections (CLIENT_AUTH) or to make them (SERVER_AUTH)."""
        context = ssl.create_default_context(purpose, cafile=self.tls_ca)
        if self.tls_cert is not None:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        if self.tls_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def parse_address(text: str) -> tuple[bool, str, str, int] | None:
    """Return whether to use TLS, AE title, host and port of a receiver; None for other texts."""
    match = DICOM_ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[4]) <= LAST_PORT:
        return None
    return bool(match[1]), match[2], match[3], int(match[4])
