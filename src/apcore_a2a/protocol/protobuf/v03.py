"""The message types of A2A 0.3 (package a2a.v1) as tables of fields. Names are those of its ProtoJSON."""

from typing import Final

from apcore_a2a.protocol.protobuf.v1 import ENUMS as ENUMS_1_0
from apcore_a2a.protocol.protobuf.v1 import SCHEMA as SCHEMA_1_0
from apcore_a2a.protocol.protobuf.well_known import make_messages
from apcore_a2a.protocol.protobuf.wire import Enumeration

SERVICE: Final = "a2a.v1.A2AService"

ENUMS: Final = {
    "TaskState": Enumeration(
        "TASK_STATE_UNSPECIFIED",
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
        "TASK_STATE_FAILED",
        "TASK_STATE_CANCELLED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    ),
    "Role": ENUMS_1_0["Role"],
}

_SAME: Final = (  # in both versions
    "Task",
    "TaskStatus",
    "AgentProvider",
    "AgentExtension",
    "AgentCardSignature",
    "StringList",
    "SecurityScheme",
    "APIKeySecurityScheme",
    "HTTPAuthSecurityScheme",
    "OAuth2SecurityScheme",
    "OpenIdConnectSecurityScheme",
    "MutualTlsSecurityScheme",
    "ClientCredentialsOAuthFlow",
    "ImplicitOAuthFlow",
    "PasswordOAuthFlow",
    "SendMessageResponse",
    "StreamResponse",
    "Empty",
)

SCHEMA: Final = {
    **{name: SCHEMA_1_0[name] for name in _SAME},
    "SendMessageConfiguration": """
        1 acceptedOutputModes: text*, 2 pushNotification: PushNotificationConfig, 3 historyLength: int32,
        4 blocking: bool""",
    "Part": "1 text: text|part, 2 file: FilePart|part, 3 data: DataPart|part, 4 metadata: Struct",
    "FilePart": "1 fileWithUri: text|file, 2 fileWithBytes: base64|file, 3 mimeType: text, 4 name: text",
    "DataPart": "1 data: Struct",
    "Message": """
        1 messageId: text, 2 contextId: text, 3 taskId: text, 4 role: Role, 5 content: Part*, 6 metadata: Struct,
        7 extensions: text*""",
    "Artifact": """
        1 artifactId: text, 3 name: text, 4 description: text, 5 parts: Part*, 6 metadata: Struct,
        7 extensions: text*""",
    "TaskStatusUpdateEvent": """
        1 taskId: text, 2 contextId: text, 3 status: TaskStatus, 4 final: bool, 5 metadata: Struct""",
    "TaskArtifactUpdateEvent": """
        1 taskId: text, 2 contextId: text, 3 artifact: Artifact, 4 append: bool, 5 lastChunk: bool,
        6 metadata: Struct""",
    "PushNotificationConfig": "1 id: text, 2 url: text, 3 token: text, 4 authentication: AuthenticationInfo",
    "AuthenticationInfo": "1 schemes: text*, 2 credentials: text",
    "AgentInterface": "1 url: text, 2 transport: text",
    "AgentCard": """
        16 protocolVersion: text, 1 name: text, 2 description: text, 3 url: text, 14 preferredTransport: text,
        15 additionalInterfaces: AgentInterface*, 4 provider: AgentProvider, 5 version: text, 6 documentationUrl: text,
        7 capabilities: AgentCapabilities, 8 securitySchemes: map SecurityScheme, 9 security: Security*,
        10 defaultInputModes: text*, 11 defaultOutputModes: text*, 12 skills: AgentSkill*,
        13 supportsAuthenticatedExtendedCard: bool, 17 signatures: AgentCardSignature*, 18 iconUrl: text""",
    "AgentCapabilities": "1 streaming: bool, 2 pushNotifications: bool, 3 extensions: AgentExtension*",
    "AgentSkill": """
        1 id: text, 2 name: text, 3 description: text, 4 tags: text*, 5 examples: text*, 6 inputModes: text*,
        7 outputModes: text*, 8 security: Security*""",
    "Security": "1 schemes: map StringList",
    "AuthorizationCodeOAuthFlow": "1 authorizationUrl: text, 2 tokenUrl: text, 3 refreshUrl: text, 4 scopes: map text",
    "OAuthFlows": """
        1 authorizationCode: AuthorizationCodeOAuthFlow|flow, 2 clientCredentials: ClientCredentialsOAuthFlow|flow,
        3 implicit: ImplicitOAuthFlow|flow, 4 password: PasswordOAuthFlow|flow""",
    "TaskPushNotificationConfig": "1 name: text, 2 pushNotificationConfig: PushNotificationConfig",
    "SendMessageRequest": "1 message: Message, 2 configuration: SendMessageConfiguration, 3 metadata: Struct",
    "GetTaskRequest": "1 name: text, 2 historyLength: int32",
    "CancelTaskRequest": "1 name: text",
    "TaskSubscriptionRequest": "1 name: text",
    "GetTaskPushNotificationConfigRequest": "1 name: text",
    "DeleteTaskPushNotificationConfigRequest": "1 name: text",
    "CreateTaskPushNotificationConfigRequest": "1 parent: text, 2 configId: text, 3 config: TaskPushNotificationConfig",
    "ListTaskPushNotificationConfigRequest": "1 parent: text, 2 pageSize: int32, 3 pageToken: text",
    "ListTaskPushNotificationConfigResponse": "1 configs: TaskPushNotificationConfig*, 2 nextPageToken: text",
    "GetAgentCardRequest": "",
}

MESSAGES: Final = make_messages(SCHEMA, ENUMS)
