"""Converts pretrained weights: a GGUF file or a Hugging Face directory in, a Hugging Face directory out.

    python -m tools.convert_weights --source=model.gguf --out=DIR [--dtype=bfloat16] [--shard_mb=2000]

The result loads with transformers and with `--config.model.path=DIR`.
"""

from absl import app, flags

from model import params
from model.config import DTYPES
from model.weights import pretrained

_SOURCE = flags.DEFINE_string("source", None, "a .gguf file or a Hugging Face model directory", required=True)
_OUT = flags.DEFINE_string("out", None, "directory to write; must be empty or not exist", required=True)
_DTYPE = flags.DEFINE_enum("dtype", "float32", DTYPES, "number format of the weights written")
_SHARD_MB = flags.DEFINE_integer("shard_mb", 2000, "largest weights file, in megabytes", lower_bound=1)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # Read in the format that is written: wider would cost memory for nothing.
    weights, config = pretrained.load(_SOURCE.value, dtype=_DTYPE.value)
    tokenizer = pretrained.load_tokenizer(_SOURCE.value)
    pretrained.export(weights, config, tokenizer, _OUT.value, shard_bytes=_SHARD_MB.value * 1_000_000)
    print(f"{params.count(weights):,} parameters ({config.family}, {config.dtype}) in {_OUT.value}")


if __name__ == "__main__":
    app.run(main)
