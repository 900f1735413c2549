"""The vocab stage: counts of the training labels -> `vocab.safetensors` (target_ids, d2t, t2d, counts)."""

from __future__ import annotations

from eyas.core.artefact import Out, open_workbench
from eyas.core.contract import read_facts
from eyas.core.counts import Counts
from eyas.core.files import write_whole
from eyas.core.manifest import Manifest, Source, measured, require_manifest
from eyas.core.rows import read_rows

from .options import STAGE, VERSION, VocabOptions

FILE = "vocab.safetensors"


def run(options: VocabOptions, inputs: dict[str, Source], out: Out) -> Manifest:
    """Choose the draft vocabulary. inputs: `merge`, `target`. Held-out rows are never counted."""
    with open_workbench(STAGE, VERSION, options, inputs, out) as work:
        if isinstance(work, Manifest):
            return work
        import numpy as np
        from safetensors.numpy import save

        from .select import count_tokens, coverage, select

        facts = read_facts(inputs["target"].path)
        corpus = inputs["merge"].path
        size = options.size or facts.tokenizer_length
        rows = require_manifest(corpus, "merge").output("train.jsonl").rows or 0
        work.predict({"rows": rows, "draft_vocab_size": size, "bytes": 16 * size + 9 * facts.vocab_size})
        labels, everything = count_tokens(read_rows(corpus / "train.jsonl"), facts.vocab_size)
        chosen = select(labels, everything, size, facts.tokenizer_length, facts.eos_ids)
        t2d = np.zeros(facts.vocab_size, bool)
        t2d[chosen] = True
        tables = {"target_ids": chosen, "d2t": chosen - np.arange(size), "t2d": t2d, "counts": labels}
        write_whole(work.folder / FILE, save(tables))
        actual = {
            "rows": rows,
            "draft_vocab_size": size,
            "distinct_labels": int((labels > 0).sum()),
            "filled_up": int((labels[chosen] == 0).sum()),
            "coverage_heldout": coverage(read_rows(corpus / "eval.jsonl"), chosen, facts.vocab_size),
            "coverage_training": float(labels[chosen].sum() / max(labels.sum(), 1)),
        }
        return work.publish([measured(work.folder, FILE)], Counts(rows, rows), actual)
