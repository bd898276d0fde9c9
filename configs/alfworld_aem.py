"""GRPO + AEM on ALFWorld.

python main.py --config=configs/alfworld_aem.py                 a small policy on 2 CPU cores (see README for numbers)
python main.py --config=configs/alfworld_aem.py:quick           the same path, three iterations, under two minutes
python main.py --config=configs/alfworld_aem.py:smollm2         SmolLM2-135M-Instruct, a few short iterations on CPU
python main.py --config=configs/alfworld_aem.py:paper --config.model.path=DIR      Qwen2.5-1.5B-Instruct
python main.py --config=configs/alfworld_aem.py:paper_7b --config.model.path=DIR   Qwen2.5-7B-Instruct

Measured: 2 CPU cores; success on 256 held-out games in seen rooms, temperature 0.4, clone -> 40 iterations:
seed 0: 52.7 % [46.6, 58.8] -> 94.9 % [91.5, 97.0]; unseen rooms 3.9 % [2.1, 7.0] -> 10.2 % [7.0, 14.5]
seed 1: 35.9 % [30.3, 42.0] -> 93.0 % [89.2, 95.5]; unseen rooms 1.6 % [0.6, 3.9] -> 5.5 % [3.3, 9.0]
seed 2: 36.7 % [31.1, 42.8] -> 78.5 % [73.1, 83.1]; unseen rooms 3.1 % [1.6, 6.0] -> 7.0 % [4.5, 10.8]
Expected of :paper, not measured here: 76.8 (GRPO 68.0), 150 iterations.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {"credit.aem.enabled": True}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
