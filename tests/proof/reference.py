"""EAGLE-3's loss in plain float64 loops, written from docs/design.md section 5.

It shares no code with eyas.drafter: slot by slot, step by step, head by head. Weights come as a plain dict
of tensors, so that autograd gives the reference gradients.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def turned(x: Tensor, position: int, theta: float) -> Tensor:
    """One head's vector turned to its position; component i is paired with i + D/2."""
    half = len(x) // 2
    out = [torch.zeros(()) for _ in range(len(x))]
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        c, s = math.cos(angle), math.sin(angle)
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i + half] * c + x[i] * s
    return torch.stack(out)


class Reference:
    def __init__(
        self, weights: dict[str, Tensor], config: object, target_ids: list[int], head: Tensor
    ) -> None:
        self.w, self.c, self.target_ids, self.head = weights, config, target_ids, head

    def shaped(self, logits: Tensor) -> Tensor:
        if self.c.soft_cap is not None:
            logits = self.c.soft_cap * torch.tanh(logits / self.c.soft_cap)
        return logits * self.c.logit_scale

    def heads(self, name: str, x: Tensor, number: int) -> list[Tensor]:
        flat = self.w[f"midlayer.self_attn.{name}.weight"] @ x
        return [flat[i * self.c.head_dim : (i + 1) * self.c.head_dim] for i in range(number)]

    def enter(self, token: int, hidden: Tensor) -> Tensor:
        embed = norm(
            self.w["embed_tokens.weight"][token],
            self.w["midlayer.input_layernorm.weight"],
            self.c.rms_norm_eps,
        )
        return torch.cat([embed, norm(hidden, self.w["midlayer.hidden_norm.weight"], self.c.rms_norm_eps)])

    def finish(self, hidden: Tensor, mixed: list[Tensor]) -> Tensor:
        residual = hidden
        if self.c.norm_before_residual:
            residual = norm(hidden, self.w["midlayer.hidden_norm.weight"], self.c.rms_norm_eps)
        residual = residual + self.w["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        x = norm(residual, self.w["midlayer.post_attention_layernorm.weight"], self.c.rms_norm_eps)
        gate, up = self.w["midlayer.mlp.gate_proj.weight"] @ x, self.w["midlayer.mlp.up_proj.weight"] @ x
        return residual + self.w["midlayer.mlp.down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)

    def drafts(
        self, ids: list[int], aux: Tensor, steps: int, wanted: set[tuple[int, int]]
    ) -> dict[tuple[int, int], Tensor]:
        """Logits of every wanted (t, k) of one conversation."""
        c, group = self.c, self.c.num_heads // self.c.num_kv_heads
        keys: dict[tuple[int, int], list[Tensor]] = {}
        values: dict[tuple[int, int], list[Tensor]] = {}
        outputs: dict[tuple[int, int], Tensor] = {}
        logits = {}
        for k in range(steps):
            for t in range(len(ids) - 1 - k):
                if k > 0 and (t, k) not in wanted:
                    continue
                hidden = self.w["fc.weight"] @ aux[t] if k == 0 else outputs[t, k - 1]
                x = self.enter(ids[t + 1 + k], hidden)
                keys[t, k] = [turned(h, t + k, c.rope_theta) for h in self.heads("k_proj", x, c.num_kv_heads)]
                values[t, k] = self.heads("v_proj", x, c.num_kv_heads)
                if (t, k) not in wanted:
                    continue
                queries = [turned(h, t + k, c.rope_theta) for h in self.heads("q_proj", x, c.num_heads)]
                seen = [(s, 0) for s in range(t + 1)] + [(t, j) for j in range(1, k + 1)]
                mixed = []
                for i, query in enumerate(queries):
                    scores = torch.stack(
                        [query @ keys[at][i // group] / math.sqrt(c.head_dim) for at in seen]
                    )
                    share = torch.exp(scores - scores.max())
                    share = share / share.sum()
                    mixed.append(sum(share[n] * values[at][i // group] for n, at in enumerate(seen)))
                out = self.finish(hidden, mixed)
                if c.norm_output:
                    outputs[t, k] = norm(out, self.w["norm.weight"], c.rms_norm_eps)
                else:
                    outputs[t, k] = out
                logits[t, k] = self.shaped(
                    self.w["lm_head.weight"] @ norm(out, self.w["norm.weight"], c.rms_norm_eps)
                )
        return logits

    def slots(self, mask: list[int], steps: int) -> set[tuple[int, int]]:
        found = set()
        for t in range(len(mask)):
            for k in range(steps):
                if t + 2 + k < len(mask) and all(mask[i] for i in range(t + 1, t + 3 + k)):
                    found.add((t, k))
        return found

    def loss(self, rows: list[dict], steps: int, decay: float) -> tuple[Tensor, list[int]]:
        """(the loss, N_k). rows: ids, mask, aux [T, A*G], last [T, G]."""
        sums, counts = [torch.zeros(()) for _ in range(steps)], [0] * steps
        for row in rows:
            wanted = self.slots(row["mask"], steps)
            logits = self.drafts(row["ids"], row["aux"], steps, wanted)
            for t, k in sorted(wanted):
                full = self.shaped(self.head @ row["last"][t + 1 + k])
                if int(full.argmax()) not in self.target_ids:
                    continue
                counts[k] += 1
                p = torch.exp(full[self.target_ids] - full[self.target_ids].max())
                p = p / p.sum()
                log_q = logits[t, k] - torch.logsumexp(logits[t, k], 0)
                sums[k] = sums[k] - (p * log_q).sum()
        total = torch.zeros(())
        for k in range(steps):
            if counts[k]:
                total = total + decay**k / counts[k] * sums[k]
        return total, counts
