"""Who may do what: signatures, the board's gate, keys, and rights that are missing."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, broken

_BOARD = "tests/integration/test_board.py"
_POISON = "tests/integration/test_poison.py"
_QUEUES = "tests/integration/test_queue_per_org.py"
_SIGNED = "tests/integration/test_signed.py"
_SIGNING = "tests/unit/test_signing.py"

MUTANTS: tuple[Mutant, ...] = (
    broken(
        41,
        "a cookie is believed whatever its signature",
        "pool/board/gate.py",
        'if not self.has_password or not _same(signature, self._signed("session", told)):',
        "if not self.has_password or not signature:",
        "tests/unit/test_board_core.py::test_a_session_names_who_signed_in_until_it_is_over",
    ),
    broken(
        41,
        "a form is taken from wherever it comes",
        "pool/board/gate.py",
        "        return _same(token, self.form_token(cookie))",
        "        return True",
        f"{_BOARD}::test_a_form_from_elsewhere_is_refused",
    ),
    broken(
        43,
        "Flower shows what callers send as it is",
        "tasks/flowering.py",
        '    return _SECRET.sub(r"\\1\\2***\\2", text)',
        "    return text",
        "tests/unit/test_board_core.py::test_flower_never_shows_what_looks_like_a_secret",
    ),
    broken(
        44,
        "any signature will do",
        "pool/signing.py",
        "    if not right:\n        return Trouble.MISMATCH\n",
        "",
        f"{_SIGNING}::test_nothing_of_it_can_be_changed",
    ),
    broken(
        44,
        "arguments may be changed on their way",
        "pool/signing.py",
        "        *(asked.address, list(asked.args), dict(asked.kwargs)),\n",
        "        asked.address,\n",
        f"{_SIGNING}::test_nothing_of_it_can_be_changed",
    ),
    broken(
        44,
        "an answer may be sent to somebody else",
        "pool/signing.py",
        "        *(asked.address, list(asked.args), dict(asked.kwargs)),\n",
        "        *(list(asked.args), dict(asked.kwargs)),\n",
        f"{_SIGNING}::test_nothing_of_it_can_be_changed",
    ),
    broken(
        44,
        "a signature never ends",
        "pool/signing.py",
        "    if proof.expires_s <= now_s:",
        "    if proof.expires_s <= 0:",
        f"{_SIGNING}::test_it_ends_and_can_not_be_made_to_last",
    ),
    broken(
        44,
        "a signature lasts as long as its signer likes",
        "pool/signing.py",
        "    return Trouble.AHEAD if proof.expires_s > now_s + limit_s else None",
        "    return None",
        f"{_SIGNING}::test_it_ends_and_can_not_be_made_to_last",
    ),
    broken(
        44,
        "what was served before is served again",
        "tasks/desk.py",
        "            if nonce is None or nonce.key not in known:\n",
        "            if nonce is None or nonce.key:\n",
        f"{_SIGNED}::test_a_replay_is_refused_and_changes_nothing",
    ),
    broken(
        44,
        "whoever has a key may ask for anybody",
        "tasks/calls.py",
        '    if given.get("org") not in (None, org):\n        raise ForeignOrg(org)\n    return given | {"org": org}\n',
        '    return {"org": org} | given\n',
        f"{_SIGNED}::test_what_is_forged_altered_expired_or_relabelled_is_refused_journalled_and_changes_nothing",
    ),
    broken(
        44,
        "a release asks for no org",
        "pool/claiming.py",
        "if claim is None or (org is not None and claim.org != org):",
        "if claim is None:",
        "tests/integration/test_claiming.py::test_who_is_known_releases_his_own_claims_only",
    ),
    broken(
        45,
        "an org writes to every queue",
        "pool/acl.py",
        'keys = f"%W~{queue} ~{replies}*',
        'keys = f"%W~{queue[:7]}* ~{replies}*',
        f"{_QUEUES}::test_the_line_lets_an_org_do_its_own_and_nothing_else",
    ),
    broken(
        45,
        "an answer goes to whatever address is named",
        "tasks/proving.py",
        "if trouble is None and self._at_home_only and not signing.is_answered_at_home(proof, asked):",
        "if trouble is None and not asked.task:",
        f"{_QUEUES}::test_an_answer_that_would_go_to_anothers_keys_is_not_given",
    ),
    broken(
        46,
        "a worker of a key that is not here is given a token all the same",
        "pool/keys.py",
        "if _mark(key) == marked[1]), None)",
        "if _mark(key) == marked[1]), self.current)",
        "tests/unit/test_keys.py::test_whoever_lacks_the_key_says_so_and_gives_no_wrong_token",
    ),
    broken(
        46,
        "the key before is forgotten at once",
        "pool/keys.py",
        "for key in (self.current, self.previous, self.next) if key is not None)",
        "for key in (self.current, self.next) if key is not None)",
        "tests/unit/test_keys.py::test_a_worker_has_one_key_all_its_life_whoever_derives_it",
    ),
    broken(
        47,
        "one thing that is refused ends the run",
        "pool/passes/running.py",
        "        except (Forbidden, Interrupted):\n",
        "        except (Refused, Interrupted):\n",
        f"{_POISON}::test_an_orphan_that_can_not_be_deleted_is_left_out_and_told_until_it_is_mended",
    ),
    broken(
        47,
        "a right that is missing is a matter of one pod",
        "pool/passes/running.py",
        "        except (Forbidden, Interrupted):\n            raise\n",
        "        except Interrupted:\n            raise\n",
        f"{_POISON}::test_a_right_that_is_missing_is_no_matter_of_one_pod",
    ),
)
