"""The agent of Google's ADK."""

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types

from tests.frameworks.agents import script


def text_of(content: types.Content) -> str:
    """Return the text and the types of the files of a message."""
    texts: list[str] = []
    for part in content.parts or ():
        if part.text:
            texts.append(part.text)
        elif part.inline_data:
            texts.append(f"<{part.inline_data.mime_type}>")
    return " ".join(texts)


class FakeModel(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        contents = llm_request.contents
        results = [part.function_response for part in contents[-1].parts or () if part.function_response]
        said = [text_of(content) for content in contents if content.role == "user" and text_of(content)]
        if results:
            response = results[-1].response or {}
            step = script.last_step(response.get("result", response))
        else:
            step = script.first_step(said[-1], len(said))
        for piece in step.pieces:
            if stream and piece:
                yield LlmResponse(content=types.ModelContent(piece), partial=True)
        parts = [types.Part(text=step.text)] if step.text else []
        for name, arguments in step.calls:
            parts.append(types.Part(function_call=types.FunctionCall(name=name, args=arguments)))
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=10, candidates_token_count=5)
        yield LlmResponse(content=types.Content(role="model", parts=parts), partial=False, usage_metadata=usage)


agent = LlmAgent(
    name=script.NAME,
    model=FakeModel(model="fake"),
    description=script.DESCRIPTION,
    tools=[FunctionTool(script.pay, require_confirmation=True), script.look, script.slow],
)

if __name__ == "__main__":
    script.run(agent)
