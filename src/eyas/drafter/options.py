"""Options of the train stage (recipe section `training`)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from eyas.core.errors import EyasError
from eyas.core.options import no_content, options

STAGE = "train"
VERSION = 3
"""Part of the fingerprint; raised when the same options and inputs give other bytes."""


@options
class NetworkOptions:
    """The drafter's shape where it differs from the target's, and its conventions. Every engine that serves it
    must know these flags: SGLang and TensorRT-LLM do not read norm_before_residual."""

    hidden_size: int | None = None
    """Width. With another one than the target's the drafter trains an embedding and a head of its own."""
    intermediate_size: int | None = None
    """Width of the MLP."""
    num_heads: int | None = None
    """Query heads."""
    num_kv_heads: int | None = None
    """Key and value heads."""
    head_dim: int | None = None
    """Width of a head."""
    fc_norm: bool = False
    """One norm for each aux boundary before fc (EAGLE-3.1)."""
    norm_output: bool = False
    """Feed the post-norm state to the next step (EAGLE-3.1)."""
    norm_before_fc: bool = False
    """One norm over all aux boundaries together before fc."""
    norm_before_residual: bool = False
    """The residual stream is the normed hidden state."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"network.{name}", "at least 1", value)
        _require((self.head_dim or 2) % 2 == 0, "network.head_dim", "even", self.head_dim)


@options
class TrainOptions:
    """How a drafter is trained. The defaults are those of a run of minutes on a CPU."""

    ttt_steps: int = 3
    """Draft steps unrolled in training; at least as many as drafts are made when serving."""
    step_decay: float = 0.8
    """Weight of step k in the loss is step_decay ** k."""
    objective: Literal["cross_entropy", "lk_alpha", "lk_lambda"] = "cross_entropy"
    """Soft cross-entropy; -log of the acceptance of a sampled draft; a mixture of both."""
    lk_scale: float = 1.0
    """lk_lambda: weight of the cross-entropy is lk_scale * exp(-lk_decay * acceptance)."""
    lk_decay: float = 3.0
    """See lk_scale."""
    preset: Literal["eyas", "eagle", "specforge", "automodel"] = "eyas"
    """Which slots are trained and what the loss is divided by: the design's rule or another trainer's."""
    head_chunk: int = 128
    """Teacher positions whose logits exist at once. Moves the last bits."""
    attention: Literal["auto", "plain", "cpu_fused", "cuda_flash", "cuda_flex"] = "auto"
    """How attention is computed; `auto` is the fastest exact way on the device. Moves the last bits."""
    epochs: int = 5
    """Visits of each row."""
    tokens_per_step: int = 256
    """Token budget of an optimiser step over all processes; rows are packed into it, a longer row is a step of
    its own."""
    over_budget: Literal["own_step", "cut"] = "own_step"
    """A row over tokens_per_step: a step of its own, or its first tokens_per_step tokens."""
    tokens_per_forward: int = 0
    """Token budget of one forward and backward; a step over it is accumulated from several. 0: the step at once.
    Moves the last bits only."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all, or Muon for the matrices of fc and the layer and AdamW for the rest."""
    learning_rate: float = 2e-3
    """Peak of the schedule: linear warm-up, then cosine."""
    fc_rate: float = 0.1
    """Learning rate of fc as a share of the others'. It reads the raw aux states, some ten times larger than a
    normed input, and both optimisers move a weight by as much whatever it multiplies. On the demo: accept
    length 1.475 against 1.414 at 1.0 after two epochs."""
    warmup_steps: int = 20
    """Steps of the linear warm-up."""
    min_lr_share: float = 0.05
    """The cosine ends at this share of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages."""
    weight_decay: float = 0.0
    """AdamW's decay; norms are never decayed."""
    clip: float = 1.0
    """Largest norm of the gradient of a step."""
    average: float = 0.0
    """The drafter that is walked and exported is the exponential average of the weights that keeps this share of
    itself a step; 0 takes the weights as they are. On the demo 0.99 gave 0.00 to 0.02 of accept length."""
    init: Literal["target", "ridge", "random"] = "target"
    """Where the weights start: the target's last layer; a closed-form fc; chance."""
    train_head: bool = False
    """Train the draft head; else it stays at the target's rows."""
    start: str | None = no_content(None)
    """Folder of a trained drafter to go on from, instead of `init`: of Eyas, SpecForge, speculators, or one published
    for SGLang or vLLM. Its content is an input of the stage, its path is not."""
    network: NetworkOptions = field(default_factory=NetworkOptions)
    """The drafter's shape and conventions; the target's own where nothing is said."""
    seed: int = 42
    """Order of the rows, and whatever of the initial weights is drawn."""
    threads: int = 2
    """Threads of one matrix product. In the fingerprint, because it moves the last bits."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number type of the layer's matrix products; weights, optimiser and loss are float32 in both."""
    compile: bool = False
    """Compile the layer with torch.compile. Moves the last bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is a GPU where there is one. Bytes are promised equal on a CPU alone."""
    walk_drafts: int = 3
    """Drafts a round in the walk over the held-out rows."""
    walk_temperature: float = 1.0
    """Temperature that the held-out answers were sampled at, where they are samples of the target."""
    evaluate_steps: int = 0
    """Walk the development split every so many steps and keep the best checkpoint. 0: after each epoch."""
    recompute: bool = no_content(False)
    """Compute the layer's MLP again in the backward pass: the same bits, less memory, some 20 % slower."""
    parallel: Literal["ddp", "fsdp"] = no_content("ddp")
    """Under torchrun: whole weights on every process, or shards of them (FSDP2)."""
    loader_workers: int = no_content(0)
    """Threads that read rows ahead of the step."""
    tracker: Literal["auto", "none", "tensorboard", "wandb", "trackio"] = no_content("auto")
    """Where curves go; `auto` is TensorBoard if it is installed."""
    checkpoint_steps: int = no_content(500)
    """A checkpoint at least every so many steps."""
    checkpoint_seconds: float = no_content(60.0)
    """A checkpoint at least every so many seconds."""
    keep_last: int = no_content(2)
    """Checkpoints kept while training, besides the best; the artefact holds one."""

    def __post_init__(self) -> None:
        for name in (
            "ttt_steps",
            "epochs",
            "tokens_per_step",
            "threads",
            "walk_drafts",
            "keep_last",
            "checkpoint_steps",
            "head_chunk",
        ):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("learning_rate", "fc_rate", "clip", "step_decay"):
            _require(getattr(self, name) > 0, name, "above 0", getattr(self, name))
        _require(0 <= self.min_lr_share <= 1, "min_lr_share", "0 to 1", self.min_lr_share)
        _require(0 <= self.average < 1, "average", "0 to below 1", self.average)
        for name in ("warmup_steps", "tokens_per_forward", "evaluate_steps", "loader_workers"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        _require(self.walk_temperature > 0, "walk_temperature", "above 0", self.walk_temperature)


def _require(holds: bool, name: str, expected: str, found: object) -> None:
    if not holds:
        raise EyasError(
            f"`{name}` is out of range",
            expected=expected,
            found=found,
            mend=f"set training.{name} to {expected}",
        )
