"""What unused workers cost: exact, durable, and without a lock on any claim's way.

A life is made of spells; five kinds of them are use of a machine that serves nobody (`IdleReason`). The trigger that guards a move
adds the spell that it ends to the worker's own row, which that UPDATE writes anyway; when the life ends its sums go over to `idle_spent`.
The spells that have not ended are added when somebody looks (`pool.store.gauges`), in the same snapshot, so that the figure never goes back.
"""

from __future__ import annotations

from enum import StrEnum

from pool.core.states import TERMINAL, State


class IdleReason(StrEnum):
    """Why a worker's machine served nobody."""

    STARTING = "starting"
    WARM = "warm"
    PARKED = "parked"
    OVERDUE = "overdue"
    LEAVING = "leaving"


# What is kept on the row until its life ends. Leaving is the last spell: it ends with the life.
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
