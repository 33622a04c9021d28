"""Several functions as one agent: each is a skill, and a message says which one it is for.

Rule: a task stays with the skill that it began with, whatever a reply says.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from apcore_a2a.agent import Admission, AgentEvent, Call, Caller
from apcore_a2a.agents.function_skill import FunctionSkill, user_messages
from apcore_a2a.agents.functions import FunctionAgent
from apcore_a2a.agents.routing import first_skill_id, missing_skill, named_skill
from apcore_a2a.errors import SkillNotFoundError, list_names
from apcore_a2a.protocol.model import StatusUpdate, TaskState, TaskStatus
from apcore_a2a.protocol.skill_names import advise

MayKnow = Callable[[Caller, FunctionSkill], bool]


class SkillAgent:
    """Serves functions as skills.

    Args:
        agents: One for each function.
        default_skill: Whom a message is for that names no skill; else the only skill there is, if it is the only one.
        may_know: Whether a caller may be told that there is a skill, by an error that lists them; everybody if None.

    Raises:
        ValueError: there is no such skill.
    """

    def __init__(
        self, agents: Sequence[FunctionAgent], *, default_skill: str = "", may_know: MayKnow | None = None
    ) -> None:
        self._agents = {agent.skill.id: agent for agent in agents}
        self._any_agent = agents[0]  # they share their threads
        self._default_skill = default_skill
        self._may_know = may_know
        if len(self._agents) == 1:
            self._default_skill = next(iter(self._agents))
        if default_skill and default_skill not in self._agents:
            raise ValueError(f"default_skill {default_skill!r} is none of the skills: {list_names(self._agents)}")
        self.may_reply = any(agent.may_reply for agent in agents)

    def telling(self, may_know: MayKnow) -> "SkillAgent":
        """The same agent, whose errors name only the skills that their caller may know of."""
        return SkillAgent(list(self._agents.values()), default_skill=self._default_skill, may_know=may_know)

    @property
    def skills(self) -> tuple[FunctionSkill, ...]:
        return tuple(agent.skill for agent in self._agents.values())

    @property
    def stuck_threads(self) -> int:
        """Threads on which functions go on although their runs have ended."""
        return self._any_agent.stuck_threads

    @property
    def thread_capacity(self) -> int:
        """How many calls of functions that block can run at once, as things stand."""
        return self._any_agent.thread_capacity

    async def admit(self, call: Call) -> Admission:
        return await self._find(call).admit(call)

    def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        agent = self._find(call)
        if self.may_reply and not agent.may_reply:
            return self._run_with_task(agent, call)
        return agent.run(call)

    async def _run_with_task(self, agent: FunctionAgent, call: Call) -> AsyncGenerator[AgentEvent, None]:
        """Have the task from the start, though that of another function may never be."""
        yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
        async with aclosing(agent.run(call)) as events:
            async for event in events:
                yield event

    def skill_of(self, call: Call) -> str:
        """The id of the skill that a message is for, whether there is such a skill or not."""
        skill_id = named_skill(call)
        if call.resumed:
            # What the request of the first message said besides is in the task's metadata.
            skill_id = first_skill_id(user_messages(call)[0].metadata, call.task.metadata)
        skill_id = skill_id or self._default_skill
        if not skill_id:
            raise missing_skill(self._known_to(call.caller))
        return skill_id

    def _find(self, call: Call) -> FunctionAgent:
        skill_id = self.skill_of(call)
        agent = self._agents.get(skill_id)
        if agent is None:
            raise SkillNotFoundError(skill_id, advise(self._known_to(call.caller), skill_id))
        return agent

    def _known_to(self, caller: Caller) -> list[str]:
        if self._may_know is None:
            return list(self._agents)
        return [skill.id for skill in self.skills if self._may_know(caller, skill)]
