"""Settings: one name in three places, and what does not fit is refused before anything starts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill import config
from tidemill.config import Address, ConfigError, load

ROOT = Path(__file__).resolve().parents[2]

# For each setting a value in text, and what it means.
SAMPLES: dict[str, tuple[str, object]] = {
    "data_dir": ("/somewhere/else", "/somewhere/else"),
    "take_over": ("true", True),
    "shared_data_dir": ("true", True),
    "scratch_dir": ("/scratch", "/scratch"),
    "secrets_dir": ("/secrets", "/secrets"),
    "audit_dir": ("/audit", "/audit"),
    "audit_max_size": ("16M", "16m"),
    "files_root": ("/files", "/files"),
    "retain_history": ("2d", 172_800_000),
    "tick": ("250ms", 250),
    "sql_addr": ("localhost:1234", Address("localhost", 1234)),
    "http_addr": ("[::1]:1235", Address("::1", 1235)),
    "http_hosts": ("Mill.Example, other", ("mill.example", "other")),
    "authentication": ("Password", "password"),
    "system_password": ("hush", "hush"),
    "tls_cert": ("/tls/server.pem", "/tls/server.pem"),
    "tls_key": ("/tls/server.key", "/tls/server.key"),
    "tls_client_ca": ("/tls/ca.pem", "/tls/ca.pem"),
    "allow_insecure": ("true", True),
    "spark_master": ("local[3]", "local[3]"),
    "spark_driver_memory": ("512M", "512m"),
    "spark_warm_up": ("false", False),
    "spark_conf": (
        "spark.jars=a.jar,b.jar, spark.executor.cores=2",
        (("spark.jars", "a.jar,b.jar"), ("spark.executor.cores", "2")),
    ),
    "s3_endpoint": ("http://127.0.0.1:9", "http://127.0.0.1:9"),
    "s3_region": ("eu-central-1", "eu-central-1"),
    "s3_access_key_id": ("key", "key"),
    "s3_secret_access_key": ("hush", "hush"),
    "s3_allow_http": ("true", True),
    "log_format": ("json", "json"),
    "log_level": ("debug", "debug"),
    "otlp_endpoint": ("http://collector:4318", "http://collector:4318"),
}


def write(path: Path, name: str, text: str) -> str:
    path.write_text(f'{name} = "{text}"\n')
    return str(path)


def test_there_is_a_sample_for_every_setting() -> None:
    assert set(SAMPLES) == set(config.SETTINGS)


@pytest.mark.parametrize("name", SAMPLES)
def test_flag_environment_and_file_mean_the_same(name: str, tmp_path: Path) -> None:
    text, value = SAMPLES[name]
    file = write(tmp_path / "c.toml", name, text)
    needed = {"tls_cert": "/tls/server.pem"} if name in ("tls_key", "tls_client_ca") else {}
    assert getattr(load({name: text, **needed}, {}), name) == value
    assert getattr(load(needed, {config.env_name(name): text}), name) == value
    assert getattr(load(needed, {}, file), name) == value
    assert getattr(load(needed, {"TIDEMILL_CONFIG": file}), name) == value


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path / "c.toml", "tick", "3s")
    assert load({}, {}, file).tick == 3000
    assert load({}, {"TIDEMILL_TICK": "2s"}, file).tick == 2000
    assert load({"tick": "1s"}, {"TIDEMILL_TICK": "2s"}, file).tick == 1000


def test_toml_may_use_its_own_kinds(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('take_over = true\nhttp_hosts = ["a", "b"]\n')
    found = load({}, {}, str(file))
    assert found.take_over is True
    assert found.http_hosts == ("a", "b")


@pytest.mark.parametrize(
    ("environ", "file", "text", "hint"),
    [
        ({"TIDEMILL_SQLADDR": "x"}, None, "TIDEMILL_SQLADDR", "Did you mean TIDEMILL_SQL_ADDR?"),
        ({}, "sql-addr = 'x'\n", "sql-addr", "Did you mean sql_addr?"),
        ({}, "quux = 1\n", "quux", "docs/configuration.md"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(
    environ: dict[str, str], file: str | None, text: str, hint: str, tmp_path: Path
) -> None:
    path = None
    if file is not None:
        path = str(tmp_path / "c.toml")
        Path(path).write_text(file)
    with pytest.raises(ConfigError) as caught:
        load({}, environ, path)
    assert text in caught.value.primary
    assert hint in (caught.value.hint or "")


def test_variables_of_others_under_our_prefix_are_left_alone() -> None:
    # Kubernetes sets these for a service of the name tidemill.
    load({}, {"TIDEMILL_PORT": "tcp://10.0.0.1:6875", "TIDEMILL_SERVICE_HOST": "10.0.0.1"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sql_addr", "6875"),
        ("sql_addr", "localhost:99999"),
        ("tick", "1"),
        ("tick", "0s"),
        ("spark_driver_memory", "2"),
        ("take_over", "maybe"),
        ("log_format", "xml"),
        ("data_dir", "gs://bucket"),
        ("data_dir", "s3://"),
        ("spark_master", "localhost:7077"),
        ("spark_master", "local[0]"),
        ("spark_master", "local-cluster[2,1]"),
        ("spark_master", ""),
        ("spark_conf", "spark.executor.cores"),
        ("spark_conf", "executor.cores=2"),
        ("spark_conf", "spark.a b=2"),
    ],
)
def test_malformed_values_are_refused_and_name_their_flag(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({name: text}, {})
    assert config.flag_name(name) in caught.value.primary


def test_a_file_that_is_no_toml_or_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load({}, {}, str(tmp_path / "none.toml"))
    bad = tmp_path / "bad.toml"
    bad.write_bytes(b"\xff\xfe = [")
    with pytest.raises(ConfigError, match="not TOML"):
        load({}, {}, str(bad))


@pytest.mark.parametrize("address", ["0.0.0.0:6875", "192.0.2.1:6875", "[::]:6875", "example.org:6875"])
@pytest.mark.parametrize("name", ["sql_addr", "http_addr"])
def test_an_address_that_others_reach_must_be_insisted_on(name: str, address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({name: address}, {})
    assert "--allow-insecure" in (caught.value.hint or "")
    assert str(getattr(load({name: address, "allow_insecure": True}, {}), name)) == address


def test_an_address_that_others_reach_needs_authentication_and_tls() -> None:
    there = {"sql_addr": "0.0.0.0:6875", "authentication": "password"}
    with pytest.raises(ConfigError, match="there is no TLS"):
        load(there, {})
    load(there | {"tls_cert": "/tls/server.pem"}, {})
    with pytest.raises(ConfigError, match="there is no authentication"):
        load({"sql_addr": "0.0.0.0:6875", "tls_cert": "/tls/server.pem"}, {})


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        ({"tls_key": "/k"}, "--tls-cert"),
        ({"tls_client_ca": "/c"}, "--tls-cert"),
        ({"authentication": "certificate"}, "--tls-client-ca"),
        ({"authentication": "certificate", "tls_cert": "/c"}, "--tls-client-ca"),
    ],
)
def test_settings_of_tls_that_do_not_fit(flags: dict[str, str], needed: str) -> None:
    with pytest.raises(ConfigError, match=needed):
        load(flags, {})


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_insisting(address: str) -> None:
    assert str(load({"sql_addr": address}, {}).sql_addr) == address


def test_both_ports_on_one_address_are_refused_unless_the_system_chooses() -> None:
    with pytest.raises(ConfigError, match="both"):
        load({"sql_addr": "127.0.0.1:1", "http_addr": "127.0.0.1:1"}, {})
    load({"sql_addr": "127.0.0.1:0", "http_addr": "127.0.0.1:0"}, {})


def test_a_remote_master_needs_a_folder_that_its_machines_see() -> None:
    remote = {"spark_master": "spark://host:7077", "data_dir": "/data"}
    with pytest.raises(ConfigError) as caught:
        load(remote, {})
    assert caught.value.primary == (
        'executors of Spark at "spark://host:7077" cannot see the local folder "/data"'
    )
    assert "s3://" in (caught.value.hint or "")
    assert "--shared-data-dir" in (caught.value.hint or "")
    load(remote | {"shared_data_dir": True}, {})
    load(remote | {"data_dir": "s3://bucket/x"}, {})


@pytest.mark.parametrize("master", ["k8s://https://host:6443", "yarn", "spark://a:1,b:2"])
def test_masters_of_other_machines_are_remote(master: str) -> None:
    assert load({"spark_master": master, "data_dir": "s3://b"}, {}).spark_is_remote


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[2, 3]", "local-cluster[2,1,512]", "local-cluster[2, 1, 512]"],
)
def test_masters_of_this_machine_need_nothing_more(master: str) -> None:
    assert not load({"spark_master": master, "data_dir": "/data"}, {}).spark_is_remote


def test_settings_of_spark_may_be_several_flags_or_a_table(tmp_path: Path) -> None:
    wanted = (("spark.executor.cores", "2"), ("spark.jars", "a,b"), ("spark.speculation", "true"))
    flags = ["spark.executor.cores=1", "spark.executor.cores=2", "spark.jars=a,b", "spark.speculation=true"]
    assert load({"spark_conf": flags}, {}).spark_conf == wanted
    assert load({"spark_conf": []}, {}).spark_conf == ()
    file = tmp_path / "c.toml"
    file.write_text(
        '[spark_conf]\nspark.executor.cores = 2\n"spark.jars" = "a,b"\nspark.speculation = true\n'
    )
    assert dict(load({}, {}, str(file)).spark_conf) == dict(wanted)
    file.write_text('spark_conf = ["spark.executor.cores=2", "spark.jars=a,b", "spark.speculation=true"]\n')
    assert load({}, {}, str(file)).spark_conf == wanted


def test_secrets_among_the_settings_of_spark_are_not_shown() -> None:
    found = load({"spark_conf": "spark.authenticate.secret=hush,spark.executor.cores=2"}, {}).describe()
    assert found["spark_conf"] == "spark.authenticate.secret=(set),spark.executor.cores=2"
    with pytest.raises(ConfigError) as caught:
        load({"spark_conf": "authenticate.secret=hush"}, {})
    assert "hush" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    environ = {"TIDEMILL_S3_SECRET_ACCESS_KEY": "hush"}
    assert "hush" not in str(load({}, environ).describe())


def test_s3_options_are_for_s3_alone() -> None:
    environ = {"TIDEMILL_S3_ENDPOINT": "http://127.0.0.1:9", "TIDEMILL_S3_ALLOW_HTTP": "yes"}
    assert load({}, environ).s3_options() == {}
    found = load({"data_dir": "s3://b/p/"}, environ)
    assert found.data_dir == "s3://b/p"
    assert found.s3_options() == {
        "endpoint": "http://127.0.0.1:9",
        "region": "us-east-1",
        "allow_http": "true",
    }


@given(st.integers(min_value=1, max_value=10**12))
def test_durations_are_shown_as_they_are_read(ms: int) -> None:
    setting = config.SETTINGS["tick"]
    assert setting.parse(setting.show(ms)) == ms


def test_the_documentation_lists_every_setting_with_its_default() -> None:
    """docs/configuration.md holds the settings as they are; TIDEMILL_REWRITE=1 writes them there."""
    path = ROOT / "docs" / "configuration.md"
    text = path.read_text()
    begin, end = "<!-- settings: begin -->", "<!-- settings: end -->"
    before, after = text.split(begin)[0], text.split(end)[1]
    wanted = f"{before}{begin}\n{documentation()}\n{end}{after}"
    if os.environ.get("TIDEMILL_REWRITE"):
        path.write_text(wanted)
        return
    assert text == wanted, "run this test with TIDEMILL_REWRITE=1"


def documentation() -> str:
    """The settings as Markdown, by group."""
    lines: list[str] = []
    group = ""
    for name, setting in config.SETTINGS.items():
        if setting.group != group:
            group = setting.group
            lines += [
                "",
                f"### {group}",
                "",
                "| setting | flag | default | meaning |",
                "| --- | --- | --- | --- |",
            ]
        default = setting.show(config.DEFAULTS[name])
        flag = "(none)" if setting.secret else f"`{config.flag_name(name)}`"
        lines.append(f"| `{name}` | {flag} | {f'`{default}`' if default else ''} | {setting.help} |")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
