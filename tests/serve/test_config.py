"""Settings of the node: what contradicts itself is refused, in one sentence."""

from pathlib import Path

import pytest

from kneematch.errors import SettingsError
from kneematch.serve.config import ServeConfig, parse_address


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"host": "0.0.0.0"}, "needs a `token_file`"),
        *(
            ({"send_to": (address,)}, "neither AET@HOST:PORT nor a URL")
            for address in ("pacs:104", "PACS@host:65536", "PACS@host:0", "PÄCS@host:104")
        ),
        ({"send_to": ("https://",)}, "neither AET@HOST:PORT nor a URL"),
        ({"objects": ("seg",)}, "needs `measure`"),
        ({"objects": ("sr", "pdf")}, "not pdf"),
        ({"tls_cert": Path("cert.pem")}, "belong together"),
        ({"workers": 0}, "Must be >= 1"),
        ({"ae_title": "LONGER THAN 16 CHARACTERS"}, "1 to 16 printable"),
        ({"accept": ("",)}, "1 to 16 printable"),
        ({"http_port": 65_536}, "Must be <= 65535"),
    ],
)
def test_serve_config_refuses_contradictions(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        ServeConfig(**settings)  # type: ignore[arg-type]


def test_serve_config_listens_on_this_machine_only_by_default() -> None:
    assert (ServeConfig().host, ServeConfig().objects) == ("127.0.0.1", ("sr", "sc"))


def test_serve_config_refuses_a_file_that_holds_no_long_token(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "bytes").write_bytes(b"\xff" * 32)
    refused = {"short": "16 characters or more", "bytes": "cannot be read as text"}
    for name, reason in {**refused, "missing": "cannot be read", ".": "cannot be read"}.items():
        with pytest.raises(SettingsError, match=reason):
            ServeConfig(token_file=tmp_path / name).token()


def test_parse_address_reads_title_host_and_port() -> None:
    assert parse_address("PACS@archive.example:104") == (False, "PACS", "archive.example", 104)
    assert parse_address("tls:MY PACS@10.0.0.1:2762") is None
    assert parse_address("tls:MY_PACS@10.0.0.1:2762") == (True, "MY_PACS", "10.0.0.1", 2762)
