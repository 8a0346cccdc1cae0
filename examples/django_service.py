"""A Django project in one file, with a view that borrows a worker for each request.

    make up                                                             # in one terminal
    .venv/bin/uvicorn --lifespan off examples.django_service:app        # in another
    curl -d hello http://127.0.0.1:8000/orgs/acme/ask                   # in a third

In a project of your own only `pool` and the view are needed. Under gunicorn with processes each process
opens its own pool at its first request.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import urllib.request
from functools import cache
from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from warmpool import BrokerDown, Pool, Refused

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY") or secrets.token_hex(32),
        ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    )


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


@cache
def pool() -> Pool:
    """Return the pool of this process, opened at first use. It is closed when the process ends."""
    return Pool(broker_url(), name="django")


def ask(request: HttpRequest, org: str) -> HttpResponse:
    """Ask a worker. A refusal becomes 503 with the time after which to try again."""
    try:
        with pool().acquire(org, wait_s=10) as worker:
            asked = urllib.request.Request(  # noqa: S310 - the pool's own endpoint
                f"{worker.endpoint}/echo", data=request.body, headers=worker.auth
            )
            with urllib.request.urlopen(asked, timeout=10) as response:  # noqa: S310
                return JsonResponse(json.load(response))
    except Refused as no:
        refused = JsonResponse({"detail": f"{no.reason}: {no.detail}"}, status=503)
        refused["Retry-After"] = str(math.ceil(no.retry_after_s or 5))
        return refused
    except BrokerDown as down:
        return JsonResponse({"detail": str(down)}, status=503)


urlpatterns = [path("orgs/<str:org>/ask", ask)]
app = get_asgi_application()
