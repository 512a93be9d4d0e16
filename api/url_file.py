"""A Redis URL in a file of its own: its password is in no argument list, no environment and no configuration."""

import os
import stat
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from pydantic import SecretStr

from api.errors import InputError

LONGEST = 4096


def read_url_file(path: Path) -> SecretStr:
    """The URL that the file holds, a relative ssl_ca_certs made absolute from the file's folder.

    Raises InputError, which quotes nothing of the file: it cannot be read, others can read it, or it holds no URL.
    """
    text = _read_private(path).strip()
    if not text or len(text.split()) != 1:
        raise InputError(f"Redis URL file {path}: it must hold one URL and nothing else")
    return SecretStr(_anchored(text, path.absolute().parent))


def _read_private(path: Path) -> str:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(LONGEST + 1)
    except OSError as error:
        raise InputError(f"Redis URL file {path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
        raise InputError(f"Redis URL file {path} is open to other users; run: chmod 600 '{path}'")
    try:
        return content.decode("ascii") if len(content) <= LONGEST else ""
    except UnicodeDecodeError:
        return ""


def _anchored(url: str, folder: Path) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url  # whoever connects says what is wrong with it
    options = parse_qsl(parts.query, keep_blank_values=True)
    if not any(name == "ssl_ca_certs" for name, _ in options):
        return url
    moved = [(name, str(folder / value) if name == "ssl_ca_certs" else value) for name, value in options]
    return urlunsplit(parts._replace(query=urlencode(moved)))
