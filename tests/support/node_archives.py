"""Images for a node without a registry, as archives: the project's, and stand-ins for those that the
chart takes from elsewhere, with Debian's Valkey and Postgres of the same versions. Stand-ins are cached.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support import kube_binaries, node_image
from tests.support.kube_binaries import Say
from tests.support.node_image import IMAGE, BuiltImage

_INSTALL = (
    "RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends {package}"
    " && apt-get clean && rm -rf /var/lib/apt/lists/*\n"
)
# As the official image: makes a cluster with the user and the database of the environment in an empty
# volume, and starts the server.
_POSTGRES_ENTRYPOINT = """#!/bin/sh
set -eu
mkdir -p "$PGDATA"
chmod 0700 "$PGDATA"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=trust --auth-host=scram-sha-256
    rm /tmp/password
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE \\"$POSTGRES_DB\\"" | postgres --single -j postgres
fi
exec "$@" -c listen_addresses='*'
"""
_DOCKERFILES = {
    "docker.io/valkey/valkey:8.1-alpine": _INSTALL.format(package="valkey-server"),
    # The official image has this user with this id; initdb refuses one without a name.
    "docker.io/library/postgres:17": "RUN groupadd -g 999 postgres && useradd -u 999 -g 999 postgres\n"
    + _INSTALL.format(package="postgresql-17")
    + "ENV PATH=/usr/lib/postgresql/17/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    + "COPY --chmod=755 docker-entrypoint.sh /usr/local/bin/\n",
}

_FILES = {"docker.io/library/postgres:17": {"docker-entrypoint.sh": _POSTGRES_ENTRYPOINT.encode()}}


def project(image: BuiltImage) -> Path:
    """Write the project's image as an archive beside its store."""
    return _pushed(image, IMAGE, image.place / "warmpool.tar")


def stand_ins(image: BuiltImage, pause: Path, pause_name: str, say: Say) -> list[Path]:
    """Return the archives of the other images; making them takes a minute or two, once."""
    found = [
        _stand_in(image, name, f"FROM {image.base_name}\n{steps}", _FILES.get(name, {}), say)
        for name, steps in _DOCKERFILES.items()
    ]
    alone = 'FROM scratch\nCOPY --chmod=755 pause /pause\nUSER 65532:65532\nENTRYPOINT ["/pause"]\n'
    return [*found, _stand_in(image, pause_name, alone, {"pause": pause.read_bytes()}, say)]


def _stand_in(image: BuiltImage, name: str, dockerfile: str, files: Mapping[str, bytes], say: Say) -> Path:
    files = {**files, "Dockerfile": dockerfile.encode()}
    content = b"\0".join((node_image.base_key().encode(), *files.values()))
    short = name.rpartition("/")[2].partition(":")[0]
    target = kube_binaries.cache_root() / f"image-{short}-{hashlib.sha256(content).hexdigest()[:12]}.tar"
    if not target.exists():
        say(f"building an image of {short}, once: a minute")
        with tempfile.TemporaryDirectory(prefix="image-", dir=target.parent) as place:
            for path, data in files.items():
                (Path(place) / path).write_bytes(data)
            image.build(name, Path(place))
            _pushed(image, name, Path(place) / "image.tar").rename(target)
    return target


def _pushed(image: BuiltImage, name: str, target: Path) -> Path:
    image.buildah("push", "--disable-compression", name, f"oci-archive:{target}:{name}")
    return target
