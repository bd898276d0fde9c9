"""The decoder written out in float64 numpy, one token and one head at a time: shares no code with model/."""

import numpy as np


def frequencies(config):
    result = []
    for i in range(config.head_size // 2):
        f = config.rope_theta ** (-2 * i / config.head_size)
        s = config.rope_scaling
        if s is not None:
            turns = s.original_positions * f / (2 * np.pi)
            if turns < s.low_freq_factor:
                f = f / s.factor
            elif turns <= s.high_freq_factor:
                mix = (turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
                f = (1 - mix) * f / s.factor + mix * f
        result.append(f)
    return np.array(result)


def norm(x, weight, eps):
    return x / np.sqrt(np.mean(x**2) + eps) * weight


def rotate(x, position, f):
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        c, s = np.cos(position * f[i]), np.sin(position * f[i])
        out[i] = x[i] * c - x[i + half] * s
        out[i + half] = x[i + half] * c + x[i] * s
    return out


def hidden(params, tokens, config):
    """Final-normed activations [T, D] of one document."""
    p = {k: {n: np.asarray(v, np.float64) for n, v in d.items()} for k, d in params.items()}
    f, group = frequencies(config), config.heads // config.kv_heads
    x = p["embed"]["weight"][np.asarray(tokens)]
    for index in range(config.layers):
        w = {name: leaf[index] for name, leaf in p["layers"].items()}
        queries, keys, values = [], [], []
        for t, row in enumerate(x):
            a = norm(row, w["attn_norm"], config.norm_eps)
            q, k, v = (np.einsum("d,dhe->he", a, w[name]) for name in ("wq", "wk", "wv"))
            if config.qkv_bias:
                q, k, v = q + w["bq"], k + w["bk"], v + w["bv"]
            if config.qk_norm:
                q = np.stack([norm(h, w["q_norm"], config.norm_eps) for h in q])
                k = np.stack([norm(h, w["k_norm"], config.norm_eps) for h in k])
            queries.append([rotate(h, t, f) for h in q])
            keys.append([rotate(h, t, f) for h in k])
            values.append(v)
        rows = []
        for t, row in enumerate(x):
            for h in range(config.heads):
                scores = (
                    np.array([queries[t][h] @ keys[s][h // group] for s in range(t + 1)])
                    / config.head_size**0.5
                )
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed = sum(weights[s] * values[s][h // group] for s in range(t + 1))
                row = row + mixed @ w["wo"][h]
            a = norm(row, w["mlp_norm"], config.norm_eps)
            gate = a @ w["w_gate"]
            rows.append(row + (gate / (1 + np.exp(-gate)) * (a @ w["w_up"])) @ w["w_down"])
        x = np.stack(rows)
    return np.stack([norm(row, p["final_norm"]["weight"], config.norm_eps) for row in x])


def logits(params, tokens, config):
    """[T, V]: row t predicts token t + 1."""
    tied = "head" not in params
    head = (
        np.asarray(params["embed"]["weight"], np.float64).T
        if tied
        else np.asarray(params["head"]["weight"], np.float64)
    )
    return hidden(params, tokens, config) @ head


def logp_entropy(z, tokens, temperature):
    """(logp, entropy) of tokens[1:] under z[:-1], each [T - 1]."""
    z = z[:-1] / temperature
    z = z - z.max(-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    return np.log(p[np.arange(len(p)), np.asarray(tokens)[1:]]), -(p * np.log(p)).sum(-1)
