"""A certificate authority of one's own and a server's certificate, made with the openssl command (or LibreSSL's)."""

import ipaddress
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from api.errors import QueueError

AUTHORITY_DAYS = 3650
SERVER_DAYS = 825
"""The longest that Apple's systems take."""

_CONFIG = """[req]
prompt = no
distinguished_name = name
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = {names}
"""


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.crt, ca.key, server.crt and server.key (P-256) for `hosts`, names or addresses, into `folder`.

    Keys have mode 0600. Raises QueueError: no openssl, or it fails.
    """
    authority, server = folder / "ca.cnf", folder / "server.cnf"
    authority.write_text(_CONFIG.format(name="cidermill", names="DNS:cidermill"), "utf-8")
    server.write_text(_CONFIG.format(name=hosts[0][:64], names=", ".join(map(_alternative, hosts))), "utf-8")
    for key in ("ca.key", "server.key"):
        (folder / key).touch(mode=0o600)
        _openssl(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    _openssl(
        folder,
        *("req", "-x509", "-new", "-sha256", "-key", "ca.key", "-out", "ca.crt", "-config", "ca.cnf"),
        *("-extensions", "authority", "-days", str(AUTHORITY_DAYS)),
    )
    _openssl(folder, "req", "-new", "-sha256", "-key", "server.key", "-out", "server.csr", "-config", "server.cnf")
    _openssl(
        folder,
        *("x509", "-req", "-sha256", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-out", "server.crt"),
        *("-set_serial", f"0x{secrets.randbits(127):032x}", "-days", str(SERVER_DAYS)),
        *("-extfile", "server.cnf", "-extensions", "server"),
    )
    for scratch in (authority, server, folder / "server.csr"):
        scratch.unlink()


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise QueueError("there is no openssl command to make certificates with; install OpenSSL")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-300:]
        raise QueueError(f"openssl {arguments[0]} failed: {said}")
