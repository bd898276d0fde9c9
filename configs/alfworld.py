"""ALFWorld's four sizes, shared by the method files: each of them is one overlay on top of these.

An argument string chooses the size: "" (the small policy on 2 CPU cores), `quick`, `smollm2`, `paper`, `paper_7b`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs import arguments, common


def build(
    text: str, method: Mapping[str, Any], *, paper_method: Mapping[str, Any] | None = None, **spec: Any
) -> Any:
    """Returns the locked config of a method file; see `parse`."""
    return finish(parse(text, **spec), method, paper_method=paper_method)


def parse(text: str, **spec: Any) -> Any:
    """Returns the arguments of a config string: the sizes, `seed`, `aem`, and what the method adds in `spec`."""
    sizes = dict(quick=False, smollm2=False, paper=False, paper_7b=False)
    return arguments.parse(text, **sizes, seed=0, aem=False, **spec)


def finish(args: Any, method: Mapping[str, Any], *, paper_method: Mapping[str, Any] | None = None) -> Any:
    """Returns the complete, locked tree: the size that `args` name, then `method`.

    `paper_method` comes last at the papers' sizes only: what a method sets in tokens or returns depends on the size.
    """
    config = common.base()
    config.seed = args.seed
    if args.paper or args.paper_7b:
        overlays = [paper(seven_b=args.paper_7b), method, paper_method or {}]
    elif args.smollm2:
        overlays = [SMOLLM2, method]
    else:
        overlays = [EMBEDDED, QUICK if args.quick else {}, method]
    for overlay in overlays:
        arguments.overlay(config, overlay)
    if args.aem:
        config.credit.aem.enabled = True
    return arguments.lock(config)


# The default: small bedrooms with few things. No room of at most 8 receptacles hosts `clean`, so the training games and
# valid_seen are place and look; valid_unseen (rooms 308 and 424, with 14 and 12 receptacles) has clean too.
EMBEDDED = {
    "env.settings": dict(
        template="alfworld_compact.txt",
        parser="plain",
        validity="admissible",
        brief=True,
        step_limit=15,
        success_reward=1.0,
        invalid_penalty=-0.2,
    ),
    "env.games": dict(
        task_types=("pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep"),
        room_types=("bedroom", "bathroom"),
        max_receptacles=8,
        clutter=0.3,
        train=4000,
    ),
    "warmstart": dict(
        enabled=True, episodes=3000, steps=500, batch_tokens=4096, muon_learning_rate=0.02, learning_rate=3e-3
    ),
    "rollout": dict(
        context="conversation",
        slots=64,
        prompt_limit=512,
        response_limit=12,
        decode_chunk=12,
        row_buckets=(16, 64),
        width_buckets=(32, 96),
        past_buckets=(256,),
    ),
    "learner": dict(row_buckets=(128, 192, 256, 384, 512), minibatch_responses=400, microbatch_tokens=4096),
    "attribution": dict(width=256, rows=(1, 2, 4)),
    # At a constant rate one bad batch threw a run from 70 % back to 30 % (docs/log.md).
    "optimizer": dict(
        learning_rate=5e-4,
        schedule="linear",
        warmup=5,
        decay_steps=160,
        b2=0.99,
        weight_decay=0.0,
        clip_norm=0.3,
    ),
    "eval": dict(every=10, games=100, final_games=256),
    "train": dict(iterations=40, checkpoint_every=10),
}

QUICK = {
    "env.games": dict(train=200, valid_seen=16, valid_unseen=16),
    "warmstart": dict(episodes=100, steps=40, batch_tokens=2048),
    # One shape of everything: most of the first run is compilation.
    "rollout": dict(groups=4, group_size=4, slots=16, row_buckets=(16,), width_buckets=(64,)),
    "learner": dict(row_buckets=(512,), minibatch_responses=0),
    "attribution": dict(rows=(4,)),
    "eval": dict(every=2, games=16, final_games=16),
    "train": dict(iterations=3, checkpoint_every=1),
    # A clone of 40 steps wins nothing: dynamic sampling would find no live group and stop.
    "selection": dict(tries=2, starved="keep"),
}

SMOLLM2 = {
    "model.path": "smollm2",
    "env.settings": dict(history=1, step_limit=4),
    "env.games": dict(train=50, valid_seen=4, valid_unseen=4, room_types=("bathroom",), max_receptacles=10),
    "rollout": dict(
        groups=1,
        group_size=4,
        slots=4,
        prompt_limit=768,
        response_limit=24,
        row_buckets=(4,),
        width_buckets=(256, 512, 768),
    ),
    "learner": dict(
        microbatch_tokens=1024, row_buckets=(512, 1024), response_bucket=16, score_block=256, remat="full"
    ),
    "attribution": dict(width=1024, rows=(1,)),
    "eval": dict(every=0, games=2),
    "train": dict(iterations=2, checkpoint_every=1),
}


def paper(*, seven_b: bool) -> dict:
    """The ALFWorld settings of AEM and STAPO (arXiv 2605.00425, appendix G); what they leave open is verl-agent's."""
    return {
        "model.dtype": "bfloat16",
        "mesh.data": 1,
        "mesh.fsdp": -1,
        "env.workers": 16,
        "optimizer": dict(learning_rate=1e-6, weight_decay=0.01),
        "objective": dict(kl_coef=0.01, kl_kind="k3", dual_clip=3.0, entropy_coef=0.001),
        "learner": dict(
            minibatch_responses=256,
            microbatch_tokens=16384 if not seven_b else 8192,
            row_buckets=(1024, 1536, 2048, 2560),
            remat="full",
        ),
        "attribution": dict(width=2560, rows=(1, 2, 4, 8)),
        "eval": dict(every=5, games=0),
        "train": dict(iterations=150, checkpoint_every=10),
    }
