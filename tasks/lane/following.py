"""Send what follows an answer, once, in the transaction that stores the answer.

The script marks the message, and the claim that it got, as followed. A second delivery of the same
answer finds the mark and sends nothing. Redis runs a script as a whole, so a process that dies
sends all of it or nothing. If Redis loses the mark, what follows is sent again with the same ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog
from celery import Celery

from pool.core.names import FOLLOWED_PREFIX
from tasks.lane.expanding import RESULTS, Command, Expander, Foreign, Place, Sent

log = structlog.get_logger(__name__)

# How long a chord's part remembers that the body was sent, as Celery does.
_DONE_S = 300
# Runs commands unless one of the marks exists. Then it adds the answer to its chords, as Celery's
# Redis backend does, and the last part sends the body with the results of all. Keys and queues are
# in the argument, so that a command which Redis refuses does not refuse the transaction.
FOLLOW = """
local plan = cjson.decode(ARGV[1])
local wrong
local function run(command)
  local reply = redis.pcall(unpack(command))
  if type(reply) == 'table' and reply.err then wrong = reply.err end
end
for _, mark in ipairs(plan.marks) do
  if redis.call('EXISTS', mark) == 1 then return 0 end
end
for _, mark in ipairs(plan.marks) do redis.call('SET', mark, '1', 'EX', plan.expires_s) end
for _, command in ipairs(plan.commands) do run(command) end
local function joined(node, by)
  if type(node[2]) ~= 'table' then return by[node[1][1]] or 'null' end
  local all = {}
  for n, child in ipairs(node[2]) do all[n] = joined(child, by) end
  return '[' .. table.concat(all, ', ') .. ']'
end
local function finished(part)
  local values, by, failed = {}, {}, false
  for n, each in ipairs(redis.call('ZRANGE', part.j, 0, -1)) do
    local id, state, value = string.match(each, '^%[1, *"(.-)", *"(%u+)", *(.*)%]$')
    failed = failed or state ~= 'SUCCESS'
    values[n], by[id or n] = value, value
  end
  if failed then
    for _, command in ipairs(part.failed) do run(command) end
    return
  end
  local results = '[' .. table.concat(values, ', ') .. ']'
  local saved = redis.call('GET', part.g)
  if saved then results = joined(cjson.decode(saved).result, by) end
  for _, command in ipairs(part.commands) do run(command) end
  for _, m in ipairs(part.ready) do
    if m.after == nil then
      run({'LPUSH', m.queue, m.head .. m.body .. m.tail})
    else
      run({'LPUSH', m.queue, m.head .. cjson.encode(m.body .. results .. m.after) .. m.tail})
    end
  end
end
for _, part in ipairs(plan.parts) do
  if redis.call('GET', part.c) ~= 'done' then
    if redis.call('SADD', part.d, part.member) == 1 then
      redis.call('ZADD', part.j, part.score, part.value)
    end
    for _, key in ipairs({part.j, part.t, part.s, part.d}) do
      redis.call('EXPIRE', key, plan.expires_s)
    end
    local size, more = redis.call('GET', part.s), redis.call('GET', part.t)
    if size and redis.call('ZCARD', part.j) == tonumber(size) + tonumber(more or 0)
      and redis.call('SET', part.c, 'warmpool', 'NX', 'EX', part.done_s) then
      finished(part)
      redis.call('DEL', part.j, part.t, part.s, part.d)
      redis.call('SET', part.c, 'done', 'EX', part.done_s)
    end
  end
end
if wrong then return redis.error_reply(wrong) end
return 1
"""


class Following:
    """Any thread may use it. `queues` are those that followers may be sent to."""

    def __init__(self, celery: Celery, queues: Sequence[str]) -> None:
        self._celery = celery
        self._queues = queues

    def commands(
        self, task_id: str, followers: str, state: str, result: Any, shown: str
    ) -> list[tuple[Any, ...]]:
        """Return the commands for the transaction of an answer, none if nothing follows.

        A follower that names what it may not is left out with all others of its call.
        """
        if not followers or not self._queues:
            return []
        try:
            plan = self._plan(task_id, json.loads(followers), state, result, shown)
        except Foreign as exc:
            log.warning("followers_left_out", task_id=task_id, cause=str(exc))
            return []
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError):
            log.exception("followers_left_out", task_id=task_id)
            return []
        return [("EVAL", FOLLOW, 0, json.dumps(plan))]

    def _plan(
        self, task_id: str, given: Mapping[str, Any], state: str, result: Any, shown: str
    ) -> dict[str, Any]:
        place = Place(parent_id=task_id, root_id=given.get("root_id") or task_id, path=task_id)
        expander, parts = self._expander(), []
        if state == "SUCCESS":
            answer = json.dumps(result)
            for n, each in enumerate(given.get("callbacks", ())):
                expander.expand(each, answer, shown, place.at(f"link{n}"))
            if chain := given.get("chain"):
                expander.expand(chain[-1], answer, shown, place.at("chain", chain=chain[:-1]))
        else:
            expander.commands.extend(self._failed(given.get("chain", ()), state, result))
            parts += [
                self._part(each["options"], each["options"]["chord"], state, result, place)
                for each in given.get("chain", ())
                if "chord" in each["options"] and "group_id" in each["options"]
            ]
            if state == "FAILURE":
                self._add_errbacks(expander, given.get("errbacks", ()), place)
        if "chord" in given and "group" in given:
            of = {"task_id": task_id, "group_id": given["group"], "group_index": given.get("group_index")}
            parts.append(self._part(of, given["chord"], state, result, place))
        commands = [*expander.commands, *(["LPUSH", m.queue, m.text] for m in expander.messages)]
        marks = [given.get("tag"), result.get("claim_id") if isinstance(result, dict) else None]
        return {
            "marks": [f"{FOLLOWED_PREFIX}{task_id}:{mark}" for mark in marks if mark],
            "expires_s": self._expires_s,
            "commands": commands,
            "parts": parts,
        }

    def _add_errbacks(self, expander: Expander, errbacks: Sequence[Mapping[str, Any]], place: Place) -> None:
        """Call them with the id of the task that failed, as Celery does for tasks of other programs."""
        shown = repr(place.parent_id)
        for n, each in enumerate(errbacks):
            expander.expand(each, json.dumps(place.parent_id), shown, place.at(f"error{n}"))

    def _failed(self, chain: Sequence[Mapping[str, Any]], state: str, result: Any) -> list[Command]:
        """Store the failure for the tasks that will not run, so that no caller waits for them."""
        found: list[Command] = []
        for task_id in (each["options"].get("task_id") for each in chain):
            if task_id:
                meta = {"task_id": task_id, "status": state, "result": result, "traceback": None}
                key, text = self._key(task_id), json.dumps(meta | {"children": []})
                found += [["SET", key, text, "EX", str(self._expires_s)], ["PUBLISH", key, text]]
        return found

    def _part(
        self, of: Mapping[str, Any], body: Mapping[str, Any], state: str, result: Any, place: Place
    ) -> dict[str, Any]:
        """Return what adds a result to a chord."""
        gid, index = of["group_id"], of.get("group_index")
        score = "+inf" if index is None else str(index)
        ready, failed = self._expander(), self._expander()
        after = replace(place, path=f"{gid}/body")
        ready.expand(body, json.dumps(RESULTS), "[...]", after)
        body_id = body["options"].get("task_id") or ""
        problem = {
            "exc_type": "ChordError",
            "exc_module": "celery.exceptions",
            "exc_message": ["a part failed"],
        }
        failed.commands.extend(self._failed([body], "FAILURE", problem))
        here = replace(after, parent_id=body_id or place.parent_id)
        self._add_errbacks(failed, body["options"].get("link_error", ()), here)
        keys = {name: self._group_key(f"{gid}.{name}") for name in "jtsdc"}
        return {
            **keys,
            "g": self._group_key(gid),
            "member": f"{of['task_id']}:{score}",
            "score": score,
            "value": json.dumps([1, of["task_id"], state, result]),
            "done_s": _DONE_S,
            "ready": [_template(m) for m in ready.messages],
            "commands": ready.commands,
            "failed": [*failed.commands, *(["LPUSH", m.queue, m.text] for m in failed.messages)],
        }

    def _expander(self) -> Expander:
        return Expander(
            queues=self._queues, group_key=self._group_key, expires_s=self._expires_s, now=self._celery.now
        )

    @property
    def _expires_s(self) -> int:
        backend: Any = self._celery.backend
        return int(backend.expires)

    def _key(self, task_id: str) -> str:
        backend: Any = self._celery.backend
        return str(backend.get_key_for_task(task_id).decode())

    def _group_key(self, name: str) -> str:
        backend: Any = self._celery.backend
        return str(backend.get_key_for_group(name).decode())


def _template(message: Sent) -> dict[str, str]:
    """Return a message of a chord's body, in two parts around the results."""
    if not message.is_open:
        return {"queue": message.queue, "head": message.text, "body": "", "tail": ""}
    body, _, after = message.body.partition(json.dumps(RESULTS))
    return {
        "queue": message.queue, "head": message.head, "body": body, "after": after, "tail": message.tail,
    }  # fmt: skip
