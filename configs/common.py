"""Every key that exists, with its default. Section names are module names; a config file only changes values."""

from __future__ import annotations

from typing import Any

import ml_collections
from ml_collections.config_dict import placeholder

ConfigDict = ml_collections.ConfigDict


def base() -> Any:
    """Returns the complete, unlocked config tree."""
    config = ConfigDict()
    config.seed = 0  # root of every random key: initialisation, draws, sampling

    config.mesh = ConfigDict(dict(data=-1, fsdp=1, tensor=1))  # devices an axis; -1 takes all that remain
    config.env = _env()
    config.model = _model()
    config.tokenizer = ConfigDict(
        dict(
            vocab_size=768,  # BPE tokens of the small policy, specials included; unused with model.path
            games=400,  # training games whose demonstrations the BPE is trained on
        )
    )
    config.warmstart = _warmstart()
    config.rollout = _rollout()
    config.selection = ConfigDict(
        dict(
            reject_uniform=False,  # groups all right or all wrong are replaced by new ones (dynamic sampling)
            tries=10,  # rounds of sampling an iteration with reject_uniform
            oversample=1.0,  # groups drawn for one that is missing
            starved="stop",  # stop | keep: what happens when groups are still missing after the last round
            compact=(),  # stop reasons whose episodes are not trained on: context, step_limit, failure
            overlong_buffer=0,  # tokens before rollout.response_limit in which a penalty grows; 0 = off
            overlong_penalty=1.0,  # at the limit; enters as `credit.penalty` says
        )
    )
    config.step_groups = ConfigDict(
        dict(
            anchors="exact",  # exact | similar: which states count as one
            threshold=0.9,  # similar: the least share of text in common, in [0, 1]
        )
    )
    config.credit = _credit()
    config.objective = _objective()
    config.attribution = ConfigDict(
        dict(
            reward_coef=0.0,  # STAPO's alpha: of the trajectory-aware reward at located responses; 0 = off
            penalty_coef=0.0,  # STAPO's gamma: of the trajectory-independent penalty there; 0 = off
            kind="full",  # full (exact, over the vocabulary) | k1 | k3 (estimates from the sampled tokens)
            stop_gradient_full=False,  # of the reward, under the full context
            stop_gradient_masked=False,  # of the reward, under the trajectory-blind context
            width=1024,  # tokens of a row in which blind contexts are packed
            rows=(
                2,
                8,
            ),  # rows beside a micro-batch: the fewest that hold its located responses; few = few compiles
        )
    )
    config.optimizer = ConfigDict(
        dict(
            learning_rate=1e-6,
            schedule="constant",  # constant | linear | cosine, after the warm-up
            warmup=0,  # optimizer steps
            decay_steps=1000,  # optimizer steps from the first to the last rate (linear, cosine), warm-up included
            end_fraction=0.1,  # last rate as a share of the first (linear, cosine)
            b1=0.9,
            b2=0.999,
            eps=1e-8,
            weight_decay=0.01,
            clip_norm=1.0,  # global gradient norm; 0 = off
        )
    )
    config.learner = ConfigDict(
        dict(
            epochs=1,  # passes over the batch of an iteration
            minibatch_responses=0,  # responses an optimizer step; 0 = the whole batch
            denominator="batch",  # batch | microbatch: what a mean is taken over before micro-batches are averaged
            divide_by_temperature=True,  # score the distribution that was sampled from, not that of temperature 1
            microbatch_tokens=8192,  # padded tokens a forward/backward pass
            row_buckets=(
                128,
                192,
                256,
                384,
                512,
                768,
                1024,
                2048,
                2560,
            ),  # padded row lengths, few = few compiles
            response_bucket=256,  # the response table is padded to a multiple of this
            score_block=2048,  # tokens whose logits exist at one time
            remat="none",  # none | dots | full
            value_head=False,  # a critic on the policy's activations; credit.estimator="gae" needs it
        )
    )
    config.eval = ConfigDict(
        dict(
            every=10,  # iterations; 0 = only before and after
            splits=("valid_seen", "valid_unseen"),
            games=128,  # games a split, the same ones every time; 0 = all
            final_games=0,  # games a split before and after training; 0 = as `games`
            temperature=0.4,
            top_k=0,
            top_p=1.0,
        )
    )
    config.train = ConfigDict(
        dict(
            iterations=150,
            checkpoint_every=10,
            keep=2,  # checkpoints kept
            mismatch_limit=1e-4,  # most |logp_sampler - logp_trainer| before the first update (float32); 0 = off
        )
    )
    config.log = ConfigDict(
        dict(
            tensorboard=True,
            wandb_project="",  # "" = off
            transcripts=2,  # episodes written out an iteration
            responses=True,  # one record a response
        )
    )
    return config


def _env() -> ConfigDict:
    return ConfigDict(
        dict(
            name="alfworld",
            data_dir="",  # "" = $ALFWORLD_DATA, else games made by `env.games` into the cache
            workers=1,  # processes
            deadline_s=120.0,  # an environment that answers later is lost and its episode excluded
            restarts=16,  # worker restarts before the run gives up
            interpreter="",  # "" = this Python; another one for engine="textworld"
            addresses=(),  # host:port of servers started elsewhere
            settings=dict(
                engine="fast",  # fast | textworld
                template="alfworld_react.txt",
                history=2,  # earlier turns in a step prompt
                parser="tags",  # tags | plain
                validity="format",  # format | admissible
                masked="both",  # both | goal | history: what a trajectory-blind prompt leaves out (STAPO)
                brief=False,  # leave out the sentence of an observation that only repeats the command
                step_limit=50,
                success_reward=10.0,
                invalid_penalty=-0.1,
                task_types=(),  # () = all six
                demo=dict(
                    noise=0.1,  # share of demonstrated actions replaced by others
                    noise_weight=0.0,  # cloning weight of a replaced action
                    order="listed",  # listed | random: how the expert explores
                ),
            ),
            games=dict(
                train=3000,
                valid_seen=400,
                valid_unseen=400,
                task_types=(),
                room_types=(),  # () = all; kitchen | livingroom | bedroom | bathroom
                max_receptacles=0,  # of training rooms; 0 = any size
                clutter=1.0,  # chance that a thing which the goal does not need is there
                form="move",  # move | put: the wording of alfworld 0.4 or of the released games
                seed=0,
            ),
        )
    )


def _model() -> ConfigDict:
    return ConfigDict(
        dict(
            path="",  # Hugging Face directory, a .gguf file or "smollm2"; "" = the small policy below
            dtype="float32",  # float32 | bfloat16
            small=dict(
                layers=4,
                width=160,
                heads=4,
                kv_heads=2,
                head_size=40,
                hidden=480,
                qk_norm=True,
                rope_theta=10000.0,
            ),
        )
    )


def _warmstart() -> ConfigDict:
    return ConfigDict(
        dict(
            enabled=False,
            seed=-1,  # of demonstrations, tokenizer and initialisation; -1 = config.seed
            episodes=3000,  # demonstrations of training games
            steps=800,  # optimizer steps
            batch_tokens=8192,  # padded tokens a step
            learning_rate=3e-3,  # AdamW's
            muon_learning_rate=0.0,  # Muon's, for matrices; 0 = AdamW for all
            warmup=40,
            weight_decay=0.01,
            observation_weight=0.3,  # loss weight of tokens that the policy did not write
            clip_norm=1.0,
        )
    )


def _rollout() -> ConfigDict:
    return ConfigDict(
        dict(
            context="step",  # step: every turn its own prompt | conversation: append-only, one row an episode
            groups=16,
            group_size=8,
            slots=128,  # episodes in flight
            prompt_limit=2048,  # tokens of a prompt (step) or of the whole conversation
            response_limit=512,  # tokens of one response
            decode_chunk=32,  # tokens decoded between two looks at the environments
            gather_s=1.0,  # how long finished turns wait for their peers, so that batches are full and runs repeat
            row_buckets=(8, 32, 128),  # prefill rows
            width_buckets=(32, 128, 512, 2048),  # prefill columns
            past_buckets=(),  # cache positions that attention reads, besides all of them
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    )


def _credit() -> ConfigDict:
    return ConfigDict(
        dict(
            estimator="grpo",  # grpo | centred | rloo | outcome | gigpo | gae
            unit="trajectory",  # trajectory | response: what counts once in a group's statistics
            ddof=1,
            eps=1e-6,
            singleton="zero",  # zero | raw: advantage of a lone group member
            whiten=False,  # normalised over the batch afterwards (REINFORCE++, PPO)
            gamma=0.95,  # discount a response, of returns-to-go (gigpo) and values (gae)
            omega=1.0,  # weight of gigpo's step advantage
            std=True,  # gigpo: scaled by the deviation, not only centred
            gae_lam=0.95,
            sign_mask="none",  # none | rising | falling: train only where AEM's sign says that entropy moves so
            # Where the penalty of an invalid action enters: "advantage" adds it to that response's advantage, after
            # normalisation, so that a group of failures stays near 0; "response" to that response's return (needs
            # unit="response"); "return" to its episode's; "none" only counts it. gigpo and gae read step
            # rewards, which hold it: "none" there (gigpo's episodes may be compared with it too).
            penalty="advantage",
            empg=dict(
                enabled=False,
                k=1.0,  # strength of the scaling
                k_next=1.0,  # strength of the clarity bonus
                zeta=0.05,  # weight of the bonus
            ),
            aem=dict(
                enabled=False,
                lam=1.0,
                threshold=0.1,  # nats; a group whose entropy range is smaller is left alone
                scope="group",  # group | trajectory | batch
                reverse=False,
                shuffle=False,
                proxy="entropy",  # entropy | surprisal | mix
                mix=0.5,  # share of surprisal in "mix"
                first_k=0,  # tokens of a response that count; 0 = all
                quantile=placeholder(
                    float
                ),  # adaptive threshold: this quantile of the batch's scope ranges; None = off
                quantile_decay=0.0,  # weight of the previous adaptive threshold
                noise_variance=0.0,  # of a return when actions are replayed; scales lam down
                eps=1e-8,
            ),
            outliers=dict(  # STAPO: the responses where `attribution` acts
                enabled=False,
                localisation="normalised",  # normalised (within the step group) | shannon (entropies as is) | all
                fence=1.5,  # distance of the fences from the batch's quartiles, in interquartile ranges
                singleton="raw",  # raw | inlier: a response alone in its step group has its entropy, or is never one
                ddof=1,
                eps=1e-6,
            ),
        )
    )


def _objective() -> ConfigDict:
    return ConfigDict(
        dict(
            surrogate="token",  # token | sequence | sequence_token
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=0.0,  # 0 = off
            ratio_clamp=20.0,  # log-ratio
            kl_coef=0.0,
            kl_kind="k3",  # k1 | k2 | k3
            kl_input_clamp=20.0,  # of logp_ref - logp; 0 = off
            kl_output_clamp=0.0,  # 0 = off
            entropy_coef=0.0,
            # token_mean | seq_mean_token_mean | seq_mean_token_sum | seq_mean_token_sum_norm
            aggregation="seq_mean_token_mean",
            constant_length=1.0,  # divisor of seq_mean_token_sum_norm
            importance_cap=0.0,  # truncated sampler/trainer weights; 0 = off
            importance_mask=0.0,  # drops responses whose mean sampler/trainer ratio leaves [1/m, m]; 0 = off
            old_logp="recomputed",  # recomputed | sampler | current: what the ratio is taken against
            value_coef=0.0,  # of the value head's loss
            value_clip=0.0,  # how far a value may move from the old one; 0 = off
        )
    )
