"""README.md of an exported folder: how to serve it, and what it is."""

from __future__ import annotations

from typing import Any

from eyas.core.contract import TargetFacts

from .checkpoint import Checkpoint
from .options import ExportOptions
from .record import ExportRecord

_METHODS = {
    "vllm": "method `eagle3`",
    "speculators": "method `eagle3`",
    "sglang": "algorithm `EAGLE3`",
    "trtllm": "decoding type `Eagle3`",
}


def serving_command(engine: str, draft_tokens: int, layer_ids: list[int]) -> str:
    """The command line that serves TARGET with DRAFTER. SGLang's last flag counts the target's token too;
    TensorRT-LLM takes the layer ids from its own file alone."""
    if engine in ("vllm", "speculators"):
        return (
            "vllm serve TARGET --speculative-config \\\n"
            f'  \'{{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": {draft_tokens}}}\''
        )
    if engine == "trtllm":
        return (
            "cat > eagle3.yaml <<END\n"
            "speculative_config:\n"
            "  decoding_type: Eagle3\n"
            f"  max_draft_len: {draft_tokens}\n"
            "  speculative_model: DRAFTER\n"
            f"  eagle3_layers_to_capture: {layer_ids}\n"
            "END\n"
            "trtllm-serve TARGET --extra_llm_api_options eagle3.yaml"
        )
    return (
        "python -m sglang.launch_server --model-path TARGET \\\n"
        "  --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFTER \\\n"
        f"  --speculative-num-steps {draft_tokens} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {draft_tokens + 1}"
    )


def model_card(
    engine: str,
    checkpoint: Checkpoint,
    facts: TargetFacts,
    layer_ids: list[int],
    training: dict[str, Any],
    record: ExportRecord,
    options: ExportOptions,
) -> str:
    """The card's text. training: `options` and `actual` of the train manifest."""
    lines = [
        "---",
        f"license: {options.licence}",
        "tags: [eagle3, speculative-decoding, draft-model]",
        "---",
        f"# EAGLE-3 drafter for {engine}",
        "",
        "A draft model for speculative decoding, made by Eyas for one target and of use with that alone: model",
        f"type `{facts.model_type}`, {facts.num_layers} layers of width {facts.hidden_size}, "
        f"{facts.vocab_size} head rows.",
        "",
        "## Serve it",
        "",
        "```",
        serving_command(engine, options.draft_tokens, layer_ids),
        "```",
        "",
        f"TARGET is the target's folder, DRAFTER this folder. It must be {_METHODS[engine]}:",
        "another method name serves without the fused states, and the accept length is 1.00 with no error.",
        "",
        "## What it is",
        "",
        *_facts_lines(engine, checkpoint, facts, layer_ids, record),
        "",
        "## Training",
        "",
        *_training_lines(training),
        "",
    ]
    return "\n".join(lines)


def _facts_lines(
    engine: str, checkpoint: Checkpoint, facts: TargetFacts, layer_ids: list[int], record: ExportRecord
) -> list[str]:
    config = checkpoint.config
    if config.has_own_embedding:
        embedding = "its own"
    else:
        embedding = (
            "an exact copy of the target's"
            if engine == "speculators"
            else "the target's, shared by the engine"
        )
    lines = [
        f"- {checkpoint.parameters:,} parameters of its own in {checkpoint.dtype}; the input embedding is {embedding}.",
        f"- Draft vocabulary: {config.draft_vocab_size:,} of {config.vocab_size:,} ids.",
        f"- Aux layer ids as {engine} reads them: {layer_ids}.",
        f"- RoPE base, scaling and length limit ({facts.max_position_embeddings:,}) are the target's; where those"
        " frequencies depend on the length, the drafter has one set of them.",
    ]
    if record.trained_length is not None:
        lines.append(
            f"- The longest trained row had {record.trained_length:,} tokens; beyond that the accept length falls."
        )
    return lines + [f"- Mind: {warning}." for warning in checkpoint.warnings]


def _training_lines(training: dict[str, Any]) -> list[str]:
    actual, options = training["actual"], training["options"]
    lines = []
    if actual.get("accept_length") is not None:
        lines.append(
            f"- Accept length {actual['accept_length']:.3f}: tokens a verification round with {actual['drafts']} "
            "drafts, the target's own token included, greedy, pooled over held-out rows (1: none accepted)."
        )
        by_dataset = actual["accept_length_by_dataset"]
        lines += [f"  - {name}: {tau:.3f}" for name, tau in sorted(by_dataset.items()) if tau is not None]
    lines += [f"- {name}: {_shown(value)}" for name, value in sorted(options.items())]
    return lines


def _shown(value: Any) -> str:
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
