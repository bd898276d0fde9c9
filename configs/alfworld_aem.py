"""GRPO + AEM on ALFWorld.

python main.py --config=configs/alfworld_aem.py                 a small policy on 2 CPU cores (see README for numbers)
python main.py --config=configs/alfworld_aem.py:quick           the same path in about two minutes
python main.py --config=configs/alfworld_aem.py:smollm2         SmolLM2-135M-Instruct, a few short iterations on CPU
python main.py --config=configs/alfworld_aem.py:paper --config.model.path=DIR      Qwen2.5-1.5B-Instruct
python main.py --config=configs/alfworld_aem.py:paper_7b --config.model.path=DIR   Qwen2.5-7B-Instruct

MEASURED
Expected of :paper, not measured here: 76.8 (GRPO 68.0), 150 iterations.
"""

from __future__ import annotations

from configs import alfworld

METHOD = {"credit.aem.enabled": True}


def get_config(text: str = ""):
    return alfworld.build(text, METHOD)
