"""The clients people use, against the simulated engine: what they parse, we wrote well."""

import pytest

from tests.support.real import clients

MESSAGES = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
async def engine(start):
    return await start(api_key="secret")


@pytest.fixture
async def openai_client(engine):
    async with clients.openai.AsyncOpenAI(
        base_url=f"{engine.url}/v1", api_key="secret", max_retries=0
    ) as client:
        yield client


async def test_openai_chat(openai_client):
    whole = await openai_client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9)
    stream = await openai_client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 9
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "length"


async def test_openai_completions_embeddings_models(openai_client):
    whole = await openai_client.completions.create(model="tiny", prompt="Hello", max_tokens=4)
    assert whole.usage.completion_tokens == 4
    embedded = await openai_client.embeddings.create(model="tiny", input=["a", "b"])
    assert [len(row.embedding) for row in embedded.data] == [16, 16]
    assert [model.id async for model in openai_client.models.list()] == ["tiny"]


async def test_openai_responses(openai_client):
    whole = await openai_client.responses.create(model="tiny", input="Hello", max_output_tokens=5)
    async with openai_client.responses.stream(model="tiny", input="Hello", max_output_tokens=5) as stream:
        kinds = [event.type async for event in stream]
        last = await stream.get_final_response()
    assert last.output_text == whole.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert last.usage.output_tokens == 5


async def test_openai_errors(openai_client, engine):
    with pytest.raises(clients.openai.NotFoundError, match="does not exist"):
        await openai_client.chat.completions.create(model="nope", messages=MESSAGES)
    async with clients.openai.AsyncOpenAI(
        base_url=f"{engine.url}/v1", api_key="wrong", max_retries=0
    ) as client:
        with pytest.raises(clients.openai.AuthenticationError):
            await client.chat.completions.create(model="tiny", messages=MESSAGES)


async def test_anthropic_messages(engine):
    async with clients.anthropic.AsyncAnthropic(
        base_url=engine.url, auth_token="secret", max_retries=0
    ) as client:
        whole = await client.messages.create(model="tiny", messages=MESSAGES, max_tokens=6)
        async with client.messages.stream(model="tiny", messages=MESSAGES, max_tokens=6) as stream:
            last = await stream.get_final_message()
        assert last.content[0].text == whole.content[0].text
        assert last.stop_reason == whole.stop_reason == "max_tokens"
        assert last.usage.output_tokens == 6
        counted = await client.messages.count_tokens(model="tiny", messages=MESSAGES)
        assert counted.input_tokens == whole.usage.input_tokens
        with pytest.raises(clients.anthropic.NotFoundError):
            await client.messages.create(model="nope", messages=MESSAGES, max_tokens=6)


async def test_sglang_speaks_to_them_too(start):
    engine = await start(dialect="sglang")
    async with clients.openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="x", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=5, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage.completion_tokens == 5
        assert len("".join(c.choices[0].delta.content or "" for c in chunks if c.choices)) == 20
        whole = await client.completions.create(model="tiny", prompt="Hello", max_tokens=4)
        assert whole.choices[0].finish_reason == "length"
