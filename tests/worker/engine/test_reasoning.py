"""How far a completion is in a reasoning that is still open."""

import pytest
from engine_maker import EngineFor
from scripted_drafters import ScriptedDrafter, chain_of
from scripted_model import ScriptedModel, continuing
from tiny_models import VOCABULARY
from toy_requests import PROMPT_IDS, answer, ids
from toy_tokenizer import toy_tokenizer

from worker.engine.reasoning import Reasoning

START, END = 1, 2


@pytest.mark.parametrize(
    ("prompt", "completion", "spent"),
    [
        ([], [5, 5], None),
        ([7, START], [], 0),
        ([7, START], [5, 5], 2),
        ([START, 7, 7], [5], 1),
        ([START, 7, END], [5, 5], None),
        ([START, END, START], [5], 1),
        ([7], [START, 5, 5], 2),
        ([7], [5, START, 5, END, 5], None),
        ([START], [5, 5, START, 5], 1),
        ([START], [5, END, 5, START], 0),
    ],
)
def test_what_a_text_has_spent_does_not_depend_on_how_it_came(
    prompt: list[int], completion: list[int], spent: int | None
) -> None:
    for split in range(len(completion) + 1):
        reasoning = Reasoning(START, END, prompt)
        reasoning.push(completion[:split])
        assert reasoning.after(completion[split:]) == spent
        reasoning.push(completion[split:])
        assert reasoning.spent == spent


def test_a_model_without_markers_never_reasons() -> None:
    reasoning = Reasoning(None, None, [START, 7])
    reasoning.push([START, 5])
    assert reasoning.spent is None


def test_a_budget_reads_no_token_again_and_again(engine_for: EngineFor, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ids("abcdefghijklmnopqrstuvwxyz")
    engine = engine_for(
        ScriptedModel(continuing(PROMPT_IDS, wanted, VOCABULARY)),
        toy_tokenizer(thinks=True),
        drafter=ScriptedDrafter(chain_of(wanted, 1)),
    )
    read: list[int] = []
    after = Reasoning.after

    def counting(reasoning: Reasoning, tokens: list[int]) -> int | None:
        read.append(len(tokens))
        return after(reasoning, tokens)

    monkeypatch.setattr(Reasoning, "after", counting)
    assert answer(engine, max_tokens=26, thinking_budget=100).token_ids == wanted
    # Once when it joins the completion; and the first of each round's two for the draw of the second.
    assert sum(read) == 26 + 13
