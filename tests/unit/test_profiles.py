"""Profiles: what changes the revision, and what an activation sends."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from pool.core.profiles import payload, placeholder_revision, revision, unknown_placeholders
from pool.core.settings import KubernetesSettings, Profile

SHAPING: dict[str, Any] = {
    "image": "other",
    "command": ("run",),
    "env": {"A": "1"},
    "cpu_millicores": 501,
    "memory_mib": 513,
    "ephemeral_storage_mib": 1025,
    "port": 8081,
    "grace_s": 601,
    "service_account": "robot",
    "own_service_account": True,
    "run_as_user": 1000,
    "node_selector": {"pool": "workers"},
    "tolerations": ({"key": "dedicated", "value": "workers"},),
    "affinity": {"nodeAffinity": {}},
    "runtime_class": "gvisor",
    "priority_class": "high",
    "readiness_path": "/ready",
    "volumes": ({"name": "cache", "emptyDir": {}},),
    "mounts": ({"name": "cache", "mountPath": "/cache"},),
    "pod_labels": {"team": "a"},
    "pod_annotations": {"team": "a"},
}
HARMLESS: dict[str, Any] = {
    "name": "other",
    "warm_target": 9,
    "headroom": 9,
    "headroom_cpu_millicores": 9,
    "headroom_memory_mib": 9,
    "hot_idle_ttl_s": 9,
    "activation_path": "/activate",
    "activation_payload": {"org": "{org}"},
    "activation_budget_s": 9,
    "probe_path": "/ready",
}


def filled(template: dict[str, Any], **values: str) -> Any:
    profile = Profile(activation_payload=template)
    return payload(profile, org="acme", claim_id="c-1", worker_id="w-1", values=values)


@pytest.mark.parametrize(("setting", "value"), SHAPING.items(), ids=list(SHAPING))
def test_settings_that_shape_a_pod_change_the_revision(setting: str, value: Any) -> None:
    assert revision(replace(Profile(), **{setting: value})) != revision(Profile())


PLACEHOLDER_SHAPING = (
    "image", "cpu_millicores", "memory_mib", "ephemeral_storage_mib", "service_account", "run_as_user", "node_selector",
    "tolerations", "affinity", "runtime_class", "pod_labels", "pod_annotations", "headroom_cpu_millicores",
    "headroom_memory_mib",
)  # fmt: skip


@pytest.mark.parametrize(("setting", "value"), {**SHAPING, **HARMLESS}.items(), ids=[*SHAPING, *HARMLESS])
def test_only_what_a_placeholder_is_made_of_changes_its_revision(setting: str, value: Any) -> None:
    plain = KubernetesSettings()
    changed = placeholder_revision(replace(Profile(), **{setting: value}), plain)
    assert (changed != placeholder_revision(Profile(), plain)) == (setting in PLACEHOLDER_SHAPING)


def test_image_and_priority_of_placeholders_change_their_revision() -> None:
    given = KubernetesSettings(placeholder_image="pause:3")
    other = KubernetesSettings(placeholder_priority_class="other")
    made = {placeholder_revision(Profile(), k) for k in (KubernetesSettings(), given, other)}
    assert len(made) == 3
    assert placeholder_revision(Profile(image="a"), given) == placeholder_revision(Profile(image="b"), given)


@pytest.mark.parametrize(("setting", "value"), HARMLESS.items(), ids=list(HARMLESS))
def test_settings_that_do_not_shape_a_pod_keep_the_revision(setting: str, value: Any) -> None:
    assert revision(replace(Profile(), **{setting: value})) == revision(Profile())


def test_every_setting_of_a_profile_is_classified_as_shaping_or_not() -> None:
    assert {f.name for f in fields(Profile)} == set(SHAPING) | set(HARMLESS)


def test_the_order_of_arguments_changes_the_revision_and_the_order_of_variables_does_not() -> None:
    assert revision(Profile(env={"A": "1", "B": "2"})) == revision(Profile(env={"B": "2", "A": "1"}))
    assert revision(Profile(command=("a", "b"))) != revision(Profile(command=("b", "a")))


def test_a_revision_is_a_short_valid_label() -> None:
    assert len(revision(Profile())) == 12
    assert revision(Profile()).isalnum()


def test_placeholders_are_filled_at_any_depth() -> None:
    template = {
        "tenant": "{org}",
        "nested": {"ids": ["{claim_id}", "{worker_id}", {"url": "https://{values.host}/{org}"}]},
        "number": 3,
        "flag": True,
        "nothing": None,
    }
    assert filled(template, host="db.example") == {
        "tenant": "acme",
        "nested": {"ids": ["c-1", "w-1", {"url": "https://db.example/acme"}]},
        "number": 3,
        "flag": True,
        "nothing": None,
    }


def test_an_unknown_placeholder_is_left_unchanged() -> None:
    assert filled({"a": "{values.missing} {secret} {}"}) == {"a": "{values.missing} {secret} {}"}


def test_placeholders_in_an_orgs_value_are_not_filled() -> None:
    assert filled({"a": "{values.x}"}, x="{claim_id}") == {"a": "{claim_id}"}


def test_filling_leaves_the_template_untouched() -> None:
    template = {"a": ["{org}"]}
    filled(template)
    assert template == {"a": ["{org}"]}


def test_a_filled_payload_is_json() -> None:
    assert json.loads(json.dumps(filled({"a": "{values.quote}"}, quote='"\n'))) == {"a": '"\n'}


def test_placeholders_without_a_value_are_named_once_each() -> None:
    template = {"a": "{org} {ogr} {values.known}", "b": ["{values.other} {ogr}"]}
    assert unknown_placeholders(template, {"known": "1"}) == ["ogr", "values.other"]
