"""The configuration: any file and any environment give settings or findings, and each finding names
its setting.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example as always
from hypothesis import given, settings
from hypothesis import strategies as st

from pool import config, wiring
from pool.config.environment import is_mistake, variable
from pool.config.example import as_toml, example, in_force, toml
from pool.config.kinds import Taker
from pool.config.parsing import KUBERNETES, ORG, POOL, PROFILE, ConfigReport, parse
from pool.core import contract
from pool.core.errors import ConfigInvalid, InvalidInput
from pool.core.settings import PoolSettings, Settings
from tests.support.examples import examples

ROOT = Path(__file__).parents[2]
SECTIONS = [("pool", POOL), ("kubernetes", KUBERNETES), ("profiles.default", PROFILE), ("orgs.acme", ORG)]
EVERY = [
    pytest.param(section, name, taker, id=f"{section}.{name}")
    for section, known in SECTIONS
    for name, taker in known.items()
]


def parsed(text: str, **env: str) -> ConfigReport:
    return parse(text, "f.toml", env)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_a_file_the_defaults_apply(empty: Path) -> None:
    found = config.load(env={})
    assert found.pool.data_dir == str(empty / ".warmpool")
    assert found.profiles == Settings().profiles
    assert found.orgs_auto_create


def test_explicit_path_wins_over_the_variable_over_the_directory(empty: Path) -> None:
    for name, workers in (("explicit", 1), ("variable", 2), ("warmpool", 3)):
        (empty / f"{name}.toml").write_text(f"[pool]\nmax_workers = {workers}\n")
    env = {"WARMPOOL_CONFIG": "variable.toml"}
    assert config.load(Path("explicit.toml"), env).pool.max_workers == 1
    assert config.load(None, env).pool.max_workers == 2
    assert config.load(None, {}).pool.max_workers == 3
    assert config.load(None, {"WARMPOOL_CONFIG": ""}).pool.max_workers == 3


def test_a_missing_explicit_file_is_a_finding(empty: Path) -> None:
    (finding,) = config.check(Path("absent.toml"), {})
    assert finding.startswith("absent.toml: cannot be read: No such file")
    with pytest.raises(ConfigInvalid) as caught:
        config.load(None, {"WARMPOOL_CONFIG": str(empty)})
    assert "Is a directory" in caught.value.findings[0]


def test_everything_is_read_from_its_section() -> None:
    report = parsed(
        """
        [pool]
        max_workers = 7
        [profiles.gpu]
        image = "registry/x:1"
        command = ["a", "b"]
        env = { MODE = "fast" }
        activation_payload = { org = "{org}", n = [1, 2.5, true, { k = "v" }] }
        [orgs]
        auto_create = false
        [orgs."acme.eu"]
        weight = 2
        values = { region = "eu" }
        """
    )
    assert report.problems == []
    assert report.warnings == []
    found = report.settings
    assert found.pool.max_workers == 7
    assert list(found.profiles) == ["gpu"]
    assert found.profiles["gpu"].name == "gpu"
    assert found.profiles["gpu"].command == ("a", "b")
    assert found.profiles["gpu"].env == {"MODE": "fast"}
    assert not found.orgs_auto_create
    assert found.orgs["acme.eu"].weight == 2.0
    assert isinstance(found.orgs["acme.eu"].weight, float)


def test_the_environment_wins_over_the_file() -> None:
    report = parsed(
        "[pool]\nmax_workers = 1\nevents = true\n[orgs]\nauto_create = true\n",
        WARMPOOL_MAX_WORKERS=" 5 ",
        WARMPOOL_EVENTS="off",
        WARMPOOL_DRIVER="kubernetes",
        WARMPOOL_ORGS_AUTO_CREATE="0",
        WARMPOOL_KUBERNETES_QPS="7",
        WARMPOOL_KUBERNETES_PULL_SECRETS="one, two",
    )
    assert report.problems == []
    pool = report.settings.pool
    assert (pool.max_workers, pool.events, pool.driver) == (5, False, "kubernetes")
    assert not report.settings.orgs_auto_create
    assert report.settings.kubernetes.qps == 7
    assert report.settings.kubernetes.pull_secrets == ("one", "two")


def test_an_invalid_line_that_a_variable_overrides_is_no_finding() -> None:
    assert parsed("[pool]\nmax_workers = -1\n", WARMPOOL_MAX_WORKERS="5").problems == []


WRONG_LINES = [
    ("[pool]\nmax_worker = 3", 2, "pool.max_worker is not a setting; did you mean max_workers?"),
    (
        "[pool]\nwarm_target = 3",
        2,
        "pool.warm_target is not a setting; warm_target belongs in [profiles.NAME] of the file",
    ),
    ("[pool]\n\nmax_workers = -1", 3, "pool.max_workers is -1; it must be a whole number, 0 or more"),
    ("pool.max_workers = 1.5", 1, "pool.max_workers is 1.5; it must be a whole number, 0 or more"),
    ("pool = { max_workers = true }", 1, "pool.max_workers is true; it must be a whole number, 0 or more"),
    (
        "[pool]\nmax_workers = 99999999999",
        2,
        "pool.max_workers is 99999999999; it must be a whole number, 0 or more",
    ),
    ('[pool]\nevents = "yes"', 2, 'pool.events is "yes"; it must be true or false'),
    (
        "[pool]\nactivation_tries = 11",
        2,
        "pool.activation_tries is 11; it must be a whole number from 1 to 10",
    ),
    ('[pool]\ndriver = "docker"', 2, 'pool.driver is "docker"; it must be local or kubernetes'),
    ('[pool]\ndata_dir = " "', 2, 'pool.data_dir is " "; it must be the path of a directory'),
    ('[pool]\ndata_dir = "a\\nb"', 2, 'pool.data_dir is "a\\nb"; it must be a string on one line'),
    (
        '[pool]\ndatabase_url = "mysql://h/d"',
        2,
        'pool.database_url is "mysql://h/d"; it must be postgresql://',
    ),
    (
        '[pool]\ndatabase_url = "sqlite:///x.db"',
        2,
        'pool.database_url is "sqlite:///x.db"; it must be postgresql://',
    ),
    ('[pool]\nbroker_url = "amqp://h"', 2, 'pool.broker_url is "amqp://h"; it must be redis://'),
    ('[pool]\nbroker_url = "redis:///0"', 2, 'pool.broker_url is "redis:///0"; it must be redis://'),
    ('[pool]\nbroker_url = "redis://[::1"', 2, "pool.broker_url is "),
    ('[pool]\nbroker_url = "redis://h:port"', 2, "pool.broker_url is "),
    ("pool = 3", 1, "pool is 3; it must be a table, [pool]"),
    ("profiles = []", 1, "profiles is a list; it must be made of tables, [profiles.NAME]"),
    ("[profiles]\ndefault = 3", 2, "profiles.default is 3; it must be a table, [profiles.NAME]"),
    ("[profiles.Big]", 1, 'profiles.Big is named "Big"; it must be 1 to 63 lower-case'),
    ("[profiles.-x]", 1, 'profiles.-x is named "-x"; it must be 1 to 63 lower-case'),
    ("[profiles.x]\nname = 'y'", 2, "profiles.x.name is not a setting"),
    ("[profiles.x]\nport = 0", 2, "profiles.x.port is 0; it must be a whole number from 1 to 65535"),
    ("[profiles.x]\nimage = ''", 2, 'profiles.x.image is ""; it must be the name of an image'),
    ("[profiles.x]\ncommand = 'run'", 2, 'profiles.x.command is "run"; it must be a list of strings'),
    ("[profiles.x]\ncommand = [\n1]", 2, "profiles.x.command.0 is 1; it must be a string"),
    (
        "[profiles.x]\nprobe_path = 'ready'",
        2,
        'profiles.x.probe_path is "ready"; it must be a path that begins with /',
    ),
    ("[profiles.x.env]\nA = 'a'\nB = 2", 3, "profiles.x.env.B is 2; it must be a string in quotes"),
    (
        "[profiles.x.env]\nWARMPOOL_PORT = '1'",
        2,
        'profiles.x.env.WARMPOOL_PORT is named "WARMPOOL_PORT"; it must be a name that',
    ),
    ("[profiles.x.env]\n'a b' = '1'", 2, 'profiles.x.env."a b" is named "a b"; it must be a variable name'),
    (
        "[profiles.x.activation_payload]\nwhen = 2020-01-01",
        2,
        "profiles.x.activation_payload.when is 2020-01-01; it must be a JSON value",
    ),
    (
        "[profiles.x.activation_payload]\nn = [1, nan]",
        2,
        "profiles.x.activation_payload.n.1 is nan; it must be a JSON value",
    ),
    (
        "[profiles.x.activation_payload" + ".a" * 5000 + "]",
        1,
        "profiles.x.activation_payload is a table; it must be a table with at most",
    ),
    ("[kubernetes]\nnamespace = 'A b'", 2, 'kubernetes.namespace is "A b"; it must be 1 to 63 lower-case'),
    ("[kubernetes]\nanchor = ''", 2, 'kubernetes.anchor is ""; it must be 1 to 63 lower-case'),
    ("[kubernetes]\npull_secrets = ['A']", 2, 'kubernetes.pull_secrets.0 is "A"; it must be a name of'),
    ("[kubernetes]\nname_space = 'x'", 2, "kubernetes.name_space is not a setting; did you mean namespace?"),
    (
        "[profiles.x]\ntolerations = [{ operator = 'Exists' }]",
        2,
        "profiles.x.tolerations.0 is a table; it must be a toleration with a key",
    ),
    ("[profiles.x]\ntolerations = [1]", 2, "profiles.x.tolerations.0 is 1; it must be a table"),
    (
        "[profiles.x.pod_labels]\n'warmpool.dev/busy' = 'true'",
        2,
        'profiles.x.pod_labels."warmpool.dev/busy" is named "warmpool.dev/busy"; it must be a name that is not reserved',
    ),
    (
        "[profiles.x.pod_annotations]\n'karpenter.sh/do-not-disrupt' = 'true'",
        2,
        'profiles.x.pod_annotations."karpenter.sh/do-not-disrupt" is named ',
    ),
    (
        "[profiles.x]\nvolumes = [{ name = 'host', hostPath = { path = '/' } }]",
        2,
        "profiles.x.volumes.0 is a table; it must be a volume of one of the types configMap, ",
    ),
    (
        "[profiles.x]\nmounts = [{ name = 'warmpool-key', mountPath = '/x' }]",
        2,
        "profiles.x.mounts.0 is a table; it must be a mount ",
    ),
    ("orgs = 1", 1, "orgs is 1; it must be made of tables, [orgs.NAME]"),
    ("[orgs]\nauto_create = 1", 2, "orgs.auto_create is 1; it must be true or false"),
    (
        "[orgs]\nauto_creat = true",
        2,
        "orgs.auto_creat is true; it must be a table, [orgs.NAME]; did you mean auto_create?",
    ),
    (
        "[orgs.acme.eu]\ncap = 1",
        1,
        "orgs.acme.eu is not a setting; put a name that contains dots in quotes",
    ),
    ('[orgs."a/b"]', 1, 'orgs."a/b" is named "a/b"; it must be 1 to 128 letters'),
    ('[orgs.".acme"]', 1, 'orgs.".acme" is named ".acme"; it must be 1 to 128 letters'),
    (f"[orgs.{'a' * 129}]", 1, f"orgs.{'a' * 129} is named "),
    ("[orgs.a]\nweight = 0", 2, "orgs.a.weight is 0; it must be a number from 0.001 to 1000000"),
    ("[orgs.a]\nweight = inf", 2, "orgs.a.weight is inf; it must be a number"),
    ("[orgs.a.values]\n'a b' = 'x'", 2, 'orgs.a.values."a b" is named "a b"; it must be made of'),
    ("[pol]\n", 1, "pol is not a section; did you mean pool?"),
    ("max_workers = 3", 1, "max_workers is not a section; max_workers belongs in [pool] of the file"),
    ("x = '''\n[pool]\nmax_workers = -1\n'''\n[pool]\nmax_workers = -2", 6, "pool.max_workers is -2"),
]


@pytest.mark.parametrize(("text", "line", "sentence"), WRONG_LINES)
def test_an_invalid_line_is_reported_with_line_setting_value_and_what_is_allowed(
    text: str, line: int, sentence: str
) -> None:
    problems = parsed(text).problems
    assert any(p.startswith(f"f.toml:{line}: {sentence}") for p in problems), problems


@given(st.from_regex(r"[A-Za-z0-9._-]{1,130}", fullmatch=True))
@settings(max_examples=examples(50))
def test_an_org_that_the_configuration_accepts_can_acquire(name: str) -> None:
    in_file = parsed(f'[orgs."{name}"]\n').problems == []
    try:
        in_call = contract.org_id(name) == name
    except InvalidInput:
        in_call = False
    assert in_file == in_call


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("[pool\n", "f.toml:1: is not valid TOML: "),
        ("[pool]\na = \n", "f.toml:2: is not valid TOML: "),
        ("[pool]\na = 1\na = 2\n", "f.toml:3: is not valid TOML: "),
        ("a = " + "9" * 5000, "f.toml: is not valid TOML: "),
        ("a = " + "[" * 5000, "f.toml: is not usable: it has too many levels of nesting"),
    ],
)
def test_invalid_toml_is_one_finding_with_its_line(text: str, start: str) -> None:
    (problem,) = parsed(text).problems
    assert problem.startswith(start)


def test_a_file_that_is_not_utf8_is_a_finding_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_bytes(b"[pool]\n# \xff\n")
    (finding,) = config.check(file, {})
    assert finding == f"{file}:2: is not valid TOML: the file is not UTF-8"


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_bytes(b"\xef\xbb\xbf[pool]\r\nmax_workers = 2\r\n")
    assert config.load(file, {}).pool.max_workers == 2


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text("[pool]\nmax_workers = -1\nevents = 3\n[orgs.a]\ncap = 'x'\n")
    with pytest.raises(ConfigInvalid) as caught:
        config.load(file, {"WARMPOOL_MAX_AGE_S": "many", "WARMPOOL_MAX_AGES": "1"})
    assert len(caught.value.findings) == 5


@pytest.mark.parametrize(("section", "name", "taker"), EVERY)
def test_every_setting_refuses_values_of_another_type(section: str, name: str, taker: Taker) -> None:
    wrong = "1979-05-27"  # a date: no setting accepts one
    (problem,) = parsed(f"[{section}]\n{name} = {wrong}\n").problems
    shown = "(not shown)" if name.startswith("master_key") else wrong
    assert problem.startswith(f"f.toml:2: {section}.{name} is {shown}; it must be {taker.takes}")


BOUNDED = [p for p in EVERY if p.values[2].least is not None]  # type: ignore[union-attr]


@pytest.mark.parametrize(("section", "name", "taker"), BOUNDED)
def test_every_bound_is_enforced(section: str, name: str, taker: Taker) -> None:
    assert taker.least is not None
    below = parsed(f"[{section}]\n{name} = {toml(taker.least - 1)}\n").problems
    assert below[0].startswith(f"f.toml:2: {section}.{name} is ")
    at = parsed(f"[{section}]\n{name} = {toml(taker.least)}\n").problems
    assert not [p for p in at if "it must be" in p]
    if taker.most is not None:
        above = parsed(f"[{section}]\n{name} = {toml(taker.most + 1)}\n").problems
        assert above[0].startswith(f"f.toml:2: {section}.{name} is ")


@pytest.mark.parametrize("field", fields(PoolSettings), ids=lambda f: f.name)
def test_every_pool_setting_has_a_variable_and_a_meaning(field: Any) -> None:
    assert field.metadata["doc"]
    name = variable(field.name)
    assert not is_mistake(name, frozenset({name}))
    if POOL[field.name].kind.takes != "a string on one line":
        (problem,) = parsed("", **{name: "x y"}).problems
        assert problem.startswith(f'environment: {name} is "x y"; it must be ')


NESTING = [
    (
        "spawn_budget_s = 59",
        2,
        "pool.spawn_budget_s must be at least pod_ready_limit_s; spawn_budget_s is 59, pod_ready_limit_s is 60",
    ),
    (
        "pod_ready_limit_s = 91",
        2,
        "pool.pod_ready_limit_s: spawn_budget_s must be at least pod_ready_limit_s",
    ),
    ("stuck_cutoff_s = 90", 2, "pool.stuck_cutoff_s must be more than spawn_budget_s"),
    ("activation_stuck_s = 4", 2, "pool.activation_stuck_s must be more than twice activation_heartbeat_s"),
    ("visibility_timeout_s = 99", 2, "pool.visibility_timeout_s must be at least 100"),
    ("result_expires_s = 3600", 2, "pool.result_expires_s must be more than the longest wait_s"),
    (
        "hot_idle_ttl_max_s = 59",
        2,
        "pool.hot_idle_ttl_max_s: hot_idle_ttl_s must be at most hot_idle_ttl_max_s",
    ),
]


@pytest.mark.parametrize(("line", "number", "sentence"), NESTING)
def test_budgets_that_do_not_nest_name_the_setting_that_was_given(
    line: str, number: int, sentence: str
) -> None:
    (problem,) = parsed(f"[pool]\n{line}\n").problems
    assert problem.startswith(f"f.toml:{number}: {sentence}")


def test_no_process_starts_with_budgets_that_do_not_nest(tmp_path: Path) -> None:
    """Settings need not come from a file."""
    settings = Settings(pool=PoolSettings(spawn_budget_s=10, data_dir=str(tmp_path)))
    with pytest.raises(ConfigInvalid, match="spawn_budget_s must be at least pod_ready_limit_s"):
        wiring.build(settings, broker=wiring.DroppingBroker(), role="fleet")


def test_a_budget_from_the_environment_is_reported_with_its_variable() -> None:
    (problem,) = parsed("", WARMPOOL_SPAWN_BUDGET_S="10").problems
    assert problem.startswith("environment: pool.spawn_budget_s must be at least pod_ready_limit_s")


def test_a_profiles_own_activation_budget_must_nest() -> None:
    (problem,) = parsed("[profiles.x]\nactivation_budget_s = 900\n").problems
    assert problem.startswith(
        "f.toml:2: profiles.x.activation_budget_s is 900; with it pool.visibility_timeout_s must be"
    )


def test_an_invalid_budget_is_not_reported_a_second_time_by_its_default() -> None:
    problems = parsed(
        "[pool]\nspawn_budget_s = 'x'\npod_ready_limit_s = 100\nstuck_cutoff_s = 300\n"
    ).problems
    assert len(problems) == 1


def test_a_placeholder_without_a_value_is_a_warning_only() -> None:
    text = "[profiles.x.activation_payload]\na = '{org} {values.region} {claimid}'\n"
    report = parsed(text)
    assert report.problems == []
    assert [w.partition(" contains ")[2] for w in report.warnings] == [
        "{claimid}, but it is not a known placeholder",
        "{values.region}, but no org in this file defines this value",
    ]
    assert len(parsed(text + "[orgs.a.values]\nregion = 'eu'\n").warnings) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("CONFIG", "WORKER", "UID", "STATUS_FILE", "KEY_FILE", "GRACE_S", "PORT", "ENDPOINT", "TOKEN"),
        *("CLAIM", "CLAIM_ID", "EPOCH", "CURL_CONFIG", "RUN_ID", "TEST_DATABASE"),
        *("SERVICE_HOST", "REDIS_SERVICE_PORT_HTTP", "PORT_8080_TCP_ADDR", "REDIS_PORT"),
    ],
)
def test_environment_variables_of_other_parts_are_no_findings(name: str) -> None:
    assert parsed("", **{f"WARMPOOL_{name}": "x"}).problems == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("WARMPOOL_MAX_WORKER", "; did you mean max_workers?"),
        ("WARMPOOL_WARM_TARGET", "; warm_target belongs in [profiles.NAME] of the file"),
        ("WARMPOOL_KUBERNETES_NAMESPAC", "; did you mean kubernetes_namespace?"),
        ("WARMPOOL_XYZZY", ""),
    ],
)
def test_a_variable_that_is_no_setting_is_a_finding(name: str, hint: str) -> None:
    assert parsed("", **{name: "1"}).problems == [f"environment: {name} is not a setting{hint}"]


@pytest.mark.parametrize(
    ("name", "least"), [("master_key", 32), ("master_key_next", 32), ("master_key_previous", 16)]
)
def test_a_short_master_key_is_a_finding(name: str, least: int) -> None:
    """The previous key may be as short as was allowed then, so that it can be replaced without
    losing a worker.
    """
    (problem,) = parsed(f'[pool]\n{name} = "{"k" * (least - 1)} "\n').problems
    assert problem.startswith(
        f"f.toml:2: pool.{name} is (not shown); it must be at least {least} characters long, or empty"
    )
    assert parsed(f'[pool]\n{name} = "{"k" * least}"\n').problems == []


def test_secrets_are_in_no_finding_and_not_shown() -> None:
    text = '[pool]\nmaster_key = "hunter2"\ndatabase_url = "mysql://u:hunter2@h/d?password=hunter2"\n'
    problems = parsed(text, WARMPOOL_BROKER_URL="amqp://u:hunter2@x@h").problems
    assert len(problems) == 3
    assert "hunter2" not in "".join(problems)
    good = parsed("", WARMPOOL_MASTER_KEY="hunter2" * 5, WARMPOOL_DATABASE_URL="postgresql://u:hunter2@h/d")
    assert good.problems == []
    shown = "\n".join(as_toml(in_force(good.settings)))
    assert "hunter2" not in shown
    assert "postgresql://***@h/d" in shown


def test_the_example_file_is_what_the_command_prints_and_changes_nothing() -> None:
    file = ROOT / "examples" / "warmpool.toml"
    assert file.read_text() == example(), "run: warmpool config example > examples/warmpool.toml"
    report = parse(example(), "f.toml", {})
    assert (report.problems, report.warnings, report.settings) == ([], [], Settings())


def test_every_setting_is_in_the_example_and_loads_when_uncommented() -> None:
    lines = [
        line.removeprefix("#") if line.startswith("#") and line[1:2] != " " else line
        for line in example().splitlines()
    ]
    report = parsed("\n".join(lines))
    assert (report.problems, report.warnings) == ([], [])
    assert "acme" in report.settings.orgs
    for _, known in SECTIONS:
        for name in known:
            assert any(line.startswith(f"{name} = ") for line in lines), name


def test_the_shown_configuration_loads_as_the_same_settings() -> None:
    text = (
        "[profiles.x]\nenv = { A = 'é\"\\\\' }\nactivation_payload = { 'k 1' = [1, { b = '\\u007f' }] }\n"
        '[orgs."a.b"]\nvalues = { k = "v" }\n'
    )
    once = parsed(text)
    assert once.problems == []
    assert parsed("\n".join(as_toml(in_force(once.settings)))).settings == once.settings


def test_relative_paths_start_at_the_file_or_for_a_variable_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    file = tmp_path / "etc" / "w.toml"
    file.write_text('[pool]\ndata_dir = "data"\n')
    monkeypatch.chdir(tmp_path)
    pool = config.load(Path("etc/w.toml"), {}).pool
    assert pool.data_dir == str(tmp_path / "etc" / "data")
    pool = config.load(file, {"WARMPOOL_DATA_DIR": "d"}).pool
    assert pool.data_dir == str(tmp_path / "d")


GARBAGE_VALUES = st.recursive(
    st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.booleans()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*POOL, *KUBERNETES, *PROFILE, *ORG, "auto_create", "name"]) | st.text(max_size=6)
TABLES = st.dictionaries(KEYS, GARBAGE_VALUES, max_size=5)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "pool": TABLES | GARBAGE_VALUES,
        "kubernetes": TABLES | GARBAGE_VALUES,
        "profiles": st.dictionaries(st.text(max_size=6), TABLES | GARBAGE_VALUES, max_size=3)
        | GARBAGE_VALUES,
        "orgs": st.dictionaries(KEYS, TABLES | GARBAGE_VALUES, max_size=3) | GARBAGE_VALUES,
        "other": GARBAGE_VALUES,
    },
)
VARIABLES = st.sampled_from([variable(name) for name in POOL] + ["WARMPOOL_ORGS_AUTO_CREATE"]) | st.text(
    max_size=9
).map("WARMPOOL_".__add__)
ENVIRONMENTS = st.dictionaries(VARIABLES, st.text(max_size=8), max_size=4)


def assert_fit_to_read(report: ConfigReport) -> None:
    for finding in report.problems + report.warnings:
        assert finding.startswith(("f.toml", "environment: ")), finding
        assert finding.isprintable(), finding
    assert isinstance(report.settings, Settings)


def _toml_of(data: dict[str, Any]) -> str:
    """One `key = value` per line; floats without a JSON form use TOML's."""
    return "\n".join(f"{key} = {_value(value)}" for key, value in data.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value) if isinstance(value, float) else toml(value)


@given(st.text(), ENVIRONMENTS)
@always("", {"WARMPOOL_SIGNATURE_LIMIT_S": "0\x1f"})
@settings(max_examples=examples(150))
def test_any_text_and_any_environment_give_settings_or_findings(text: str, env: dict[str, str]) -> None:
    assert_fit_to_read(parse(text, "f.toml", env))


@given(DOCUMENTS, ENVIRONMENTS)
@settings(max_examples=examples(300))
def test_any_document_gives_settings_or_findings(data: dict[str, Any], env: dict[str, str]) -> None:
    assert_fit_to_read(parse(_toml_of(data), "f.toml", env))


@given(st.binary())
@settings(max_examples=examples(50))
def test_any_file_gives_settings_or_findings(raw: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "w.toml"
        file.write_bytes(raw)
        report = config.examine(file, {})
    assert report.problems or report.settings.pool.data_dir == os.path.join(folder, ".warmpool")  # noqa: PTH118
