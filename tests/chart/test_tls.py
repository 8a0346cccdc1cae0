"""TLS to Redis and Postgres by URL: a certificate of the named authority is accepted, any other is
refused, and nothing is sent in plain text.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from pool.broker import connecting
from pool.client import BrokerDown, Pool
from pool.core.errors import Transient
from pool.core.settings import PoolSettings, Settings
from pool.store import connect
from tasks.options import celery_options
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.tls import TlsProxy, certificates


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_port(made: Path) -> Iterator[int]:
    with RedisServer() as redis, TlsProxy(made, redis.port) as proxy:
        yield proxy.port


def app_for(url: str) -> Celery:
    app = Celery("it", set_as_current=False)
    options = celery_options(Settings(pool=PoolSettings(broker_url=url)))
    app.config_from_object(
        {k: v for k, v in options.items() if k not in {"worker_consumer", "beat_schedule"}}
    )
    return app


def reaches(url: str) -> None:
    """As broker and as result backend, both as the control plane builds them."""
    app = app_for(url)
    try:
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
            channel: Any = connection.default_channel
            channel.client.ping()
        backend: Any = app.backend
        backend.client.ping()
    finally:
        app.close()


@pytest.mark.parametrize("place", ["rediss://u:p@h:1/0", "sentinels://u:p@h:1,h2:1/warm/0"])
def test_tls_means_a_checked_certificate_unless_the_url_turns_it_off(place: str) -> None:
    def made(url: str) -> Any:
        pool: Any = connecting.pool(url)
        return pool.connection_class(**pool.connection_kwargs)

    checked, unchecked = made(f"{place}?ssl_ca_certs=/ca"), made(f"{place}?ssl_cert_reqs=none")
    assert (checked.cert_reqs, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (unchecked.cert_reqs, unchecked.check_hostname) == (ssl.CERT_NONE, False)


def test_redis_is_reached_over_tls(made: Path, tls_port: int) -> None:
    reaches(f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={made / 'ca.crt'}")


@pytest.mark.parametrize(
    "url",
    [
        "rediss://127.0.0.1:{port}/0?ssl_ca_certs={other}",
        "rediss://127.0.0.1:{port}/0",
        "rediss://localhost:{port}/0?ssl_ca_certs={ca}",
    ],
)
def test_redis_with_an_untrusted_certificate_or_another_name_is_refused(
    made: Path, tls_port: int, url: str
) -> None:
    filled = url.format(port=tls_port, other=made / "other.crt", ca=made / "ca.crt")
    with pytest.raises(Exception, match=r"(?i)certificate|hostname"):
        reaches(filled)
    with Pool(filled) as pool, pytest.raises(BrokerDown):
        pool.acquire("acme")


def test_nothing_is_sent_to_a_server_without_tls() -> None:
    """Kombu alone connects to rediss:// without TLS unless the URL has a TLS option."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        heard: list[bytes] = []

        def listen() -> None:
            peer, _ = listener.accept()
            with peer:
                heard.append(peer.recv(64))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        app = app_for(f"rediss://user:password@127.0.0.1:{port}/0")
        with (
            app.connection_for_write() as connection,
            pytest.raises(Exception, match=r"(?i)ssl|eof|closed|reset"),
        ):
            connection.ensure_connection(max_retries=0, timeout=5)
        thread.join(10)
        app.close()
    assert heard[0][:1] == b"\x16", "the first byte of a TLS handshake"


def test_postgres_is_reached_over_tls_only_with_a_trusted_certificate(made: Path) -> None:
    server = PostgresServer(tls=made)
    try:
        server.start()
        url = server.url() + "?sslmode=verify-full&sslrootcert="
        store = connect(url + str(made / "ca.crt"))
        with store.read() as tx:
            assert tx.exec_driver_sql("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").scalar_one()
        store.close()
        refused = connect(url + str(made / "other.crt"))
        with pytest.raises(Transient, match="certificate"), refused.read():
            pass
        refused.close()
    finally:
        server.destroy()
