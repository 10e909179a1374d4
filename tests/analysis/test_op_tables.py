"""The `ops_*` tables: sums over launchers by category, name and arguments, and references."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

from tests.support.categorize_helpers import plugin, registry
from tests.support.make_trace import TraceMaker
from tracelens_ext import TreePerfAnalyzer, hookimpl
from tracelens_ext.categorize import Rule, RulePack
from tracelens_ext.errors import UsageError
from tracelens_ext.perf_report import build_perf_report, generate_perf_report_pytorch

if TYPE_CHECKING:
    from tracelens_ext.report.report import Report

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _three_products_and_a_copy() -> TraceMaker:
    """Return two products of one shape, one product of another shape, and a copy.

    Their kernels last 10, 30, 20 + 30 and 10 µs.
    """
    maker = TraceMaker()
    small = {"Input Dims": [[2, 2]]}
    large = {"Input Dims": [[9, 9]]}
    operations = [
        ("aten::mm", small, [10]),
        ("aten::mm", small, [30]),
        ("aten::mm", large, [20, 30]),
        ("aten::copy_", small, [10]),
    ]
    correlation = 0
    kernel_start = 1000
    for index, (name, args, durations) in enumerate(operations):
        op_start = 100 * index
        maker.op(name, op_start, 50, external_id=index + 1, args=args)
        launch_time = op_start + 5
        for duration in durations:
            correlation += 1
            maker.launched(
                f"kernel of {name}" + "x" * 80,
                kernel_start,
                duration,
                correlation=correlation,
                at=launch_time,
            )
            launch_time += 1
            kernel_start += duration
    return maker


@pytest.fixture
def analyzer() -> TreePerfAnalyzer:
    return TreePerfAnalyzer(_three_products_and_a_copy().document())


def test_the_summary_by_category_has_times_and_percentages(
    analyzer: TreePerfAnalyzer,
) -> None:
    table = analyzer.get_df_kernel_launchers_summary_by_category()
    assert table["op category"].tolist() == ["GEMM", "elementwise"]
    assert table["Count"].tolist() == [3, 1]
    assert table["total_direct_kernel_time_ms"].tolist() == [0.09, 0.01]
    assert table["Percentage (%)"].tolist() == pytest.approx([90, 10])
    assert table["Cumulative Percentage (%)"].tolist() == pytest.approx([90, 100])
    assert len(table.columns) == 5


def test_the_summary_has_times_and_categories_by_name(
    analyzer: TreePerfAnalyzer,
) -> None:
    table = analyzer.get_df_kernel_launchers_summary()
    assert list(table.columns) == [
        "name",
        "total_direct_kernel_time_sum",
        "total_subtree_kernel_time_sum",
        "total_direct_kernel_time_ms",
        "total_subtree_kernel_time_ms",
        "Count",
        "Categories",
        "Percentage (%)",
        "Cumulative Percentage (%)",
    ]
    assert table["name"].tolist() == ["aten::mm", "aten::copy_"]
    assert table["total_direct_kernel_time_sum"].tolist() == [90.0, 10.0]
    assert table["Categories"].tolist() == ["['GEMM']", "['elementwise']"]


def test_categories_of_one_name_are_listed_in_order() -> None:
    maker = TraceMaker()
    for at, kernel in enumerate(("whatever", "my_rms_norm_kernel")):
        maker.op("my::op", 100 * at, 50)
        maker.launched(kernel, 1000 + at, 1, correlation=at + 1, at=100 * at + 5)
    table = TreePerfAnalyzer(maker.document()).get_df_kernel_launchers_summary()
    assert table["Categories"].tolist() == ["['RMSNorm', 'other']"]


def test_packs_of_the_user_categorise_operations_everywhere(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(
        "[pack]\nkind = 'op'\n[[rule]]\ncategory = 'Mine'\npattern = '^aten::mm$'\n",
        encoding="utf-8",
    )
    document = _three_products_and_a_copy().document()
    analyzer = TreePerfAnalyzer(document, rules=[rules])
    assert set(analyzer.get_df_kernel_launchers_summary()["Categories"]) == {
        "['Mine']",
        "['elementwise']",
    }
    assert "Mine" in set(analyzer.get_df_kernel_launchers_unique_args()["op category"])
    report = build_perf_report(analyzer, tracelens_sheets=True)
    for sheet, column in (
        ("ops_summary_by_category", "op category"),
        ("kernel_summary", "Parent op category"),
    ):
        assert "Mine" in set(report.sheets[sheet][column])


def test_packs_of_plugins_categorise_operations_without_kernel_categories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @hookimpl
    def tracelens_rule_packs() -> list[RulePack]:
        return [RulePack("ops", (Rule("Theirs", "^aten::mm$"),), kind="op")]

    plugins = registry(theirs=plugin(tracelens_rule_packs=tracelens_rule_packs))
    monkeypatch.setattr(
        "tracelens_ext.categorize.categorizer.default_registry", lambda **_: plugins
    )
    table = TreePerfAnalyzer(_three_products_and_a_copy().document())
    assert "['Theirs']" in set(table.get_df_kernel_launchers_summary()["Categories"])


def test_unique_args_have_statistics_by_name_and_arguments(
    analyzer: TreePerfAnalyzer,
) -> None:
    table = analyzer.get_df_kernel_launchers_unique_args()
    assert table["Input Dims"].tolist() == ["((9, 9),)", "((2, 2),)", "((2, 2),)"]
    assert table["operation_count"].tolist() == [1, 2, 1]
    names = [column for column in table.columns if column.startswith("total_direct")]
    direct = table[names].to_numpy()
    assert direct[1].tolist() == [20.0, 20.0, pytest.approx(200**0.5), 10.0, 30.0, 40.0]
    assert np.isnan(direct[0]).tolist() == [False, False, True, False, False, False]
    assert table["Percentage (%)"].tolist() == [50.0, 40.0, 10.0]
    ids = [analyzer.trace.name_of(int(uid)) for uid in table["ex_UID"]]
    assert ids == ["aten::mm", "aten::mm", "aten::copy_"]


def test_kernels_of_a_row_can_be_read_back(analyzer: TreePerfAnalyzer) -> None:
    table = analyzer.get_df_kernel_launchers_unique_args()
    (details,) = ast.literal_eval(str(table.loc[1, "kernel_details_summary"]))
    assert details == {
        "name": "kernel of aten::mm" + "x" * 80,
        "stream": 7,
        "count": 2,
        "total_duration_us": 40.0,
        "mean_duration_us": 20.0,
        "min_duration_us": 10.0,
        "max_duration_us": 30.0,
    }
    (short,) = ast.literal_eval(str(table.loc[1, "trunc_kernel_details"]))
    assert len(short["name"]) == 64
    assert short["name"].endswith("…")


def test_rows_are_split_by_the_number_of_kernels_on_request() -> None:
    maker = TraceMaker()
    for index, kernel_count in enumerate((1, 2, 2)):
        op_start = 100 * index
        maker.op("aten::mm", op_start, 50)
        for kernel in range(kernel_count):
            correlation = 10 * index + kernel + 1
            launch_time = op_start + 5 + kernel
            maker.launched(
                "k", 1000 + correlation, 1, correlation=correlation, at=launch_time
            )
    analyzer = TreePerfAnalyzer(maker.document())
    assert len(analyzer.get_df_kernel_launchers_unique_args()) == 1
    table = analyzer.get_df_kernel_launchers_unique_args(group_by_num_kernels=True)
    assert table["direct_kernel_count"].tolist() == [2, 1]
    assert table["operation_count"].tolist() == [2, 1]


def test_tables_may_be_made_of_chosen_launchers(analyzer: TreePerfAnalyzer) -> None:
    launchers = analyzer.get_df_kernel_launchers()
    copies = launchers[launchers["name"] == "aten::copy_"]
    by_name = analyzer.get_df_kernel_launchers_summary(copies)
    assert by_name["Percentage (%)"].tolist() == [100.0]
    by_category = analyzer.get_df_kernel_launchers_summary_by_category(copies)
    assert by_category["op category"].tolist() == ["elementwise"]
    table = analyzer.get_df_kernel_launchers_unique_args(
        launchers, event_name="aten::copy_"
    )
    assert table["name"].tolist() == ["aten::copy_"]
    assert "kernel of aten::copy_" in str(table.loc[0, "kernel_details_summary"])
    none = launchers[launchers["name"] == "no such operation"]
    assert analyzer.get_df_kernel_launchers_summary(none).empty
    assert analyzer.get_df_kernel_launchers_unique_args(none).empty


def test_metrics_and_percentages_can_be_chosen(
    analyzer: TreePerfAnalyzer,
) -> None:
    table = analyzer.get_df_kernel_launchers_unique_args(
        agg_metrics=["mean", "sum"], include_pct=False
    )
    times = [c for c in table.columns if c.startswith("total_direct_kernel_time")]
    assert times == ["total_direct_kernel_time_mean", "total_direct_kernel_time_sum"]
    assert not [c for c in table.columns if "Percentage" in c]
    with pytest.raises(UsageError, match="unknown metric 'p99'"):
        analyzer.get_df_kernel_launchers_unique_args(agg_metrics=["p99"])


def _report(maker: TraceMaker, **options: Any) -> Report:
    return build_perf_report(TreePerfAnalyzer(maker.document()), **options)


def test_the_report_shows_only_the_longest_operations_on_request() -> None:
    sheets = _report(_three_products_and_a_copy(), topk_ops=1).sheets
    assert sheets["ops_summary_by_category"]["op category"].tolist() == ["GEMM"]
    assert sheets["ops_summary"]["Percentage (%)"].tolist() == [90.0]
    assert len(sheets["ops_unique_args"]) == 1


def test_a_trace_without_operations_has_no_sheets_of_operations() -> None:
    maker = TraceMaker()
    maker.launched("k", 100, 10, correlation=1, at=2)
    assert not [name for name in _report(maker).sheets if name.startswith("ops_")]


def test_the_report_says_that_communication_is_left_out() -> None:
    maker = _three_products_and_a_copy()
    maker.launched(NCCL, 2000, 100, correlation=99, at=900)
    notes = " ".join(_report(maker).notes)
    assert (
        "Communication (1 kernels, 50.0 % of GPU time) is not included in the ops_ sheets"
        in notes
    )
    assert "coll_analysis" in notes
    without_collectives = _report(maker, collective_analysis=False)
    assert "coll_analysis" not in " ".join(without_collectives.notes)
    without_communication = _report(_three_products_and_a_copy())
    assert "is not included" not in " ".join(without_communication.notes)


def _references() -> list[Any]:
    paths = sorted(SHARED.glob("*/*_perf_report_csvs/ops_summary.csv"))
    return [pytest.param(path.parent, id=path.parent.name) for path in paths]


@pytest.mark.real_data
@pytest.mark.parametrize("folder", _references())
def test_the_tables_agree_with_the_references(folder: Path) -> None:
    trace = folder.with_name(folder.name.removesuffix("_perf_report_csvs") + ".json.gz")
    analyzer = TreePerfAnalyzer(trace)
    ours = analyzer.get_df_kernel_launchers_summary().set_index("name")
    reference = pd.read_csv(folder / "ops_summary.csv").set_index("name")
    assert sorted(ours.index) == sorted(reference.index)
    ours = ours.loc[reference.index]
    assert ours["Count"].tolist() == reference["Count"].tolist()
    for column in (
        "total_direct_kernel_time_sum",
        "total_subtree_kernel_time_sum",
        "Percentage (%)",
    ):
        # The references were computed from doubles that resolve a quarter of a nanosecond.
        assert ours[column].to_numpy() == pytest.approx(
            reference[column].to_numpy(), rel=1e-4, abs=2e-3
        )
    assert set(ours["Categories"]) <= {*reference["Categories"], "['SDPA_fwd']"}

    unique = analyzer.get_df_kernel_launchers_unique_args()
    keys = ["name", "Input Dims", "Input type", "Input Strides", "Concrete Inputs"]
    expected = pd.read_csv(folder / "ops_unique_args.csv")
    rows = unique[keys].agg("|".join, axis="columns")
    expected_rows = expected[keys].fillna("").agg("|".join, axis="columns")
    assert sorted(rows) == sorted(expected_rows)
    assert set(expected.columns) <= set(unique.columns)


# Calls that scripts for TraceLens make.


def test_summaries_may_be_called_on_the_class(analyzer: TreePerfAnalyzer) -> None:
    table = analyzer.get_df_kernel_launchers()
    for name in ("summary", "summary_by_category"):
        method = f"get_df_kernel_launchers_{name}"
        of_class = getattr(TreePerfAnalyzer, method)(table)
        pd.testing.assert_frame_equal(of_class, getattr(analyzer, method)())
    of_class = TreePerfAnalyzer.get_df_kernel_launchers_unique_args(
        table, include_pct=True
    )
    whole = analyzer.get_df_kernel_launchers_unique_args(df_kernel_launchers=table)
    without = [column for column in whole if "kernel_details" not in str(column)]
    pd.testing.assert_frame_equal(of_class, whole[without])
    assert "ops_summary" in (
        TreePerfAnalyzer.get_df_kernel_launchers_summary.__doc__ or ""
    )
    with pytest.raises(UsageError, match="called on the class, this needs a table"):
        TreePerfAnalyzer.get_df_kernel_launchers_summary()


def test_keywords_that_only_tracelens_has_are_refused_with_a_replacement(
    analyzer: TreePerfAnalyzer, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.touch()
    calls: list[tuple[Any, str, str]] = [
        (
            TreePerfAnalyzer,
            "jax",
            "TreePerfAnalyzer has no argument 'jax': leave it out; use cat",
        ),
        (TreePerfAnalyzer, "inference_phase_analysis", r"get_df_phases\(\)"),
        (TreePerfAnalyzer.from_file, "arch", "TreePerfAnalyzer has no argument 'arch'"),
        (
            lambda _, **given: analyzer.get_df_kernel_launchers(**given),
            "include_nccl",
            "use get_df_collectives",
        ),
        (
            generate_perf_report_pytorch,
            "extension_file",
            "generate_perf_report_pytorch has no argument 'extension_file': write a plugin",
        ),
    ]
    for call, keyword, message in calls:
        with pytest.raises(UsageError, match=message):
            call(path, **{keyword: True})
    with pytest.raises(TypeError, match="unheard_of"):
        TreePerfAnalyzer(path, unheard_of=True)  # type: ignore[call-arg]
    misspelt = (
        r"generate_perf_report_pytorch\(\) got .* 'topk_op'; did you mean 'topk_ops'"
    )
    with pytest.raises(TypeError, match=misspelt):
        generate_perf_report_pytorch(path, topk_op=3)
