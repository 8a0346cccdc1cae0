"""TLS in front of a server without TLS: the wheel's Valkey is built without it. Certificates are
created by `openssl`, valid for a day.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

import pytest


def certificates(folder: Path) -> Path:
    """Create ca.crt, tls.crt and tls.key for 127.0.0.1 in that folder, and other.crt, an authority
    that has signed nothing.
    """
    if shutil.which("openssl") is None:
        if os.environ.get("CI"):
            raise RuntimeError("no openssl on PATH")
        pytest.skip("needs openssl")
    folder.mkdir(exist_ok=True)

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("ca", "other"):
        openssl(
            "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "1", "-subj",
            f"/CN={name}",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
        )  # fmt: skip
    openssl("req", *curve, "-keyout", "tls.key", "-out", "tls.csr", "-subj", "/CN=127.0.0.1")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "1", "-extfile", "names")
    openssl("x509", "-req", "-in", "tls.csr", "-out", "tls.crt", *signed)
    return folder


class TlsProxy:
    """Listens with a certificate, and passes the plain bytes to a port."""

    def __init__(self, certificates: Path, to_port: int) -> None:
        self._to_port = to_port
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates / "tls.crt", certificates / "tls.key")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(raw,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        """Close connections without a handshake and connections whose server is unreachable."""
        with (
            closing(raw),
            suppress(OSError),
            self._context.wrap_socket(raw, server_side=True) as client,
            socket.create_connection(("127.0.0.1", self._to_port)) as server,
        ):
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := source.recv(65_536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError, ValueError):
            socket.socket.shutdown(end, socket.SHUT_RDWR)
