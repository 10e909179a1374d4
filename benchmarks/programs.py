"""What the fresh processes of the benchmarks run: each prints its figures, seconds, as JSON."""

#: `json.loads` of the text.
YARDSTICK = """
import gc, json, sys, time
data = open(sys.argv[1], "rb").read()
gc.disable()
started = time.perf_counter()
json.loads(data)
print(json.dumps({"yardstick": time.perf_counter() - started}))
"""

#: From the file to the kernel summary.
SUMMARY = """
import json, sys, time
import msgspec, numpy, pandas
from tracelens_ext.readers import read_trace
from tracelens_ext.analyzer import TreePerfAnalyzer
import tracelens_ext.analysis.kernels.kernels, tracelens_ext.categorize
from tracelens_ext.settings import ReadingOptions
started = time.perf_counter()
reading = ReadingOptions(jobs=int(sys.argv[2]) if len(sys.argv) > 2 else None)
trace = read_trace(sys.argv[1], reading=reading)
read = time.perf_counter()
analyzer = TreePerfAnalyzer(trace)
linked = analyzer.tree.linked.sum()
tree = time.perf_counter()
frame = analyzer.get_df_kernel_summary()
done = time.perf_counter()
print(json.dumps({"events": len(trace), "gpu": int(frame["count"].sum()), "read": read - started,
                  "tree": tree - read, "table": done - tree, "all": done - started}))
"""

_IMPORTS = """
import importlib, json, os, pathlib, pkgutil, sys, tempfile, time
import msgspec, numpy, pandas, pluggy, regex
for optional in ("xlsxwriter", "jinja2", "plotly"):
    try:
        importlib.import_module(optional)
    except ImportError:
        pass
import tracelens_ext
for module in pkgutil.walk_packages(tracelens_ext.__path__, "tracelens_ext."):
    try:
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    except ImportError:
        pass
"""

#: The whole report: all sheets, as an Excel file.
REPORT = (
    _IMPORTS
    + """
from tracelens_ext import generate_perf_report_pytorch
with tempfile.TemporaryDirectory() as folder:
    started, begun = time.perf_counter(), time.process_time()
    generate_perf_report_pytorch(sys.argv[1], os.path.join(folder, "r.xlsx"),
                                 use_kernel_name_categories=True, short_kernel_study=True)
    print(json.dumps({"report": time.perf_counter() - started,
                      "cpu": time.process_time() - begun}))
"""
)

#: Each stage of it by itself. Slices are decoded without putting them together first, and bytes
#: read without decoding them: the differences are the stages.
STAGES = (
    _IMPORTS
    + """
from tracelens_ext import TreePerfAnalyzer
from tracelens_ext.trace.linking import link
from tracelens_ext.readers import read_trace
from tracelens_ext.readers.kineto import compiled_reader
from tracelens_ext.readers.kineto import reader as kineto
from tracelens_ext.readers.json_events import EventStream
from tracelens_ext.readers.source import ByteSource
from tracelens_ext.report.writing import OutputFormat
from tracelens_ext.report.writing import write_report
from tracelens_ext.perf_report import build_perf_report
from tracelens_ext.trace.call_tree import CallTree

took, path = {}, sys.argv[1]

def timed(name, work):
    started = time.perf_counter()
    result = work()
    took[name] = time.perf_counter() - started
    return result

def only_bytes():
    with ByteSource(path) as source:
        while source.read(1 << 19):
            pass

def only_slices():
    columns = kineto.KinetoColumns(compiled_reader())
    with ByteSource(path) as source:
        for _ in EventStream(source, columns):
            pass

timed("decompress", only_bytes)
timed("decode", only_slices)
trace = timed("columns", lambda: read_trace(path))
took["columns"] -= took["decode"]
took["decode"] -= took["decompress"]
timed("link", lambda: link(trace))
timed("tree", lambda: CallTree(trace).linked)
took["tree"] -= took["link"]
analyzer = timed("categories", lambda: TreePerfAnalyzer(trace, use_kernel_name_categories=True))
took["categories"] -= took["tree"] + took["link"]
timed("categories ", lambda: analyzer.work.categories)
took["categories"] = max(took["categories"], 0) + took.pop("categories ")
tables = {
    "gpu_timeline": analyzer.get_df_gpu_timeline,
    "kernels_by_category": analyzer.get_df_kernel_summary,
    "kernel_categories": analyzer.get_df_kernel_category_summary,
    "ops_summary_by_category": analyzer.get_df_kernel_launchers_summary_by_category,
    "ops_summary": analyzer.get_df_kernel_launchers_summary,
    "ops_unique_args": analyzer.get_df_kernel_launchers_unique_args,
    "coll_analysis": analyzer.get_df_collectives,
    "graph_launches": analyzer.get_df_graph_launches,
    "gap_summary": analyzer.get_df_gap_summary,
    "iterations": analyzer.get_df_iterations,
    "cpu_ops": analyzer.get_df_cpu_ops,
}
for name, table in tables.items():
    timed(name, table)
result = timed("all sheets again", lambda: build_perf_report(
    analyzer, short_kernel_study=True, gaps=True))
with tempfile.TemporaryDirectory() as folder:
    timed("xlsx", lambda: write_report(result, {pathlib.Path(folder, "r.xlsx"): OutputFormat.xlsx}))
    try:
        from tracelens_ext.report.writing import PAGE, require_format
        require_format(PAGE)
    except Exception:
        pass
    else:
        timed("html", lambda: write_report(result, {pathlib.Path(folder, "r.html"): PAGE}))
took["all"] = sum(took.values())
print(json.dumps(took))
"""
)

#: Distinct kernel names to categories.
CATEGORIZE = """
import json, time, tomllib, pathlib
import numpy, regex
import tracelens_ext_categorizers
from tracelens_ext.categorize import builtin_categorizer
packs = sorted(pathlib.Path(tracelens_ext_categorizers.__file__).parent.glob("*.toml"))
real = []
for pack in packs:
    document = tomllib.loads(pack.read_text(encoding="utf-8"))
    if document.get("pack", {}).get("kind") != "op":
        for rule in document["rule"]:
            real += [e["name"] if isinstance(e, dict) else e for e in rule["examples"]]
names = [f"{real[i % len(real)]}_{i}" for i in range(100_000)]
started = time.perf_counter()
builtin_categorizer().categorize(names)
print(json.dumps({"categorize": time.perf_counter() - started, "names": len(names)}))
"""

#: A command from its start to its end, in a process of its own.
STARTUP = """
import json, subprocess, sys, time
started = time.perf_counter()
subprocess.run([sys.executable, "-m", "tracelens_ext", "--help"], check=True,
               stdout=subprocess.DEVNULL)
print(json.dumps({"help": time.perf_counter() - started}))
"""

#: `tracelens-ext report` on several traces.
RANKS = """
import json, subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory() as folder:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tracelens_ext", "report", *sys.argv[2:], "-q",
                    "-o", folder, "--jobs", sys.argv[1]], check=True)
    print(json.dumps({"ranks": time.perf_counter() - started}))
"""
