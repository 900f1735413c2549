"""README.md of an exported folder: how to serve it, and what it is."""

from __future__ import annotations

from typing import Any

from eyas.core.contract import TargetFacts

from .checkpoint import Checkpoint


def serving_command(engine: str, draft_tokens: int) -> str:
    """The command line that serves TARGET with DRAFTER. SGLang's last flag counts the target's token too."""
    if engine == "vllm":
        return (
            "vllm serve TARGET --speculative-config \\\n"
            f'  \'{{"method": "eagle3", "model": "DRAFTER", "num_speculative_tokens": {draft_tokens}}}\''
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
    draft_tokens: int,
    licence: str,
) -> str:
    """The card's text. training: `options` and `actual` of the train manifest."""
    config = checkpoint.config
    method = {"vllm": "method `eagle3`", "sglang": "algorithm `EAGLE3`"}[engine]
    lines = [
        "---",
        f"license: {licence}",
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
        serving_command(engine, draft_tokens),
        "```",
        "",
        f"TARGET is the target's folder, DRAFTER this folder. It must be {method}:",
        "another method name serves without the fused states, and the accept length is 1.00 with no error.",
        "",
        "## What it is",
        "",
        f"- {checkpoint.parameters:,} parameters of its own in {checkpoint.dtype}; the input embedding is "
        + ("its own." if config.has_own_embedding else "the target's, shared by the engine."),
        f"- Draft vocabulary: {config.draft_vocab_size:,} of {config.vocab_size:,} ids.",
        f"- Aux layer ids as {engine} reads them: {layer_ids}.",
        f"- RoPE base, scaling and length limit ({facts.max_position_embeddings:,}) are the target's.",
        *(f"- Mind: {warning}." for warning in checkpoint.warnings),
        "",
        "## Training",
        "",
        *_training_lines(training),
        "",
    ]
    return "\n".join(lines)


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
