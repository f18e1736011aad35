"""The one function that turns hidden states into log-probabilities of chosen tokens.

Rollout, reference and update all call it, so the ratio at the first update is 1. Logits exist for one chunk of tokens
at a time and are computed again in the backward pass instead of being stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.distribution import warp_logits
from finegrained_rlhf.models.families.heads import Head


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of given tokens.

    Attributes:
        logprobs: fp32 [R, T], 0 at padding.
        entropy: fp32 [R, T] of the distribution at each token in nats, detached, 0 at padding; all 0 where it was not
            asked for.
    """

    logprobs: Tensor
    entropy: Tensor


def chosen_logprobs(logits: Tensor, tokens: Tensor, scored: Sample | None = None) -> Tensor:
    """Log p(token) = logit[token] − logsumexp(logits), fp32 [n].

    Args:
        logits: float [n, V].
        tokens: int64 [n].
        scored: None scores the plain softmax; a `Sample` the tempered and truncated distribution, from which a given
            token is never cut.
    """
    logits = _scored(logits, tokens, scored)
    return _chosen(logits, tokens) - logits.logsumexp(dim=-1)


def _scored(logits: Tensor, tokens: Tensor, scored: Sample | None) -> Tensor:
    return logits.float() if scored is None else warp_logits(logits, scored, keep=tokens)


def _chosen(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _chunk(
    hidden: Tensor, tokens: Tensor, head: Head, scored: Sample | None, with_entropy: bool
) -> tuple[Tensor, Tensor]:
    logits = _scored(head(hidden), tokens, scored)
    normaliser = logits.logsumexp(dim=-1)
    entropy = torch.zeros_like(normaliser)
    if with_entropy:
        with torch.no_grad():
            log_p = logits - normaliser.unsqueeze(-1)
            p = log_p.exp()
            entropy = -p.mul_(log_p.clamp_(min=torch.finfo(log_p.dtype).min)).sum(dim=-1)  # 0 · −inf is 0 here
    return _chosen(logits, tokens) - normaliser, entropy


def token_logprobs(
    hidden: Tensor,
    tokens: Tensor,
    mask: Tensor,
    head: Head,
    *,
    scored: Sample | None = None,
    entropy: bool = True,
    chunk_tokens: int = 512,
    places: Tensor | None = None,
) -> TokenLogprobs:
    """Log p(token | state) = logit[token] − logsumexp(logits), in fp32, over real tokens only.

    Args:
        hidden: float [R, T, D], the state that predicts each token.
        tokens: int64 [R, T].
        mask: int [R, T]; padding is neither computed nor returned.
        head: maps [n, D] to logits [n, V]; called for each chunk, and again in the backward pass.
        scored: None scores the plain softmax (the paper's choice, the default); a `Sample` scores the tempered and
            truncated distribution that sampling uses.
        entropy: False leaves the entropy out, which saves a pass over the logits.
        chunk_tokens: how many tokens have their logits in memory at once.
        places: int64 [n], where the mask's ones are among its R·T entries; None reads the mask, which waits for the
            device.

    Returns:
        Log-probabilities and entropy.
    """
    if hidden.shape[:2] != tokens.shape or tokens.shape != mask.shape:
        raise ValueError(f"hidden {tuple(hidden.shape)}, tokens {tuple(tokens.shape)}, mask {tuple(mask.shape)} differ")
    if places is None:
        places = mask.flatten().nonzero().squeeze(1)
    states, chosen = hidden.flatten(0, 1).index_select(0, places), tokens.flatten().index_select(0, places)
    pieces: list[tuple[Tensor, Tensor]] = []
    for start in range(0, states.shape[0], chunk_tokens):
        arguments = (states[start : start + chunk_tokens], chosen[start : start + chunk_tokens], head, scored, entropy)
        # A single chunk may keep its logits until the backward pass, which begins with it.
        if torch.is_grad_enabled() and states.requires_grad and states.shape[0] > chunk_tokens:
            pieces.append(checkpoint(_chunk, *arguments, use_reentrant=False))
        else:
            pieces.append(_chunk(*arguments))
    logprobs, entropies = hidden.new_zeros((2, tokens.numel()), dtype=torch.float32)
    if pieces:
        logprobs = logprobs.index_copy(0, places, torch.cat([piece[0] for piece in pieces]))
        entropies = entropies.index_copy(0, places, torch.cat([piece[1] for piece in pieces]))
    return TokenLogprobs(logprobs=logprobs.view(tokens.shape), entropy=entropies.view(tokens.shape))
