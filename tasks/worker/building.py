"""Build the lane of an acquire worker from the dependencies of its process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from pool import config
from pool.store.rule_connection import RuleConnection
from tasks.app import WarmpoolApp
from tasks.lane.admission import Admission
from tasks.lane.authenticator import Authenticator
from tasks.lane.deciding import Deciding
from tasks.lane.delaying import Delayed
from tasks.lane.front import Front
from tasks.lane.knownorgs import KnownOrgs, OrgQueues
from tasks.lane.loop import STUCK_S, Lane
from tasks.lane.mailbox import Mailbox
from tasks.lane.posting import Posting
from tasks.lane.sharing import SharedThreads
from tasks.lane.slowpath import SlowPath
from tasks.lane.unproven import UnprovenLog
from tasks.lane.waits import Waits
from tasks.worker import revoking
from tasks.worker.revoking import Revoking

_JOIN_S = 30.0


def start_lane(app: WarmpoolApp) -> None:
    """Run the lane until the process stops. Calls in progress are finished or handed back when the
    process closes.
    """
    deps, pool, stopping, timers = app.deps, app.settings.pool, app.stopping, app.timers
    limit_bytes = pool.message_limit_bytes
    aside = ThreadPoolExecutor(2, thread_name_prefix="aside")
    line, waits, refusals = RuleConnection(deps.store), Waits(deps, timers), UnprovenLog(deps, timers)
    orgs = KnownOrgs(deps.store, deps.keys, deps.clock)
    mailbox = Mailbox(
        config.broker_url(app.settings),
        celery=app,
        limit_bytes=limit_bytes,
        visibility_s=pool.visibility_timeout_s,
        following=app.following,
    )
    posting = Posting(mailbox, deps.store, timers, app.pool_broker.report_served)
    slow_path = SlowPath(deps, waits, posting, SharedThreads(app.threads), aside, stopping)
    authenticator = Authenticator(pool, orgs, app.internal_tasks, refusals, deps.clock)
    admission = Admission(mailbox, authenticator, app.dropped, limit_bytes, pool.follower_queues)
    deciding = Deciding(deps, line, authenticator, waits, slow_path)
    front = Front(deps, admission, Delayed(deps.clock, app.now), deciding, aside)
    lane = Lane(mailbox, OrgQueues(pool, orgs, aside), front, slow_path, posting)
    thread = app.watched.make(
        "lane", lambda: lane.run(deps.clock, stopping, thread.turned), stop=stopping, stuck_after_s=STUCK_S
    )
    if not pool.signed_requests:
        revoking.listen(Revoking(deps, timers))
    # They are called in reverse order.
    for close in (refusals.flush, posting.close, mailbox.close, line.close, slow_path.close):
        app.closing.callback(close)
    app.closing.callback(thread.join, _JOIN_S)
    thread.start()
