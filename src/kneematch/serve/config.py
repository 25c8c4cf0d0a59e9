"""ServeConfig: the settings of `kneematch serve`."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from kneematch.errors import SettingsError
from kneematch.films.files import read_text
from kneematch.run.config import DICOM_OBJECTS, USUAL_OBJECTS
from kneematch.settings import INPUT, OUTPUT, PERFORMANCE, check_settings, split_names

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
AE_TITLE: Final = r"[!-\[\]-~]{1,16}"  # printable ASCII without spaces and backslashes
DICOM_ADDRESS: Final = re.compile(rf"(tls:)?({AE_TITLE})@([^@]+):(\d{{1,5}})")
SHORTEST_TOKEN: Final = 16  # characters
LAST_PORT: Final = 65_535

Port = Annotated[
    int, Parameter(group=INPUT, metavar="PORT", validator=Number(gte=0, lte=LAST_PORT))
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Who may send films, what is made of them, and where that is sent."""

    ae_title: Annotated[str, Parameter(group=INPUT, metavar="AET")] = "KNEEMATCH"
    """AE title of this node."""
    host: Annotated[str, Parameter(group=INPUT, metavar="ADDRESS")] = LOCAL[0]
    """Address to listen on."""
    port: Port = 11112
    """DICOM port; 0 chooses one."""
    http_port: Port = 8080
    """HTTP port; 0 chooses one."""
    accept: Annotated[
        tuple[str, ...], Parameter(group=INPUT, metavar="AET", show_default="any")
    ] = ()
    """AE title that may send films; may be repeated."""
    token_file: Annotated[Path | None, Parameter(group=INPUT, metavar="FILE")] = None
    """File with a token for HTTP; needed unless --host is local."""
    tls_cert: Annotated[Path | None, Parameter(group=INPUT, metavar="FILE")] = None
    """Certificate (PEM) with which to listen by TLS."""
    tls_key: Annotated[Path | None, Parameter(group=INPUT, metavar="FILE")] = None
    """Private key of --tls-cert."""
    tls_ca: Annotated[Path | None, Parameter(group=INPUT, metavar="FILE")] = None
    """CA certificates (PEM) to check DICOM senders and receivers against; with --tls-cert, senders
    must then present a certificate."""
    send_to: Annotated[tuple[str, ...], Parameter(group=OUTPUT, metavar="RECEIVER")] = ()
    """Receiver of results: AET@HOST:PORT, tls:AET@HOST:PORT, or the URL of a DICOMweb server; may
    be repeated."""
    objects: Annotated[
        tuple[str, ...], Parameter(group=OUTPUT, converter=split_names, metavar="NAMES")
    ] = USUAL_OBJECTS
    """Objects to send, separated by commas: sr, sc or, with --measure, seg."""
    measure: Annotated[bool, Parameter(group=OUTPUT)] = False
    """Measure every knee."""
    workers: Annotated[
        int | None,
        Parameter(
            group=PERFORMANCE, metavar="N", validator=Number(gte=1), show_default="one per core"
        ),
    ] = None
    """Number of worker processes."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        check_settings(self)
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
