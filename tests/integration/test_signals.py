"""Ctrl-C once, twice, three times; and what is ignored stays ignored."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tracelens_ext.cli import Stopping

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals of POSIX"),
    pytest.mark.usefixtures("signals_heard"),
]

#: Stops itself as often as it is told, and says when it cleaned up.
PROGRAM = """
import os, signal, sys
from tracelens_ext.cli import Stopping
{before}
stopping = Stopping()
stopping.listen()
{after}
try:
    os.kill(os.getpid(), signal.{name})
except KeyboardInterrupt:
    for _ in range({more}):
        os.kill(os.getpid(), signal.SIGINT)
    print("cleaned up", stopping.message, stopping.exit_code, flush=True)
else:
    print("went on", flush=True)
"""


def _stopped(
    name: str, more: int = 0, before: str = "", after: str = ""
) -> tuple[int, str]:
    program = PROGRAM.format(name=name, more=more, before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SIGINT", "cleaned up interrupted 130"),
        ("SIGTERM", "cleaned up terminated 143"),
        ("SIGHUP", "cleaned up interrupted 129"),
    ],
)
def test_once(name: str, said: str) -> None:
    assert _stopped(name) == (0, said)


def test_a_second_one_does_not_disturb_cleaning_up_and_a_third_ends_it() -> None:
    assert _stopped("SIGINT", more=1) == (0, "cleaned up interrupted 130")
    assert _stopped("SIGTERM", more=1) == (0, "cleaned up terminated 143")
    assert _stopped("SIGINT", more=2) == (130, "")


def test_what_is_ignored_stays_ignored() -> None:
    """As `nohup` has it."""
    before = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert _stopped("SIGHUP", before=before) == (0, "went on")


def test_a_process_that_inherits_it_just_ends() -> None:
    assert _stopped("SIGTERM", after="stopping._process = -1") == (143, "")


def test_without_a_signal_an_interrupt_is_a_ctrl_c() -> None:
    assert (Stopping().message, Stopping().exit_code) == ("interrupted", 130)
