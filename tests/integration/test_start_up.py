"""Settings, refused starts, and what is printed."""

import re
import socket

import pytest
from harness.sidecar import BIN, run

PORTS = {"DYN_SIDECAR_PORT": "0", "DYN_SIDECAR_ADMIN_PORT": "auto", "DYN_SIDECAR_BIND": "127.0.0.1"}


def refused(settings=None, *arguments):
    result = run(*arguments, settings={**PORTS, **(settings or {})})
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    return result.stderr


def printed(settings=None, *arguments):
    result = run("--print-config", *arguments, settings={**PORTS, **(settings or {})})
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_bad_setting_is_told_at_once(own):
    text = refused({"DYN_DECODE_ENGINE_PORT": "0", "DYN_SIDECAR_READ_TIMEOUT_MS": "soon", "DYN_SIDECAR_THREADS": "-1",
                    "DYN_SIDECAR_ON_PREFILL_FAILURE": "shrug", "DYN_SIDECAR_PREFILL_ALLOWLIST": "10.0.0.0/99",
                    "DYN_SIDECAR_LOG_LEVEL": "loud", "DYN_SIDECAR_READY_PATH": "health", "DYN_SIDECAR_MAX_REQUEST_BYTES": "0",
                    "DYN_SIDECAR_ADMIN_PORT": "70000", "DYN_SIDECAR_CONNECT_TIMEOUT_MS": "0",
                    "DYN_SIDECAR_PREFIL_RETRIES": "2"}, "--bogus", "--port=x", "stray")
    for name in ("DYN_DECODE_ENGINE_PORT", "DYN_SIDECAR_READ_TIMEOUT_MS", "DYN_SIDECAR_THREADS",
                 "DYN_SIDECAR_ON_PREFILL_FAILURE", "DYN_SIDECAR_PREFILL_ALLOWLIST", "DYN_SIDECAR_LOG_LEVEL",
                 "DYN_SIDECAR_READY_PATH", "DYN_SIDECAR_MAX_REQUEST_BYTES", "DYN_SIDECAR_ADMIN_PORT",
                 "DYN_SIDECAR_CONNECT_TIMEOUT_MS", "DYN_SIDECAR_PREFIL_RETRIES is ignored", "--bogus", "DYN_SIDECAR_PORT", "argument 3"):
        assert name in text, name
    assert "--help" in text


@pytest.mark.parametrize("name,value", [("DYN_SIDECAR_ON_MISSING_HANDOFF", "maybe"), ("DYN_SIDECAR_VLLM_CONNECTOR", "carrier-pigeon"),
                                        ("DYN_VLLM_NIXL_PROTOCOL_VERSION", "vllm-v0.30.0-nixl-pull")])
def test_c30_bad_setting_of_the_backend_and_protocol_pin(name, value):
    text = refused({"DYN_SIDECAR_BACKEND": "vllm", name: value})
    assert name in text


def test_c30_known_protocol_is_accepted():
    assert "vllm-v0.29.0-nixl-pull" in printed({"DYN_SIDECAR_BACKEND": "vllm",
                                                "DYN_VLLM_NIXL_PROTOCOL_VERSION": "vllm-v0.29.0-nixl-pull"})


@pytest.mark.parametrize("settings, chosen", [
    ({"DYN_SIDECAR_BACKEND": "vllm", "DYN_SIDECAR_VLLM_CONNECTOR": "mooncake"}, "DYN_SIDECAR_VLLM_CONNECTOR=mooncake"),
    ({"DYN_SIDECAR_BACKEND": "trtllm", "DYN_SIDECAR_TRTLLM_SCHEDULE": "generation-first"}, "DYN_SIDECAR_TRTLLM_SCHEDULE=generation-first"),
    ({"DYN_SIDECAR_BACKEND": "none"}, "")])
def test_the_first_line_says_what_was_chosen_of_the_backend(own, settings, chosen):
    said = own.sidecar(1, settings).wait_log("listening").fields["backend_settings"]
    assert chosen in said.split(" ") and "KEY" not in said


ALIASES = [({"DYN_SIDECAR_PD_ADAPTER": "vllm_nixl"}, "vllm"), ({"DYN_SIDECAR_PD_ADAPTER": "none"}, "none"),
           ({"DYN_SIDECAR_PD_BACKEND": "unavailable"}, "none"), ({"DYN_ADAPTER_MODE": "none"}, "none"),
           ({"DYN_ADAPTER_MODE": "NONE"}, "none"), ({"DYN_ADAPTER_MODE": ""}, "none"),
           ({"DYN_SIDECAR_PD_ADAPTER": "vllm_nixl", "DYN_SIDECAR_PD_BACKEND": "unavailable"}, "vllm"),
           ({"DYN_SIDECAR_BACKEND": "none", "DYN_SIDECAR_PD_ADAPTER": "vllm_nixl"}, "none"),
           ({"DYN_SIDECAR_BACKEND": "vllm", "DYN_SIDECAR_PD_BACKEND": "sglang"}, "vllm"),
           ({"DYN_SIDECAR_BACKEND": ""}, "none"), ({}, "none")]


@pytest.mark.parametrize("settings,backend", ALIASES, ids=[str(row[0]) for row in ALIASES])
def test_selectors_of_the_backend(own, settings, backend):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_BACKEND": None, **settings})
    described = sidecar.lines[0].fields["backend"]
    assert described == "none" if backend == "none" else described.startswith(f"backend {backend},")


@pytest.mark.parametrize("settings", [{"DYN_SIDECAR_PD_ADAPTER": "vllm_nixl", "DYN_SIDECAR_PD_BACKEND": "sglang"},
                                      {"DYN_SIDECAR_PD_ADAPTER": "vllm_nixl", "DYN_ADAPTER_MODE": "trtllm-context-first"}])
def test_aliases_that_contradict_each_other_stop_the_start(settings):
    text = refused(settings)
    assert "contradictory" in text and all(name in text for name in settings)


@pytest.mark.parametrize("settings", [{"DYN_SIDECAR_PD_ADAPTER": "nixl"}, {"DYN_SIDECAR_PD_BACKEND": "SGLANG"},
                                      {"DYN_ADAPTER_MODE": "trtllm"}])
def test_unknown_spellings_of_aliases(settings):
    (name,) = settings
    assert name in refused(settings)


def test_names_of_dynamos_trtllm_sidecar():
    names = {"DYN_ADAPTER_MODE": "trtllm-context-first", "DYN_CONTEXT_ENGINE_URL": "http://[::1]:8000/",
             "DYN_CONTEXT_FIRST_REQUEST_BYTES": "1000", "DYN_CONTEXT_FIRST_HANDOFF_BYTES": "2000",
             "DYN_CONTEXT_FIRST_CONTEXT_DEADLINE_MS": "3000"}
    text = printed({"DYN_SIDECAR_BACKEND": None, **names})
    for line in ("DYN_SIDECAR_PREFILL_ENDPOINT=http://[::1]:8000/", "DYN_SIDECAR_MAX_REQUEST_BYTES=1000",
                 "DYN_SIDECAR_MAX_PREFILL_RESPONSE_BYTES=2000", "DYN_SIDECAR_PREFILL_DEADLINE_MS=3000"):
        assert line in text.splitlines(), text


@pytest.mark.parametrize("value", ["context", "context:0", "https://context:8000", "http://context:8000/v1", "http://u@context:8000",
                                   "10.0.0.1:1,10.0.0.2:1"])
def test_prefill_endpoint_that_is_none(value):
    assert "DYN_CONTEXT_ENGINE_URL" in refused({"DYN_SIDECAR_BACKEND": "trtllm", "DYN_CONTEXT_ENGINE_URL": value})


def test_prefill_endpoint_needs_a_backend():
    text = refused({"DYN_SIDECAR_BACKEND": "none", "DYN_SIDECAR_PREFILL_ENDPOINT": "context:8000"})
    assert "DYN_SIDECAR_PREFILL_ENDPOINT" in text and "DYN_SIDECAR_BACKEND" in text


@pytest.mark.parametrize("backend", ["no-such-backend", "/no/such/file.so", "/etc/passwd", "/", "../vllm"])
def test_bad_plugin(backend):
    text = refused({"DYN_SIDECAR_BACKEND": backend})
    assert backend.split("/")[-1] in text


def test_bad_plugin_is_told_together_with_bad_settings():
    text = refused({"DYN_SIDECAR_BACKEND": "nonsense", "DYN_SIDECAR_THREADS": "x"})
    assert "nonsense" in text and "DYN_SIDECAR_THREADS" in text


def test_plugin_by_path_and_by_folder(own):
    for settings in ({"DYN_SIDECAR_BACKEND": str(BIN / "handoff_backend_vllm.so")},
                     {"DYN_SIDECAR_BACKEND": "vllm", "DYN_SIDECAR_BACKEND_DIR": str(BIN)}):
        assert own.sidecar(1, settings).lines[0].fields["backend"].startswith("backend vllm,")


def test_help_lists_settings_with_defaults():
    result = run("--help")
    assert result.returncode == 0 and result.stderr == ""
    for name in ("DYN_SIDECAR_PORT", "DYN_DECODE_ENGINE_PORT", "DYN_SIDECAR_PREFILL_ALLOWLIST", "Default: 8000", "--print-config"):
        assert name in result.stdout


def test_help_knows_the_backends_settings():
    assert "DYN_SIDECAR_ON_MISSING_HANDOFF" in run("--help", "--backend", "vllm").stdout


def test_version():
    result = run("--version")
    assert result.returncode == 0 and re.fullmatch(r"handoff-sidecar \d+\.\d+\.\d+\n", result.stdout)


def test_print_config_and_precedence():
    text = printed({"DYN_SIDECAR_READ_TIMEOUT_MS": "1234", "DYN_SIDECAR_CONNECT_TIMEOUT_MS": "1"}, "--connect-timeout-ms", "77")
    assert re.search(r"DYN_SIDECAR_READ_TIMEOUT_MS\W+1234", text)
    assert re.search(r"DYN_SIDECAR_CONNECT_TIMEOUT_MS\W+77", text)
    assert re.search(r"DYN_SIDECAR_DRAIN_TIMEOUT_MS\W+30000", text)


def test_unknown_name_of_ours_is_warned_of(own):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_DRAIN_DELAY": "1"})
    assert "DYN_SIDECAR_DRAIN_DELAY" in sidecar.wait_log("configuration").fields["warning"]


@pytest.mark.parametrize("threads, warns", [("4", True), ("1", False)])
def test_requests_that_no_loop_could_hold_are_warned_of(own, threads, warns):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_THREADS": threads, "DYN_SIDECAR_MAX_BUFFERED_BYTES": "64MiB",
                              "DYN_SIDECAR_MAX_REQUEST_BYTES": "32MiB"})
    sidecar.wait_log("engine_health")  # told after all warnings
    assert warns == ("DYN_SIDECAR_MAX_REQUEST_BYTES is above" in sidecar.log_text())


def test_print_config_warns_as_a_start_does():
    result = run("--print-config", settings={**PORTS, "DYN_SIDECAR_DRAIN_DELAY": "1", "DYN_SIDECAR_MAX_BUFFERED_BYTES": "1MiB",
                                             "DYN_SIDECAR_MAX_REQUEST_BYTES": "2MiB"})
    assert result.returncode == 0 and "warning" not in result.stdout
    misspelt, too_large = result.stderr.splitlines()
    assert misspelt.startswith("# warning: ") and "DYN_SIDECAR_DRAIN_DELAY" in misspelt
    assert too_large.startswith("# warning: DYN_SIDECAR_MAX_REQUEST_BYTES is above")


@pytest.mark.parametrize("name", ["DYN_SIDECAR_PORT", "DYN_SIDECAR_ADMIN_PORT"])
def test_port_in_use(name):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        text = refused({name: port})
    assert port in text and "127.0.0.1" in text


def test_port_of_another_sidecar(own):
    first = own.sidecar(1)
    assert str(first.port) in refused({"DYN_SIDECAR_PORT": str(first.port)})
    assert str(first.admin_port) in refused({"DYN_SIDECAR_ADMIN_PORT": str(first.admin_port)})


def test_same_port_twice():
    assert "DYN_DECODE_ENGINE_PORT" in refused({"DYN_SIDECAR_PORT": "8765", "DYN_DECODE_ENGINE_PORT": "8765"})
    assert "DYN_SIDECAR_ADMIN_PORT" in refused({"DYN_SIDECAR_PORT": "8765", "DYN_SIDECAR_ADMIN_PORT": "8765"})


@pytest.mark.parametrize("bind", ["not-an-address", "192.0.2.1", "1.2.3"])
def test_bad_bind_address(bind):
    assert bind in refused({"DYN_SIDECAR_BIND": bind})


def test_setting_files_that_cannot_be_read(tmp_path):
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.write_bytes(b"")
    large.write_bytes(b"x" * (64 * 1024 + 1))
    for path in (tmp_path, tmp_path / "none", empty, large, "/dev/zero"):
        text = refused({"DYN_SIDECAR_BACKEND": "trtllm", "DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE": str(path)})
        assert "DYN_SIDECAR_TRTLLM_AUTH_KEY_FILE" in text and f"'{path}'" in text


def test_bind_address_is_checked_with_the_other_settings():
    text = refused({"DYN_SIDECAR_BIND": "bogus!!", "DYN_SIDECAR_THREADS": "-1"}, "--print-config")
    assert "DYN_SIDECAR_BIND" in text and "DYN_SIDECAR_THREADS" in text


def test_threads_share_one_port(own):
    sidecar = own.sidecar(1, {"DYN_SIDECAR_THREADS": "4"})
    for _ in range(20):
        with sidecar.connect() as client:
            assert client.request("GET", "/health").status == 200
