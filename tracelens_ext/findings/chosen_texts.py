"""The texts and the evidence of a finding, with values in place of the names in braces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tracelens_ext.analysis.coverage.program import PYTORCH
from tracelens_ext.findings.finding import Evidence
from tracelens_ext.findings.program_facts import ProgramFacts
from tracelens_ext.findings.texts import FindingText, VariantText, first_fitting

#: A name in braces, perhaps with a format.
_NAMED: Final = re.compile(r"\{(\w+)(?::([^{}]+))?\}")


class ChosenTexts:
    """The texts of a finding: those of the detector, else of the variant, else of the finding.

    Args:
        program_kind: what kind of program was recorded, see `Program`.
        facts: the facts about the program.
        text: the texts of the finding.
        variant: the name of a variant of `text`; empty for none.
        given: the texts of the detector, by name.

    Attributes:
        values: the values for the names in braces.
    """

    def __init__(
        self,
        program_kind: str,
        facts: ProgramFacts,
        text: FindingText,
        variant: str,
        given: Mapping[str, str],
    ) -> None:
        self.text = text
        self.variant = text.variants.get(variant, VariantText())
        self.values: dict[str, object] = {}
        self._given = dict(given)
        if "advice" not in given:
            self._choose_advice(program_kind, facts)
        elif program_kind not in PYTORCH:
            self._given["snippet"] = ""

    def _choose_advice(self, program_kind: str, facts: ProgramFacts) -> None:
        """Choose the advice that fits the program and the facts about it."""
        advices = self.variant.advices
        if not advices and self.variant.advice is None:
            advices = self.text.advices
        chosen = first_fitting(advices, program_kind, facts)
        if chosen is not None:
            self._given["advice"] = chosen.text(facts)
            self._given["snippet"] = chosen.snippet
        is_for_any_program = chosen is None or not chosen.kinds
        if is_for_any_program and program_kind not in PYTORCH:
            self._given["snippet"] = ""

    def fill(self, *values: Mapping[str, object]) -> None:
        """Set the values for the names in braces; a later value replaces an earlier one.

        The values of the variant come after the first ones.
        """
        self.values = {}
        self.values.update(values[0])
        self.values.update(self.variant.values)
        for some_values in values[1:]:
            self.values.update(some_values)

    def template(self, name: str) -> str:
        """Return a text as it is declared."""
        if name in self._given:
            return self._given[name]
        text_of_variant: str | None = getattr(self.variant, name)
        if text_of_variant is not None:
            return text_of_variant
        text_of_finding: str = getattr(self.text, name)
        return text_of_finding

    def get(self, name: str) -> str:
        """Return a text in which values replace the names in braces."""
        return _fill(self.template(name), self.values)


def _fill(template: str, values: Mapping[str, object]) -> str:
    """Return a text in which values replace the names in braces; unknown names stay."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            return match[0]
        value = values[name]
        format_specification = match[2] or ""
        return format(value, format_specification)

    return _NAMED.sub(value_of, template)


def evidence_of(
    text: FindingText, numbers: Mapping[str, float | None], values: Mapping[str, object]
) -> list[Evidence]:
    """Return the known numbers as evidence.

    Raises:
        TypeError: the detector gives other numbers than the text declares.
    """
    if numbers and numbers.keys() != text.evidence.keys():
        wrong = ", ".join(sorted(numbers.keys() ^ text.evidence.keys()))
        raise TypeError(f"numbers and evidence texts differ: {wrong}")
    result = []
    for name, about in text.evidence.items():
        number = numbers.get(name)
        if number is None:
            continue
        what = _fill(about.what, values)
        evidence = Evidence(what, number, about.unit, about.see)
        result.append(evidence)
    return result
