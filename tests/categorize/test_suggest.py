"""Rules drafted for kernels that no rule knows."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens_ext.categorize import check_pack
from tracelens_ext.categorize.drafts import draft_rules, group_unknown, stem_of
from tracelens_ext.categorize.rule_files import parse_pack


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("void my::ns::fused_gelu<float, 4>(float*)", "my::ns::fused_gelu"),
        ("my_kernel_128x64_f16", "my_kernel"),
        ("my_kernel_64x64_bf16.kd", "my_kernel"),
        ("void (anonymous namespace)::hidden_op<2>(int*)", "hidden_op"),
        ("void at::native::<unnamed>::hidden_op<2>(int*)", "hidden_op"),
        ("_ZN2my2ns10fused_geluIfLi4EEEvPf", "fused_gelu"),
        ("_ZN12_GLOBAL__N_19hidden_opEv [clone .kd]", "hidden_op"),
        ("_Z9hidden_opPf", "hidden_op"),
        ("k2", "k2"),
        ("<odd>", "<odd>"),
        ("", ""),
    ],
)
def test_stems(name: str, stem: str) -> None:
    assert stem_of(name) == stem


@given(
    st.lists(
        st.tuples(
            st.text(max_size=30)
            | st.from_regex(r"(void )?(a|b|ns)::\w{1,9}<.{0,5}>\(.*\)"),
            st.text(max_size=5),
            st.floats(0, 1e6),
        ),
        max_size=8,
    )
)
def test_a_draft_is_a_valid_pack_that_matches_every_kernel(
    kernels: list[tuple[str, str, float]],
) -> None:
    kernels = [kernel for kernel in kernels if kernel[0].strip()]
    groups = group_unknown(kernels)
    text = draft_rules(groups, "trace.json")
    document = tomllib.loads(text)
    if not kernels:
        assert document == {}
        return
    pack = parse_pack(document)
    assert len(pack.rules) == len(groups)
    assert {name for group in groups for name in group.names} == {
        name for name, _, _ in kernels
    }
    assert not [f for f in check_pack(pack) if "does not find" in f.problem]


def test_groups_of_kernels_are_sorted_by_time() -> None:
    groups = group_unknown(
        [
            ("short_kernel_1", "aten::a", 1.0),
            ("long_kernel_64", "aten::b", 2.0),
            ("long_kernel_32", "", 3.0),
            ("long_kernel_64", "aten::c", 0.5),
        ]
    )
    assert [(g.stem, g.time_ms, list(g.names)) for g in groups] == [
        ("long_kernel", 5.5, ["long_kernel_64", "long_kernel_32"]),
        ("short_kernel", 1.0, ["short_kernel_1"]),
    ]
    text = draft_rules(groups, "trace.json")
    assert (
        "# 2 kernels, 5.500 ms, 84.6 % of the uncategorized time\n# launched by "
        "aten::b, aten::c"
    ) in text
    assert "pattern = 'long_kernel'\n" in text
