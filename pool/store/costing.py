"""What unused workers cost: exact, durable, and without a lock on any claim's way.

A life is made of spells; five kinds of them are use of a machine that serves nobody (`Spell`). On Postgres the trigger that guards a move
adds the spell that it ends to the worker's own row, which that UPDATE writes anyway; when the life ends its sums go over to `idle_spent`. On
SQLite there is one writer at a time, so every spell goes there at once. The spells that have not ended are added when somebody looks
(`pool.store.gauges`), in the same snapshot, so that the figure never goes back.
"""

from __future__ import annotations

from enum import StrEnum

from pool.states import TERMINAL, State


class Spell(StrEnum):
    """Why a worker's machine served nobody."""

    STARTING = "starting"
    WARM = "warm"
    PARKED = "parked"
    OVERDUE = "overdue"
    LEAVING = "leaving"


# What is kept on the row until its life ends. Leaving is the last spell: it ends with the life.
KEPT = (Spell.STARTING, Spell.WARM, Spell.PARKED, Spell.OVERDUE)
_ENDED = ", ".join(f"'{s}'" for s in sorted(TERMINAL))
ENDS = f"NEW.state IN ({_ENDED}) AND OLD.state NOT IN ({_ENDED})"

POSTGRES_SPENDING = f"""  IF NEW.state <> OLD.state THEN
    IF OLD.state = '{State.SPAWNING}' THEN
      NEW.starting_s := OLD.starting_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since));
    ELSIF OLD.state = '{State.IDLE}' THEN
      NEW.warm_s := OLD.warm_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since));
    ELSIF OLD.state = '{State.HOT_IDLE}' THEN
      NEW.parked_s := OLD.parked_s
        + GREATEST(0, EXTRACT(EPOCH FROM LEAST(NEW.state_since, OLD.hot_idle_until) - OLD.state_since));
      NEW.overdue_s := OLD.overdue_s + GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.hot_idle_until));
    END IF;
  END IF;"""

POSTGRES_SETTLING = f"""CREATE FUNCTION workers_settle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s)
    SELECT NEW.profile, spell.reason, spell.s * NEW.cpu_millicores / 1000.0, spell.s * NEW.memory_mib / 1024.0
    FROM (VALUES {", ".join(f"('{s}', NEW.{s}_s)" for s in KEPT)}, ('{Spell.LEAVING}', CASE WHEN OLD.state = '{State.DRAINING}'
      THEN GREATEST(0, EXTRACT(EPOCH FROM NEW.state_since - OLD.state_since))::float8 ELSE 0 END)) AS spell (reason, s)
    WHERE spell.s > 0 ORDER BY spell.reason
  ON CONFLICT (profile, reason) DO UPDATE
    SET vcpu_s = idle_spent.vcpu_s + EXCLUDED.vcpu_s, gib_s = idle_spent.gib_s + EXCLUDED.gib_s;
  RETURN NULL; END $$"""


def _sqlite_spell(spell: Spell, state: State, start: str, end: str) -> str:
    seconds = f"(julianday({end}) - julianday({start})) * 86400.0"
    return (
        "INSERT INTO idle_spent (profile, reason, vcpu_s, gib_s) "
        f"SELECT NEW.profile, '{spell}', s * NEW.cpu_millicores / 1000.0, s * NEW.memory_mib / 1024.0 "
        f"FROM (SELECT {seconds} AS s) WHERE OLD.state = '{state}' AND s > 0 "
        "ON CONFLICT (profile, reason) DO UPDATE "
        "SET vcpu_s = vcpu_s + excluded.vcpu_s, gib_s = gib_s + excluded.gib_s; "
    )


SQLITE_SPENDING = (
    "CREATE TRIGGER workers_spend AFTER UPDATE ON workers WHEN NEW.state <> OLD.state BEGIN "
    + _sqlite_spell(Spell.STARTING, State.SPAWNING, "OLD.state_since", "NEW.state_since")
    + _sqlite_spell(Spell.WARM, State.IDLE, "OLD.state_since", "NEW.state_since")
    + _sqlite_spell(
        Spell.PARKED, State.HOT_IDLE, "OLD.state_since", "MIN(NEW.state_since, OLD.hot_idle_until)"
    )
    + _sqlite_spell(Spell.OVERDUE, State.HOT_IDLE, "OLD.hot_idle_until", "NEW.state_since")
    + _sqlite_spell(Spell.LEAVING, State.DRAINING, "OLD.state_since", "NEW.state_since")
    + "END"
)
