"""Checks what the small demo printed: the last JSON object on standard input."""

from __future__ import annotations

import json
import sys

text = sys.stdin.read()
result = json.loads(text[text.index("\n{\n") :])
problems = []
if not result["identical_outputs"]:
    problems.append("speculative outputs differ from plain greedy")
if result["decoded_accept_length"] != result["decoded_walk"]:
    problems.append("decoding and the walk disagree")
if not result["accept_length"] > max(1.0, result["floors"]["bigram"]):
    problems.append(f"accept length {result['accept_length']:.3f} is no better than a bigram table")
if [stage["name"] for stage in result["stages"]] != [
    "generate", "tokenize", "merge", "extract", "vocab", "train", "export", "bench",
]:  # fmt: skip
    problems.append("a stage is missing")
print(f"small demo: accept length {result['accept_length']:.3f}, {'; '.join(problems) or 'good'}")
sys.exit(bool(problems))
