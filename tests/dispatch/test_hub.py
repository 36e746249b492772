"""The hub through the real huggingface_hub client, against a stand-in on the loopback interface."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_hub import COMMIT, REPO, StandIn, listing
from quantplan.dispatch.facts import Checkpoint, Tensor
from quantplan.tables.errors import CheckpointError
from sparse_checkpoint import CONFIG, Stored, write_folder

TOKEN = "hf_secretsecretsecretsecretsecret00"
A, B = Stored("a.weight", "F8_E4M3", (1024, 1024)), Stored("b.weight", "BF16", (8,))
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    with StandIn(tmp_path_factory.mktemp("unused")) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def client(server: StandIn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """Import the client anew, so that no home, token or endpoint of this machine is in it."""
    kept = forget_client()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            patch.delenv(name, raising=False)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        patch.setenv("NO_PROXY", "127.0.0.1")
        from quantplan.dispatch import hub

        yield hub
        sys.modules["huggingface_hub"].close_session()
    forget_client()
    sys.modules.update(kept)


def forget_client() -> dict[str, ModuleType]:
    """Take the client and what imports it out of the loaded modules; return them."""
    ours = "quantplan.dispatch.hub"
    names = [n for n in sys.modules if n == ours or n.partition(".")[0] == "huggingface_hub"]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def hub(
    client: ModuleType, server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Return the stand-in with a repository of two shards; the client's cache is empty."""
    monkeypatch.setattr(client.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    server.folder = write_folder(tmp_path / "repository", CONFIG, [[A], [B]])
    server.refuse, server.ranges, server.delay_s = {}, True, 0.0
    server.requests.clear()
    server.tokens.clear()
    server.sent_bytes = 0
    yield server


def read(client: ModuleType, repo_id: str = REPO, revision: str | None = None) -> Checkpoint:
    checkpoint: Checkpoint = client.read_hub(repo_id, revision)
    return checkpoint


def refusal(client: ModuleType, repo_id: str = REPO, revision: str | None = None) -> str:
    """Return the one line that reading raises; no cause is kept, and no token is in it."""
    with pytest.raises(CheckpointError) as raised:
        client.read_hub(repo_id, revision)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
    line = str(raised.value)
    assert line.isprintable()
    assert TOKEN not in line
    return line


def test_configs_whole_and_headers_alone(client: ModuleType, hub: StandIn) -> None:
    (hub.folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    (hub.folder / "README.md").write_text("not fetched")
    checkpoint = read(client)
    assert (checkpoint.name, checkpoint.origin, checkpoint.revision) == (REPO, "hub", COMMIT)
    assert checkpoint.config == CONFIG
    assert checkpoint.side_files == {
        "hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}
    }
    assert checkpoint.tensors == {
        "a.weight": Tensor("F8_E4M3", (1024, 1024)),
        "b.weight": Tensor("BF16", (8,)),
    }
    weights = list(hub.folder.glob("*.safetensors"))
    assert checkpoint.file_bytes == sum(file.stat().st_size for file in weights)
    assert checkpoint.notes == ()
    assert not [request for request in hub.requests if "README" in request]


def test_no_weight_travels(client: ModuleType, hub: StandIn) -> None:
    """The larger shard holds 1 MiB; 100,000 bytes of it are asked for."""
    checkpoint = read(client)
    ranges = [request for request in hub.requests if "safetensors bytes" in request]
    assert sorted(ranges) == [
        f"GET /{REPO}/resolve/{COMMIT}/model-0000{n}-of-00002.safetensors bytes=0-99999"
        for n in (1, 2)
    ]
    small = sum((hub.folder / name).stat().st_size for name in ("config.json", INDEX))
    last = (hub.folder / "model-00002-of-00002.safetensors").stat().st_size
    assert checkpoint.fetched_bytes == small + 100_000 + last
    assert hub.sent_bytes == checkpoint.fetched_bytes + len(listing(hub.folder))


def test_a_long_header_takes_a_second_request(client: ModuleType, hub: StandIn) -> None:
    stored = [Stored(f"layers.{number}.weight", "BF16", (64, 64)) for number in range(2000)]
    hub.folder = write_folder(hub.folder.parent / "long", CONFIG, [stored])
    name = "model-00001-of-00001.safetensors"
    with (hub.folder / name).open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    assert header_bytes > 100_000
    assert len(read(client).tensors or ()) == 2000
    ranges = [request.split()[-1] for request in hub.requests if "safetensors bytes" in request]
    assert ranges == ["bytes=0-99999", f"bytes=100000-{8 + header_bytes - 1}"]


def test_the_cache_spares_what_was_fetched(client: ModuleType, hub: StandIn) -> None:
    first = read(client)
    hub.requests.clear()
    again = read(client)
    assert again.tensors == first.tensors
    assert not [request for request in hub.requests if "config.json" in request]
    assert again.fetched_bytes < first.fetched_bytes


def test_a_cached_shard_is_read_where_it_is(client: ModuleType, hub: StandIn) -> None:
    name = "model-00001-of-00002.safetensors"
    client.hf_hub_download(REPO, name, revision=COMMIT)
    hub.requests.clear()
    assert len(read(client).tensors or ()) == 2
    assert not [request for request in hub.requests if name in request]


def test_revision(client: ModuleType, hub: StandIn) -> None:
    assert read(client, revision=COMMIT).revision == COMMIT
    assert read(client, revision="main").revision == COMMIT
    assert refusal(client, revision="v9") == (
        "org/tiny at v9 has no such revision. Check the branch, tag or commit."
    )


def test_the_token_goes_to_the_hub_and_nowhere_else(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    read(client)
    assert hub.tokens == {f"Bearer {TOKEN}"}
    hub.refuse = {
        "/api/": (401, {"X-Error-Message": "Invalid credentials in Authorization header"})
    }
    assert "asks for a valid token; found HTTP 401. Run `hf auth login` or" in refusal(client)
    assert TOKEN not in "".join(capfd.readouterr())


def test_a_malformed_token_is_not_quoted(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library quotes a header that it refuses to send."""
    monkeypatch.setattr(client, "HfApi", lambda: client_with_token(f"{TOKEN}\nx"))
    assert "cannot be reached" in refusal(client)


def client_with_token(token: str) -> Any:
    return sys.modules["huggingface_hub"].HfApi(token=token)


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/api/", (404, "RepoNotFound"), "org/tiny is not found, or is private. Check the name; "),
        ("/api/", (401, "RepoNotFound"), "org/tiny is not found, or is private. Check the name; "),
        ("/api/", (401, ""), "asks for a valid token; found HTTP 401. Run `hf auth login` or set"),
        (
            "config.json",
            (401, "GatedRepo"),
            "org/tiny is gated. Accept its terms on the hub, then ",
        ),
        (
            "config.json",
            (403, "GatedRepo"),
            "org/tiny is gated. Accept its terms on the hub, then ",
        ),
        (
            "safetensors$",
            (403, "GatedRepo"),
            "org/tiny is gated. Accept its terms on the hub, then ",
        ),
        ("config.json", (403, ""), "denied access; found HTTP 403. Ask for access, then run `hf"),
        ("safetensors$", (404, "EntryNotFound"), "org/tiny lacks a file that it lists. Try again."),
        ("/api/", (429, ""), "limits the rate of requests; found HTTP 429. Wait, or log in"),
        ("safetensors$", (429, ""), "limits the rate of requests; found HTTP 429. Wait, or log in"),
        ("/api/", (418, ""), "failed; found HTTP 418. Try again later, or give a local folder."),
        ("/api/", (503, ""), "failed; found HTTP 503. Try again later, or give a local folder."),
        ("/api/", (200, ""), "does not answer as a hub. Check HF_ENDPOINT and the proxy."),
    ],
)
def test_refusals(
    client: ModuleType, hub: StandIn, path: str, answer: tuple[int, str], told: str
) -> None:
    status, code = answer
    hub.refuse = {path: (status, {"X-Error-Code": code} if code else {})}
    assert told in refusal(client)


def test_a_failing_server_is_asked_again(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr(sys.modules["huggingface_hub.utils._http"].time, "sleep", pauses_s.append)
    hub.refuse = {"safetensors$": (502, {})}
    assert "failed; found HTTP 502" in refusal(client)
    assert sum("model-00001" in request for request in hub.requests) == 3
    assert len(pauses_s) >= 2


def test_a_server_without_byte_ranges_sends_no_weights(client: ModuleType, hub: StandIn) -> None:
    hub.ranges = False
    assert "ignores byte ranges; wanted the header alone, not the weights" in refusal(client)


def test_remote_header_is_checked_like_a_local_one(client: ModuleType, hub: StandIn) -> None:
    shard = hub.folder / "model-00001-of-00002.safetensors"
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 1)
    assert refusal(client) == (
        f"{REPO}/{shard.name} is truncated; wanted the {size:,} bytes that its header declares; "
        f"found {size - 1:,} bytes. Fetch the file again."
    )


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, (10**8).to_bytes(8, "little")])
def test_remote_file_that_is_no_safetensors(
    client: ModuleType, hub: StandIn, content: bytes
) -> None:
    (hub.folder / "model-00001-of-00002.safetensors").write_bytes(content)
    assert refusal(client).startswith(f"{REPO}/model-00001-of-00002.safetensors ")


def test_too_large_a_config_is_not_fetched(client: ModuleType, hub: StandIn) -> None:
    with (hub.folder / "config.json").open("r+b") as file:
        file.truncate((16 << 20) + 1)
    assert f"{REPO}/config.json is too large" in refusal(client)
    assert not [request for request in hub.requests if "config.json" in request]


def test_bad_remote_config(client: ModuleType, hub: StandIn) -> None:
    (hub.folder / "config.json").write_text('{"hidden_size": -1}')
    assert refusal(client).startswith(f"{REPO}/config.json: hidden_size is not usable")


def test_missing_remote_shard(client: ModuleType, hub: StandIn) -> None:
    (hub.folder / "model-00002-of-00002.safetensors").unlink()
    assert refusal(client).startswith(f"{REPO} lacks 1 shard: model-00002-of-00002.safetensors")


def test_params_json_alone(client: ModuleType, hub: StandIn) -> None:
    (hub.folder / "config.json").rename(hub.folder / "params.json")
    assert "org/tiny has no config.json" in refusal(client)


def test_invalid_id(client: ModuleType, hub: StandIn) -> None:
    assert refusal(client, "org/a--b") == "org/a--b is not a valid hub id. Give org/name."


def offline(client: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.constants, "HF_HUB_OFFLINE", True)


def unreachable(client: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the client at the discard port, where nothing listens."""
    monkeypatch.setattr(client.constants, "ENDPOINT", "http://user:password@127.0.0.1:9")


@pytest.mark.parametrize(
    ("cut", "told"),
    [
        (offline, "org/tiny is not in the hub's cache; found HF_HUB_OFFLINE set. "),
        (unreachable, "org/tiny: 127.0.0.1:9 cannot be reached; found no snapshot in the cache. "),
    ],
)
def test_no_network_and_no_cache(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch, cut: Any, told: str
) -> None:
    cut(client, monkeypatch)
    assert refusal(client) == (
        f"{told}Give a local folder, or fetch the model where there is a network: `hf download`."
    )


@pytest.mark.parametrize("cut", [offline, unreachable])
def test_no_network_but_a_whole_snapshot(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch, cut: Any
) -> None:
    for file in hub.folder.iterdir():
        client.hf_hub_download(REPO, file.name)
    cut(client, monkeypatch)
    checkpoint = read(client)
    assert (checkpoint.name, checkpoint.origin, checkpoint.revision) == (REPO, "hub-cache", COMMIT)
    assert len(checkpoint.tensors or ()) == 2
    assert checkpoint.fetched_bytes == 0
    message = f"the hub was not reached; revision {COMMIT} is from the cache"
    assert checkpoint.notes == (("hub-not-reached", message, None, "info"),)


def test_no_network_after_an_online_read(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configs are in the cache then, the index too, but no shard."""
    read(client, revision="main")
    client.hf_hub_download(REPO, "config.json")
    offline(client, monkeypatch)
    checkpoint = read(client)
    assert checkpoint.config == CONFIG
    assert checkpoint.tensors is None
    assert [note.id for note in checkpoint.notes] == ["hub-not-reached", "no-weights"]


def test_a_partial_snapshot_is_refused(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("config.json", INDEX, "model-00001-of-00002.safetensors"):
        client.hf_hub_download(REPO, name)
    offline(client, monkeypatch)
    assert "lacks 1 shard: model-00002-of-00002.safetensors" in refusal(client)


def test_a_hub_that_does_not_answer(
    client: ModuleType, hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.constants, "HF_HUB_ETAG_TIMEOUT", 0.05)
    hub.delay_s = 0.2
    assert "did not answer in time; found no snapshot in the cache" in refusal(client)


def test_nothing_is_printed(client: ModuleType, hub: StandIn, capfd: Any) -> None:
    read(client)
    assert capfd.readouterr() == ("", "")
