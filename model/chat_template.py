"""Chat templates: the jinja2 text that turns messages into one prompt string.

Rendered here with jinja2 alone, in a sandbox with the options transformers uses, because importing
transformers costs seconds and because two of its globals must not be there: a template that asks for
`strftime_now` would put today's date into prompts, and a run could not be repeated. Without it the templates
of Llama 3.x use their built-in date.
"""

import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox

# One marker a turn: [<|user|>] text [<|assistant|>] response [<|end|>]. A system text is a user turn of its
# own.
SMALL_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class ChatTemplate:
    """A compiled chat template; `render` returns the prompt text of a list of {"role", "content"}
    messages."""

    def __init__(self, source: str, variables: dict[str, Any]):
        self.source = source
        self.variables = variables
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self._template = environment.from_string(source)

    def render(self, messages: list[dict[str, str]]) -> str:
        """Returns the text of `messages` followed by the generation prompt.

        Raises jinja2.TemplateError where the template refuses the messages (for example two user turns in a
        row).
        """
        return self._template.render(messages=messages, add_generation_prompt=True, **self.variables)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
