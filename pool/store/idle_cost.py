"""The cost of unused workers: exact, durable, and without a lock in the path of a claim.

A worker is unused in five kinds of periods (`IdleReason`). The trigger on a move adds the period
that ends to the worker's own row, which that UPDATE writes anyway. When the worker ends, its sums
are added to `idle_spent`. Periods that have not ended are added when the cost is read
(`pool.store.gauges`), in the same snapshot, so that the total never decreases.
"""

from __future__ import annotations

from enum import StrEnum

from pool.core.states import TERMINAL, State


class IdleReason(StrEnum):
    """Why a worker reserves resources without serving a claim."""

    STARTING = "starting"
    WARM = "warm"
    PARKED = "parked"
    OVERDUE = "overdue"
    LEAVING = "leaving"


# The reasons whose seconds are stored on the row until the worker ends. `leaving` is the last
# period and ends with the worker.
KEPT = (IdleReason.STARTING, IdleReason.WARM, IdleReason.PARKED, IdleReason.OVERDUE)
_ENDED = ", ".join(f"'{s}'" for s in sorted(TERMINAL))
ENDS = f"NEW.state IN ({_ENDED}) AND OLD.state NOT IN ({_ENDED})"

SPENDING = f"""  IF NEW.state <> OLD.state THEN
    IF OLD.state = '{State.IDLE}' THEN
      NEW.warm_s := OLD.warm_s + greatest(0, date_part('epoch', NEW.state_since - OLD.state_since));
    ELSIF OLD.state = '{State.HOT_IDLE}' THEN
      NEW.parked_s := OLD.parked_s
        + greatest(0, date_part('epoch', least(NEW.state_since, OLD.hot_idle_until) - OLD.state_since));
      NEW.overdue_s := OLD.overdue_s + greatest(0, date_part('epoch', NEW.state_since - OLD.hot_idle_until));
    ELSIF OLD.state = '{State.SPAWNING}' THEN
      NEW.starting_s := OLD.starting_s + greatest(0, date_part('epoch', NEW.state_since - OLD.state_since));
    END IF;
  END IF;"""

SETTLING = f"""    IF {ENDS} THEN
      INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s)
        SELECT NEW.profile, spell.reason, spell.s * NEW.cpu_millicores / 1000.0, spell.s * NEW.memory_mib / 1024.0
        FROM (VALUES {", ".join(f"('{s}', NEW.{s}_s)" for s in KEPT)}, ('{IdleReason.LEAVING}', CASE WHEN OLD.state = '{State.DRAINING}'
          THEN GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since))::float8 ELSE 0 END)) AS spell (reason, s)
        WHERE spell.s > 0 ORDER BY spell.reason
      ON CONFLICT (profile, reason) DO UPDATE
        SET vcpu_s = idle_spent.vcpu_s + EXCLUDED.vcpu_s, gib_s = idle_spent.gib_s + EXCLUDED.gib_s;
    END IF;"""
