"""Hypothesis strategies for the whole model: every value that a dialect must carry without loss.

Rule: what is generated here is what both protocol versions can say. Two things they cannot: a role that is neither user
nor agent, and metadata that is there but empty.
"""

from typing import Any, Final

from hypothesis import strategies as st

from apcore_a2a.protocol import card, model
from apcore_a2a.protocol.model import Operation, Part, Role, TaskState
from apcore_a2a.protocol.v03.values import FILENAME, MEDIA_TYPE, WRAPPED

# Long ids, huge payloads and deep nesting have tests of their own: here breadth counts, not size.
ids: Final = st.text(min_size=1, max_size=12)
optional_ids: Final = st.just("") | ids
texts: Final = st.text(max_size=20)
urls: Final = st.text(alphabet="abcz09./-_~%", min_size=1, max_size=12).map("https://".__add__)
timestamps: Final = st.just("") | st.datetimes().map(lambda when: when.isoformat(timespec="milliseconds") + "Z")
media_types: Final = st.sampled_from(["", "text/plain", "application/json", "image/png", "x/ü"])
counts: Final = st.none() | st.integers(0, 2**31 - 1)
string_tuples: Final = st.lists(texts, max_size=3).map(tuple)

integers: Final = st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from([2**53 + 1, 2**64, -(2**63) - 1])
floats: Final = st.floats(allow_nan=False, allow_infinity=False)
json_values: Final = st.recursive(
    st.none() | st.booleans() | integers | floats | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
json_objects: Final = st.dictionaries(texts, json_values, max_size=3)
# Where 0.3 has no field for what a part says, it stands in the part's metadata, under these names.
RESERVED: Final = frozenset({FILENAME, MEDIA_TYPE, WRAPPED})
metadata: Final = st.none() | st.dictionaries(
    texts.filter(lambda name: name not in RESERVED), json_values, min_size=1, max_size=3
)


@st.composite
def parts(draw: st.DrawFn) -> Part:
    name, values = draw(
        st.sampled_from([("text", texts), ("raw", st.binary(max_size=20)), ("url", urls), ("data", json_values)])
    )
    content: dict[str, Any] = {name: draw(values)}
    return Part(**content, metadata=draw(metadata), filename=draw(texts), media_type=draw(media_types))


messages: Final = st.builds(
    model.Message,
    message_id=ids,
    role=st.sampled_from([Role.USER, Role.AGENT]),
    parts=st.lists(parts(), min_size=1, max_size=3).map(tuple),
    context_id=optional_ids,
    task_id=optional_ids,
    metadata=metadata,
    extensions=string_tuples,
    reference_task_ids=st.lists(ids, max_size=2).map(tuple),
)
statuses: Final = st.builds(
    model.TaskStatus, state=st.sampled_from(TaskState), message=st.none() | messages, timestamp=timestamps
)


NOTHING: Final = [Part(data=None, media_type="application/json")]


def artifacts(*, min_parts: int = 0) -> st.SearchStrategy[model.Artifact]:
    """An artifact may be empty: a module that returns nothing makes one, and 0.3 says it so."""
    return st.builds(
        model.Artifact,
        artifact_id=ids,
        parts=st.lists(parts(), min_size=min_parts, max_size=3).filter(lambda drawn: drawn != NOTHING),
        name=texts,
        description=texts,
        metadata=metadata,
        extensions=string_tuples,
    )


def tasks(*, min_parts: int = 0) -> st.SearchStrategy[model.Task]:
    return st.builds(
        model.Task,
        id=ids,
        context_id=ids,
        status=statuses,
        artifacts=st.lists(artifacts(min_parts=min_parts), max_size=2),
        history=st.lists(messages, max_size=2),
        metadata=metadata,
    )


status_updates: Final = st.builds(model.StatusUpdate, task_id=ids, context_id=ids, status=statuses, metadata=metadata)


def artifact_updates(*, min_parts: int = 0) -> st.SearchStrategy[model.ArtifactUpdate]:
    return st.builds(
        model.ArtifactUpdate,
        task_id=ids,
        context_id=ids,
        artifact=artifacts(min_parts=min_parts),
        append=st.booleans(),
        last_chunk=st.booleans(),
        metadata=metadata,
    )


def events(*, min_parts: int = 0) -> st.SearchStrategy[model.Event]:
    return tasks(min_parts=min_parts) | messages | status_updates | artifact_updates(min_parts=min_parts)


push_configs: Final = st.builds(
    model.PushConfig,
    url=urls,
    id=optional_ids,
    task_id=ids,
    token=texts,
    authentication=st.none() | st.builds(model.AuthenticationInfo, scheme=ids, credentials=texts),
)
push_pages: Final = st.builds(model.PushConfigPage, configs=st.lists(push_configs, max_size=3).map(tuple))


def task_pages(*, min_parts: int = 0) -> st.SearchStrategy[model.TaskPage]:
    return st.builds(
        model.TaskPage,
        tasks=st.lists(tasks(min_parts=min_parts), max_size=3).map(tuple),
        next_page_token=texts,
        page_size=st.integers(1, 100),
        total_size=st.integers(0, 2**31 - 1),
    )


def _without_task(config: model.PushConfig) -> model.PushConfig:
    """A config sent with a message: its task does not exist yet."""
    return model.PushConfig(url=config.url, id=config.id, token=config.token, authentication=config.authentication)


sends: Final = st.builds(
    model.SendMessage,
    message=messages,
    configuration=st.builds(
        model.SendConfiguration,
        accepted_output_modes=string_tuples,
        task_push_notification_config=st.none() | push_configs.map(_without_task),
        history_length=counts,
        return_immediately=st.booleans(),
    ),
    metadata=metadata,
)


push_refs: Final = st.builds(model.PushConfigRef, task_id=ids, id=optional_ids)
requests: Final[dict[Operation, st.SearchStrategy[model.Value]]] = {
    Operation.SEND: sends,
    Operation.STREAM: sends,
    Operation.GET: st.builds(model.GetTask, id=ids, history_length=counts),
    Operation.LIST: st.builds(
        model.ListTasks,
        context_id=optional_ids,
        status=st.sampled_from(TaskState),
        page_size=st.integers(1, 100),
        page_token=texts,
        history_length=counts,
        status_timestamp_after=timestamps,
        include_artifacts=st.booleans(),
    ),
    Operation.CANCEL: st.builds(model.CancelTask, id=ids, metadata=metadata),
    Operation.SUBSCRIBE: st.builds(model.SubscribeToTask, id=ids),
    Operation.CREATE_PUSH: push_configs,
    Operation.GET_PUSH: push_refs,
    Operation.LIST_PUSH: st.builds(model.ListPushConfigs, task_id=ids),
    Operation.DELETE_PUSH: push_refs,
    Operation.EXTENDED_CARD: st.just(model.GetExtendedCard()),
}


def results(operation: Operation, *, min_parts: int = 0) -> st.SearchStrategy[Any]:
    """What an operation that does not stream may answer with."""
    task = tasks(min_parts=min_parts)
    return {
        Operation.SEND: task | messages,
        Operation.GET: task,
        Operation.LIST: task_pages(min_parts=min_parts),
        Operation.CANCEL: task,
        Operation.CREATE_PUSH: push_configs,
        Operation.GET_PUSH: push_configs,
        Operation.LIST_PUSH: push_pages,
        Operation.DELETE_PUSH: st.none(),
        Operation.EXTENDED_CARD: cards,
    }[operation]


_scopes: Final = st.dictionaries(ids, texts, max_size=2)
_flows: Final = st.one_of(
    st.fixed_dictionaries({"clientCredentials": st.fixed_dictionaries({"tokenUrl": urls, "scopes": _scopes})}),
    st.fixed_dictionaries(
        {
            "authorizationCode": st.fixed_dictionaries(
                {"authorizationUrl": urls, "tokenUrl": urls, "scopes": _scopes}, optional={"refreshUrl": urls}
            )
        }
    ),
)
_described: Final = {"description": ids}
security_schemes: Final[st.SearchStrategy[card.SecurityScheme]] = st.one_of(
    *(
        st.fixed_dictionaries({name: st.fixed_dictionaries(required, optional=_described | optional)})
        for name, required, optional in (
            (
                "apiKeySecurityScheme",
                {"location": st.sampled_from(["header", "query", "cookie"]), "name": ids},
                {},
            ),
            ("httpAuthSecurityScheme", {"scheme": st.sampled_from(["bearer", "basic"])}, {"bearerFormat": ids}),
            ("oauth2SecurityScheme", {"flows": _flows}, {"oauth2MetadataUrl": urls}),
            ("openIdConnectSecurityScheme", {"openIdConnectUrl": urls}, {}),
            ("mtlsSecurityScheme", {}, {}),
        )
    )
)
security_requirements: Final[st.SearchStrategy[tuple[card.SecurityRequirement, ...]]] = st.lists(
    st.dictionaries(ids, st.fixed_dictionaries({"list": st.lists(texts, max_size=2)}), min_size=1, max_size=2).map(
        lambda schemes: {"schemes": schemes}
    ),
    max_size=2,
).map(tuple)
skills: Final = st.builds(
    card.AgentSkill,
    id=ids,
    name=texts,
    description=texts,
    tags=string_tuples,
    examples=string_tuples,
    input_modes=string_tuples,
    output_modes=string_tuples,
    security_requirements=security_requirements,
)
capabilities: Final = st.builds(
    card.AgentCapabilities,
    streaming=st.none() | st.booleans(),
    push_notifications=st.none() | st.booleans(),
    extensions=st.lists(
        st.builds(card.AgentExtension, uri=ids, description=texts, required=st.booleans(), params=metadata), max_size=2
    ).map(tuple),
    extended_agent_card=st.none() | st.booleans(),
)


def interfaces(version: str) -> st.SearchStrategy[card.AgentInterface]:
    return st.builds(
        card.AgentInterface,
        url=urls,
        protocol_binding=st.sampled_from(["JSONRPC", "HTTP+JSON", "GRPC"]),
        protocol_version=st.just(version),
    )


def cards_of(*versions: str) -> st.SearchStrategy[card.AgentCard]:
    """A card with one or two interfaces of each version named, in that order."""
    of_each = st.tuples(*(st.lists(interfaces(version), min_size=1, max_size=2, unique=True) for version in versions))
    return st.builds(
        card.AgentCard,
        name=texts,
        description=texts,
        version=texts,
        supported_interfaces=of_each.map(lambda groups: tuple(item for group in groups for item in group)),
        capabilities=capabilities,
        default_input_modes=string_tuples,
        default_output_modes=string_tuples,
        skills=st.lists(skills, max_size=2).map(tuple),
        provider=st.none() | st.builds(card.AgentProvider, url=urls, organization=texts),
        documentation_url=st.none() | urls,
        icon_url=st.none() | urls,
        security_schemes=st.none() | st.dictionaries(ids, security_schemes, min_size=1, max_size=2),
        security_requirements=security_requirements,
        signatures=st.lists(
            st.builds(card.AgentCardSignature, protected=texts, signature=texts, header=metadata), max_size=1
        ).map(tuple),
    )


cards: Final = cards_of("0.3", "1.0")
