"""The plan of a training run against the run."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import orjson
from rich.console import Console

from eyas.core.contract import read_facts
from eyas.drafter.options import NetworkOptions, TrainOptions
from eyas.plan.training import outline, tables
from tinytarget import write_recipe

OPTIONS = TrainOptions(ttt_steps=3, tokens_per_step=2048)


def test_the_plan_is_made_without_torch(tiny_target: Path) -> None:
    program = (
        "import sys, pathlib; from eyas.core.contract import read_facts; from eyas.plan.training import outline;"
        "from eyas.drafter.options import TrainOptions;"
        f"outline(TrainOptions(), read_facts(pathlib.Path({str(tiny_target)!r})), 3, 64, [100]);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_terms_add_up_and_options_move_them(tiny_target: Path) -> None:
    facts = read_facts(tiny_target)
    plan = outline(OPTIONS, facts, 3, 64, [500] * 100)
    assert plan["memory_bytes"] == sum(plan["memory"].values())
    assert plan["steps"] == -(-500 * 100 * 5 // 2048)
    smaller = dataclasses.replace(OPTIONS, tokens_per_forward=512, recompute=True, head_chunk=16)
    less = outline(smaller, facts, 3, 64, [500] * 100)
    for term in ("batch", "activations", "head_chunk"):
        assert less["memory"][term] < plan["memory"][term] / 2, term
    wider = dataclasses.replace(OPTIONS, train_head=True, network=NetworkOptions(hidden_size=64))
    own = outline(wider, facts, 3, 64, [500])
    assert own["parameters"]["embedding"] == facts.vocab_size * 64
    assert own["trained_parameters"] == sum(own["parameters"].values())


def test_the_table_names_every_term(tiny_target: Path) -> None:
    plan = outline(OPTIONS, read_facts(tiny_target), 3, 64, [500])
    console = Console(record=True, width=120)
    console.print(*tables(plan))
    text = console.export_text()
    assert all(term.replace("_", " ") in text for term in plan["memory"])


def test_a_recipe_is_planned_before_anything_runs(tiny_target: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_target)
    command = [
        sys.executable,
        "-m",
        "eyas",
        "plan",
        "train",
        str(recipe),
        "--workspace",
        str(tmp_path),
        "--json",
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    plan = orjson.loads(done.stdout)
    assert plan["steps"] > 0
    assert plan["memory_bytes"] == sum(plan["memory"].values())
    assert plan["parameters"]["head"] == 128 * 32


def test_the_predicted_peak_is_the_measured_one(tmp_path: Path) -> None:
    """A training process of a shape where activations and state matter, against its own peak of resident memory."""
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(drafter=str(Path(__file__).parents[1] / "drafter")))
    done = subprocess.run([sys.executable, str(program)], check=True, stdout=subprocess.PIPE)
    figures = orjson.loads(done.stdout.splitlines()[-1])
    predicted, measured = figures["predicted"], figures["peak"] - figures["before"]
    assert 0.75 * measured < predicted < 1.35 * measured, (
        f"predicted {predicted / 1e6:.0f} MB over a bare process, measured {measured / 1e6:.0f} MB"
    )


_PROGRAM = """
import sys
sys.path.insert(0, {drafter!r})
import orjson, torch
from pathlib import Path
import tempfile
from tiny import MemoryStore
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import TeacherHead
from eyas.drafter.network import Drafter
from eyas.drafter.options import TrainOptions
from eyas.drafter.prediction import Slots, memory_terms
from eyas.drafter.trainer import Trainer
from eyas.states.store import StateRow
torch.set_num_threads(1)
H, I, V, R, T = 256, 688, 4096, 4096, 512
config = DrafterConfig(hidden_size=H, target_hidden_size=H, intermediate_size=I, num_heads=4, num_kv_heads=2,
    head_dim=64, num_aux=3, vocab_size=V, draft_vocab_size=R, rms_norm_eps=1e-5, rope_theta=1e4, rope_scaling=None,
    max_position_embeddings=4096)
options = TrainOptions(ttt_steps=3, tokens_per_step=2048, threads=1, epochs=1, tracker="none", warmup_steps=1)
torch.ones(64, 64) @ torch.ones(64, 64)
def peak():
    return 1024 * int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
before = peak()
drafter = Drafter(config)
drafter.set_vocabulary(torch.arange(R))
drafter.lm_head.weight.requires_grad_(False)
teacher = TeacherHead(torch.randn(R, H), None, 1.0, None)
class Store(MemoryStore):
    def __getitem__(self, index):
        torch.manual_seed(index)
        return StateRow(id=str(index), dataset="d", flags=[], input_ids_T=torch.randint(0, V, (T,)),
            loss_mask_T=torch.arange(T) > 0, teacher_T=torch.randint(0, R, (T,)), aux_TAH=torch.randn(T, 3 * H),
            last_TH=torch.randn(T, H))
store = Store.__new__(Store)
store.rows, store.lengths, store.boundaries = [None] * 8, [T] * 8, [1, 2, 3]
store.tokens = lambda i: (lambda r: (r.input_ids_T, r.loss_mask_T, r.teacher_T))(store[i])
with tempfile.TemporaryDirectory() as folder:
    Trainer(drafter, store, teacher, options, Path(folder)).run()
terms = memory_terms(config, options, Slots.most(2048, 3), embedding_bytes=4)
predicted = sum(terms.values()) - terms["libraries"] - terms["final_walk"]
print(orjson.dumps(dict(predicted=predicted, before=before, peak=peak())).decode())
"""
