"""The one function that turns hidden states into log-probabilities of chosen tokens.

Rollout, reference and update all call it, so the ratio at the first update is 1. Logits exist for one chunk of tokens
at a time and are computed again in the backward pass instead of being stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.distribution import support_of, warp_logits, within
from finegrained_rlhf.models.families.heads import Head
from finegrained_rlhf.rl.kl import kl_over_vocabulary


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities of given tokens.

    Attributes:
        logprobs: fp32 [R, T], 0 at padding.
        entropy: fp32 [R, T] of the distribution at each token in nats, 0 at padding; detached where its gradient, and
            all 0 where it itself was not asked for.
        kl: fp32 [R, T] KL over the vocabulary from an `Anchor`, nats, 0 at padding; None where none was given.
    """

    logprobs: Tensor
    entropy: Tensor
    kl: Tensor | None = None


@dataclass(frozen=True)
class Anchor:
    """A frozen policy that another is compared with over the whole vocabulary.

    Attributes:
        states: float [R, T, D], its states that predict each token; no gradient.
        head: maps [n, D] of them to its logits [n, V].
    """

    states: Tensor
    head: Head


def chosen_logprobs(logits: Tensor, tokens: Tensor, scored: Sample | None = None) -> Tensor:
    """Log p(token) = logit[token] − logsumexp(logits), fp32 [n].

    Args:
        logits: float [n, V].
        tokens: int64 [n].
        scored: None scores the plain softmax; a `Sample` the tempered and truncated distribution, from which a given
            token is never cut.
    """
    return drawn_logprobs(logits, tokens, scored)[0]


def drawn_logprobs(logits: Tensor, tokens: Tensor, scored: Sample | None) -> tuple[Tensor, Tensor | None]:
    """`chosen_logprobs` of tokens as they are drawn, and the support [n, K] that the scored distribution has here.

    None where it is not truncated. Arguments as in `chosen_logprobs`.
    """
    warped = _scored(logits, tokens, scored)
    support = support_of(warped, tokens, scored) if scored is not None and scored.truncated else None
    return _chosen(warped, tokens) - warped.logsumexp(dim=-1), support


def _scored(logits: Tensor, tokens: Tensor, scored: Sample | None, support: Tensor | None = None) -> Tensor:
    if scored is None:
        return logits.float()
    return warp_logits(logits, scored, keep=tokens) if support is None else within(logits, scored, support)


def _chosen(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


class _Entropy(torch.autograd.Function):
    """H = −Σ p log p [n] of logits [n, V]; its gradient −p (log p + H) is computed from the logits again."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, normaliser: Tensor) -> Tensor:
        p, log_p = _distribution(logits, normaliser)
        entropy = -p.mul_(log_p).sum(dim=-1)
        ctx.save_for_backward(logits, normaliser, entropy)
        return entropy

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, normaliser, entropy = ctx.saved_tensors
        p, log_p = _distribution(logits, normaliser)
        return log_p.add_(entropy.unsqueeze(-1)).mul_(p).mul_(-gradient.unsqueeze(-1)), None


def _distribution(logits: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """P and log p [n, V]; log p is finite, since 0 · −inf is 0 here."""
    log_p = logits - normaliser.unsqueeze(-1)
    return log_p.exp(), log_p.clamp_(min=torch.finfo(log_p.dtype).min)


def _chunk(
    hidden: Tensor,
    tokens: Tensor,
    head: Head,
    scored: Sample | None,
    with_entropy: bool,
    entropy_gradient: bool,
    anchored: Tensor | None = None,
    anchor_head: Head | None = None,
    support: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    logits = _scored(head(hidden), tokens, scored, support)
    normaliser = logits.logsumexp(dim=-1)
    entropy = torch.zeros_like(normaliser)
    if with_entropy:
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = _Entropy.apply(logits, normaliser)
    kl = torch.zeros_like(entropy)
    if anchored is not None and anchor_head is not None:
        with torch.no_grad():
            reference = anchor_head(anchored).float()
            if scored is not None:  # the same temperature, and only what this policy can draw: else the KL is infinite
                reference = (reference / scored.temperature).masked_fill_(logits == -torch.inf, -torch.inf)
            reference = reference.log_softmax(dim=-1)
        kl = kl_over_vocabulary(logits - normaliser.unsqueeze(-1), reference)
    return _chosen(logits, tokens) - normaliser, entropy, kl


def token_logprobs(
    hidden: Tensor,
    tokens: Tensor,
    mask: Tensor,
    head: Head,
    *,
    scored: Sample | None = None,
    entropy: bool = True,
    entropy_gradient: bool = False,
    chunk_tokens: int = 512,
    places: Tensor | None = None,
    anchor: Anchor | None = None,
    support: Tensor | None = None,
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
        entropy_gradient: gradients flow through the entropy too.
        chunk_tokens: how many tokens have their logits in memory at once.
        places: int64 [n], where the mask's ones are among its R·T entries; None reads the mask, which waits for the
            device.
        anchor: also the KL over the vocabulary from this policy, at the temperature that is scored and over what the
            scored distribution can draw; takes four more tensors of the size of a chunk's logits.
        support: int [R, T, K], what each token was drawn from (`Rollout.support`), to which a truncated `scored` is
            held; None: to what it leaves of these logits, and the token itself.

    Returns:
        Log-probabilities, entropy and KL.
    """
    if hidden.shape[:2] != tokens.shape or tokens.shape != mask.shape:
        raise ValueError(f"hidden {tuple(hidden.shape)}, tokens {tuple(tokens.shape)}, mask {tuple(mask.shape)} differ")
    if places is None:
        places = mask.flatten().nonzero().squeeze(1)
    states, chosen = hidden.flatten(0, 1).index_select(0, places), tokens.flatten().index_select(0, places)
    anchored = None if anchor is None else anchor.states.flatten(0, 1).index_select(0, places)
    anchor_head = None if anchor is None else anchor.head
    drawn_from = None if support is None else support.flatten(0, 1).index_select(0, places)
    pieces: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, states.shape[0], chunk_tokens):
        part = slice(start, start + chunk_tokens)
        compared = None if anchored is None else anchored[part]
        kept = None if drawn_from is None else drawn_from[part]
        arguments = (states[part], chosen[part], head, scored, entropy, entropy_gradient, compared, anchor_head, kept)
        # A single chunk may keep its logits until the backward pass, which begins with it.
        if torch.is_grad_enabled() and states.requires_grad and states.shape[0] > chunk_tokens:
            pieces.append(checkpoint(_chunk, *arguments, use_reentrant=False))
        else:
            pieces.append(_chunk(*arguments))
    laid_out = [_laid_out([piece[number] for piece in pieces], places, tokens) for number in range(3)]
    return TokenLogprobs(laid_out[0], laid_out[1], None if anchor is None else laid_out[2])


def _laid_out(pieces: list[Tensor], places: Tensor, tokens: Tensor) -> Tensor:
    """fp32 of the shape of `tokens`, from its parts at `places`; 0 elsewhere."""
    whole = torch.zeros(tokens.numel(), dtype=torch.float32, device=tokens.device)
    return (whole.index_copy(0, places, torch.cat(pieces)) if pieces else whole).view(tokens.shape)
