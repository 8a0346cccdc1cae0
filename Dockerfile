# The image of every component: non-root, read-only root file system, no build tools, no setuid files,
# every package pinned by its hash in requirements.lock. The same file builds for amd64 and arm64.
#     docker build -t warmpool:0.1.0 --build-arg REVISION=$(git rev-parse HEAD) .
# BASE may name the same image by its digest: --build-arg BASE=python@sha256:…
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY deploy/image_requirements.py deploy/sbom.py deploy/
# Two environments: one goes into the image, the other only builds the wheels of client and server.
RUN python deploy/image_requirements.py > image.lock \
 && python deploy/image_requirements.py hatchling > build.lock \
 && python -m venv /opt/warmpool \
 && /opt/warmpool/bin/python -m pip install --no-compile --require-hashes --no-deps -r image.lock \
 && python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --require-hashes --no-deps -r build.lock
COPY pool pool
COPY tasks tasks
COPY clientdist clientdist
COPY beat_schedule.py ./
# The Kubernetes client is used for kubeconfig files only, not in a pod. Its asyncio twin is half of
# its size; its bytecode would be 25 MB for one second of such a start.
# Hash-based bytecode is valid whatever times the files get, and is never checked at run time.
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /dist ./clientdist . \
 && /opt/warmpool/bin/python -m pip install --no-compile --no-deps --no-index /dist/*.whl \
 && /opt/warmpool/bin/python -m pip uninstall --yes pip \
 && rm -r /opt/warmpool/lib/python3.*/site-packages/kubernetes/aio \
 && python deploy/sbom.py > /opt/warmpool/sbom.json \
 && python -m compileall -q -j 0 -x site-packages/kubernetes/ --invalidation-mode unchecked-hash /opt/warmpool/lib

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="warmpool" \
      org.opencontainers.image.description="Keeps worker pods warm and hands them out through Celery" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
# The root file system is read-only, so Python writes no bytecode at run time; files are written to
# /run/warmpool and /tmp. The base has no bytecode of the standard library: without it, every start
# compiles what it imports.
ENV PATH=/opt/warmpool/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
RUN python -m pip uninstall --yes pip \
 && rm -rf /usr/local/lib/python3.*/ensurepip /usr/local/lib/python3.*/idlelib \
 && python -m compileall -q -j 0 --invalidation-mode unchecked-hash /usr/local/lib/python3.* \
 && find / -xdev -type f -perm /6000 -exec chmod a-s {} + \
 && groupadd --gid 65532 warmpool \
 && useradd --uid 65532 --gid 65532 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin warmpool \
 && install -d -o 65532 -g 65532 /run/warmpool /data
COPY --from=build /opt/warmpool /opt/warmpool
COPY --chmod=755 deploy/warmpool-alive deploy/warmpool-init /usr/local/bin/
USER 65532:65532
WORKDIR /tmp
# Process 1. `warmpool worker` and similar commands replace themselves with Celery, which receives the
# signals from it.
ENTRYPOINT ["warmpool-init"]
CMD ["warmpool", "--help"]
