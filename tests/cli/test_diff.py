"""`quantplan diff` and `quantplan.diff`: what an upgrade changes, why, and what they end with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from quantplan.tables.errors import NotKnownError, UsageError

from quantplan.cli import quantplan

sys.path.insert(0, str(Path(__file__).parents[1]))

from asking import LLAMA, quantization
from quantplan.reports import upgrade_view

from quantplan import Upgrade, diff

SCHEMAS = Path(upgrade_view.__file__).parent / "schema"


def run(*arguments: str) -> Result:
    """Return the result of `quantplan diff` with ARGUMENTS; errors of ours are raised."""
    result = CliRunner().invoke(quantplan, ("diff", *arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def upgrade(quant: str | None = None, capability: str = "9.0", **options: Any) -> Upgrade:
    """Return what 0.33.0 changes for Llama-3.1-8B cut to two layers."""
    config = {**LLAMA, **({"quantization_config": quantization(quant)} if quant else {})}
    return diff(config, from_version="0.32.0", to_version="0.33.0", capability=capability,
                **options)


def reasons(found: Upgrade) -> list[list[tuple[str, str | None]]]:
    return [[(row.at, row.item) for row in change.because] for change in found.changes]


# What changes, and which rows decide it.


@pytest.mark.parametrize("quant", [None, "fp8-static", "awq4-g128", "gptq4-g128", "ct-mxfp4"])
@pytest.mark.parametrize("capability", ["8.0", "9.0", "12.0"])
def test_nothing_changes(quant: str | None, capability: str) -> None:
    """The golden rows of both versions are the same."""
    assert upgrade(quant, capability).changes == ()


def test_another_kernel_and_the_backend_that_has_it() -> None:
    """0.33.0 gives --linear-backend torch an MXFP8 kernel. That it is also the last of the list
    does not suffice: the flag would still filter it out."""
    found = upgrade("ct-mxfp8", "12.0", linear_backend="torch")
    change, *told = found.changes
    assert change.subject == "layer"
    assert change.fields == {"kernel": ("FlashInferCutlassMxfp8LinearKernel",
                                        "TorchMxFp8LinearKernel")}
    assert len(change.names) == 8
    assert "model.layers.1.mlp.down_proj" in change.names
    assert reasons(found)[0] == [("linear_backends.torch", "TorchMxFp8LinearKernel"),
                                 ("families[mxfp8].kernels", "TorchMxFp8LinearKernel")]
    assert [(row.subject, row.fields["severity"]) for row in told] == [
        ("finding", ("warning", None)), ("finding", ("info", None))]
    assert [reason.version for row in change.because for reason in row.reasons] == [
        "0.33.0", "0.33.0"]


def test_a_start_that_is_refused_now() -> None:
    found = upgrade(kv_cache_dtype="bfloat16", dtype="float16", capability="8.9")
    (change,) = found.changes
    assert change.subject == "start"
    assert change.fields["outcome"] == ("ok", "error")
    assert change.fields["error"][1].startswith('ValidationError: kv_cache_dtype="bfloat16"')
    assert reasons(found) == [[("traits[float_kv_is_the_models].value", None)]]


def test_the_way_back_is_the_other_way_round() -> None:
    there = upgrade(kv_cache_dtype="bfloat16", dtype="float16", capability="8.9")
    back = diff(LLAMA, from_version="0.33.0", to_version="0.32.0", capability="8.9",
                kv_cache_dtype="bfloat16", dtype="float16")
    assert [c.fields["outcome"] for c in back.changes] == [("error", "ok")]
    assert reasons(back) == reasons(there)


def test_mode_and_kernel_of_w4a16_under_batch_invariance() -> None:
    found = upgrade("ct-w4a16", env={"VLLM_BATCH_INVARIANT": "1"})
    (change,) = found.changes
    assert change.fields == {"mode": ("W4A16", None),
                             "kernel": ("MacheteLinearKernel", None)}
    assert [row.at for row in change.because] == [
        "schemes[CompressedTensorsWNA16].integer.unpacked_when"]


def test_a_version_does_not_change_anything_against_itself() -> None:
    found = diff(LLAMA, to_version=None, capability="8.9")
    assert (found.old.trace.version, found.changes) == (found.new.trace.version, ())


def test_a_stand_in_is_stamped() -> None:
    found = diff(LLAMA, to_version="0.33.7", capability="8.9", assume_nearest=True)
    assert found.changes == ()
    assert found.to_dict()["to"]["engine"] == {"name": "vllm", "version": "0.33.0",
                                               "asked": "0.33.7"}


def test_what_is_not_known_names_the_version() -> None:
    """Nothing is answered where it hangs on a library of which nothing is said."""
    config = {**LLAMA, "quantization_config": {"quant_method": "torchao"}}
    with pytest.raises(NotKnownError, match=r"^vllm 0\.32\.0: whether the package torchao"):
        diff(config, from_version="0.32.0", to_version="0.33.0", capability="8.9",
             libs={"torchao": None})


# As JSON and as text.


@pytest.mark.parametrize("options", [
    {}, {"quant": "ct-mxfp8", "capability": "12.0", "linear_backend": "torch"},
    {"kv_cache_dtype": "bfloat16", "dtype": "float16"},
    {"kv_cache_dtype": "bfloat16", "capability": "7.5"},
])
def test_the_json_is_by_its_schema(options: dict[str, Any]) -> None:
    data = json.loads(json.dumps(upgrade(**options).to_dict()))
    schema = json.loads((SCHEMAS / "diff.v1.json").read_text(encoding="utf-8"))
    jsonschema.validate(data, schema)
    assert (data["from"]["engine"]["version"], data["to"]["engine"]["version"]) == (
        "0.32.0", "0.33.0")


def test_the_text_of_no_change() -> None:
    result = run("llama-3.1-8b", "--as", "fp8", "--gpu", "4090", "--to", "vllm@0.33.0")
    assert result.exit_code == 0
    assert "vLLM 0.32.0   starts" in result.output
    assert "vLLM 0.33.0   starts" in result.output
    assert result.output.endswith(
        "\nnothing changes: method, kernels, modes, attention and findings are the same\n")


def test_the_text_of_a_change() -> None:
    result = run("llama-3.1-8b", "--as", "w4a16", "--gpu", "h100", "--from", "vllm@0.32.0", "--to",
                 "vllm@0.33.0", "--env", "VLLM_BATCH_INVARIANT=1")
    assert result.exit_code == 0
    assert ("\nself_attn.qkv_proj (32), self_attn.o_proj (32), mlp.gate_up_proj (32), "
            "mlp.down_proj (32):\n"
            "  mode: W4A16 -> none\n"
            "  kernel: MacheteLinearKernel -> none\n"
            "  because\n"
            "    + schemes[CompressedTensorsWNA16].integer.unpacked_when: "
            '{"env.VLLM_BATCH_INVARIANT": true}\n'
            "        0.33.0: under VLLM_BATCH_INVARIANT no kernel is chosen") in result.output


def test_a_version_that_does_not_start_ends_with_1() -> None:
    arguments = ("llama-3.1-8b", "--gpu", "4090", "--dtype", "float16", "--kv-cache-dtype",
                 "bfloat16", "--to")
    refused = run(*arguments, "vllm@0.33.0")
    assert refused.exit_code == 1
    assert "\nstart-up:\n  outcome: ok -> error\n" in refused.output
    assert run(*arguments, "vllm@0.32.0", "--from", "vllm@0.33.0").exit_code == 0


def test_json_on_the_command_line() -> None:
    data = json.loads(run("llama-3.1-8b", "--gpu", "4090", "--to", "vllm@0.33.0", "--format",
                          "json").output)
    assert (data["schema"], data["changes"]) == ("quantplan/diff/1", [])


@pytest.mark.parametrize("arguments, error, words", [
    (("--to", "sglang@0.5.22"), UsageError, "two engines; wanted two versions of one engine"),
    (("--to", "vllm@9.9.9"), NotKnownError, "no table for vllm 9.9.9"),
    (("--to", "tgi@1"), UsageError, "--to tgi@1; wanted vllm or sglang"),
    (("--to", "vllm@0.33.0", "--from", "x"), UsageError, "--from x; wanted vllm or sglang"),
    (("--to", "vllm"), UsageError, "--from and --to are both vllm@0.32.0; wanted two of vllm@"),
    (("--to", "0.33.0", "--from", "vllm@0.33.0"), UsageError, "are both vllm@0.33.0"),
    ((), UsageError, "--to is missing; wanted the version to compare with: vllm@.*@0.33.0$"),
    (("--to", "0.40.0"), NotKnownError, "no table for vllm 0.40.0.*--assume-nearest"),
])
def test_versions_that_cannot_be(
    arguments: tuple[str, ...], error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        run("llama-3.1-8b", "--gpu", "4090", *arguments)


def test_a_bare_version_is_one_of_the_same_engine() -> None:
    arguments = ("llama-3.1-8b", "--gpu", "4090", "--format", "json", "--to")
    data = json.loads(run(*arguments, "0.32.0", "--from", "0.33.0").output)
    assert [data[side]["engine"]["version"] for side in ("from", "to")] == ["0.33.0", "0.32.0"]
    assert data == json.loads(run(*arguments, "vllm@0.32.0", "--from", "vllm@0.33.0").output)


def test_the_same_refusal_is_told_once() -> None:
    result = run("llama-3.1-8b-instruct-gptq-int4", "--gpu", "4090", "--to", "0.33.0")
    assert result.output.count("(desc_act=True) is no longer supported") == 1
    assert result.output.count("does not start: config fields") == 2
    assert "both refuse it in the same words:\n\n  ValidationError:\n" in result.output
    assert "nothing changes" not in result.output


def test_a_refusal_in_other_words(tmp_path: Path) -> None:
    """The engine lists its model classes, and 0.33.0 has others."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "architectures": ["FooBar"]}))
    result = run(str(tmp_path), "--gpu", "4090", "--from", "0.32.0", "--to", "0.33.0")
    assert "\nstart-up:\n  error: ValidationError, in other words\n  because\n" in result.output
    assert "both refuse it in the same words" not in result.output


def test_findings_that_come_and_go(tmp_path: Path) -> None:
    """A list of excluded modules that 0.32.0 does not read (tables/engines/vllm: modelopt)."""
    quant = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["no"]}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": quant}))
    arguments = (str(tmp_path), "--gpu", "4090", "--from", "0.32.0", "--to", "0.33.0")
    there = run(*arguments).output
    back = run(*arguments[:3], "--from", "0.33.0", "--to", "0.32.0").output
    text = "warning: quantization_config names modules to leave in 16 bits under exclude_modules"
    assert f"\ngone in vLLM 0.33.0: {text}" in there
    assert f"\nnew in vLLM 0.32.0: {text}" in back
    same = "\nmethod, kernels, modes and attention are the same; what is said of them changes:\n"
    assert same in there


def test_what_a_table_covers_is_no_change() -> None:
    result = run("llama-3.1-8b", "--as", "fp8", "--gpu", "4090", "--from", "0.25.1", "--to",
                 "0.32.0")
    assert "starts (conditional)" in result.output
    assert "\n  info: this version's table covers the choice of methods" in result.output
    assert "gone in" not in result.output


def test_what_a_partial_table_does_not_look_for_is_no_change() -> None:
    """0.25.1's table looks for a few findings only, and for no tuned tile sizes."""
    found = diff({**LLAMA, "quantization_config": quantization("fp8-static")},
                 from_version="0.25.1", to_version="0.32.0", capability="8.0")
    assert [change.subject for change in found.changes if change.subject == "finding"] == []
    assert "weight-only" in {f.id for f in found.new.trace.findings}


def test_a_version_is_text() -> None:
    with pytest.raises(UsageError) as raised:
        diff(LLAMA, to_version=0.33)  # type: ignore[arg-type]
    assert str(raised.value) == "to_version; wanted text; found 0.33"


def test_a_stand_in_is_told_where_nothing_changes() -> None:
    output = run("llama-3.1-8b", "--to", "0.40", "--gpu", "h100", "--assume-nearest").output
    assert "vllm 0.40 has no table: this is the answer of 0.33.0" in output
    assert "nothing that is known changes" in output
