"""Mangled names of kernels, as `c++filt` and `short_name` show them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.categorize.kernel_names import short_name


@pytest.mark.parametrize(
    ("mangled", "short"),
    [
        ("_ZN5aiter3mlaILi8EEEvPf", "mla<8>"),
        ("_ZN5aiter18fmha_fwd_hd128_fp8E", "fmha_fwd_hd128_fp8"),
        ("_Z3fooISt5arrayIPcLm1EELb1EEvT_", "foo<array<char*, 1ul>, true>"),
        ("_ZN12_GLOBAL__N_11fIJfDF16bELin1EEEvv", "f<float, bfloat16_t, -1>"),
        (
            "_ZN1a1fINS_1bINS_1cEEES2_RKS3_LNS_1eE2EEEvv",
            "f<b<c>, c, b<c> const&, (e)2>",
        ),
        ("_ZN1aIiE1fILj3EEEvv", "a<int>::f<3u>"),
    ],
)
def test_template_arguments(mangled: str, short: str) -> None:
    assert short_name(mangled) == short


def test_unknown_syntax_is_kept_unchanged() -> None:
    assert short_name("_Z1fIXadL_Z1gvEEEvv") == "f<XadL_Z1gvEEEvv>"


def test_names_that_would_grow_exponentially_are_kept_unchanged() -> None:
    pairs = "".join(f"1BIS{n}_S{n}_E" for n in ("", *"13579BDFHJLNPRTVXZ"))
    assert len(short_name(f"_Z1fI1A{pairs}EEvv")) < 1000


@given(st.text("_ZNSIELJPKt10a", max_size=40))
def test_any_text_has_a_short_name(text: str) -> None:
    assert short_name(f"_Z{text}")
