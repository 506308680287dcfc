"""The training loop, bounded by time: everything that depends on progress depends on the share of the minutes used."""

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from models.train.evaluate import held_out_loss
from models.train.network import Network, Shape
from models.train.tokenizer import THINK


@dataclass(frozen=True, slots=True)
class Recipe:
    """How long, how fast, and when each phase begins (as a share of the time)."""

    minutes: float = 5.0
    batch_tokens: int = 65_536
    window_tokens: int = 1024
    long_window_tokens: int = 4096
    long_from: float = 0.80
    fp8_from: float = 0.75
    balance_until: float = 0.95
    peak_rate: float = 1.5e-3
    warmup_steps: int = 150
    weight_decay: float = 0.1
    dropout: float = 0.1
    mtp_weight: float = 0.3
    bias_step: float = 1e-3
    evaluate_every_s: float = 20.0
    seed: int = 0


def _optimizer(network: Network, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in network.parameters() if p.dim() > 1]
    vectors = [p for p in network.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    fused = matrices[0].is_cuda
    return torch.optim.AdamW(groups, lr=recipe.peak_rate, betas=(0.9, 0.95), eps=1e-8, fused=fused)


def _windows(stream: Tensor, width: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` windows of `width` consecutive tokens at random places -> `[count, width]`."""
    starts = torch.randint(0, stream.numel() - width, (count, 1), generator=generator).to(stream.device)
    return stream[starts + torch.arange(width, device=stream.device)].long()


def _loss(network: Network, rows: Tensor, think_id: int) -> tuple[Tensor, Tensor]:
    """Cross-entropies of the next token and of the MTP layer's token, over `rows` `[batch, width]`.

    Whether to think is the caller's choice, made in the prompt: that one token is never a target.
    """
    targets = rows.masked_fill(rows == think_id, -100)
    main, draft = network(rows[:, :-1])
    main_loss = cross_entropy(main.flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=-100)
    return main_loss, cross_entropy(draft.flatten(0, 1).float(), targets[:, 2:].flatten(), ignore_index=-100)


def fit(corpus: Path, out: Path, recipe: Recipe, shape: Shape, device: str) -> Network:
    """Train and return the best network by held-out loss (with FP8 weights); writes `loss.json` into `out`."""
    torch.manual_seed(recipe.seed)
    generator = torch.Generator().manual_seed(recipe.seed)
    train = torch.from_numpy(np.load(corpus / "train.npy").astype(np.int32)).to(device)
    valid = torch.from_numpy(np.load(corpus / "valid.npy").astype(np.int64)).to(device)
    think_id = Tokenizer.from_file(str(corpus / "tokenizer.json")).token_to_id(THINK)
    network = Network(shape, recipe.dropout).to(device)
    optimizer = _optimizer(network, recipe)
    log: dict[str, object] = {"recipe": asdict(recipe), "shape": asdict(shape), "steps": [], "evaluations": []}
    steps, evaluations = list[dict[str, float]](), list[dict[str, float]]()
    best, best_state = math.inf, dict[str, Tensor]()
    begin = evaluated = time.monotonic()
    step, seen_tokens = 0, 0
    while True:
        done = (time.monotonic() - begin) / (60 * recipe.minutes)
        finished = done >= 1.0
        if finished or time.monotonic() - evaluated > recipe.evaluate_every_s:
            network.set_fp8(True)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
                loss = held_out_loss(network, valid)
            evaluations.append({"step": step, "tokens": seen_tokens, "next": loss.next_nats, "mtp": loss.draft_nats})
            print(f"{done:6.1%} step {step} tokens {seen_tokens / 1e6:.1f}M held-out {loss}", flush=True)  # noqa: T201
            # Before the FP8 phase a low loss would be one that the long windows have not seen.
            if loss.next_nats < best and (done > recipe.long_from or finished):
                best = loss.next_nats
                best_state = {k: v.clone() for k, v in network.state_dict().items()}
            evaluated = time.monotonic()
        if finished:
            break
        network.train()
        network.set_fp8(done >= recipe.fp8_from)
        width = recipe.long_window_tokens if done >= recipe.long_from else recipe.window_tokens
        rate = recipe.peak_rate * min(1.0, (step + 1) / recipe.warmup_steps) * max(0.02, 1.0 - done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        rows = _windows(train, width + 1, max(1, recipe.batch_tokens // width), generator)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            main_loss, draft_loss = _loss(network, rows, think_id)
        optimizer.zero_grad(set_to_none=True)
        (main_loss + recipe.mtp_weight * draft_loss).backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            loads = torch.stack([g.load for g in network.gates()])
            imbalance = (loads.amax(1) / loads.mean(1)).max().item()
            entry = {"step": step, "tokens": seen_tokens, "next": main_loss.item(), "mtp": draft_loss.item()}
            steps.append({**entry, "rate": rate, "gradient_norm": norm.item(), "max_load_over_mean": imbalance})
            if step % 100 == 0:
                rounded = {k: float(f"{v:.4g}") for k, v in steps[-1].items()}
                print(f"{time.monotonic() - begin:6.1f}s {rounded}", flush=True)  # noqa: T201
        for gate in network.gates():
            gate.balance(recipe.bias_step if done < recipe.balance_until else 0.0)
        step += 1
        seen_tokens += rows.numel()
    log["steps"], log["evaluations"] = steps, evaluations
    log["machine"] = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    log["seconds"] = time.monotonic() - begin
    (out / "loss.json").write_text(json.dumps(log) + "\n")
    network.load_state_dict(best_state)
    network.set_fp8(True)
    return network.eval()
