"""Several functions as one agent: each is a skill, and a message says which one it is for.

Rule: a task stays with the skill that it began with, whatever a reply says.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from apcore_a2a.agent import Admission, AgentEvent, Call
from apcore_a2a.agents.function_skill import FunctionSkill, user_messages
from apcore_a2a.agents.functions import FunctionAgent
from apcore_a2a.agents.routing import first_skill_id, missing_skill, named_skill
from apcore_a2a.errors import SkillNotFoundError, list_names
from apcore_a2a.protocol.model import StatusUpdate, TaskState, TaskStatus


class SkillAgent:
    """Serves functions as skills.

    Args:
        agents: One for each function.
        default_skill: Whom a message is for that names no skill; else the only skill there is, if it is the only one.

    Raises:
        ValueError: there is no such skill.
    """

    def __init__(self, agents: Sequence[FunctionAgent], *, default_skill: str = "") -> None:
        self._agents = {agent.skill.id: agent for agent in agents}
        self._any_agent = agents[0]  # they share their threads
        self._default_skill = default_skill
        if len(self._agents) == 1:
            self._default_skill = next(iter(self._agents))
        if default_skill and default_skill not in self._agents:
            raise ValueError(f"default_skill {default_skill!r} is none of the skills: {list_names(self._agents)}")
        self.may_reply = any(agent.may_reply for agent in agents)

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

    async def run(self, call: Call) -> AsyncGenerator[AgentEvent, None]:
        agent = self._find(call)
        if self.may_reply and not agent.may_reply:
            # Its task is there from the start, though another function's may never be.
            yield StatusUpdate(status=TaskStatus(state=TaskState.WORKING))
        async with aclosing(agent.run(call)) as events:
            async for event in events:
                yield event

    def _find(self, call: Call) -> FunctionAgent:
        skill_id = named_skill(call)
        if call.resumed:
            # What the request of the first message said besides is in the task's metadata.
            skill_id = first_skill_id(user_messages(call)[0].metadata, call.task.metadata)
        skill_id = skill_id or self._default_skill
        if not skill_id:
            raise missing_skill(self._agents)
        agent = self._agents.get(skill_id)
        if agent is None:
            raise SkillNotFoundError(skill_id, self._agents)
        return agent
