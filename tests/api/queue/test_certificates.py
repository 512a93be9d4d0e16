"""The certificates of a generated server, shown by Python's own TLS: trusted for their hosts and for no other."""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from api.queue.certificates import make_certificates

HOSTS = ["mill.example", "10.0.0.5", "fd00::5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certificates")
    make_certificates(made, HOSTS)
    return made


def handshake(folder: Path, host: str, authority: Path) -> str | None:
    """The TLS version that a client that checks `host` against `authority` agrees on with the server."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.crt", folder / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    ours, theirs = socket.socketpair()

    def accept() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except OSError:  # the client has hung up
            theirs.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        with client.wrap_socket(ours, server_hostname=host) as connection:
            return connection.version()
    finally:
        ours.close()
        thread.join(10)


@pytest.mark.parametrize("host", HOSTS)
def test_the_server_is_trusted_for_each_of_its_hosts(folder: Path, host: str) -> None:
    assert handshake(folder, host, folder / "ca.crt") == "TLSv1.3"


@pytest.mark.parametrize("host", ["other.example", "10.0.0.6"])
def test_it_is_not_trusted_for_another_host(folder: Path, host: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(folder, host, folder / "ca.crt")


def test_another_authority_does_not_vouch_for_it(folder: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path, HOSTS)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(folder, HOSTS[0], tmp_path / "ca.crt")


def test_keys_are_for_their_owner_alone_and_nothing_else_is_left(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "ca.key", "server.crt", "server.key"]
    assert {(folder / name).stat().st_mode & 0o777 for name in ("ca.key", "server.key")} == {0o600}
