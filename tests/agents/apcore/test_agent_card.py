"""The card of the modules: its content for different callers, and that it is always up to date."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import apcore
import pytest

from apcore_a2a import __version__
from apcore_a2a.agent import Caller
from apcore_a2a.agents.apcore.agent import build_card, is_open
from apcore_a2a.agents.apcore.executor import ServedExecutor, open_modules
from apcore_a2a.agents.apcore.modules import ModuleInfo
from apcore_a2a.agents.skills import EXTENSION
from apcore_a2a.app.card import complete
from apcore_a2a.app.modules import compose_modules
from apcore_a2a.protocol.card import AgentCard
from apcore_a2a.protocol.model import encode
from apcore_a2a.settings import Settings
from tests.agents.apcore.running import EXECUTORS, Add, Counts, Returns, modules_of, registry_of
from tests.requirements import requirement


def card_of(source: Any = None, *, extended: bool = False, **modules: Any) -> AgentCard:
    opened = open_modules(registry_of(**modules) if source is None else source)

    def is_public(module: ModuleInfo) -> bool:
        return is_open(module, opened) and not module.requires_approval

    return build_card(opened, show=None if extended else is_public)


def ids(card: AgentCard) -> list[str]:
    return [skill.id for skill in card.skills]


def configured(**project: str) -> ServedExecutor:
    """apcore's Registry does not expose its configuration, so it is passed separately."""
    return ServedExecutor(registry_of(math__add=Add()), config=apcore.Config({"project": project}))


@requirement("FR-AGC-001")
def test_peer_weakness_37_the_card_is_named_by_the_project() -> None:
    card = card_of(configured(name="calculator", description="Counts things", version="1.2.3"))
    assert (card.name, card.description, card.version) == ("calculator", "Counts things", "1.2.3")


@requirement("FR-AGC-001")
def test_options_override_the_project() -> None:
    modules = open_modules(configured(name="calculator", description="Counts things", version="1.2.3"))
    card = complete(build_card(modules), Settings(name="mine", description="My own", version="9"), None)
    assert (card.name, card.description, card.version) == ("mine", "My own", "9")


@requirement("FR-AGC-001")
def test_a_card_without_configuration_has_defaults() -> None:
    card = card_of(math__add=Add(), text__echo=Returns({}))
    assert (card.name, card.description, card.version) == ("apcore-agent", "apcore agent with 2 skills", __version__)
    assert card_of(math__add=Add()).description == "apcore agent with 1 skill"


def test_the_project_is_read_from_a_registry_that_exposes_its_configuration() -> None:
    class Telling(apcore.Registry):  # type: ignore[misc]  # apcore is untyped
        config = apcore.Config({"project": {"name": "calculator"}})

    registry = Telling()
    registry.register("math.add", Add())
    assert card_of(registry).name == "calculator"


@requirement("FR-AGC-001")
@pytest.mark.parametrize("make", [registry_of, lambda **modules: apcore.Executor(registry_of(**modules))])
@pytest.mark.parametrize(("name", "warnings"), [("mine", 0), (None, 1)])
def test_a_configuration_that_cannot_be_read_is_logged_once(
    make: Any, name: str | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    parts = compose_modules(make(math__add=Add()), None, Settings(name=name), None)
    assert parts.card.name == (name or "apcore-agent")
    assert caplog.text.count("serve an APCore client") == warnings


def test_the_project_is_read_from_a_client() -> None:
    if not hasattr(apcore, "APCore"):
        pytest.skip("this apcore has no client")
    client = apcore.APCore(config=apcore.Config({"project": {"name": "calculator"}}))
    client.registry.register("math.add", Add())
    assert card_of(client).name == "calculator"


@requirement("FR-AGC-001")
def test_a_card_has_a_skill_for_each_module_and_json_as_its_default() -> None:
    card = card_of(math__add=Add(), text__echo=Returns({}))
    assert ids(card) == ["math.add", "text.echo"]
    assert card.default_input_modes == card.default_output_modes == ("application/json",)


def test_the_card_states_that_the_agent_streams() -> None:
    assert card_of(math__add=Add()).capabilities.streaming is True
    assert card_of(a__counts=Counts()).capabilities.streaming is True


def test_the_agent_of_an_executor_without_stream_does_not_stream() -> None:
    class Own:
        registry = registry_of(math__add=Add())

        def validate(self, module_id: str, inputs: Any) -> Any:
            raise NotImplementedError

        async def call_async(self, module_id: str, inputs: Any, context: Any) -> Any:
            raise NotImplementedError

    assert card_of(Own()).capabilities.streaming is False


def test_schemas_and_annotations_are_published_through_an_extension() -> None:
    (extension,) = card_of(math__add=Add()).capabilities.extensions
    assert (extension.uri, extension.required) == (EXTENSION, False)
    params = json.loads(json.dumps(extension.params))["skills"]["math.add"]
    assert params["annotations"] == {
        "readonly": True,
        "destructive": False,
        "idempotent": False,
        "requires_approval": False,
        "open_world": True,
    }
    assert params["inputSchema"]["required"] == ["a", "b"]
    assert params["outputSchema"]["required"] == ["total"]


@requirement("FR-SKL-001")
def test_a_module_without_a_description_is_not_on_the_card_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        card = card_of(math__add=Add(), nameless__tool=Returns({}, description=""))
    assert ids(card) == ["math.add"]
    assert "nameless.tool" in [record.__dict__.get("module_id") for record in caplog.records]
    assert card.description == "apcore agent with 1 skill"  # peer weakness 17: hidden ones are not counted


def test_hidden_modules_and_apcores_own_are_on_no_card() -> None:
    if not hasattr(apcore.ModuleAnnotations(), "discoverable"):
        pytest.skip("this apcore hides nothing")
    hidden = Returns({}, annotations=apcore.ModuleAnnotations(discoverable=False))
    registry = registry_of(math__add=Add(), secret__tool=hidden)
    registry.register_internal("system.health.summary", Returns({}))
    assert ids(card_of(registry)) == ids(card_of(registry, extended=True)) == ["math.add"]
    assert "secret.tool" not in str(card_of(registry).to_dict())


def test_a_module_that_requires_approval_is_on_the_extended_card_only() -> None:
    gated = Returns({}, annotations=apcore.ModuleAnnotations(requires_approval=True))
    registry = registry_of(math__add=Add(), bank__pay=gated)
    assert ids(card_of(registry)) == ["math.add"]
    assert ids(card_of(registry, extended=True)) == ["bank.pay", "math.add"]
    assert "bank.pay" not in str(card_of(registry).to_dict())


@pytest.mark.parametrize("make_executor", EXECUTORS)
def test_a_module_denied_to_anonymous_callers_is_on_the_extended_card_only(make_executor: Any) -> None:
    rules = [
        apcore.ACLRule(callers=["*"], targets=["bank.*"], effect="allow", conditions={"roles": ["teller"]}),
        apcore.ACLRule(callers=["*"], targets=["math.*"], effect="allow"),
    ]
    executor = make_executor(
        registry_of(math__add=Add(), bank__pay=Returns({})), acl=apcore.ACL(rules=rules, default_effect="deny")
    )
    assert ids(card_of(executor)) == ["math.add"]
    assert ids(card_of(executor, extended=True)) == ["bank.pay", "math.add"]


def test_peer_weakness_16_a_card_built_after_a_change_shows_it() -> None:
    registry = registry_of(math__add=Add())
    modules = open_modules(registry)
    assert ids(build_card(modules)) == ["math.add"]
    registry.register("text.echo", Returns({}))
    registry.unregister("math.add")
    assert ids(build_card(modules)) == ["text.echo"]


def test_peer_weakness_17_tags_are_always_there() -> None:
    assert json.loads(encode(card_of(a__module=Returns({}))))["skills"][0]["tags"] == []


def test_a_card_can_be_sent() -> None:
    card = build_card(modules_of(math__add=Add(), a__counts=Counts()))
    assert json.loads(json.dumps(card.to_dict()))["skills"][1]["id"] == "math.add"


class Reads(apcore.ACL):  # type: ignore[misc]  # apcore is untyped
    """A custom ACL class, whose rules only it can evaluate."""

    def check(self, caller_id: Any, target_id: Any, context: Any = None) -> bool:
        return bool(target_id == "math.add")

    def check_access(self, caller_id: Any, target_id: Any, context: Any = None, **_: Any) -> Any:
        return SimpleNamespace(access="allow" if target_id == "math.add" else "deny")


def test_a_custom_acl_class_is_evaluated_itself_for_the_card() -> None:
    executor = ServedExecutor(registry_of(math__add=Add(), bank__pay=Returns({})), acl=Reads(rules=[]))
    assert ids(card_of(executor)) == ["math.add"]


@requirement("FR-AGC-004")
def test_a_card_for_a_caller_follows_the_current_rules_of_the_acl() -> None:
    rule = apcore.ACLRule(callers=["*"], targets=["bank.*"], effect="allow", conditions={"roles": ["teller"]})
    acl = apcore.ACL(rules=[rule], default_effect="deny")
    modules = open_modules(ServedExecutor(registry_of(math__add=Add(), bank__pay=Returns({})), acl=acl))

    def shown_to(*roles: str) -> list[str]:
        caller = Caller(id="ada", type="user", roles=roles)
        return ids(build_card(modules, show=lambda module: is_open(module, modules, caller)))

    assert (shown_to("teller"), shown_to("guest")) == (["bank.pay"], [])
    acl.add_rule(apcore.ACLRule(callers=["*"], targets=["math.*"], effect="allow"))
    assert (shown_to("teller"), shown_to("guest")) == (["bank.pay", "math.add"], ["math.add"])


def test_all_registered_modules_are_counted() -> None:
    modules = modules_of(math__add=Add(), no__description=Returns({}, description=""))
    assert (len(modules), len(ids(build_card(modules)))) == (2, 1)
