"""A checkpoint on a platform other than CUDA: what the engine's source says of it. Nothing here was
checked against such hardware, so no answer says that a model starts there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from quantplan.dispatch.facts import Checkpoint, Deployment
from quantplan.dispatch.predicates import applies
from quantplan.dispatch.trace import EngineError, Finding, Method, Refusal, refuse
from quantplan.tables.errors import NotKnownError, UsageError
from quantplan.tables.near_names import did_you_mean, near_names
from quantplan.tables.record import NamedTuple

Row = Mapping[str, Any]
ACCEPTED, REFUSED, UNREGISTERED = "accepted", "refused", "not registered"
READ = frozenset(("tp", "dtype", "quantization", "kv_cache_dtype", "trust_remote_code",
                  "allow_deprecated_quantization"))
"""Fields of Deployment that an answer for another platform reads, or that change nothing in it."""


class Place(NamedTuple):
    """One platform of an engine version: its row and, where one is named, the row of the GPU."""

    row: Row
    gpu: Row | None

    @property
    def capability(self) -> int:
        """Return what stands for the capability in the engine's checks of names; -1 for none."""
        return int(self.gpu["capability"] if self.gpu else self.row["capability"])

    @property
    def gate(self) -> int | None:
        """Return the capability that a method's least one is compared with, None where the engine
        asks for none or no GPU is named."""
        return self.capability if self.row["gates"] and self.gpu else None

    @property
    def fp8_dtype(self) -> str | None:
        """Return the torch dtype of FP8, None where the GPU that decides it is not named."""
        row = self.gpu or self.row
        return str(row["fp8_dtype"]) if "fp8_dtype" in row else None


class MethodState(NamedTuple):
    """A method on a platform: its name is accepted, refused in the engine's words, or not
    registered."""

    id: str
    config_class: str | None
    state: str
    words: str | None
    source: str


class PlatformTrace(NamedTuple):
    """What the source says up to the gates of the config class: `error` is what the engine raises
    before, `lists` the rows of what linear layers choose from under this method."""

    engine: str
    version: str
    place: Place
    dtype: str
    method: Method
    kv_cache: Mapping[str, Any]
    states: tuple[MethodState, ...]
    lists: tuple[Row, ...] = ()
    error: EngineError | None = None
    findings: tuple[Finding, ...] = ()
    asked: str | None = None


class Named(NamedTuple):
    """How far an engine's own steps came: the dtype, the method, its config, the KV cache's dtype
    and the error that ended them."""

    dtype: str
    method: Method
    config: Row | None
    kv_dtype: str | None
    error: EngineError | None


def told(
    table: Row, place: Place, deployment: Deployment, named: Named,
    names: Mapping[str, str] = MappingProxyType({}),
) -> PlatformTrace:
    """Return the answer of an engine version; `names` are as in `states`."""
    return PlatformTrace(
        table["engine"], table["version"], place, named.dtype, named.method,
        {"requested": deployment.kv_cache_dtype, "resolved": named.kv_dtype},
        tuple(states(table, place, names)),
        () if named.error else lists_of(place, named.method.resolved, named.config), named.error)


def place_of(table: Row, platform: str, gpu: str | None) -> Place:
    """Return the platform of a table and its GPU. Raises NotKnownError for a platform that the
    engine does not have, UsageError for a GPU that is none of its."""
    row = table["platforms"].get(platform)
    if row is None:
        raise NotKnownError(f"{table['engine']} {table['version']} on {platform}",
                            wanted="one of cuda, " + ", ".join(table["platforms"]),
                            hint="The engine's own source has no such platform.")
    return Place(row, None if gpu is None else _gpu(row, gpu))


def _gpu(row: Row, text: str) -> Row:
    rows = row.get("gpus", ())
    if not rows:
        raise UsageError(f"--gpu {text} with --platform {row['id']}",
                         wanted="no GPU: the source tells none of the platform apart")
    key = "".join(text.lower().split())
    for gpu in rows:
        if key in {"".join(name.lower().split()) for name in (gpu["id"], *gpu.get("names", ()))}:
            found: Row = gpu
            return found
    known = [name for gpu in rows for name in (gpu["id"], *gpu.get("names", ()))]
    raise UsageError(f"--gpu {text} with --platform {row['id']}",
                     wanted="one of " + ", ".join(known),
                     hint=did_you_mean(near_names(text, known)))


def check_options(platform: str, deployment: Deployment) -> None:
    """Raise NotKnownError for flags whose meaning on other platforms is not in the tables."""
    default = Deployment()
    for name in Deployment._fields:
        if name not in READ and getattr(deployment, name) != getattr(default, name):
            flag = f"--{name.replace('_', '-')}"
            raise NotKnownError(f"{flag} with --platform {platform}",
                                wanted="a question without it",
                                hint=f"What it changes there is not in the tables: drop {flag}.")


def on_platform(table: Row, place: Place) -> Row:
    """Return the table as rules of names read it there: its registry, and overrides that answer
    only, never or otherwise there."""
    return {**table, "methods": registry(table, place), "platform": place.row}


def registry(table: Row, place: Place) -> dict[str, Row]:
    """Return the rows of the methods that are registered there, in the engine's order."""
    row, here = place.row, place.gpu["id"] if place.gpu else None
    drops = row.get("drops", {})
    found = {name: method for name, method in table["methods"].items()
             if name not in drops or here in drops[name]}
    for own in row.get("registers", ()):
        if "gpus" not in own or here in own["gpus"]:
            found[own["id"]] = {**found.get(own["id"], {}), **own}
    return found


def states(table: Row, place: Place, names: Mapping[str, str]) -> Iterator[MethodState]:
    """Yield every method that the engine knows, with what it is there; `names` are further ones
    that --quantization takes, each with its source."""
    here = registry(table, place)
    for name, row in here.items():
        said = unsupported(place, name, here)
        if said is None:
            yield MethodState(name, row["config_class"], ACCEPTED, None,
                              row.get("source", table["methods_source"]))
        else:
            yield MethodState(name, row["config_class"], REFUSED, said.message, str(said.source))
    for name, source in names.items():
        if name not in here:
            yield MethodState(name, None, UNREGISTERED, None, source)


def method_grid(table: Row) -> dict[str, dict[str, MethodState]]:
    """Return, for every method that the engine registers anywhere, what it is on each platform
    where no GPU is named."""
    places = {name: Place(row, None) for name, row in table["platforms"].items()}
    known = dict.fromkeys(table["methods"], str(table["methods_source"]))
    for place in places.values():
        known |= {own["id"]: str(own["source"]) for own in place.row.get("registers", ())}
    found: dict[str, dict[str, MethodState]] = {name: {} for name in known}
    for platform, place in places.items():
        for state in states(table, place, known):
            found[state.id][platform] = state
    return found


def unsupported(place: Place, name: str, here: Mapping[str, Row]) -> EngineError | None:
    """Return what the platform says of a registered method that it does not serve."""
    row = place.row.get("supported")
    if row is None or name in row["methods"]:
        return None
    words = row["message"].replace("{methods}", str(list(here))).replace("{method}", name)
    return EngineError(row["stage"], row["type"], words, None, row["source"],
                       hint="Serve a checkpoint of one of " + ", ".join(row["methods"]) + ".")


def check_supported(place: Place, name: str | None, here: Mapping[str, Row]) -> None:
    """Refuse a method that the platform does not serve."""
    error = None if name is None else unsupported(place, name, here)
    if error is not None:
        raise Refusal(error)


def kv_dtype(place: Place, requested: str, dtype: str, quantized: bool) -> str | None:
    """Return the dtype of the KV cache, None where the source read here does not decide it.

    Refuses what the engine refuses there. Raises NotKnownError for values that no row names.
    """
    row = place.row
    if requested in row.get("kv_refused", {}):
        said = row["kv_refused"][requested]
        raise refuse("weight loading", said["type"], said["message"], None, said["source"],
                     hint="Drop --kv-cache-dtype.")
    if requested == "auto":
        return None if quantized else dtype
    named = {name for part in row["attention"] for name in part.get("kv_cache_dtypes", ())}
    named |= {*row.get("kv_dtypes", ())}
    if requested not in named:
        raise NotKnownError(f"--kv-cache-dtype {requested} on {row['id']}",
                            wanted="one of " + ", ".join(sorted({*named, "auto"})))
    meant: str | None = row.get("kv_dtypes", {}).get(requested)
    return place.fp8_dtype if meant == "fp8" else meant


def lists_of(place: Place, name: str | None, config: Row | None) -> tuple[Row, ...]:
    """Return the lists that linear layers choose from under a method with this config."""
    facts = list(config_facts(config or {}))
    return tuple(part for part in place.row["lists"] if name in part["methods"] and (
        "when" not in part or any(applies(when, group) for when in part["when"]
                                  for group in facts)))


def config_facts(config: Row) -> Iterator[dict[str, Any]]:
    """Yield the facts of a quantization config, or of each group of a compressed-tensors one."""
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping):
        yield {**NO_FACTS, "block": config.get("weight_block_size") is not None}
        return
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping):
            yield {**NO_FACTS, "format": group.get("format") or config.get("format"),
                   "inputs.given": group.get("input_activations") is not None,
                   **{f"weights.{name}": weights.get(name) for name in WEIGHT_FACTS}}


WEIGHT_FACTS = ("type", "num_bits", "strategy", "symmetric")
NO_FACTS: Mapping[str, Any] = dict.fromkeys(
    ("block", "format", "inputs.given", *(f"weights.{name}" for name in WEIGHT_FACTS)))


def resolve_on(
    checkpoint: Checkpoint, table: Row, place: Place, deployment: Deployment
) -> PlatformTrace:
    """Return what the source of this engine version says of the checkpoint there."""
    check_options(place.row["id"], deployment)
    if table["engine"] == "vllm":
        from quantplan.dispatch.vllm.platform import resolve_platform as resolve_vllm

        return resolve_vllm(checkpoint, table, place, deployment)
    from quantplan.dispatch.sglang.platform import resolve_platform as resolve_sglang

    return resolve_sglang(checkpoint, table, place, deployment)
