"""The reference decoder: greedy speculative decoding of a chain of drafts, one stream.

A round: the drafter proposes d_0 .. d_{D-1} after the last token x; the target reads [x, d_0 .. d_{D-1}]
in one forward; the leading drafts that equal its own greedy choice are accepted, and its choice after them
is the bonus token. Then both caches forget what was rejected, and the drafter replaces the keys and values
of its own drafts by those of the true states. No round reads the prefix again.

tau = tokens / rounds; the first token comes from the prefill and is not counted, tokens past the end token
or the limit are cut from the last round (docs/design.md section 2, `walk`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from eyas.drafter.network import Drafter
from eyas.engines.hf import HfTarget

from .clock import now
from .decoded import Decoded, until_end
from .draft import DraftStream
from .target import open_stream


def leading_matches(drafts: Sequence[int], greedy: Sequence[int]) -> int:
    """How many drafts from the first on are the target's own greedy choices."""
    accepted = 0
    while accepted < len(drafts) and drafts[accepted] == greedy[accepted]:
        accepted += 1
    return accepted


def decode(
    target: HfTarget,
    drafter: Drafter,
    boundaries: Sequence[int],
    prompt: Sequence[int],
    draft_tokens: int,
    max_new_tokens: int,
    end_ids: Collection[int] | None = None,
) -> Decoded:
    """Answer `prompt` with `draft_tokens` drafts a round; end_ids are the target's unless given.

    The drafter's slots of the prompt are part of the first token's time, as in an engine's prefill; only
    the slot that reads the first token is part of the decoding.
    """
    assert draft_tokens >= 1
    assert max_new_tokens >= 1
    ends = target.facts.eos_ids if end_ids is None else end_ids
    room = len(prompt) + max_new_tokens + draft_tokens
    begun = now()
    with open_stream(target, boundaries, room) as stream:
        (first,), aux = stream.read(prompt, last_only=True)
        drafts = DraftStream(drafter, room)
        if len(prompt) > 1:
            drafts.learn(aux[:-1], prompt[1:])
        tokens, rounds, accepted, drafting = [first], [], [], 0.0
        known = now()
        fresh, aux = [first], aux[-1:]
        while tokens[-1] not in ends and len(tokens) < max_new_tokens:
            before = now()
            drafts.learn(aux, fresh)
            proposed = drafts.propose(draft_tokens)
            drafting += now().since(before).cpu
            greedy, aux = stream.read([tokens[-1], *proposed])
            matches = leading_matches(proposed, greedy)
            fresh, aux = greedy[: matches + 1], aux[: matches + 1]
            stream.trim(stream.length - draft_tokens + matches)
            kept = until_end(fresh, max_new_tokens - len(tokens), ends)
            tokens += kept
            rounds.append(len(kept))
            accepted.append(min(matches, len(kept)))
        ended = now()
    return Decoded(tokens, known.since(begun), ended.since(known), rounds, accepted, drafting)
