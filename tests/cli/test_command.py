"""Options whose value was forgotten: no command takes the option that follows for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
import typer.main

from tests.support.comparison_helpers import training, write
from tracelens_ext.cli import run
from tracelens_ext.cli.app import app
from tracelens_ext.cli.careful_command import CarefulCommand

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACELENS_EXT_CACHE_DIR", str(tmp_path / "cache"))


def every_command(
    command: Any, words: tuple[str, ...] = ()
) -> Iterator[tuple[list[str], Any]]:
    if hasattr(command, "commands"):
        for name in command.commands:
            yield from every_command(command.get_command(None, name), (*words, name))
    else:
        yield list(words), command


def test_no_option_of_any_command_takes_another_for_its_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = 0
    for words, command in every_command(typer.main.get_command(app)):
        if words == ["record"]:
            continue  # what follows the program is the program's
        for option in command.params:
            if option.param_type_name != "option" or option.is_flag:
                continue
            for name in option.opts:
                assert run([*words, "x", name, "--help"]) == 2, (words, name)
                out, err = capsys.readouterr()
                assert out == ""
                assert (
                    f"Option '{name}' requires an argument; see 'tracelens-ext" in err
                )
                seen += 1
    assert seen > 100
    assert list(Path().iterdir()) == [], "nothing was written"


@pytest.mark.parametrize(
    "rest",
    [
        ["--html", "--output", "x.xlsx"],
        ["--html", "--output=x.xlsx"],
        ["--html", "-o", "x.xlsx"],
        ["--html", "--no-kernel-summary"],
    ],
)
def test_nothing_is_written(
    rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("a.json"), training(2))
    assert run(["report", "a.json", *rest]) == 2
    assert "Option '--html' requires an argument" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["a.json"]


def parsed(*arguments: str) -> dict[str, object]:
    """What a command with options of all kinds is called with; an error is raised."""
    called: dict[str, object] = {}
    small = typer.Typer(add_completion=False)

    @small.command(cls=CarefulCommand)
    def command(
        names: list[str],
        title: str = typer.Option("", "--title", "-t"),
        pair: tuple[str, str] = typer.Option(("", ""), "--pair"),
        flag: bool = typer.Option(False, "--flag/--no-flag", "-f"),
    ) -> None:
        called.update(names=names, title=title, pair=tuple(pair), flag=flag)

    typer.main.get_command(small).main(list(arguments), standalone_mode=False)
    return called


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--title=--flag", "a"), {"title": "--flag", "flag": False, "names": ["a"]}),
        (("-t--flag", "a"), {"title": "--flag", "flag": False}),
        (("--title=--other", "a"), {"title": "--other"}),
        (("--title", "-1", "a"), {"title": "-1"}),
        (("--title", "-", "--flag", "a"), {"title": "-", "flag": True}),
        (("--flag", "--title", "x", "a"), {"title": "x", "flag": True}),
        (("-ft", "x", "a"), {"title": "x", "flag": True}),
        (
            ("a", "--", "--title", "--flag"),
            {"names": ["a", "--title", "--flag"], "title": ""},
        ),
        (("--pair", "1", "2", "--flag", "a"), {"pair": ("1", "2"), "flag": True}),
        (("--title", "x", "--title", "y", "a"), {"title": "y"}),
    ],
)
def test_what_is_meant_is_taken(
    arguments: tuple[str, ...], expected: dict[str, object]
) -> None:
    found = parsed(*arguments)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("a", "--title", "--flag"), "--title"),
        (("a", "--title", "--no-flag"), "--title"),
        (("a", "--title", "--title=x"), "--title"),
        (("a", "-t", "-f"), "-t"),
        (("a", "-ft", "--pair", "1", "2"), "-t"),
        (("a", "--pair", "1", "--flag"), "--pair"),
        (("a", "--title"), "--title"),
        (("--title", "--other", "a"), "--title"),
        (("--pair", "1"), "--pair"),
    ],
)
def test_what_is_forgotten_is_said(arguments: tuple[str, ...], name: str) -> None:
    with pytest.raises(Exception, match=f"Option '{name}' requires an argument"):
        parsed(*arguments)


@pytest.mark.parametrize(
    "rest", [["-o", ""], ["--output="], ["--html", ""], ["--rules", ""]]
)
def test_an_empty_value_is_said(
    rest: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("a.json"), training(2))
    assert run(["report", "a.json", *rest]) == 2
    name = rest[0].rstrip("=")
    said = f"Option '{name}' has an empty value; give a value, or leave out the option"
    assert said in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["a.json"]


def test_a_title_may_be_empty() -> None:
    assert parsed("--title", "", "a")["title"] == parsed("--title=", "a")["title"] == ""
