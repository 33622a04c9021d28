import type { ComponentChild } from "preact";
import * as agent from "./agent";

export function WebhooksTab(): ComponentChild {
  if (!agent.card.value?.push) {
    return <p class="empty">This agent has no webhooks. An agent of ours gets them with --push-notifications (in Python: push_notifications=True).</p>;
  }
  return <p class="empty">…</p>;
}
