"""Memory sizes as people write them."""

from __future__ import annotations

import pytest
from quantplan.planner.sizes import parse_size
from quantplan.tables.errors import UsageError


@pytest.mark.parametrize("text, wanted", [
    ("24GiB", 25_769_803_776), ("24 GiB", 25_769_803_776), ("24 GB", 24_000_000_000),
    ("24gb", 24_000_000_000), ("80GB", 80_000_000_000), ("23.5 GiB", 25_232_932_864),
    ("0.5TiB", 549_755_813_888), ("16384MiB", 17_179_869_184), ("2TB", 2_000_000_000_000),
    ("512 MB", 512_000_000), ("2048KiB", 2_097_152), ("4096KB", 4_096_000),
    ("25769803776", 25_769_803_776), (" 24GiB ", 25_769_803_776), ("64TiB", 70_368_744_177_664),
    ("1.0000000001GB", 1_000_000_000),
])
def test_a_size_is_read(text: str, wanted: int) -> None:
    assert parse_size(text, "--gpu-mem") == wanted


@pytest.mark.parametrize("text, said", [
    ("24G", "G is ambiguous: write GiB (powers of 1024) or GB (powers of 1000)."),
    ("24 g", "g is ambiguous: write GiB"),
    ("24Gb", "Gb is ambiguous: write GiB"),
    ("24Gi", "Gi is ambiguous: write GiB"),
    ("500m", "m is ambiguous: write MiB"),
    ("24", "Without a unit a number counts bytes: add GiB or GB."),
    ("24.5", "Without a unit"),
    ("25769803776.5", "Without a unit"),
    ("0GiB", "more than zero bytes"),
    ("0", "more than zero bytes"),
    ("0.0000000001GB", "more than zero bytes"),
    ("65TiB", "at most 64 TiB"),
    ("99999999999999999999TiB", "at most 64 TiB"),
    ("24PB", "wanted a size such as 24GiB, 24GB or 25769803776 (bytes); found '24PB'"),
    ("24b", "wanted a size"),
])
def test_a_doubtful_size_says_what_to_write(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--gpu-mem")
    assert str(caught.value).startswith("--gpu-mem; wanted ")
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", [
    "", " ", "nan", "inf", "-24GiB", "+24GiB", "1e3GiB", "24,5GiB", "24GiB!", "GiB", ".5GiB",
    "24.GiB", "0x18GiB", "٢٤GiB", "24\nGiB", "9" * 5000, "24GiBGiB", "24..5GiB",
])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--gpu-mem; wanted a size such as 24GiB"):
        parse_size(text, "--gpu-mem")
