"""What flows through a training step: episodes on the host, then two tables (responses, tokens) on the device."""

from __future__ import annotations

import dataclasses
from typing import Any

from flax import struct

Array = Any  # numpy on the host, jax.Array on the devices


@dataclasses.dataclass(frozen=True)
class Draw:
    """One episode to play: a member of the group sampled from one task draw."""

    task: str
    group: int
    member: int
    seed: int


@dataclasses.dataclass
class Turn:
    """One response and what surrounds it. Ids are exactly what the sampler read and wrote."""

    context_ids: list[int]  # step: the whole prompt; conversation: what was appended since the last response
    response_ids: list[int]
    logp: list[float]  # the sampler's own
    stop: str  # "stop" (a stop token was sampled) or "length"
    prompt: str
    blind: str  # the user text without goal and history
    anchor: str
    response: str
    system: str = ""  # the system text of `prompt` and `blind`
    action: str = ""
    valid: bool = False
    reward: float = 0.0
    penalty: float = 0.0
    shaping: float = 0.0  # <= 0, added to the penalty by selection (overlong responses)
    step_group: int = 0  # responses of one task draw that left the same anchor state; dense over the batch


@dataclasses.dataclass
class Trajectory:
    """One episode. `failed` names what broke and `masked` the filter that took it: excluded from training, counted."""

    draw: Draw
    turns: list[Turn] = dataclasses.field(default_factory=list)
    success: bool = False
    stop: str = ""  # success | step_limit | failure | context | failed
    failed: str = ""
    masked: str = ""
    info: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def trained(self) -> bool:
        return not self.failed and not self.masked

    @property
    def outcome(self) -> float:
        return sum(turn.reward for turn in self.turns)


@struct.dataclass
class Responses:
    """The response table, [R] each; rows past the last real response have valid = False."""

    group: Array  # int32
    trajectory: Array  # int32
    turn: Array  # int32
    step_group: Array  # int32
    outcome: Array  # float32, the episode's return
    reward: Array  # float32, environment reward + penalty of this step
    penalty: Array  # float32, <= 0
    valid: Array  # bool


@struct.dataclass
class Tokens:
    """Token rows, [B, T] each. A value at t describes tokens[b, t]."""

    tokens: Array  # int32
    positions: Array  # int32, within the segment
    segments: Array  # int32, 0 = padding
    response_id: Array  # int32, row of the response table, -1 outside every span
    logp_sampler: Array  # float32, 0 outside spans


@struct.dataclass
class TrainBatch:
    responses: Responses
    rows: tuple[Tokens, ...]  # micro-batches; each shape is one of few
    minibatches: tuple[int, ...] = struct.field(
        pytree_node=False
    )  # micro-batches of each optimizer step, in order


@struct.dataclass
class Blind:
    """Some responses of one micro-batch again, under their trajectory-blind contexts: packed rows, [b, t] each."""

    tokens: Array  # int32
    positions: Array  # int32, within the segment
    segments: Array  # int32, one a response, 0 = padding
    response_id: Array  # int32, row of the response table, -1 outside the response
    row: Array  # int32, where in the micro-batch the same token stands under its full context, 0 outside
    column: Array  # int32


@struct.dataclass
class Scores:
    """The trainer's view of one micro-batch before the update, [B, T] each."""

    logp: Array
    entropy: Array


@struct.dataclass
class ScoredBatch:
    batch: TrainBatch
    old: tuple[Scores, ...]  # one a micro-batch
    reference: tuple[Array, ...]  # logp of the reference policy, or () without a KL term
    entropy: Array  # [R] mean token entropy, nats (the statistic that AEM reads)
    surprisal: Array  # [R] mean of -logp, nats
    value: Array  # [R] the value head where the response begins, 0 without one


@struct.dataclass
class CreditedBatch:
    """The fields are those of `rl.credit.assign.Credit`."""

    scored: ScoredBatch
    base: Array  # [R] advantage before AEM
    alpha: Array  # [R] modulation, 1 where AEM is off or silent
    advantage: Array  # [R] what the loss uses
    target: Array  # [R] what the value head should have said, 0 without one
    trained: Array  # [R] bool, what the loss sees
    normalised: Array  # [R] STAPO's H_n; it and the next two are 0 and False where the localisation is off
    outlier: Array  # [R] bool, STAPO's mask M
    extremity: Array  # [R] how far beyond the nearer fence, negative below
