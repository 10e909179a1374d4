"""Advice fits the trace: nothing that is in use already, and nothing for other hardware."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from tracelens_ext.findings.order import DETECTORS
from tracelens_ext.findings.program_facts import Fact, ProgramFacts
from tracelens_ext.findings.texts import (
    AdviceVariant,
    FindingText,
    VariantText,
    first_fitting,
)


class ShownFacts(ProgramFacts):
    """Facts without a trace."""

    def __init__(self, *shown: Fact) -> None:
        self._shown = shown

    def words(self, fact: Fact) -> str:
        return fact.value if fact in self._shown else ""


TEXTS: dict[str, FindingText] = {}
for _detector in DETECTORS:
    _module = import_module(_detector.detect.__module__)
    TEXTS[_detector.id] = _module.TEXT

#: What advice must not say where the trace shows a fact.
POINTLESS = {
    Fact.GPU_GRAPHS: r"(?i)cuda graph\b|cuda graphs (?:for|,)|reduce-overhead|(?:as )?one graph\b",
    Fact.COMPILED: r"torch\.compile\(model\)|(?i:compile the model\b)",
    Fact.LOADER_WORKERS: r"Give the data loader worker|num_workers=8",
    Fact.PINNED_COPIES: r"(?i)from pinned memory|pin_memory",
    Fact.TF32: r"set_float32_matmul_precision|Allow TF32 for products",
    Fact.CUDNN_ATTENTION: r"CUDNN_ATTENTION|Try cuDNN|Let cuDNN compute|implementation=\"cudnn\"",
    Fact.EXPANDABLE_SEGMENTS: r"expandable_segments:True",
    Fact.ASYNC_SCHEDULING: r"\(asynchronous|schedule the next step",
    Fact.OWN_ALL_REDUCE: r"its own all-reduce",
    Fact.CHANNELS_LAST: r"model\.to\(memory_format",
    Fact.CHECKPOINTING: r"checkpoint\.checkpoint\(",
    Fact.FUSED_ATTENTION: r"attn_implementation=\"sdpa\"",
    Fact.FUSED_OPTIMIZER: r"Use a fused optimizer",
    Fact.AUTOTUNED: r"max-autotune",
    Fact.BEFORE_AMPERE: r"bfloat16|(?<!nor )bf16|(?<!neither )TF32|CUDNN_ATTENTION",
    Fact.AMD: r"cudnn|cuDNN|CUBLAS|cuBLAS|cuda[A-Z]\w+\(|nvidia-smi|NVLink|TF32|tensor cores",
}
#: Advice that is about just what a fact says: both makers in one sentence, kernels of NVIDIA, the
#: copies that are not pinned yet, GPUs from Hopper on.
ALLOWED = {
    ("graph-recapture", Fact.AMD),
    ("graph-recapture", Fact.GPU_GRAPHS),
    ("old-kernels", Fact.AMD),
    ("pageable-copies", Fact.PINNED_COPIES),
    ("synchronization", Fact.PINNED_COPIES),
    ("flash-attention-2", Fact.AMD),
    ("flash-attention-2", Fact.BEFORE_AMPERE),
}


def advice_lists(text: FindingText) -> list[tuple[str, list[AdviceVariant]]]:
    """The lists of variants of advice, by the name of the variant of the finding."""
    lists = []
    variants = {"": VariantText(), **text.variants}
    for name, variant in variants.items():
        if variant.advices:
            lists.append((name, list(variant.advices)))
        elif variant.advice is not None:
            plain = AdviceVariant(advice=variant.advice, snippet=variant.snippet or "")
            lists.append((name, [plain]))
        elif text.advices:
            lists.append((name, list(text.advices)))
        elif text.advice:
            lists.append(
                (name, [AdviceVariant(advice=text.advice, snippet=text.snippet)])
            )
    return lists


CASES = [
    pytest.param(detector.id, variants, detector.kinds, id=f"{detector.id} {name}")
    for detector in DETECTORS
    for name, variants in advice_lists(TEXTS[detector.id])
]


@pytest.mark.parametrize(("ident", "variants", "kinds"), CASES)
def test_every_program_gets_advice_and_none_that_it_follows(
    ident: str, variants: list[AdviceVariant], kinds: tuple[str, ...]
) -> None:
    for kind in kinds:
        assert first_fitting(variants, kind, ShownFacts()) is not None, kind
        for fact in Fact:
            chosen = first_fitting(variants, kind, ShownFacts(fact))
            assert chosen is not None, (kind, fact)
            pattern = POINTLESS.get(fact)
            if pattern is None or (ident, fact) in ALLOWED:
                continue
            said = f"{chosen.advice} {chosen.snippet}"
            found = re.search(pattern, said)
            assert found is None, (kind, fact, said)


def test_advice_is_plain() -> None:
    """It starts with a verb, ends with a full stop, and is short enough for the screen."""
    variants = [
        variant
        for text in TEXTS.values()
        for _, variants in advice_lists(text)
        for variant in variants
    ]
    for variant in variants:
        first_word = variant.advice.split()[0].rstrip(",")
        assert first_word in VERBS.split(), first_word
        assert variant.advice.endswith((".", "}")), variant.advice
        assert len(variant.advice) <= 230, variant.advice


VERBS = (
    "Allocate Allow Avoid Balance Bring Capture Checkpoint Choose Combine Compare "
    "Compile Compute Convert Copy Create Divide Enable Exchange Find Free Fuse Give "
    "Keep Launch Let Look Make Map Merge Move Pad Prefetch Put Quantize Read "
    "Recompute Replay Reuse Run Send Set Shorten Split Start Store Stop Try Tune "
    "Update Use"
)


@pytest.mark.parametrize("ident", TEXTS)
def test_a_title_states_the_problem_and_one_number(ident: str) -> None:
    text = TEXTS[ident]
    titles = [variant.title for variant in text.variants.values() if variant.title]
    for title in [text.title, *titles]:
        assert title.count("{saving}") <= 1
        assert "without it" not in title
        assert not re.search(r"\bhost\b|\bhole", title)


def test_advice_names_what_is_already_in_use() -> None:
    variants = TEXTS["host-bound"].advices
    facts = ShownFacts(Fact.GPU_GRAPHS)
    chosen = first_fitting(variants, "serving", facts)
    assert chosen is not None
    assert chosen.text(facts).endswith("Already in use: GPU graphs.")
