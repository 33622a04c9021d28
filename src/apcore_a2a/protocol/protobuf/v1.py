"""The message types of A2A 1.0 (package lf.a2a.v1) as tables of fields. Names are those of ProtoJSON."""

from typing import Final

from apcore_a2a.protocol.protobuf.well_known import make_messages
from apcore_a2a.protocol.protobuf.wire import Enumeration

SERVICE: Final = "lf.a2a.v1.A2AService"

ENUMS: Final = {
    "TaskState": Enumeration(
        "TASK_STATE_UNSPECIFIED",
        "TASK_STATE_SUBMITTED",
        "TASK_STATE_WORKING",
        "TASK_STATE_COMPLETED",
        "TASK_STATE_FAILED",
        "TASK_STATE_CANCELED",
        "TASK_STATE_INPUT_REQUIRED",
        "TASK_STATE_REJECTED",
        "TASK_STATE_AUTH_REQUIRED",
    ),
    "Role": Enumeration("ROLE_UNSPECIFIED", "ROLE_USER", "ROLE_AGENT"),
}

SCHEMA: Final = {
    "SendMessageConfiguration": """
        1 acceptedOutputModes: text*, 2 taskPushNotificationConfig: TaskPushNotificationConfig,
        3 historyLength: int32?, 4 returnImmediately: bool""",
    "Task": """
        1 id: text, 2 contextId: text, 3 status: TaskStatus, 4 artifacts: Artifact*, 5 history: Message*,
        6 metadata: Struct""",
    "TaskStatus": "1 state: TaskState, 2 message: Message, 3 timestamp: Timestamp",
    "Part": """
        1 text: text|content, 2 raw: bytes|content, 3 url: text|content, 4 data: Value|content, 5 metadata: Struct,
        6 filename: text, 7 mediaType: text""",
    "Message": """
        1 messageId: text, 2 contextId: text, 3 taskId: text, 4 role: Role, 5 parts: Part*, 6 metadata: Struct,
        7 extensions: text*, 8 referenceTaskIds: text*""",
    "Artifact": """
        1 artifactId: text, 2 name: text, 3 description: text, 4 parts: Part*, 5 metadata: Struct,
        6 extensions: text*""",
    "TaskStatusUpdateEvent": "1 taskId: text, 2 contextId: text, 3 status: TaskStatus, 4 metadata: Struct",
    "TaskArtifactUpdateEvent": """
        1 taskId: text, 2 contextId: text, 3 artifact: Artifact, 4 append: bool, 5 lastChunk: bool,
        6 metadata: Struct""",
    "AuthenticationInfo": "1 scheme: text, 2 credentials: text",
    "AgentInterface": "1 url: text, 2 protocolBinding: text, 3 tenant: text, 4 protocolVersion: text",
    "AgentCard": """
        1 name: text, 2 description: text, 3 supportedInterfaces: AgentInterface*, 4 provider: AgentProvider,
        5 version: text, 6 documentationUrl: text?, 7 capabilities: AgentCapabilities,
        8 securitySchemes: map SecurityScheme, 9 securityRequirements: SecurityRequirement*,
        10 defaultInputModes: text*, 11 defaultOutputModes: text*,
        12 skills: AgentSkill*, 13 signatures: AgentCardSignature*, 14 iconUrl: text?""",
    "AgentProvider": "1 url: text, 2 organization: text",
    "AgentCapabilities": """
        1 streaming: bool?, 2 pushNotifications: bool?, 3 extensions: AgentExtension*, 4 extendedAgentCard: bool?""",
    "AgentExtension": "1 uri: text, 2 description: text, 3 required: bool, 4 params: Struct",
    "AgentSkill": """
        1 id: text, 2 name: text, 3 description: text, 4 tags: text*, 5 examples: text*, 6 inputModes: text*,
        7 outputModes: text*, 8 securityRequirements: SecurityRequirement*""",
    "AgentCardSignature": "1 protected: text, 2 signature: text, 3 header: Struct",
    "TaskPushNotificationConfig": """
        1 tenant: text, 2 id: text, 3 taskId: text, 4 url: text, 5 token: text, 6 authentication: AuthenticationInfo""",
    "StringList": "1 list: text*",
    "SecurityRequirement": "1 schemes: map StringList",
    "SecurityScheme": """
        1 apiKeySecurityScheme: APIKeySecurityScheme|scheme, 2 httpAuthSecurityScheme: HTTPAuthSecurityScheme|scheme,
        3 oauth2SecurityScheme: OAuth2SecurityScheme|scheme,
        4 openIdConnectSecurityScheme: OpenIdConnectSecurityScheme|scheme,
        5 mtlsSecurityScheme: MutualTlsSecurityScheme|scheme""",
    "APIKeySecurityScheme": "1 description: text, 2 location: text, 3 name: text",
    "HTTPAuthSecurityScheme": "1 description: text, 2 scheme: text, 3 bearerFormat: text",
    "OAuth2SecurityScheme": "1 description: text, 2 flows: OAuthFlows, 3 oauth2MetadataUrl: text",
    "OpenIdConnectSecurityScheme": "1 description: text, 2 openIdConnectUrl: text",
    "MutualTlsSecurityScheme": "1 description: text",
    "OAuthFlows": """
        1 authorizationCode: AuthorizationCodeOAuthFlow|flow, 2 clientCredentials: ClientCredentialsOAuthFlow|flow,
        3 implicit: ImplicitOAuthFlow|flow, 4 password: PasswordOAuthFlow|flow,
        5 deviceCode: DeviceCodeOAuthFlow|flow""",
    "AuthorizationCodeOAuthFlow": """
        1 authorizationUrl: text, 2 tokenUrl: text, 3 refreshUrl: text, 4 scopes: map text, 5 pkceRequired: bool""",
    "ClientCredentialsOAuthFlow": "1 tokenUrl: text, 2 refreshUrl: text, 3 scopes: map text",
    "ImplicitOAuthFlow": "1 authorizationUrl: text, 2 refreshUrl: text, 3 scopes: map text",
    "PasswordOAuthFlow": "1 tokenUrl: text, 2 refreshUrl: text, 3 scopes: map text",
    "DeviceCodeOAuthFlow": "1 deviceAuthorizationUrl: text, 2 tokenUrl: text, 3 refreshUrl: text, 4 scopes: map text",
    "SendMessageRequest": """
        1 tenant: text, 2 message: Message, 3 configuration: SendMessageConfiguration, 4 metadata: Struct""",
    "GetTaskRequest": "1 tenant: text, 2 id: text, 3 historyLength: int32?",
    "ListTasksRequest": """
        1 tenant: text, 2 contextId: text, 3 status: TaskState, 4 pageSize: int32?, 5 pageToken: text,
        6 historyLength: int32?, 7 statusTimestampAfter: Timestamp, 8 includeArtifacts: bool?""",
    "ListTasksResponse": "1 tasks: Task*, 2 nextPageToken: text, 3 pageSize: int32, 4 totalSize: int32",
    "CancelTaskRequest": "1 tenant: text, 2 id: text, 3 metadata: Struct",
    "GetTaskPushNotificationConfigRequest": "1 tenant: text, 2 taskId: text, 3 id: text",
    "DeleteTaskPushNotificationConfigRequest": "1 tenant: text, 2 taskId: text, 3 id: text",
    "SubscribeToTaskRequest": "1 tenant: text, 2 id: text",
    "ListTaskPushNotificationConfigsRequest": "4 tenant: text, 1 taskId: text, 2 pageSize: int32, 3 pageToken: text",
    "GetExtendedAgentCardRequest": "1 tenant: text",
    "SendMessageResponse": "1 task: Task|payload, 2 message: Message|payload",
    "StreamResponse": """
        1 task: Task|payload, 2 message: Message|payload, 3 statusUpdate: TaskStatusUpdateEvent|payload,
        4 artifactUpdate: TaskArtifactUpdateEvent|payload""",
    "ListTaskPushNotificationConfigsResponse": "1 configs: TaskPushNotificationConfig*, 2 nextPageToken: text",
    "Empty": "",
}

MESSAGES: Final = make_messages(SCHEMA, ENUMS)
