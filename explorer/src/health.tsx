import type { ComponentChild } from "preact";
import { useEffect, useState } from "preact/hooks";
import { AgentError } from "./a2a";
import * as agent from "./agent";
import { duration } from "./format";
import { record, text } from "./json";
import { exchanges, wireTick } from "./wire";

const POLL_INTERVAL = 2000;
const KEPT = 60;

interface Sample {
  at: number;
  values: Record<string, number>;
}

export function HealthTab(): ComponentChild {
  const [health, setHealth] = useState<Record<string, any> | null>(null);
  const [trouble, setTrouble] = useState("");
  const [hasMetrics, setHasMetrics] = useState(true);
  const [samples, setSamples] = useState<Sample[]>([]);
  useEffect(() => {
    let isOn = true;
    let asksMetrics = true;
    const poll = async (): Promise<void> => {
      try {
        setHealth(record(await agent.get("health", { quiet: true })));
        setTrouble("");
      } catch (error) {
        setHealth(record((error as { body?: unknown }).body));
        setTrouble(error instanceof Error ? error.message : "no answer");
      }
      if (!asksMetrics || !isOn) return;
      try {
        const values = record(await agent.get("metrics", { quiet: true }));
        if (isOn) setSamples((before) => [...before.slice(1 - KEPT), { at: Date.now(), values }]);
      } catch (error) {
        if (!(error instanceof AgentError)) return;
        asksMetrics = false;
        setHasMetrics(false);
      }
    };
    void poll();
    const timer = setInterval(() => void poll(), POLL_INTERVAL);
    return () => {
      isOn = false;
      clearInterval(timer);
    };
  }, []);
  const status = text(health?.["status"]);
  return (
    <div class="health-tab">
      <p class={`banner ${status === "healthy" ? "good" : "bad"}`} role="status">
        {status ? `${status}${health?.["reason"] ? `: ${text(health["reason"])}` : ""}` : trouble ? `No health at /health: ${trouble}` : "Loading…"}
      </p>
      <div class="tiles">
        {typeof health?.["module_count"] === "number" && <Tile name="modules" value={String(health["module_count"])} />}
        {typeof health?.["uptime_seconds"] === "number" && <Tile name="uptime" value={duration(health["uptime_seconds"] * 1000)} />}
        <Tile name="store" value={status === "healthy" ? "healthy" : status ? "see above" : "unknown"} />
        <Latency />
      </div>
      {hasMetrics ? <Figures samples={samples} /> : <p class="dim">No metrics: start the agent with --metrics (in Python: metrics=True).</p>}
    </div>
  );
}

function Tile({ name, value, points }: { name: string; value: string; points?: number[] }): ComponentChild {
  return (
    <div class="tile">
      <span class="tile-name">{name}</span>
      <strong>{value}</strong>
      {points && points.length > 1 && <Spark points={points} />}
    </div>
  );
}

function Spark({ points }: { points: number[] }): ComponentChild {
  const top = Math.max(...points, 1);
  const path = points.map((value, index) => `${index ? "L" : "M"}${((index / Math.max(20, points.length - 1)) * 100).toFixed(1)} ${(20 - (value / top) * 18).toFixed(1)}`).join("");
  return (
    <svg class="spark" viewBox="0 0 100 21" preserveAspectRatio="none" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}

/** The durations of this page's own calls. */
function Latency(): ComponentChild {
  void wireTick.value;
  const took = exchanges.filter((each) => each.ms !== null && !each.failure && !each.frames.length).map((each) => each.ms!).sort((one, other) => one - other);
  const at = (share: number): string => (took.length ? duration(took[Math.min(took.length - 1, Math.floor(took.length * share))]!) : "—");
  return (
    <>
      <Tile name={`p50 of ${took.length} calls`} value={at(0.5)} />
      <Tile name="p99" value={at(0.99)} />
    </>
  );
}

const TILES: [string, string][] = [
  ["active_tasks", "active tasks"],
  ["open_streams", "open streams"],
  ["open_connections", "connections"],
];

function Figures({ samples }: { samples: Sample[] }): ComponentChild {
  const last = samples.at(-1);
  if (!last) return null;
  const rates = samples.slice(1).map((sample, index) => {
    const before = samples[index]!;
    return ((sample.values["total_requests"] ?? 0) - (before.values["total_requests"] ?? 0)) / Math.max(0.1, (sample.at - before.at) / 1000);
  });
  const rest = Object.entries(last.values).filter(([name, value]) => typeof value === "number" && !TILES.some(([known]) => known === name));
  return (
    <>
      <div class="tiles">
        {TILES.filter(([name]) => name in last.values).map(([name, title]) => (
          <Tile name={title} value={String(last.values[name])} points={samples.map((sample) => sample.values[name] ?? 0)} />
        ))}
        <Tile name="requests per second" value={(rates.at(-1) ?? 0).toFixed(1)} points={rates} />
      </div>
      <dl class="record">
        {rest.map(([name, value]) => (
          <div>
            <dt>{name.replaceAll("_", " ")}</dt>
            <dd class="v-number">{value.toLocaleString("en", { maximumFractionDigits: 3 })}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}
