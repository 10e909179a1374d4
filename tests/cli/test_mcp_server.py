"""`tracelens-ext mcp`: what an agent can find out in three calls, and what it is refused."""

from __future__ import annotations

import ast
import asyncio
import gzip
import json
import re
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SHARED
from tests.support.docs_helpers import page_text
from tests.support.simulated_job import write_demo_trace
from tracelens_ext.cli import run
from tracelens_ext.cli.mcp_answers import LONGEST_ANSWER
from tracelens_ext.cli.mcp_server import make_server
from tracelens_ext.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs mcp")

Answer = dict[str, Any]

HOST = {
    "dataloader": 30.0,
    "synchronization": 12.0,
    "allocator": 10.0,
    "exposed-copy": 8.0,
}
KERNELS = {
    "unfused-attention": 20.0,
    "slow-gemm": 15.0,
    "dtype-casts": 12.0,
    "layout-conversion": 10.0,
    "unfused-optimizer": 9.0,
    "recompute": 8.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces of one step: as it is, with problems of the host, with those of kernels."""
    place = tmp_path_factory.mktemp("traces")
    for name, problems in (("plain", {}), ("host", HOST), ("kernels", KERNELS)):
        write_demo_trace(place / f"{name}.json.gz", steps=1, problems=problems)
    return place


@pytest.fixture(scope="module")
def ask(folder: Path) -> Callable[..., Any]:
    """Calls a tool as a client of the official package does: its answer, or its error as a text."""
    server = make_server([folder, *([SHARED / "traces"] if SHARED.is_dir() else [])])

    def call(tool: str, /, **arguments: Any) -> Any:
        import mcp

        async def asked() -> Any:
            async with mcp.Client(server) as client:
                return await client.call_tool(tool, arguments)

        result = asyncio.run(asked())
        (content,) = result.content
        assert len(content.text) <= LONGEST_ANSWER
        return content.text if result.is_error else json.loads(content.text)

    return call


def finding(answer: Answer, ident: str) -> Answer:
    return next(each for each in answer["findings"] if each["id"] == ident)


def gpu_events(folder: Path, name: str) -> list[dict[str, Any]]:
    """The GPU events as the file has them."""
    document = json.loads(gzip.decompress((folder / f"{name}.json.gz").read_bytes()))
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    return [e for e in document["traceEvents"] if e.get("cat") in kinds]


def place(answer: Answer, ident: str, kind: str) -> str:
    return str(finding(answer, ident)["where"][kind][0]["name"])


Calls = list[tuple[str, dict[str, Any]]]
#: A question, the calls that answer it, and what the last answer must say.
QUESTIONS: list[tuple[str, Calls, Callable[[Any], bool]]] = [
    (
        "which traces are there",
        [("open_trace", {"path": "."})],
        lambda a: (
            {r["path"] for r in a["rows"]}
            >= {f"{n}.json.gz" for n in ("plain", "host")}
        ),
    ),
    (
        "which GPU is it",
        [("open_trace", {"path": "plain.json.gz"})],
        lambda a: "H100" in a["facts"]["Devices"],
    ),
    (
        "is it training",
        [("open_trace", {"path": "plain.json.gz"})],
        lambda a: a["program"]["kind"] == "pytorch-training",
    ),
    (
        "what limits it",
        [("findings", {"path": "host.json.gz"})],
        lambda a: a["findings"][0]["id"] == "dataloader",
    ),
    (
        "how much would a faster loader save",
        [("what_if", {"path": "host.json.gz", "changes": ["finding:dataloader=0"]})],
        lambda a: a["rows"][0]["saved_ms"] == pytest.approx(30, rel=0.3),
    ),
    (
        "which line of the loader is slow",
        [("findings", {"path": "host.json.gz"})],
        lambda a: (
            place(a, "dataloader", "python_frames") == "captions.py(58): tokenize"
        ),
    ),
    (
        "how sure is that",
        [("findings", {"path": "host.json.gz"})],
        lambda a: finding(a, "dataloader")["confidence"] == "high",
    ),
    (
        "who waits for the GPU",
        [("findings", {"path": "host.json.gz"})],
        lambda a: (
            place(a, "synchronization", "python_frames") == "train.py(83): check_loss"
        ),
    ),
    (
        "what do the waits cost",
        [("findings", {"path": "host.json.gz"})],
        lambda a: (
            finding(a, "synchronization")["attributed_ms"] == pytest.approx(12, rel=0.3)
        ),
    ),
    (
        "does allocating memory cost anything",
        [("findings", {"path": "host.json.gz"})],
        lambda a: (
            finding(a, "allocator")["attributed_ms"] == pytest.approx(10, rel=0.3)
        ),
    ),
    (
        "which copies are not hidden",  # of pageable memory
        [("findings", {"path": "host.json.gz"})],
        lambda a: "HtoD" in str(finding(a, "pageable-copies")["where"]),
    ),
    (
        "is attention fused",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: (
            finding(a, "unfused-attention")["attributed_ms"]
            == pytest.approx(20, rel=0.3)
        ),
    ),
    (
        "where is attention that is not fused",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: (
            place(a, "unfused-attention", "python_frames") == "model.py(402): forward"
        ),
    ),
    (
        "which product is slow, and why",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: "multiple of 8" in place(a, "slow-gemm", "reasons"),
    ),
    (
        "which types are cast",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: place(a, "dtype-casts", "types") == "bf16 to fp32",
    ),
    (
        "which layer converts layouts",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: "Conv2d" in place(a, "layout-conversion", "modules"),
    ),
    (
        "is the optimizer fused",
        [("findings", {"path": "kernels.json.gz"})],
        lambda a: (
            "foreach" in (f := finding(a, "unfused-optimizer"))["advice"]
            or f["snippet"]
        ),
    ),
    (
        "is anything computed twice",
        [("findings", {"path": "kernels.json.gz", "all": True})],
        lambda a: "checkpoint.py" in place(a, "recompute", "python_frames"),
    ),
    (
        "what changed when the loader got slow",
        [("compare", {"path": "plain.json.gz", "other": "host.json.gz"})],
        lambda a: (
            {r["finding"]: r["difference_ms"] for r in a["tables"]["findings"]}[
                "allocator"
            ]
            == pytest.approx(10, rel=0.3)
        ),
    ),
]
REAL: list[tuple[str, Calls, Callable[[Any], bool]]] = [
    (
        "why is there no GPU time",
        [("open_trace", {"path": "edge/cpu_only.json.gz"})],
        lambda a: "ProfilerActivity.CUDA" in str(a["recording"]),
    ),
    (
        "what does the host do there",
        [("table", {"path": "edge/cpu_only.json.gz", "name": "cpu_ops", "limit": 1})],
        lambda a: a["total"] > 0 and a["units"],
    ),
    (
        "which only kernel runs",
        [("tree", {"path": "edge/one_triton_kernel.json.gz", "depth": 9})],
        lambda a: [r["kind"] for r in a["rows"]].count("kernel") == 1,
    ),
    (
        "what slows the NCCL job down",
        [("findings", {"path": "nvidia/nccl.json.gz"})],
        lambda a: a["findings"][0]["id"] == "host-bound",
    ),
    (
        "how much of the compiled model is attention",
        [
            (
                "explain_kernel",
                {"path": "nvidia/torch_compile_triton.json.gz", "name": "attn_fwd"},
            )
        ],
        lambda a: (
            a["% of GPU time"] == pytest.approx(29.4, abs=3)
            and a["rows"][0]["cpu_op"] == "aten::_flash_attention_forward"
        ),
    ),
    (
        "what runs within the graph of the engine",
        [
            (
                "sql",
                {
                    "path": "graphs/vllm_decode_hip_graph.json.gz",
                    "query": "select name, gpu_events from launches order by 2 desc limit 1",
                },
            )
        ],
        lambda a: (
            a["rows"][0]["name"] == "hipGraphLaunch"
            and a["rows"][0]["gpu_events"] > 100
        ),
    ),
]


@pytest.mark.parametrize(
    ("question", "calls", "right"), QUESTIONS, ids=[q[0] for q in QUESTIONS]
)
def test_a_question_about_a_known_problem(
    question: str, calls: Calls, right: Callable[[Any], bool], ask: Callable[..., Any]
) -> None:
    answers = [ask(tool, **arguments) for tool, arguments in calls]
    assert len(calls) <= 3
    assert right(answers[-1]), question


@pytest.mark.real_data
@pytest.mark.parametrize(("question", "calls", "right"), REAL, ids=[q[0] for q in REAL])
def test_a_question_about_a_recorded_trace(
    question: str, calls: Calls, right: Callable[[Any], bool], ask: Callable[..., Any]
) -> None:
    test_a_question_about_a_known_problem(question, calls, right, ask)


def test_the_largest_kernel_its_category_and_who_launches_it(
    folder: Path, ask: Callable[..., Any]
) -> None:
    times: dict[str, float] = {}
    for event in gpu_events(folder, "plain"):
        times[event["name"]] = times.get(event["name"], 0.0) + event["dur"]
    largest = max(times, key=times.__getitem__)
    (row,) = ask(
        "table", path="plain.json.gz", name="kernels", sort="-total_time_ms", limit=1
    )["rows"]
    told = ask("explain_kernel", path="plain.json.gz", name=row["kernel"])
    assert told["kernel_name"] == largest
    assert told["total_time_ms"] == pytest.approx(times[largest] / 1e3)
    assert told["kernel_category"] == row["kernel_category"]
    assert told["because"]["verdict"]["rule"]
    (within,) = [
        each
        for each in ask("tree", path="plain.json.gz", node=told["rows"][0]["cpu_op"])[
            "rows"
        ]
        if each["name"] == largest
    ]
    assert within["gpu_events"] == told["rows"][0]["count"]


def test_short_kernels_are_counted_with_sql(
    folder: Path, ask: Callable[..., Any]
) -> None:
    short = sum(event["dur"] < 5 for event in gpu_events(folder, "plain"))
    asked = "select count(*) as n from gpu_events where dur_ns < 5000"
    assert ask("sql", path="plain.json.gz", query=asked)["rows"] == [{"n": short}]


def test_rows_are_chosen_sorted_and_have_units(ask: Callable[..., Any]) -> None:
    timeline = {"path": "plain.json.gz", "name": "gpu_timeline"}
    answer = ask(
        "table", **timeline, where={"type": "busy_time"}, columns=["time ms", "type"]
    )
    assert [list(row) for row in answer["rows"]] == [["time ms", "type"]]
    assert (answer["total"], answer["units"]) == (1, {"time ms": "ms"})
    rows = ask("table", **timeline, sort="-time ms", limit=2)
    times = [row["time ms"] for row in rows["rows"]]
    assert times == sorted(times, reverse=True)
    assert len(times) == 2
    assert "more rows" in rows["next"]


@pytest.mark.parametrize(
    "path",
    [
        "../x.json",
        "/etc/passwd",
        "~/x",
        "a\0b",
        "C:\\x",
        "a/../../b",
        "out",
        "away/x.json",
    ],
)
def test_paths_out_of_the_folders_are_refused(
    path: str, folder: Path, ask: Callable[..., Any], tmp_path: Path
) -> None:
    plain = (folder / "plain.json.gz").read_bytes()
    (tmp_path / "x.json").write_bytes(gzip.decompress(plain))
    for name, target in (("out", tmp_path / "x.json"), ("away", tmp_path)):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    for tool, more in (("open_trace", {}), ("sql", {"query": "select 1"})):
        answer = ask(tool, path=path, **more)
        assert isinstance(answer, str), answer
        assert "the server's folders" in answer
        assert "\n" not in answer


def test_files_beside_a_trace_are_not_read_through_links(
    folder: Path, tmp_path: Path, ask: Callable[..., Any]
) -> None:
    """Tables of rocprofv3 are read with those beside them."""
    header = '"Kind","Agent_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    kernel = '"KERNEL_DISPATCH",1,"{}",{},{},{}\n'
    (folder / "run_kernel_trace.csv").write_text(
        header + kernel.format("mine", 1, 1000, 2000)
    )
    copies = tmp_path / "run_memory_copy_trace.csv"
    copies.write_text(
        '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id",'
        '"Start_Timestamp","End_Timestamp"\n"MEMORY_COPY","SECRET",0,1,2,3000,4000\n'
    )
    (folder / copies.name).symlink_to(copies)
    asked = "select name from gpu_events"
    answer = ask("sql", path="run_kernel_trace.csv", query=asked)
    assert answer["rows"] == [{"name": "mine"}]


@pytest.mark.parametrize(
    "query",
    [
        "attach '/tmp/x.db' as x",
        "delete from events",
        "create table t (a)",
        "pragma writable_schema = 1",
        "select 1; select 2",
        "vacuum into '/tmp/x.db'",
        "select load_extension('/tmp/x.so')",
        "select * from no_such_table",
        "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n",
    ],
)
def test_sql_that_does_more_than_read_or_does_not_end_is_refused(
    query: str, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_ext.cli.mcp_tools._SQL_SECONDS", 0.2)
    assert "this SQL is rejected: " in ask("sql", path="plain.json.gz", query=query)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("table", {"name": "no_such_table"}),
        ("table", {"name": "gpu_timeline", "columns": ["no"]}),
        ("table", {"name": "gpu_timeline", "sort": "-no"}),
        ("table", {"name": "gpu_timeline", "where": {"no": 1}}),
        ("table", {"name": "gpu_timeline", "limit": 201}),
        ("table", {"name": "gpu_timeline", "limit": 10**30}),
        ("tree", {"depth": 0}),
        ("tree", {"node": "(a+)+$"}),
        ("explain_kernel", {"name": ""}),
        ("explain_kernel", {"name": "x" * 100_000}),
        ("what_if", {"changes": ["GEMM"]}),
        ("what_if", {"changes": ["GEMM=0.5"] * 1000}),
        ("reproduce", {"op": "no such operation"}),
        ("reproduce", {"row": 100_000}),
        ("reproduce", {"finding": "no-such-finding"}),
        ("reproduce", {"top": 0}),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    tool: str, arguments: dict[str, Any], ask: Callable[..., Any]
) -> None:
    answer = ask(tool, path="plain.json.gz", **arguments)
    assert isinstance(answer, str), answer
    assert "\n" not in answer


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        (
            "table",
            {"name": "kernels", "limit": "x"},
            "limit is 'x'; expected an integer",
        ),
        (
            "table",
            {"name": "kernels", "columns": "a"},
            "columns is 'a'; expected a list of strings",
        ),
        (
            "table",
            {"name": "kernels", "where": {"a": [1]}},
            "where contains [1]; expected an object",
        ),
        ("table", {}, "name is missing; expected a string"),
        (
            "table",
            {"name": "kernels", "colums": ["a"]},
            "no argument 'colums'; it takes path, name",
        ),
        ("findings", {"all": "maybe"}, "all is 'maybe'; expected true or false"),
        ("tree", {"depth": 2.5}, "depth is 2.5; expected an integer"),
        ("what_if", {"changes": [{"a": "x" * 9000}]}, "changes contains {'a': 'xxx"),
        ("write", {}, "there is no tool 'write'; the tools are: open_trace, findings"),
    ],
)
def test_wrong_types_and_names_are_told_in_the_programs_own_line(
    tool: str, arguments: dict[str, Any], said: str, ask: Callable[..., Any]
) -> None:
    answer = ask(tool, path="plain.json.gz", **arguments)
    assert said in answer
    assert not re.search(r"\n|pydantic|validation|Error executing", answer)
    assert len(answer) < 500


def test_a_bug_is_told_without_its_text(
    ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens_ext.cli.mcp_tools.overview", None)
    answer = ask("open_trace", path="plain.json.gz")
    assert (
        answer
        == "open_trace: internal error: TypeError; this is a bug: please report it"
    )


def test_a_script_is_returned_as_its_text(folder: Path) -> None:
    import mcp

    server = make_server([folder])

    async def asked() -> Any:
        async with mcp.Client(server) as client:
            arguments = {"path": "plain.json.gz", "op": "^aten::mm$", "top": 2}
            return await client.call_tool("reproduce", arguments)

    (content,) = asyncio.run(asked()).content
    module = ast.parse(content.text)
    names = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    operations = [name for name in names if name.startswith("operation_")]
    assert operations == ["operation_1", "operation_2"]


def test_an_answer_that_is_too_long_is_cut_and_says_so(ask: Callable[..., Any]) -> None:
    wide = "select " + ", ".join(f"printf('%.*c', 900, 'x') as c{n}" for n in range(40))
    answer = ask("sql", path="plain.json.gz", query=f"{wide} from events limit 30")
    assert "characters per string" in answer["cut"]
    assert len(answer["rows"]) >= 6


def test_a_trace_stays_in_memory_until_its_file_changes(
    folder: Path, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shutil.copy(folder / "plain.json.gz", folder / "changing.json.gz")
    asked = {"path": "changing.json.gz", "query": "select count(*) as n from events"}
    first = ask("sql", **asked)["rows"]
    with monkeypatch.context() as patched:
        patched.setattr("tracelens_ext.cli.mcp_traces.TreePerfAnalyzer", None)
        assert ask("sql", **asked)["rows"] == first
    shutil.copy(folder / "kernels.json.gz", path)
    assert ask("sql", **asked)["rows"] != first


def test_no_folder_or_no_package_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="absent: is not a folder; give folders"):
        make_server([tmp_path / "absent"])
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(UsageError, match=r"tracelens-ext\[mcp\]"):
        make_server([tmp_path])
    assert run(["mcp", str(tmp_path / "absent")]) == 2


@pytest.mark.process
def test_the_command_serves_a_client_over_stdio(folder: Path) -> None:
    """Nothing but answers may stand on standard output."""
    import mcp

    server = mcp.StdioServerParameters(
        command=sys.executable, args=["-m", "tracelens_ext", "mcp", str(folder)]
    )

    async def asked() -> Any:
        async with mcp.Client(mcp.stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            return tools, await client.call_tool("findings", {"path": "host.json.gz"})

    tools, result = asyncio.run(asked())
    assert {tool.name for tool in tools} == {
        "open_trace",
        "findings",
        "table",
        "explain_kernel",
        "tree",
        "compare",
        "what_if",
        "sql",
        "reproduce",
    }
    assert json.loads(result.content[0].text)["findings"][0]["id"] == "dataloader"


def test_the_tables_that_the_skill_file_names_are_there(
    ask: Callable[..., Any],
) -> None:
    text = page_text("agents.md")
    named = re.findall(r'table\(path, "(\w+)"(?:, sort="-(\w+)")?', text)
    assert len(named) >= 5
    for name, column in named:
        row = ask("table", path="plain.json.gz", name=name, limit=1)["rows"][0]
        assert not column or column in row
