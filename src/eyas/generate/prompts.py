"""The prompts of a run: which conversations are drawn, and the ids that the target is to continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyas.core.counts import Counts
from eyas.core.errors import EyasError
from eyas.core.manifest import Source
from eyas.core.rows import drawn
from eyas.engines.template import ChatTemplate, UnrenderableConversation
from eyas.sources.conversation import Conversation
from eyas.sources.dataset import read_dataset

from .options import DatasetChoice, GenerateOptions

NOT_DRAWN = "not drawn (cap or sample)"


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer. ids is None where the file's own answers are kept."""

    conversation: Conversation
    messages: list[dict[str, Any]]
    ids: list[int] | None


@dataclass(frozen=True)
class DatasetPrompts:
    """The prompts of one dataset in file order, and what became of its other records."""

    name: str
    prompts: list[Prompt]
    counts: Counts
    repeated_ids: int


def dataset_prompts(
    choice: DatasetChoice, source: Source, template: ChatTemplate, options: GenerateOptions
) -> DatasetPrompts:
    """Draw and render one dataset; EyasError if nothing of it is left."""
    read = read_dataset(source.path, choice.name)
    kept = drawn([c.id for c in read.conversations], options.seed, choice.name, choice.cap, choice.sample)
    counts = Counts(rows_in=read.counts.rows_in, dropped=read.counts.dropped.copy())
    if len(kept) < len(read.conversations):
        counts.dropped[NOT_DRAWN] += len(read.conversations) - len(kept)
    prompts = []
    for index in kept:
        try:
            prompts.append(_prompt(read.conversations[index], choice, template, options))
        except UnrenderableConversation as reason:
            counts.dropped[str(reason)] += 1
    counts.rows_out = len(prompts)
    counts.check()
    if not prompts:
        raise EyasError(
            f"all rows of dataset {choice.name} were dropped",
            file=source.path,
            found=", ".join(f"{reason}: {n}" for reason, n in counts.dropped.most_common()),
            mend="give other data, raise the cap, or remove the dataset from the recipe",
        )
    return DatasetPrompts(choice.name, prompts, counts, read.repeated_ids)


def _prompt(
    conversation: Conversation, choice: DatasetChoice, template: ChatTemplate, options: GenerateOptions
) -> Prompt:
    if choice.answers == "given":
        if conversation.messages[-1]["role"] != "assistant":
            raise UnrenderableConversation("no answer is given")
        return Prompt(conversation, conversation.messages, None)
    messages = conversation.prompt
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise UnrenderableConversation("no user message to answer")
    ids = template.prompt_ids(messages, conversation.tools)
    if len(ids) > options.max_prompt_tokens:
        raise UnrenderableConversation(f"prompt over {options.max_prompt_tokens} tokens")
    return Prompt(conversation, messages, ids)
