"""TLS for a server that was built without: the server's own certificate on one port, plain TCP behind it on another."""

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path

CHUNK = 65536


class TlsTerminator:
    """Accepts TLS on loopback, with server.crt and server.key of `folder`, and passes all on to `plain_port`."""

    def __init__(self, folder: Path, port: int, plain_port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        self._plain_port = plain_port
        self._loop = asyncio.new_event_loop()
        started = asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context)
        self._server = self._loop.run_until_complete(started)
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            plain_reader, plain_writer = await asyncio.open_connection("127.0.0.1", self._plain_port)
        except OSError:  # the server is not up yet
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, plain_writer), _pass_on(plain_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side ends, however it does."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
