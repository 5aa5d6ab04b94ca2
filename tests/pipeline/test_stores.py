"""Options, regions and credentials of stores, and that secrets stay where they are."""

import json
import os
import pickle
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.config import RunConfig, StorageConfig
from pipeline.config_file import parse_config
from pipeline.errors import ConfigError, StorageError
from pipeline.storage import Storage
from tests.integration.proxy import faulty_proxy
from tests.integration.s3_server import ACCESS_KEY, SECRET_KEY

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    """An environment without any cloud's settings, so that these tests say the same everywhere."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))


def test_keys_come_from_the_environment(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    storage = Storage(StorageConfig())
    storage.put("s3://bucket/from-environment", b"x")
    assert storage.read("s3://bucket/from-environment") == b"x"


def write_profile(tmp_path, region=""):
    (tmp_path / "aws-credentials").write_text(
        f"[lab]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    (tmp_path / "aws-config").write_text(f"[profile lab]\n{region}\n")


@pytest.mark.parametrize("asked", ["option", "environment"])
def test_keys_come_from_a_profile(s3, monkeypatch, tmp_path, asked):
    pytest.importorskip("boto3", reason="AWS profiles need boto3: pip install embedmill[aws]")
    write_profile(tmp_path)
    options = {"endpoint": s3.endpoint}
    if asked == "option":
        options["profile"] = "lab"
    else:
        monkeypatch.setenv("AWS_PROFILE", "lab")
    storage = pickle.loads(pickle.dumps(Storage(StorageConfig(s3=options))))
    storage.put("s3://bucket/from-profile", b"x")
    assert storage.read("s3://bucket/from-profile") == b"x"


def test_a_profile_that_is_not_there_is_named(tmp_path):
    pytest.importorskip("boto3", reason="AWS profiles need boto3: pip install embedmill[aws]")
    write_profile(tmp_path)
    storage = Storage(StorageConfig(s3={"profile": "other", "region": "eu-west-1"}))
    with pytest.raises(ConfigError, match="other"):
        storage.info("s3://bucket/x")


def test_a_profile_without_boto3_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    storage = Storage(StorageConfig(s3={"profile": "lab", "region": "eu-west-1"}))
    with pytest.raises(ConfigError, match=r"embedmill\[aws\]"):
        storage.info("s3://bucket/x")


def test_a_missing_region_is_named():
    storage = Storage(StorageConfig(s3={"skip_signature": True}))
    with pytest.raises(ConfigError, match=r"s3://bucket/x: the region .* storage\.s3\.region"):
        storage.info("s3://bucket/x")


def host_looked_for(section, options, url):
    """host:port that storage connects to, as a proxy between hears it; nothing goes further."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        given = {"skip_signature": True, "proxy_url": proxy, **options}
        storage = Storage(StorageConfig(**{section: given}, retries=0))
        caller = pool.submit(storage.info, url)
        connection, _ = listener.accept()
        with connection:
            line = connection.recv(1000).decode()
        with pytest.raises(StorageError) as caught:
            caller.result()
        assert caught.value.transient
    return line.removeprefix("CONNECT ").partition(" ")[0]


@pytest.mark.parametrize("where", ["option", "environment", "profile"])
def test_a_region_is_enough(monkeypatch, tmp_path, where):
    options = {}
    if where == "option":
        options["region"] = "eu-west-1"
    elif where == "environment":
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
    else:
        pytest.importorskip("boto3", reason="AWS profiles need boto3: pip install embedmill[aws]")
        write_profile(tmp_path, "region = eu-west-1")
        options["profile"] = "lab"
    host = host_looked_for("s3", options, "s3://bucket/x")
    assert host == "s3.eu-west-1.amazonaws.com:443"


def test_missing_credentials_are_named():
    options = {"region": "x", "metadata_endpoint": "http://127.0.0.1:9"}
    storage = Storage(StorageConfig(s3=options, retries=1))
    with pytest.raises(StorageError, match=r"no credentials in the environment or storage\.s3"):
        storage.info("s3://bucket/x")


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_an_unknown_option_is_named(scheme):
    config = StorageConfig(**{scheme: {"regoin": SECRET, "region": "x"}})
    with pytest.raises(ConfigError, match=rf"storage\.{scheme}.*region?|regoin") as caught:
        Storage(config).info(f"{scheme}://bucket/x")
    assert SECRET not in str(caught.value)


def test_an_account_is_asked_for():
    with pytest.raises(ConfigError, match=r"storage\.az.*[Aa]ccount"):
        Storage(StorageConfig()).info("az://container/x")


def test_clouds_are_looked_for_where_they_are():
    assert host_looked_for("gs", {}, "gs://bucket/x") == "storage.googleapis.com:443"
    account = {"account_name": "me"}
    assert host_looked_for("az", account, "az://container/x") == "me.blob.core.windows.net:443"


def test_a_profile_of_the_environment_yields_to_what_is_given(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "not-there")
    region = {"region": "eu-west-1"}
    assert host_looked_for("s3", region, "s3://bucket/x") == "s3.eu-west-1.amazonaws.com:443"


def test_a_create_on_google_is_conditional_and_stays_so_when_tried_again():
    with faulty_proxy("http://127.0.0.1:9") as proxy:  # which answers both requests itself
        key = {"gcs_base_url": proxy.endpoint, "disable_oauth": True, "client_email": ""}
        key |= {"private_key": "", "private_key_id": ""}
        options = {"service_account_key": json.dumps(key), "allow_http": True}
        proxy.plan.script = [("PUT", "503"), ("PUT", "412")]
        assert Storage(StorageConfig(gs=options)).create("gs://bucket/x", b"1") is False
        assert [one.headers["x-goog-if-generation-match"] for one in proxy.seen] == ["0", "0"]


def test_secrets_are_not_shown_but_travel():
    config = StorageConfig(s3={"secret_access_key": SECRET, "endpoint": f"http://u:{SECRET}@h"})
    shown = [repr(config), str(config), json.dumps(config.model_dump()), config.model_dump_json()]
    shown += [repr(Storage(config)), str(Storage(config))]
    assert SECRET not in "".join(shown)
    assert '"secret_access_key":"***"' in config.model_dump_json()
    assert pickle.loads(pickle.dumps(config)) == config
    assert config.s3["secret_access_key"] == SECRET


def test_an_error_that_quotes_the_address_leaves_the_signature_out():
    with faulty_proxy("http://127.0.0.1:9") as proxy:
        proxy.plan.refuse = {"/x": 301}
        with pytest.raises(StorageError, match="redirect without LOCATION") as caught:
            Storage(StorageConfig()).read(f"{proxy.endpoint}/x?sig={SECRET}")
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("key", ["a//b", "a/../b", "./b"])
def test_keys_that_object_stores_cannot_name_are_refused(key):
    with pytest.raises(StorageError, match="segments") as caught:
        Storage(StorageConfig()).put(f"memory://bucket/{key}", b"")
    assert caught.value.kind == "unsupported"


def test_urls_with_secrets_are_written_without_them():
    signed = f"https://user:{SECRET}@host/a.tar?sig={SECRET}"
    config = RunConfig(
        input={"shards": [signed, "s3://bucket/x-?.tar"], "shards_file": signed},
        output={"path": "out"},
        model={"checkpoint": signed},
    )
    written = config.model_dump(mode="json")
    assert SECRET not in json.dumps(written)
    assert written["input"]["shards"] == ["https://host/a.tar", "s3://bucket/x-?.tar"]
    assert SECRET not in repr(config)
    assert config.input.shards[0] == signed


@pytest.mark.parametrize("wrong", ["{secret_access_key: 48151623}", "48151623", "[48151623]"])
def test_a_secret_of_the_wrong_type_is_not_quoted_back(wrong):
    text = f"input: {{shards: a}}\noutput: {{path: o}}\nmodel: {{checkpoint: c}}\nstorage: {{s3: {wrong}}}"
    with pytest.raises(ConfigError, match=r"storage\.s3") as caught:
        parse_config(text, name="run.yaml")
    assert "48151623" not in str(caught.value)
