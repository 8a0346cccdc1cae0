# The image of every component: non-root, read-only root file system, no build tools, every package
# pinned by its hash in requirements.lock.
#     docker build -t warmpool:0.1.0 .
FROM python:3.13-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY deploy/image_requirements.py deploy/
# Two environments: one goes into the image, the other only builds the wheels of client and server.
RUN python deploy/image_requirements.py > image.lock \
 && python deploy/image_requirements.py hatchling > build.lock \
 && python -m venv /opt/warmpool \
 && /opt/warmpool/bin/python -m pip install --require-hashes --no-deps -r image.lock \
 && python -m venv /opt/build \
 && /opt/build/bin/python -m pip install --require-hashes --no-deps -r build.lock
COPY pool pool
COPY tasks tasks
COPY clientdist clientdist
COPY beat_schedule.py ./
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /dist ./clientdist . \
 && /opt/warmpool/bin/python -m pip install --no-deps --no-index /dist/*.whl \
 && /opt/warmpool/bin/python -m pip uninstall --yes pip \
 && /opt/warmpool/bin/python -m compileall -q /opt/warmpool/lib

FROM python:3.13-slim-bookworm
LABEL org.opencontainers.image.title="warmpool" org.opencontainers.image.licenses="Apache-2.0"
# The root file system is read-only, so Python writes no bytecode at run time; files are written to
# /run/warmpool and /tmp.
ENV PATH=/opt/warmpool/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
RUN python -m pip uninstall --yes pip \
 && groupadd --gid 65532 warmpool \
 && useradd --uid 65532 --gid 65532 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin warmpool \
 && install -d -o 65532 -g 65532 /run/warmpool /data
COPY --from=build /opt/warmpool /opt/warmpool
COPY --chmod=755 deploy/warmpool-alive /usr/local/bin/warmpool-alive
USER 65532:65532
WORKDIR /tmp
# `warmpool worker` and similar commands replace themselves with Celery, which is then PID 1 and
# receives the signals.
ENTRYPOINT []
CMD ["warmpool", "--help"]
