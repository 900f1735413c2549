"""Golden digests: the bytes of each stage for fixed inputs. Where a digest changes, that stage's VERSION in
its options.py must rise, or users' finished work would be taken for what the new code makes."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
import torch

from eyas.core.artefact import Out, open_workbench
from eyas.core.contract import target_source
from eyas.core.counts import Counts
from eyas.core.digest import bytes_digest, value_digest
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, artefact_source, measured
from eyas.core.rows import TokenRow
from eyas.generate.options import VERSION as GENERATE
from eyas.generate.options import DatasetChoice, GenerateOptions
from eyas.merge.options import VERSION as MERGE
from eyas.merge.options import MergeOptions
from eyas.merge.stage import run as merge
from eyas.states.options import VERSION as EXTRACT
from eyas.states.store import pack_shard
from eyas.tokenize.options import VERSION as TOKENIZE
from eyas.tokenize.options import TokenizeOptions
from eyas.tokenize.stage import run as tokenize
from eyas.vocab.options import VERSION as VOCAB
from eyas.vocab.options import VocabOptions
from eyas.vocab.stage import run as vocab

GOLDEN = {
    ("generate", 1): "d0f63b03a893f11e5c6513705883941c",
    ("tokenize", 1): "4497fae5de6c12bc8255cde9d8595fc2",
    ("merge", 1): "8e082523c8198e95218dc86786ac73f3",
    ("extract", 1): "0992dc6f3f767d2b42e11fdedeff3b39",
    ("vocab", 1): "dda7b26dc0d7d72539d7131ce40ce546",
}


def answer(dataset: str, n: int) -> dict[str, object]:
    ids = [(7 * n + i * i) % 250 for i in range(5 + n % 7)]
    return {
        "id": f"{dataset}-{n}", "dataset": dataset, "messages": [{"role": "user", "content": str(n)}], "tools": None,
        "prompt_token_ids": ids[:3], "token_ids": ids[3:], "finish_reason": "stop" if n % 3 else "length",
        "model": "m", "sampling": {"temperature": 0.0, "max_new_tokens": 9}, "greedy": True,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> dict[str, Manifest]:
    folder, target = tmp_path_factory.mktemp("golden"), target_source(tiny_target)
    numbers = {"one": 9, "two": 6, "held": 3}
    options = GenerateOptions(datasets=tuple(DatasetChoice(name=name) for name in numbers))
    with open_workbench("generate", 1, options, {}, Out(folder / "generate")) as work:
        assert not isinstance(work, Manifest)
        outputs, table = [], []
        for name, number in numbers.items():
            write_whole(
                folder / "generate" / name / "answers.jsonl",
                (orjson.dumps(answer(name, n)) + b"\n" for n in range(number)),
            )
            outputs.append(measured(folder / "generate", f"{name}/answers.jsonl", number, 1))
            table.append({"name": name})
        work.publish(outputs, Counts(18, 18), {"rows": 18, "tokens": 99, "datasets": table})
    inputs = {"generate": artefact_source(folder / "generate", "generate"), "target": target}
    results = {"tokenize": tokenize(TokenizeOptions(), inputs, Out(folder / "tokenize"))}
    source = {"tokenize": artefact_source(folder / "tokenize", "tokenize")}
    results["merge"] = merge(MergeOptions(heldout=("held",), max_seq_len=9), source, Out(folder / "merge"))
    corpus = {"merge": artefact_source(folder / "merge", "merge"), "target": target}
    results["vocab"] = vocab(VocabOptions(size=40), corpus, Out(folder / "vocab"))
    return results


def digest(manifest: Manifest) -> str:
    """Of the names and bytes of all rows and tables; rows.idx names places of this machine."""
    return value_digest([[o.file, o.digest] for o in manifest.outputs if o.file != "rows.idx"])


@pytest.mark.parametrize(("stage", "version"), [("tokenize", TOKENIZE), ("merge", MERGE), ("vocab", VOCAB)])
def test_bytes_change_only_with_the_version(made: dict[str, Manifest], stage: str, version: int) -> None:
    assert digest(made[stage]) == GOLDEN[stage, version], f"{stage} writes other bytes: raise its VERSION"


def test_shard_bytes_change_only_with_the_version() -> None:
    row = TokenRow("a", "d", [1, 2, 3], [0, 1, 1], ["exact"])
    states = torch.arange(24, dtype=torch.bfloat16).reshape(3, 8)
    shard = pack_shard([row], [states], [states[:, :4]], [torch.tensor([2, 3, -1], dtype=torch.int32)])
    assert bytes_digest(shard) == GOLDEN["extract", EXTRACT], (
        "a shard has another form: raise extract's VERSION"
    )


def test_answers_change_only_with_the_version() -> None:
    from eyas.core.manifest import Source
    from eyas.generate.prompts import Prompt
    from eyas.generate.stage import _row
    from eyas.sources.conversation import Conversation

    messages = [{"role": "user", "content": "hi"}]
    prompt = Prompt(Conversation("a", "d", messages), messages, [1, 2])
    made = _row(prompt, {"token_ids": [3], "finish_reason": "stop"}, GenerateOptions(), Source(Path(), "t"))
    assert bytes_digest(orjson.dumps(made)) == GOLDEN["generate", GENERATE], "raise generate's VERSION"
