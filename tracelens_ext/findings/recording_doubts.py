"""What makes a recording doubtful, in sentences that come before all findings."""

from __future__ import annotations

from typing import Final

from tracelens_ext.analysis.coverage.suspects import find_suspects
from tracelens_ext.categorize.kernel_names import simple_name
from tracelens_ext.report.tables.short_names import cut_middle
from tracelens_ext.text import ms_text
from tracelens_ext.trace import NS_PER_MS
from tracelens_ext.trace.gpu_events import GpuEvents

_NAME_LENGTH: Final = 60


def suspect_sentences(work: GpuEvents) -> list[str]:
    """Return a sentence about each GPU event whose recorded end cannot be right."""
    suspects = find_suspects(work)
    total_ns = max(int(work.duration.sum()), 1)
    columns = zip(suspects.event.tolist(), suspects.lost_launches.tolist(), strict=True)
    sentences = []
    for event, lost_launches in columns:
        name = work.trace.names[int(work.name[event])]
        shown = cut_middle(simple_name(name) or name, _NAME_LENGTH)
        duration_ns = int(work.duration[event])
        percent = 100 * duration_ns / total_ns
        sentences.append(
            f"The recording is suspect: 1 of {len(work):,} GPU events, {shown}, lasts "
            f"{ms_text(duration_ns / NS_PER_MS)} ({percent:.1f} % of GPU time) while "
            f"{lost_launches:,} launches have no GPU work in the file. GPU events were lost or "
            "this one ends too late; its time is not analyzed. Record again before you act on "
            "the rest."
        )
    return sentences
