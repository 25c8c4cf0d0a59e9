"""Ports to listen on; the limits of connections are tested with the servers that have them."""

import pytest

from kneematch.connections import open_port
from kneematch.errors import SettingsError


def test_open_port_listens_on_this_machine_only_and_refuses_what_cannot_be_used() -> None:
    with open_port() as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(SettingsError, match=rf"Port {port} of {host} cannot .* use\. Choose"):
            open_port(port)
    with pytest.raises(SettingsError, match=r"Port 0 of no-such-host\.invalid cannot"):
        open_port(0, "no-such-host.invalid")
